"""What a run fell back from comes first: its regression with what undoes it, or the run that still fitted."""

from typing import Any

from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage.database import transaction
from tests.runs.uploading import upload
from tests.suggestions.advised import PROFILED, make_advised
from tests.suggestions.test_decision_examples import OUT_OF_MEMORY
from tests.training_logs import training_log
from workers.tasks import process_run

JOB = {
    "project": "fit",
    "model": "Qwen3-30B-A3B",
    "gpu": "H100",
    "gpus": 16,
    "tp": 1,
    "pp": 1,
    "ep": 16,
    "ep_overlap": False,
}


def suggestions(client: TestClient, run: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(f"/api/v1/runs/{run}/suggestions").json()["suggestions"]
    return rows


def test_a_regression_comes_before_tuning_and_names_what_undoes_it(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0)
        run = make_advised(session, purpose="experiment", metadata_stated=PROFILED)
    first = suggestions(client, run)[0]
    assert (first["rule"], first["place"]["group"]) == ("val-regression-cause", "regression")
    assert "ep_overlap false" not in first["changes"]["text"]
    assert first["changes"]["fields"] == [{"name": "ep_overlap", "before": "false", "after": "true"}]
    assert first["changes"]["megatron_lm"]["add"] == "--overlap-moe-expert-parallel-comm"
    assert "Undo what made the run slower" in client.get(f"/runs/{run}/next/val-regression-cause").text


def test_a_run_without_a_regression_has_no_such_step(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
    assert "val-regression-cause" not in [row["rule"] for row in suggestions(client, run)]


def test_after_running_out_of_memory_the_way_back_comes_first_and_nothing_is_tuned(client: TestClient) -> None:
    fitted = int(upload(client, training_log(20), meta={**JOB, "mbs": 1}).json()["id"])
    process_run(fitted)
    log = training_log(8) + OUT_OF_MEMORY.encode()
    run = int(upload(client, log, meta={**JOB, "mbs": 2, "exposed_comm_frac": 0.3}).json()["id"])
    process_run(run)
    rows = suggestions(client, run)
    assert rows[0]["rule"] == "fit-go-back"
    assert rows[0]["changes"]["fields"] == [{"name": "mbs", "before": "2", "after": "1"}]
    assert [other["rule"] for other in rows[0]["also"]] == ["fit-lower-mbs"]  # it sets the same
    assert "eo-enable" not in [row["rule"] for row in rows]
    client.patch(f"/api/v1/runs/{run}/facts", json={"facts": {"health_dismissed": True}, "author": "Ada"})
    assert "eo-enable" in [row["rule"] for row in suggestions(client, run)]

"""An experiment as a client meets it: a run, a plan, the uploads that the plan writes, the A/B; on both databases."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.settings import Settings
from app.storage.database import make_engine, read_session
from app.storage.experiments import ExperimentFilter, find_experiments
from app.storage.suspect_evidence import matched_abs
from tests.experiments.planned import add_runs, make_baseline, make_history, plan, read
from tests.regressions.judging import judge_all
from tests.runs.uploading import upload
from tests.training_logs import training_log
from workers import tasks

META = {
    "project": "door", "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "commit": "c0ffee", "purpose": "experiment",
    "container": "train:26.06", "ep_overlap": False,
}  # fmt: skip


def processed(client: TestClient, step_time_ms: float, meta: dict[str, Any]) -> int:
    answer = upload(client, training_log(step_time_ms=step_time_ms), meta=meta)
    assert answer.status_code == 202, answer.text
    run_id: int = answer.json()["id"]
    tasks.process_run(run_id)
    return run_id


def test_the_uploads_that_a_plan_writes_are_its_ab(client: TestClient, engine: Engine, settings: Settings) -> None:
    run = processed(client, 400.0, META)
    sent = {"run": run, "knobs": {"ep_overlap": True}, "runs_each": 2, "author": "mara"}
    planned = client.post("/api/v1/experiments", json=sent)
    assert planned.status_code == 201, planned.text
    metas = {one["side"]: one["meta"] for one in planned.json()["plan"]["uploads"]}
    address = f"/api/v1/experiments/{planned.json()['id']}"
    runs = [processed(client, 300.0, metas["candidate"]), processed(client, 301.0, metas["candidate"])]
    early = client.get(address).json()
    assert (early["state"], early["result"]["early"]) == ("done", True)
    runs.append(processed(client, 401.0, metas["baseline"]))
    found = client.get(address).json()
    assert [one["why_not"] for one in found["runs"]] == [""] * 4
    assert [one["run_id"] for one in found["runs"]] == [run, *runs]
    assert (found["state"], found["result"]["winner"], found["result"]["early"]) == ("done", "candidate", False)
    assert found["result"]["gain"]["pct"] == pytest.approx(33.3, abs=0.5)
    assert found["result"]["attributed_to"] == "ep_overlap"
    quarantine = {"author": "kai", "note": "a bad node"}
    assert client.post(f"/api/v1/runs/{runs[0]}/quarantine", json=quarantine).status_code == 200
    judge_all(engine, settings)
    after = client.get(address).json()
    assert after["result"]["candidate"] == [runs[1]]
    assert "quarantined: a bad node" in next(one["why_not"] for one in after["runs"] if one["run_id"] == runs[0])


def test_a_configuration_that_cannot_start_is_planned_with_the_rule_that_says_so(client: TestClient) -> None:
    run = processed(client, 400.0, META | {"num_experts": 128, "ep": 8, "tp": 1, "pp": 1, "cp": 1, "etp": 1})
    sent = {"run": run, "knobs": {"ep": 3}, "runs_each": 1, "author": "mara"}
    planned = client.post("/api/v1/experiments", json=sent)
    assert planned.status_code == 201, planned.text
    said = " ".join(planned.json()["plan"]["warnings"])
    assert "scale-expert-divisible" in said
    assert "scale-world-identity" in said


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Engine]:
    if request.param == "postgresql":
        settings = settings.model_copy(update={"database_url": request.getfixturevalue("postgres_url")})
    engine = make_engine(settings)
    yield engine
    engine.dispose()


def test_both_databases_plan_join_and_measure(either: Engine) -> None:
    make_history(either)
    experiment = plan(either, make_baseline(either), runs_each=2)
    tag = read(either, experiment).tag
    runs = add_runs(either, tag, [25_000.0, 25_050.0])
    add_runs(either, tag, [31_280.0], side="baseline")
    assert (read(either, experiment).state, read(either, experiment).winner_run_id) == ("done", runs[-1])
    with read_session(either) as session:
        (result,) = matched_abs(session, ["ep_overlap"])
        assert find_experiments(session, ExperimentFilter(run_id=runs[0])).total == 1
    assert (result.experiment_id, result.run_id) == (experiment, runs[-1])

"""What an experiment showed is what was measured here: once, and before what is published."""

from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage.database import read_session
from app.storage.suspect_evidence import matched_abs
from tests.experiments.planned import add_runs, make_baseline, make_history, plan, read
from tests.experiments.test_api import API


def evidence(client: TestClient, run: int) -> list[dict[str, Any]]:
    told = client.get(f"/api/v1/runs/{run}/suggestions").json()
    (overlap,) = (one for one in told["suggestions"] if one["rule"] == "eo-enable")
    return [one for one in overlap["evidence"] if one["measured_here"]]


@pytest.fixture
def waiting(engine: Engine) -> int:
    """A run a side short of its plan."""
    make_history(engine)
    experiment = plan(engine, make_baseline(engine), runs_each=3)
    tag = read(engine, experiment).tag
    add_runs(engine, tag, [30_900.0, 25_050.0, 25_000.0])
    add_runs(engine, tag, [31_280.0], side="baseline")
    return experiment


def test_a_finished_experiment_is_one_result_and_its_runs_are_no_others(
    client: TestClient, engine: Engine, waiting: int
) -> None:
    found = read(engine, waiting)
    with read_session(engine) as session:
        (verdict,) = matched_abs(session, ["ep_overlap"])
    assert verdict.experiment_id is None
    add_runs(engine, found.tag, [31_290.0], side="baseline")
    with read_session(engine) as session:
        (result,) = matched_abs(session, ["ep_overlap"])
        assert matched_abs(session, ["dispatcher"]) == []
    assert (result.experiment_id, result.from_value, result.to_value) == (waiting, "false", "true")
    time = read(engine, waiting).result.verdict
    assert time is not None
    assert time.step_time is not None
    assert result.delta_pct == pytest.approx(time.step_time.delta_pct)
    (told,) = evidence(client, found.baseline_run_id)
    assert (told["level"], told["measured_here"]["n"], told["measured_here"]["runs"]) == (2, 1, [result.run_id])
    assert told["measured_here"]["experiments"] == [waiting]
    for path in (f"/runs/{found.baseline_run_id}/next/eo-enable", "/playbook/eo-enable"):
        page = client.get(path).text
        assert f'<a href="/experiments/{waiting}">experiment #{waiting}</a>; verdicts of its own runs' in page


def test_an_experiment_that_is_withdrawn_leaves_the_verdicts_of_its_runs(
    client: TestClient, engine: Engine, waiting: int
) -> None:
    add_runs(engine, read(engine, waiting).tag, [31_290.0], side="baseline")
    client.patch(f"{API}/{waiting}", json={"author": "kai", "state": "withdrawn"})
    with read_session(engine) as session:
        assert [one.experiment_id for one in matched_abs(session, ["ep_overlap"])] == [None]

"""The worker that judges a run stores which rules fire, and replaces this when the run or the rules change."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.pipeline.suggest import evaluate_next_runs, evaluate_rules
from app.pipeline.work import run_queue
from app.settings import Settings
from app.storage import rules
from app.storage.database import read_session, transaction
from app.storage.rules import rules_in_force
from app.storage.tables import RuleFiringRow, RunRow, utc_now
from tests.builders import make_run
from tests.domain.rules.builders import SOURCES
from tests.runs.uploading import LOG, upload
from tests.suggestions.advised import PROFILED, make_advised
from workers.tasks import process_run, sweep

TP_IS_ONE = """
- id: ours-first
  phase: scale
  wall: none
  kind: warning
  title: Tensor parallelism is off
  when: tp == 1
  why: "TP is {tp}."
  change: {text: Nothing.}
  verify: Look.
  sources: [wiki]
  valid: "2026-08"
  confidence: low
  examples: {fires: {tp: 1}, silent: {tp: 2}}
"""


def fired(engine: Engine, run_id: int) -> Sequence[str]:
    with read_session(engine) as session:
        return session.exec(select(RuleFiringRow.rule_id).where(RuleFiringRow.run_id == run_id)).all()


def suggested(client: TestClient, run_id: int) -> set[str]:
    body = client.get(f"/api/v1/runs/{run_id}/suggestions").json()
    return {item["rule"] for kind in ("suggestions", "withheld", "warnings") for item in body[kind]}


def test_a_worker_stores_firings_once_even_if_enqueued_repeatedly(client: TestClient, engine: Engine) -> None:
    run_id = upload(client, LOG).json()["id"]
    process_run(run_id)
    process_run(run_id)
    assert set(fired(engine, run_id)) == suggested(client, run_id) != set()
    assert len(fired(engine, run_id)) == len(set(fired(engine, run_id)))


def test_rules_are_evaluated_again_when_a_run_is_reread(client: TestClient, engine: Engine, settings: Settings) -> None:
    run_id = upload(client, LOG, meta={"tp": 1}).json()["id"]
    process_run(run_id)
    with transaction(engine) as session:
        run_queue.request(session, col(RunRow.id) == run_id)
        run = session.get_one(RunRow, run_id)
        run.result.metadata_stated = {**run.result.metadata_stated, "exposed_comm_frac": 0.3}
        version = run.rules_asked
    assert version == rules_in_force(settings).version
    process_run(run_id)
    assert "profile-comm" in fired(engine, run_id)


def test_failed_runs_count_and_waiting_runs_are_not_evaluated(engine: Engine, settings: Settings) -> None:
    with transaction(engine) as session:
        failed = make_run(session, status="failed")
        waiting = make_run(session, status="processing")
    assert evaluate_next_runs(engine, settings) == 1
    assert fired(engine, failed)
    assert not fired(engine, waiting)
    evaluate_rules(engine, settings, waiting)
    evaluate_rules(engine, settings, 999)


def test_the_sweep_enqueues_the_work_of_a_killed_worker(engine: Engine) -> None:
    with transaction(engine) as session:
        run_id = make_advised(session)
    sweep()
    assert fired(engine, run_id)


def test_changed_rules_or_thresholds_evaluate_all_runs_again(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "ours.yaml").write_text(TP_IS_ONE)
    (tmp_path / "sources.yaml").write_text(SOURCES.replace("M-arg", "wiki"))
    with transaction(engine) as session:
        run_id = make_advised(session, metadata_stated=PROFILED)
    assert (evaluate_next_runs(engine, settings), evaluate_next_runs(engine, settings)) == (1, 0)
    assert "profile-comm" in fired(engine, run_id)
    assert evaluate_next_runs(engine, Settings(t_comm=0.5)) == 1
    assert "profile-comm" not in fired(engine, run_id)
    assert evaluate_next_runs(engine, Settings(rules_dir=str(tmp_path))) == 1
    assert "ours-first" in fired(engine, run_id)


def test_a_late_answer_of_an_earlier_reading_is_dropped(engine: Engine, settings: Settings) -> None:
    with transaction(engine) as session:
        run_id = make_advised(session)
        read_at = session.get_one(RunRow, run_id).processed_at
        session.get_one(RunRow, run_id).processed_at = utc_now()
    with transaction(engine) as session:
        assert not rules.keep_firings(session, run_id, ["late"], "v", processed_at=read_at)
        assert rules.is_due(session, run_id, rules_in_force(settings).version)
    assert not fired(engine, run_id)


@pytest.mark.parametrize("is_of_all", [True, False])
def test_firings_are_counted_by_rule_and_go_with_their_run(engine: Engine, settings: Settings, is_of_all: bool) -> None:
    """A count that took long is reused (`WhileSlow`), so each question is asked once: of all projects or of one."""
    with transaction(engine) as session:
        runs = [make_advised(session, metadata_stated=PROFILED, ms=ms) for ms in (30_000.0, 31_000.0)]
    evaluate_next_runs(engine, settings)
    with transaction(engine) as session:
        project = session.get_one(RunRow, runs[0]).project_id
        first, second = (None, project) if is_of_all else (project, None)
        assert rules.fired_counts(session, first)["profile-comm"] == 2
        assert [item.run_id for item in rules.last_fired(session, "profile-comm", 5, first)] == runs[::-1]
        session.delete(session.get_one(RunRow, runs[0]))
    with read_session(engine) as session:
        assert rules.fired_counts(session, second)["profile-comm"] == 1

"""Figures of earlier definitions: recomputed in batches without reading logs, and the handling of failures."""

from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS, VERDICT_VERSION, changes
from app.errors import Unavailable
from app.pipeline import process
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.readings import outdated_projects, progress
from app.storage.tables import ReadingRow, RunResultRow, RunRow, VerdictRow
from tests.runs.uploading import upload
from tests.training_logs import training_log
from workers.tasks import judge_stack, process_run

FIGURES = ("status", "metrics", "steady_state", "contract", "health", "stack_key", "config_key", "warnings", "failures")


def processed(client: TestClient, *step_times_ms: float, **meta: Any) -> list[int]:
    ids = []
    for step_time_ms in step_times_ms:
        log = training_log(step_time_ms=step_time_ms)
        ids.append(int(upload(client, log, meta={"gpu": "H100"} | meta).json()["id"]))
        process_run(ids[-1])
    return ids


def outdate(engine: Engine, *ids: int, **columns: Any) -> None:
    """As if an earlier Threewalls had computed them."""
    older = DEFINITIONS | {"flops": DEFINITIONS["flops"] - 1}
    values = {"definition_version": DEFINITION_VERSION - 1, "step_time_ms": 1.0}
    with transaction(engine) as session:
        session.execute(update(RunRow).where(col(RunRow.id).in_(ids)).values(**(values | columns)))
        of_them = update(RunResultRow).where(col(RunResultRow.run_id).in_(ids))
        session.execute(of_them.values(definitions=older, metrics={}))
        for verdict in session.execute(select(VerdictRow).where(col(VerdictRow.run_id).in_(ids))).scalars():
            verdict.definition_version = DEFINITION_VERSION - 1
            verdict.document = verdict.document | {"definition_version": DEFINITION_VERSION - 1}


def ask(engine: Engine, settings: Settings) -> list[int]:
    with transaction(engine) as session:
        return process.request_next_runs(session)


def row(engine: Engine, run_id: int) -> RunRow:
    with read_session(engine) as session:
        return session.get_one(RunRow, run_id)


def counts(engine: Engine) -> tuple[int, int, int]:
    with read_session(engine) as session:
        result = progress(session)
    return result.current, result.waiting, result.failed


def test_figures_are_computed_again_without_reading_the_log(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = processed(client, 412.0)
    before = client.get(f"/api/v1/runs/{run_id}").json()
    outdate(engine, run_id)
    assert counts(engine) == (0, 1, 0)
    monkeypatch.setattr(process, "parse_log", None)
    assert ask(engine, settings) == [run_id]
    process_run(run_id)
    after = client.get(f"/api/v1/runs/{run_id}").json()
    assert {name: after[name] for name in FIGURES} == {name: before[name] for name in FIGURES}
    assert (counts(engine), ask(engine, settings)) == ((1, 0, 0), [])


def test_readings_of_another_reader_version_are_read_again(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    (run_id,) = processed(client, 412.0)
    with transaction(engine) as session:
        session.execute(update(ReadingRow).values(version=0))
    outdate(engine, run_id)
    ask(engine, settings)
    process_run(run_id)
    with read_session(engine) as session:
        assert session.execute(select(ReadingRow.version)).scalar_one() == DEFINITIONS["reading"]
    assert counts(engine) == (1, 0, 0)


def test_a_correction_needs_no_log_either(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_id,) = processed(client, 412.0)
    client.patch(f"/api/v1/runs/{run_id}/contract", json={"fields": {"cluster": "west"}, "author": "Ada"})
    monkeypatch.setattr(process, "parse_log", None)
    process_run(run_id)
    assert client.get(f"/api/v1/runs/{run_id}").json()["contract"]["cluster"]["value"] == "west"


def test_the_project_of_the_newest_run_is_ended_first(client: TestClient, engine: Engine, settings: Settings) -> None:
    east, west = [], []
    for number in range(12):
        east += processed(client, 300.0 + number, project="east")
        west += processed(client, 400.0 + number, project="west")
    outdate(engine, *east, *west)
    first = ask(engine, settings)
    assert len(first) == process.BATCH_RUNS
    assert first == [*reversed(west), *list(reversed(east))[:4]]
    assert ask(engine, settings) == list(reversed(east))[4:]  # the earlier ones already wait
    assert ask(engine, settings) == []


def test_a_batch_contains_few_long_logs(client: TestClient, engine: Engine, settings: Settings) -> None:
    ids = processed(client, 300.0, 301.0, 302.0)
    outdate(engine, *ids, read_seconds=process.BATCH_SECONDS * 0.6)
    assert len(ask(engine, settings)) == 1


def test_a_run_that_cannot_be_recomputed_keeps_its_figures_and_does_not_block_others(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = processed(client, 412.0)
    outdate(engine, run_id)

    def fail(*_: object) -> None:
        raise KeyError("a new rule")

    monkeypatch.setattr(process, "summarise", fail)
    ask(engine, settings)
    for _ in range(settings.max_attempts):
        process_run(run_id)
    run = row(engine, run_id)
    assert (run.status, run.error, run.step_time_ms) == ("ready", None, 1.0)
    assert "Unexpected error (id " in (run.recompute_error or "")
    warning = client.get(f"/api/v1/runs/{run_id}").json()["warnings"][0]
    step = f"flops {DEFINITIONS['flops'] - 1} → {DEFINITIONS['flops']}"
    assert warning.startswith(f"Its figures use earlier definitions ({step}) and are in no baseline")
    assert run.definition_version == DEFINITION_VERSION - 1
    assert counts(engine) == (0, 0, 1)
    assert ask(engine, settings) == []
    with read_session(engine) as session:
        assert run.project_id not in session.execute(outdated_projects()).scalars().all()


def test_a_run_whose_files_are_lost_is_given_up_and_can_be_tried_again(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = processed(client, 412.0)
    with transaction(engine) as session:
        session.execute(update(ReadingRow).values(version=0))
    outdate(engine, run_id)

    def lost(*_: object) -> None:
        raise Unavailable("The artifact store did not answer (NotFoundError).")

    with monkeypatch.context() as patched:
        patched.setattr(LogFiles, "stream", lost)
        ask(engine, settings)
        for _ in range(settings.max_attempts):
            process_run(run_id)
    assert counts(engine) == (0, 0, 1)
    listed = client.get("/api/v1/definitions").json()["failed_runs"]
    assert [item["run_id"] for item in listed] == [run_id]
    assert "could not be read" in listed[0]["reason"]
    assert client.post("/api/v1/definitions/retry").json()["runs"]["waiting"] == 1
    ask(engine, settings)
    process_run(run_id)
    assert counts(engine) == (1, 0, 0)


def test_an_unreachable_store_is_waited_for(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = processed(client, 412.0)
    with transaction(engine) as session:
        session.execute(update(ReadingRow).values(version=0))
    outdate(engine, run_id)

    def away(*_: object) -> None:
        raise Unavailable("The artifact store did not answer.")

    monkeypatch.setattr(LogFiles, "stream", away)
    monkeypatch.setattr(LogFiles, "check", away)
    ask(engine, settings)
    for _ in range(settings.max_attempts + 2):
        process_run(run_id)
    assert counts(engine) == (0, 1, 0)


def test_a_stack_is_not_judged_while_its_project_is_computed_again(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    (run_id,) = processed(client, 412.0, project="waits")
    (other,) = processed(client, 500.0, project="does not")
    outdate(engine, run_id)
    with transaction(engine) as session:
        works = {
            item: stack_queue.request(session, result.project_id, result.stack_key)
            for item in (run_id, other)
            if (result := session.get_one(RunRow, item))
        }
    with transaction(engine) as session:
        assert stack_queue.due(session, settings, limit=9) == [works[other]]
        assert stack_queue.claim(session, works[run_id], settings) is None
        assert stack_queue.claim(session, works[other], settings) is not None
    ask(engine, settings)
    process_run(run_id)
    with read_session(engine) as session:
        current = select(VerdictRow).where(col(VerdictRow.run_id) == run_id, col(VerdictRow.current))
        verdict = session.execute(current).scalar_one()
    assert verdict.definition_version == DEFINITION_VERSION
    assert verdict.because == f"The definitions changed (flops {DEFINITIONS['flops'] - 1} → {DEFINITIONS['flops']})."


def test_new_rules_of_verdicts_judge_again_without_computing(client: TestClient, engine: Engine) -> None:
    (run_id,) = processed(client, 412.0)
    with transaction(engine) as session:
        session.execute(update(VerdictRow).values(verdict_version=VERDICT_VERSION - 1))
    assert client.get("/api/v1/definitions").json()["verdicts"] == {"total": 1, "waiting": 1}
    with transaction(engine) as session:
        work_ids = process.request_next_stacks(session)
    assert len(work_ids) == 1
    with transaction(engine) as session:
        assert process.request_next_stacks(session) == []
    judge_stack(work_ids[0])
    with read_session(engine) as session:
        verdicts = session.execute(select(VerdictRow).order_by(col(VerdictRow.id))).scalars().all()
    assert [(verdict.run_id, verdict.current, verdict.verdict_version) for verdict in verdicts] == [
        (run_id, False, VERDICT_VERSION - 1),
        (run_id, True, VERDICT_VERSION),
    ]
    assert verdicts[-1].because.startswith("The rules of verdicts changed (version ")
    assert client.get("/api/v1/definitions").json()["verdicts"] == {"total": 1, "waiting": 0}


def test_changed_rules_are_reported() -> None:
    assert changes({"flops": 1, "keys": 3}, {"flops": 2, "keys": 3}) == "flops 1 → 2"
    assert changes({"flops": 1}, {"flops": 2, "reading": 1}) == "flops 1 → 2, reading is new"
    assert changes({}, DEFINITIONS) == "an earlier version"
    assert changes(DEFINITIONS, DEFINITIONS) == ""

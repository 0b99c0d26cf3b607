"""Tasks as functions: what they leave behind, also when they run twice or fail."""

from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import col, delete, select
from starlette.testclient import TestClient

from app import queue
from app.domain import logs
from app.runs import compute
from app.settings import Settings
from app.storage import run_work
from app.storage.database import read_session, transaction
from app.storage.tables import RunRow, SeriesRow
from tests.runs.uploading import LOG, upload
from workers.tasks import process_run, sweep


def uploaded(client: TestClient, *logs: bytes) -> int:
    run_id: int = upload(client, *(logs or (LOG,))).json()["id"]
    return run_id


def run_of(engine: Engine, run_id: int) -> RunRow:
    with read_session(engine) as session:
        return session.get_one(RunRow, run_id)


def messages(settings: Settings) -> list[Path]:
    return list((settings.data_dir / "queue" / "messages").iterdir())


def test_importing_the_queue_creates_no_folder(settings: Settings) -> None:
    assert queue.PROCESS_RUN
    assert not (settings.data_dir / "queue").exists()


def test_a_run_is_processed_once_however_often_it_is_rung_for(client: TestClient, engine: Engine) -> None:
    run_id = uploaded(client)
    process_run(run_id)
    first = run_of(engine, run_id)
    process_run(run_id)
    assert run_of(engine, run_id) == first
    assert (first.status, first.attempts) == ("ready", 1)
    assert first.processed_at is not None


def test_processing_again_replaces_the_series(client: TestClient, engine: Engine) -> None:
    run_id = uploaded(client)
    process_run(run_id)
    with transaction(engine) as session:
        run_work.ask_to_read(session, col(RunRow.id) == run_id)
    process_run(run_id)
    with read_session(engine) as session:
        series = session.exec(select(SeriesRow.metric).where(SeriesRow.run_id == run_id)).all()
    assert len(series) == len(set(series))
    assert {"iteration", "step_time_ms", "log_line"} <= set(series)


def test_a_log_without_iterations_fails_with_the_lines_that_were_seen(client: TestClient, engine: Engine) -> None:
    known = b"[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | "
    known += b"max reserved: 4.0\n"
    run_id = uploaded(client, b"first words\n" + known + b"hello\n" * 50 + b"last words\n")
    process_run(run_id)
    run = run_of(engine, run_id)
    assert run.status == "failed"
    assert "first words" in (run.error or "")
    assert "last words" in (run.error or "")


def test_a_store_that_is_away_costs_no_attempt(client: TestClient, engine: Engine, settings: Settings) -> None:
    run_id = uploaded(client)
    stored = next(path for path in (settings.data_dir / "artifacts").rglob("*.zst"))
    away = stored.rename(stored.with_suffix(".away"))
    process_run(run_id)
    run = run_of(engine, run_id)
    assert (run.status, run.attempts) == ("received", 0)
    away.rename(stored)
    process_run(run_id)
    assert run_of(engine, run_id).status == "ready"


def test_a_defect_is_tried_again_and_then_said(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(compute, "parse_log", fail)
    run_id = uploaded(client)
    for attempt in range(1, settings.max_attempts):
        process_run(run_id)
        assert (run_of(engine, run_id).status, run_of(engine, run_id).attempts) == ("received", attempt)
    process_run(run_id)
    run = run_of(engine, run_id)
    assert run.status == "failed"
    assert "failed 3 times inside Threewalls (KeyError)" in (run.error or "")


def test_a_log_that_takes_too_long_is_given_up_at_once(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_too_long(*_: object) -> None:
        raise queue.SoftTimeLimitExceeded

    monkeypatch.setattr(compute, "parse_log", take_too_long)
    run_id = uploaded(client)
    process_run(run_id)
    run = run_of(engine, run_id)
    assert (run.status, run.attempts) == ("failed", 1)
    assert "longer than 900 s" in (run.error or "")


def test_a_claim_lost_while_working_writes_nothing(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = uploaded(client)
    really_parse = logs.parse_log

    def lose_claim_meanwhile(chunks: object) -> object:
        with transaction(engine) as session:
            session.get_one(RunRow, run_id).claims += 1
        return really_parse(chunks)  # type: ignore[arg-type]

    monkeypatch.setattr(compute, "parse_log", lose_claim_meanwhile)
    process_run(run_id)
    run = run_of(engine, run_id)
    assert (run.status, run.trainer) == ("processing", "")
    with read_session(engine) as session:
        assert session.exec(select(SeriesRow)).all() == []


def test_a_run_that_was_deleted_is_nobody_s_work(client: TestClient, engine: Engine) -> None:
    run_id = uploaded(client)
    with transaction(engine) as session:
        session.execute(delete(RunRow).where(col(RunRow.id) == run_id))
    process_run(run_id)


def test_a_sweep_rings_for_a_run_whose_bell_was_lost(client: TestClient, engine: Engine, settings: Settings) -> None:
    run_id = uploaded(client)
    for message in messages(settings):
        message.unlink()
    sweep()
    assert messages(settings) == []
    with transaction(engine) as session:
        session.get_one(RunRow, run_id).lease_until = None
    sweep()
    assert len(messages(settings)) == 1

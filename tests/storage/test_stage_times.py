"""Processor seconds of workers by stage: counted once, added up by day, shown in the API, the page and the metrics."""

import time

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from app.settings import Settings
from app.storage.database import make_engine, read_session
from app.storage.tables import StageTimeRow
from app.storage.worker_activity import StageTime, add_counts, stage_times, timed
from tests.runs.uploading import LOG, upload
from workers.tasks import process_run


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sums(engine: Engine) -> dict[str, StageTime]:
    add_counts(engine)
    with read_session(engine) as session:
        return {entry.stage: entry for entry in stage_times(session)}


def test_a_processed_run_is_counted_where_operators_look(client: TestClient, engine: Engine) -> None:
    before = sums(engine)  # including what earlier tests of this process counted
    process_run(upload(client, LOG).json()["id"])
    after = sums(engine)
    assert after["read"].calls == before["read"].calls + 1
    assert after["read"].seconds > before["read"].seconds
    assert after["deliver"] == before["deliver"]
    shown = {entry["stage"]: entry for entry in client.get("/api/v1/usage").json()["stages"]}
    assert shown["read"]["calls"] == after["read"].calls
    assert 'data-stage="read"' in client.get("/settings/usage").text
    assert f'threewalls_processing_calls_total{{stage="read"}} {after["read"].calls:.1f}' in client.get("/metrics").text


def test_a_stage_within_another_counts_for_itself(engine: Engine) -> None:
    before = sums(engine)
    with timed("judge"):
        burn(0.01)
        with timed("rank"):
            burn(0.1)
    after = sums(engine)
    took = {name: after[name].seconds - before[name].seconds for name in ("judge", "rank")}
    assert took["rank"] >= 0.1
    assert 0.01 <= took["judge"] < took["rank"]


def test_counts_that_could_not_be_written_are_written_later(engine: Engine) -> None:
    add_counts(engine)
    with timed("delete"):
        pass
    StageTimeRow.__table__.drop(engine)
    with pytest.raises(OperationalError):
        add_counts(engine)
    StageTimeRow.__table__.create(engine)
    assert sums(engine)["delete"].calls == 1


def test_postgresql_adds_up_as_well(postgres_url: str, settings: Settings) -> None:
    engine = make_engine(settings.model_copy(update={"database_url": postgres_url}))
    before = sums(engine)["deliver"].calls
    for expected in (1, 2):
        with timed("deliver"):
            pass
        assert sums(engine)["deliver"].calls == before + expected
    engine.dispose()

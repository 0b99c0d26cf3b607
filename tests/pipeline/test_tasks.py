"""Tasks as functions: results when repeated or failed; temporary folders; statements per run."""

import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery.schedules import maybe_schedule
from sqlalchemy import Connection, Engine, event, update
from sqlalchemy.exc import OperationalError
from sqlmodel import col, delete, select
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from app import queue
from app.domain import logs
from app.pipeline import process
from app.pipeline.judge import judge_stack
from app.pipeline.work import run_queue, stack_queue
from app.queue import SweepScheduler
from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import EVERYTHING, HeartbeatRow, RunRow, SeriesRow, StackWorkRow, StageTimeRow, utc_now
from app.storage.worker_activity import StageTime, add_counts, silent_since, stage_times, timed
from bench.seed import Seeded, fill
from tests.embedded.processes import wait_for
from tests.runs.uploading import LOG, upload
from tests.training_logs import training_log
from workers import tasks
from workers.process import Heartbeat
from workers.tasks import process_next, process_run, sweep


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


def test_a_run_is_processed_once_even_if_enqueued_repeatedly(client: TestClient, engine: Engine) -> None:
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
        run_queue.request(session, col(RunRow.id) == run_id)
    process_run(run_id)
    with read_session(engine) as session:
        series = session.exec(select(SeriesRow.metric).where(SeriesRow.run_id == run_id)).all()
    assert len(series) == len(set(series))
    assert {"iteration", "step_time_ms", "log_line"} <= set(series)


def test_a_log_without_iterations_fails_with_the_lines_that_were_seen(client: TestClient, engine: Engine) -> None:
    memory_line = b"[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | "
    memory_line += b"max reserved: 4.0\n"
    run_id = uploaded(client, b"first words\n" + memory_line + b"hello\n" * 50 + b"last words\n")
    process_run(run_id)
    run = run_of(engine, run_id)
    assert run.status == "failed"
    assert "first words" in (run.error or "")
    assert "last words" in (run.error or "")


def test_an_unreachable_store_does_not_count_as_an_attempt(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    process_run(uploaded(client, training_log(step_time_ms=20)))
    run_id = uploaded(client)
    store = settings.data_dir / "artifacts"
    away = store.rename(settings.data_dir / "away")
    process_run(run_id)
    run = run_of(engine, run_id)
    assert (run.status, run.attempts) == ("received", 0)
    shutil.rmtree(store, ignore_errors=True)
    away.rename(store)
    process_run(run_id)
    assert run_of(engine, run_id).status == "ready"


def test_an_unexpected_error_is_retried_and_then_reported_with_its_id(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(process, "parse_log", fail)
    run_id = uploaded(client)
    for attempt in range(1, settings.max_attempts):
        process_run(run_id)
        assert (run_of(engine, run_id).status, run_of(engine, run_id).attempts) == ("received", attempt)
    with capture_logs() as logs:
        process_run(run_id)
    run = run_of(engine, run_id)
    assert run.status == "failed"
    (error_id,) = (line["error_id"] for line in logs if line["event"] == "run_not_processed")
    assert f"Unexpected error (id {error_id})" in (run.error or "")
    assert 'threewalls_given_up{kind="run"} 1.0' in client.get("/metrics").text


def test_an_unreachable_database_does_not_count_as_an_attempt(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, psycopg.OperationalError("the server closed the connection"))

    run_id = uploaded(client)
    with monkeypatch.context() as broken:
        broken.setattr(process, "read_inputs", fail)
        for _ in range(settings.max_attempts + 1):
            process_run(run_id)
            assert (run_of(engine, run_id).status, run_of(engine, run_id).attempts) == ("received", 0)
    process_run(run_id)
    assert run_of(engine, run_id).status == "ready"


def test_a_log_that_takes_too_long_is_given_up_immediately(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_too_long(*_: object) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(process, "parse_log", take_too_long)
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

    def lose_claim_meanwhile(*sent: object, **options: object) -> object:
        with transaction(engine) as session:
            session.get_one(RunRow, run_id).claims += 1
        return really_parse(*sent, **options)

    monkeypatch.setattr(process, "parse_log", lose_claim_meanwhile)
    process_run(run_id)
    run = run_of(engine, run_id)
    assert (run.status, run.trainer) == ("processing", "")
    with read_session(engine) as session:
        assert session.exec(select(SeriesRow)).all() == []


def test_a_deleted_run_is_not_processed(client: TestClient, engine: Engine) -> None:
    run_id = uploaded(client)
    with transaction(engine) as session:
        session.execute(delete(RunRow).where(col(RunRow.id) == run_id))
    process_run(run_id)


def test_the_run_of_a_worker_that_died_is_processed_before_the_backlog(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TURN_SECONDS", 0)
    waiting, interrupted = uploaded(client, LOG), uploaded(client, training_log(step_time_ms=20))
    with transaction(engine) as session:
        run_queue.claim(session, interrupted, settings)
        session.get_one(RunRow, interrupted).lease_until = utc_now() - timedelta(seconds=1)
    process_next(waiting)
    assert [run_of(engine, run_id).status for run_id in (waiting, interrupted)] == ["received", "ready"]
    process_next(waiting)
    assert run_of(engine, waiting).status == "ready"


def test_one_message_has_all_short_runs_processed_that_wait(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TURN_SECONDS", 600)
    runs = [uploaded(client, training_log(step_time_ms=20 + number)) for number in range(3)]
    process_next(runs[0])
    assert [run_of(engine, run_id).status for run_id in runs] == ["ready"] * 3


def test_sweeps_leave_one_message_for_each_run_that_waits(client: TestClient, settings: Settings) -> None:
    for number in range(3):
        uploaded(client, training_log(step_time_ms=20 + number))
    for _ in range(3):
        sweep()
    assert len(messages(settings)) == 3
    messages(settings)[0].unlink()
    sweep()
    assert len(messages(settings)) == 3


def test_one_sweep_waits_even_if_requested_repeatedly(settings: Settings) -> None:
    scheduler = SweepScheduler(app=queue.get_celery(), lazy=True)
    entry = scheduler.Entry(name="sweep", task=queue.SWEEP, schedule=maybe_schedule(1.0), app=queue.get_celery())
    for _ in range(3):
        queue.enqueue(queue.SWEEP)
        scheduler.apply_entry(entry)
    assert len(messages(settings)) == queue.waiting(queue.SWEEPS) == 1
    assert queue.waiting() == 0


def test_a_lease_of_a_stack_from_before_the_clock_was_set_back_is_over(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    process_run(uploaded(client))
    with transaction(engine) as session:
        row = session.exec(select(StackWorkRow)).one()
        row.work, row.lease_until = "claimed", utc_now() + timedelta(days=30)
    with transaction(engine) as session:
        assert list(stack_queue.due(session, settings, limit=9)) == [row.id]
        assert stack_queue.claim(session, row.id or 0, settings) is not None


def test_a_task_notes_that_a_worker_is_at_work(engine: Engine, settings: Settings) -> None:
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).values(seen_at=utc_now() - timedelta(days=1)))
    heartbeat = Heartbeat(lambda: engine)
    heartbeat._begin()
    wait_for(lambda: not silent(engine, settings), "the heartbeat")
    heartbeat._end()


def silent(engine: Engine, settings: Settings) -> datetime | None:
    with read_session(engine) as session:
        return silent_since(session, settings)


USE = "import sys, tempfile; from pathlib import Path; from workers.process import use_own_folder as use; "
MAKE = "use(Path(sys.argv[1])); print(tempfile.mkdtemp(prefix='pymp-'), flush=True); sys.stdin.read()"


def start(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that uses `parent` until it is killed, and the temporary folder that it made."""
    command = [sys.executable, "-c", USE + MAKE, parent]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_worker_leaves_nothing_that_the_next_does_not_remove(tmp_path: Path) -> None:
    workers = []
    try:
        workers = [start(tmp_path / "temporary") for _ in range(2)]
        (dead, its_folder), (_, of_the_living) = workers
        assert its_folder.is_dir()
        dead.kill()
        dead.wait()
        workers.append(start(tmp_path / "temporary"))
        assert (its_folder.parent.exists(), of_the_living.is_dir(), workers[-1][1].is_dir()) == (False, True, True)
    finally:
        for process, _ in workers:
            process.kill()
            process.communicate()


MOST_STATEMENTS, MOST_COMMITS = 35, 4
"""Commits of transactions that write."""
META = {"project": "moe", "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "branch": "main", "purpose": "ci"}


def test_a_run_costs_a_bounded_number_of_statements_and_commits(settings: Settings, client: TestClient) -> None:
    counts = {"before_cursor_execute": 0, "commit": 0}

    def count_statement(*_: object) -> None:
        counts["before_cursor_execute"] += 1

    def count_commit(connection: Connection) -> None:
        counts["commit"] += connection.get_execution_options().get("writes", False)

    listeners = {"before_cursor_execute": count_statement, "commit": count_commit}
    for number in range(4):
        if number == 3:  # the first ones have no baseline
            for name, listener in listeners.items():
                event.listen(Engine, name, listener)
        run_id = upload(client, training_log(60 + number), meta=META | {"commit": f"c{number}"}).json()["id"]
        assert tasks.process_run(run_id) == "ready"
    for name, listener in listeners.items():
        event.remove(Engine, name, listener)
    assert counts["before_cursor_execute"] <= MOST_STATEMENTS
    assert counts["commit"] <= MOST_COMMITS


# --- Processor seconds of workers by stage: counted once, added up by day, shown in the API, the page and the
# metrics.


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


# --- Databases filled by the benches: pages, lists and the worker treat the copied rows as processed runs.

RUNS, TEMPLATES = 400, 12


@pytest.fixture
def seeded(engine: Engine, settings: Settings) -> Seeded:
    return fill(engine, settings, RUNS, stacks=12)


def test_a_seeded_database_has_pages(seeded: Seeded, client: TestClient) -> None:
    key = seeded.stacks[0][1]
    assert client.get("/api/v1/runs").json()["total"] == RUNS + TEMPLATES
    newest = client.get("/api/v1/runs").json()["items"][0]["id"]
    paths = (
        "/",
        "/runs",
        f"/runs/{newest}",
        "/regressions",
        "/leaderboards",
        "/history",
        f"/history/{key}",
        "/upgrade",
    )
    assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)
    assert len(client.get(f"/api/v1/runs/{newest}/series").json()["columns"]["iteration"]) > 0


def test_a_seeded_stack_can_be_judged(seeded: Seeded, engine: Engine, settings: Settings) -> None:
    project_id, key, runs = seeded.stacks[0]
    with transaction(engine) as session:
        work_id = stack_queue.request(session, project_id, key, judge_from=EVERYTHING)
    assert judge_stack(engine, settings, work_id) == runs

"""The topology of the Compose file as real processes: PostgreSQL, Redis, two workers, beat, web."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import create_engine, text

from tests.embedded.processes import wait_for
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import BEAT, BLOCKED_WORKER, WORKER, House, kill, scaled_house
from tests.training_logs import training_log

UPLOADS = 12


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str, redis_server: str) -> Iterator[House]:
    with scaled_house(tmp_path, monkeypatch, database_url=postgres_url, broker_url=redis_server) as house:
        yield house


def test_two_workers_process_every_upload_once(house: House, postgres_url: str) -> None:
    for name in ("one", "two"):
        house.start(WORKER, name)
    house.start(BEAT)
    logs = [training_log(step_time_ms=400.0 + number) for number in range(UPLOADS)]
    with ThreadPoolExecutor(4) as pool:
        run_ids = list(pool.map(house.upload, logs))
    assert len(set(run_ids)) == UPLOADS
    for run_id in run_ids:
        assert house.wait_until(run_id, "ready", "failed")["status"] == "ready"
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        attempts = connection.execute(text("SELECT attempts, count(*) FROM run GROUP BY 1")).all()
        doubled = connection.execute(text("SELECT run_id FROM series GROUP BY run_id, metric HAVING count(*) > 1"))
        assert [tuple(row) for row in attempts] == [(1, UPLOADS)]
        assert doubled.all() == []
    engine.dispose()


def test_a_log_that_grows_under_two_workers_is_whole_at_its_end(house: House, postgres_url: str) -> None:
    for name in ("one", "two"):
        house.start(WORKER, name)
    house.start(BEAT)
    log, step = training_log(iterations=200), 4000
    opened = httpx2.post(
        f"{house.web.address}/api/v1/runs?complete=false", files={"log": log[:step]}, headers=house.headers, timeout=300
    )
    run_id = int(opened.json()["id"])
    logs = f"{house.web.address}/api/v1/runs/{run_id}/logs"
    for start in range(step, len(log), step):
        # Two clients send the same piece at once: one is first, the other finds it there.
        with ThreadPoolExecutor(2) as pool:
            sent = pool.map(
                lambda _, at=start: httpx2.post(
                    f"{logs}?offset={at}", content=log[at : at + step], headers=house.headers, timeout=300
                ),
                "ab",
            )
        assert {answer.json()["offset"] for answer in sent} == {min(start + step, len(log))}
    assert httpx2.post(f"{logs}?complete=true", headers=house.headers, timeout=300).json()["receiving"] is False
    house.wait_until(run_id, "ready")
    wait_for(lambda: not house.run(run_id)["updating"], "the last reading")
    run = house.run(run_id)
    assert (run["status"], run["reception"]) == ("ready", "complete")
    assert dict(run["health"])["iterations"] == 200  # type: ignore[call-overload]
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        lengths = connection.execute(text("SELECT DISTINCT n FROM series")).scalars().all()
        assert lengths == [200]
    engine.dispose()


def test_a_worker_killed_in_the_middle_of_a_run_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str, redis_server: str
) -> None:
    with scaled_house(tmp_path, monkeypatch, database_url=postgres_url, broker_url=redis_server, kills=True) as house:
        blocked = house.start(BLOCKED_WORKER, "blocked")
        run_id = house.upload(training_log())
        house.wait_until(run_id, "processing")
        kill(blocked)
        house.start(WORKER, "healthy")
        house.start(BEAT)
        run = house.wait_until(run_id, "ready", "failed")
    assert run["status"] == "ready"
    assert run["error"] is None


def test_a_wait_answers_when_the_run_is_processed(house: House) -> None:
    house.start(WORKER, "waiter")
    answer = httpx2.post(
        f"{house.web.address}/api/v1/runs?wait=60",
        files={"log": training_log(step_time_ms=77.0)},
        headers=house.headers,
        timeout=300,
    )
    assert (answer.status_code, answer.json()["status"]) == (202, "ready")


def test_redis_down_at_upload_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str) -> None:
    port = free_port()
    broker_url = f"redis://127.0.0.1:{port}/0"
    with scaled_house(tmp_path, monkeypatch, database_url=postgres_url, broker_url=broker_url) as house:
        with running_redis(port):
            house.start(WORKER, "patient")
            house.start(BEAT)
            first = house.upload(training_log(step_time_ms=100.0))
            house.wait_until(first, "ready")
        second = house.upload(training_log(step_time_ms=200.0))
        assert house.run(second)["status"] == "received"
        ready = httpx2.get(f"{house.web.address}/readyz", timeout=300)
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        with running_redis(port):
            assert house.wait_until(second, "ready", "failed")["status"] == "ready"

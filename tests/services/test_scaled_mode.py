"""The topology of the Compose file as real processes, started once: PostgreSQL, Redis, two workers, beat, web."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import httpx2
import pytest
from sqlalchemy import create_engine, text

from tests.embedded.processes import PLAIN_HTTP, wait_for
from tests.services.postgres_server import Postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import BEAT, BLOCKED_WORKER, WORKER, House, kill, scaled_house
from tests.training_logs import training_log

UPLOADS = 12


@dataclass
class Broker:
    """A Redis for these tests only, so that one of them can stop it."""

    port: int
    running: ExitStack

    def start(self) -> None:
        self.running.enter_context(running_redis(self.port))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with ExitStack() as running:
        broker = Broker(free_port(), running)
        broker.start()
        yield broker


@pytest.fixture(scope="module")
def database_url(postgres_server: Postgres, migrated_template: str) -> str:
    return postgres_server.url(postgres_server.new_database(migrated_template))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, database_url: str, broker: Broker) -> Iterator[House]:
    broker_url = f"redis://127.0.0.1:{broker.port}/0"
    with (
        pytest.MonkeyPatch.context() as environment,
        scaled_house(
            tmp_path_factory.mktemp("scaled"), environment, database_url=database_url, broker_url=broker_url
        ) as house,
    ):
        house.started = [house.start(WORKER, name) for name in ("one", "two")]
        house.start(BEAT)
        yield house


def test_two_workers_process_every_upload_once(house: House, database_url: str) -> None:
    logs = [training_log(step_time_ms=400.0 + number) for number in range(UPLOADS)]
    with ThreadPoolExecutor(4) as pool:
        run_ids = list(pool.map(house.upload, logs))
    assert len(set(run_ids)) == UPLOADS
    for run_id in run_ids:
        assert house.wait_until(run_id, "ready", "failed")["status"] == "ready"
    engine = create_engine(database_url)
    with engine.connect() as connection:
        of_these = {"ids": run_ids}
        attempts = connection.execute(
            text("SELECT attempts, count(*) FROM run WHERE id = ANY(:ids) GROUP BY 1"), of_these
        ).all()
        doubled = connection.execute(text("SELECT run_id FROM series GROUP BY run_id, metric HAVING count(*) > 1"))
        assert [tuple(row) for row in attempts] == [(1, UPLOADS)]
        assert doubled.all() == []
    engine.dispose()


def test_a_log_that_grows_under_two_workers_is_whole_at_its_end(house: House, database_url: str) -> None:
    log, step = training_log(iterations=200), 4000
    opened = httpx2.post(
        f"{house.web.address}/api/v1/runs?complete=false",
        files={"log": log[:step]},
        headers=house.headers,
        timeout=300,
        verify=PLAIN_HTTP,
    )
    run_id = int(opened.json()["id"])
    logs = f"{house.web.address}/api/v1/runs/{run_id}/logs"
    for start in range(step, len(log), step):
        # Two clients send the same piece at the same time: one is first, the other finds it stored.
        with ThreadPoolExecutor(2) as pool:
            sent = pool.map(
                lambda _, at=start: httpx2.post(
                    f"{logs}?offset={at}",
                    content=log[at : at + step],
                    headers=house.headers,
                    timeout=300,
                    verify=PLAIN_HTTP,
                ),
                "ab",
            )
        assert {answer.json()["offset"] for answer in sent} == {min(start + step, len(log))}
    assert (
        httpx2.post(f"{logs}?complete=true", headers=house.headers, timeout=300, verify=PLAIN_HTTP).json()["receiving"]
        is False
    )
    house.wait_until(run_id, "ready")
    wait_for(lambda: not house.run(run_id)["updating"], "the last reading")
    run = house.run(run_id)
    assert (run["status"], run["reception"]) == ("ready", "complete")
    assert dict(run["health"])["iterations"] == 200
    engine = create_engine(database_url)
    with engine.connect() as connection:
        of_this = text("SELECT DISTINCT n FROM series WHERE run_id = :run_id")
        lengths = connection.execute(of_this, {"run_id": run_id}).scalars().all()
        assert lengths == [200]
    engine.dispose()


def test_a_wait_answers_when_the_run_is_processed(house: House) -> None:
    answer = httpx2.post(
        f"{house.web.address}/api/v1/runs?wait=60",
        files={"log": training_log(step_time_ms=77.0)},
        headers=house.headers,
        timeout=300,
        verify=PLAIN_HTTP,
    )
    assert (answer.status_code, answer.json()["status"]) == (202, "ready")


def test_redis_down_at_upload_loses_nothing(house: House, broker: Broker) -> None:
    first = house.upload(training_log(step_time_ms=100.0))
    house.wait_until(first, "ready")
    broker.running.close()
    second = house.upload(training_log(step_time_ms=200.0))
    assert house.run(second)["status"] == "received"
    ready = httpx2.get(f"{house.web.address}/readyz", timeout=300, verify=PLAIN_HTTP)
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    broker.start()
    assert house.wait_until(second, "ready", "failed")["status"] == "ready"


def test_a_worker_killed_in_the_middle_of_a_run_is_replaced_and_leaves_no_files(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in house.started:
        kill(worker)
    with monkeypatch.context() as environment:
        environment.setenv("THREEWALLS_LEASE_SECONDS", "2")  # of this worker only: a slow one keeps its run
        blocked = house.start(BLOCKED_WORKER, "blocked")
    run_id = house.upload(training_log(step_time_ms=300.0))
    house.wait_until(run_id, "processing")
    kill(blocked)
    house.started = [house.start(WORKER, "healthy")]
    run = house.wait_until(run_id, "ready", "failed")
    assert run["status"] == "ready"
    assert run["error"] is None
    assert len([path for path in (house.data / "temporary").iterdir() if path.is_dir()]) == 1

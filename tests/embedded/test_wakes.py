"""Wake-ups of the embedded mode: without them, these tests would wait for minutes."""

import threading
from pathlib import Path

import anyio
import pytest
from celery import Celery

from app import queue, wakes
from app.settings import Settings
from tests.embedded.processes import START_SECONDS

LONG_SECONDS = 900.0


@pytest.fixture
def celery(tmp_path: Path) -> Celery:
    return queue.make_celery(Settings(data_dir=tmp_path))


def test_a_message_wakes_the_worker(celery: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_POLL_SECONDS", LONG_SECONDS)
    messages: list[object] = []

    def take() -> None:
        with celery.connection_for_read() as connection, connection.SimpleQueue(queue.QUEUE) as incoming:
            messages.append(incoming.get(timeout=LONG_SECONDS).payload)

    with wakes.opened():
        worker = threading.Thread(target=take, daemon=True)
        worker.start()
        celery.send_task(queue.PROCESS_RUN, args=(7,), queue=queue.QUEUE)
        worker.join(START_SECONDS)
    assert len(messages) == 1


def test_a_processed_run_wakes_its_request_only() -> None:
    done: list[int] = []

    async def wait_for_run(run_id: int) -> None:
        with wakes.Waiting(run_id) as waiting:
            with anyio.fail_after(START_SECONDS):
                await waiting.wait(LONG_SECONDS)
        done.append(run_id)

    async def wait_for_both() -> None:
        async with anyio.create_task_group() as requests:
            requests.start_soon(wait_for_run, 1)
            requests.start_soon(wait_for_run, 2)
            await anyio.wait_all_tasks_blocked()
            wakes.processed(2)
            while not done:
                await anyio.sleep(0)
            assert done == [2]
            wakes.processed()

    with wakes.opened():
        anyio.run(wait_for_both)
    assert done == [2, 1]


def test_wake_ups_without_pipes_do_nothing() -> None:
    wakes.queued()
    wakes.processed(1)
    assert not wakes.exist()


def test_a_full_pipe_blocks_nothing() -> None:
    with wakes.opened():
        for run_id in range(1, 100_000):
            wakes.processed(run_id)
        wakes.queued()
        wakes.wait_for_queued(LONG_SECONDS)

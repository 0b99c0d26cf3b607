"""`threewalls serve --web-processes N`: several processes on one port, each replaced when it dies."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.embedded.processes import PLAIN_HTTP, running, wait_for
from tests.services.postgres_server import Postgres


def children(parent: int) -> set[int]:
    """Return the other web processes: children that Python spawned for the same service."""
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for task in Path(f"/proc/{parent}/task").iterdir():
        pids += (task / "children").read_text().split()
    return {int(pid) for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def are_healthy(address: str) -> Callable[[], bool]:
    return lambda: all(
        httpx2.get(f"{address}/healthz", verify=PLAIN_HTTP, timeout=60).status_code == 200 for _ in "123"
    )


@pytest.mark.server
def test_a_dead_web_process_is_replaced_and_all_end_together(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres_server: Postgres,
    migrated_template: str,
    redis_server: str,
) -> None:
    monkeypatch.setenv("THREEWALLS_DATABASE_URL", postgres_server.url(postgres_server.new_database(migrated_template)))
    monkeypatch.setenv("THREEWALLS_BROKER_URL", redis_server)
    with running("serve", tmp_path / "data", "--web-processes", "2") as house:
        parent = house.process.pid
        wait_for(lambda: len(children(parent)) == 1, "the second web process")
        (first,) = children(parent)
        wait_for(are_healthy(house.address), "answers")
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(children(parent) - {first}) == 1, "another web process")
        wait_for(are_healthy(house.address), "answers")
        second = children(parent)
        house.process.terminate()
        house.process.wait(60)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in second), "the end of all processes")

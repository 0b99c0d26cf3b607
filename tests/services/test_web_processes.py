"""`threewalls serve --web-processes N`: several processes on one port, each replaced when it dies."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.cases import sized
from tests.embedded.processes import PLAIN_HTTP, running, wait_for
from tests.services.postgres_server import Postgres
from tests.services.scaled import CALM
from tests.training_logs import training_log


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


# --- A large upload passes through the server and its worker with a few MiB of memory.

BLOCKS = sized(3, 10)
BLOCK_BYTES = 30_000_000
ALLOWED_GROWTH_MIB = 64


def peak_mib(pid: int) -> int:
    """Return the peak memory of the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def test_a_large_upload_is_never_in_memory_as_a_whole(
    tmp_path: Path, migrated_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CALM.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "large.log"
    with log.open("wb") as file:
        block = training_log(2000, noise_bytes=BLOCK_BYTES)
        for _ in range(BLOCKS):
            file.write(block)
    with running("serve", migrated_data) as house:
        before = peak_mib(house.process.pid)
        # curl streams the file; a client in this process would not.
        url = f"{house.address}/api/v1/runs?wait=60"
        done = subprocess.run(
            ["curl", "-sS", "-F", f"log=@{log}", url], capture_output=True, text=True, check=True, timeout=300
        )
        assert '"status":"ready"' in done.stdout
        assert peak_mib(house.process.pid) - before <= ALLOWED_GROWTH_MIB

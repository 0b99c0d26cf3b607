"""A large upload passes through the server and its worker with a few MiB of memory."""

import subprocess
from pathlib import Path

import pytest

from tests.cases import sized
from tests.embedded.processes import running
from tests.services.scaled import CALM
from tests.training_logs import training_log

BLOCKS = sized(3, 10)
BLOCK_BYTES = 30_000_000
ALLOWED_GROWTH_MIB = 64


def peak_mib(pid: int) -> int:
    """Return the peak memory of the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def test_a_large_upload_is_never_held_in_memory(
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

"""Clean up after a test run, even if the run itself is killed: `python janitor.py TOKEN PID FOLDER`.

Waits for the process PID, its parent, to end. Then it ends every process that was started with TOKEN in its environment
or works below FOLDER, and removes FOLDER. It imports nothing of the project and runs in a session of its own.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

VARIABLE = "TEST_RUN"
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 5


def processes_of(token: str, folder: str) -> list[int]:
    """Processes of the run. PostgreSQL overwrites its environment, but works in its data folder."""
    mark = f"{VARIABLE}={token}".encode()
    pids = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            if mark in (process / "environ").read_bytes() or str((process / "cwd").readlink()).startswith(folder):
                pids.append(int(process.name))
        except OSError:  # it has ended, or is another account's
            continue
    return pids


def end_all(token: str, folder: str) -> None:
    """Stop PostgreSQL first, because a killed one would leave shared memory behind."""
    start = time.monotonic()
    while pids := processes_of(token, folder):
        for pid in pids:
            try:
                is_postgres = Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
                is_patient = is_postgres and time.monotonic() - start < PATIENCE_SECONDS
                os.kill(pid, signal.SIGQUIT if is_patient else signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue
        time.sleep(POLL_SECONDS)


def main(token: str, parent: int, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    end_all(token, folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

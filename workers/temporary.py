"""Temporary files of a worker lie in a folder of its own, which a later worker removes when this one was killed."""

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_locks: list[TextIO] = []
"""Open as long as this process lives. Its pool processes inherit them, so the folder is in use until the last ends."""


def use_own_folder(parent: Path) -> None:
    """Make a folder in `parent` for the temporary files of this process and its children; remove those of dead workers.

    Raises OSError where `parent` cannot be written.
    """
    parent.mkdir(parents=True, exist_ok=True)
    # Workers that start at the same time wait here, so that none removes a folder between its making and its locking.
    with (parent / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        for folder in parent.iterdir():
            if folder.is_dir():
                # The lock of a worker that lives: BlockingIOError. A folder without one was being made or removed.
                with suppress(BlockingIOError):
                    with (folder / "lock").open("w") as lock:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
        own = Path(tempfile.mkdtemp(prefix="worker-", dir=parent))
        _locks.append((own / "lock").open("w"))
        fcntl.flock(_locks[-1], fcntl.LOCK_EX)
    tempfile.tempdir = str(own)

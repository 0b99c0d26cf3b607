"""Keep a worker's temporary files in its own folder, which a later worker removes if this one is killed."""

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_locks: list[TextIO] = []
"""Open for the life of this process. Pool processes inherit them, so the folder is in use until the last one ends."""


def use_own_folder(parent: Path) -> None:
    """Create the folder of this process and its children in `parent`; remove the folders of dead workers.

    Raises OSError if `parent` is not writable.
    """
    parent.mkdir(parents=True, exist_ok=True)
    # Workers that start at the same time wait here, so that none removes a folder before it is locked.
    with (parent / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        for folder in parent.iterdir():
            if folder.is_dir():
                # BlockingIOError: its worker is alive. A folder without a lock was left half created or removed.
                with suppress(BlockingIOError):
                    with (folder / "lock").open("w") as lock:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
        own = Path(tempfile.mkdtemp(prefix="worker-", dir=parent))
        _locks.append((own / "lock").open("w"))
        fcntl.flock(_locks[-1], fcntl.LOCK_EX)
    tempfile.tempdir = str(own)

"""One service a data folder: SQLite and message files have one owner, and leases are void when it starts.

It is that owner's alone: logs of private projects lie there, and secrets that the service must be able to use.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from app.errors import Conflict

log = structlog.get_logger(__name__)

OWNER_ONLY = 0o077
"""The umask of whatever writes there: folders are 0700 and files 0600."""

_OTHERS = 0o007


class FolderInUse(Conflict):
    title = "The data folder is in use"


def keep_private(folder: Path) -> None:
    """Have the folder, and close one to which every account of this machine has the door.

    A group that somebody let in on purpose stays. What cannot be closed, or is not ours to close, is named in the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    if not mode & _OTHERS:
        return
    if not mode & stat.S_ISVTX:  # such as /tmp
        try:
            folder.chmod(0o700)
        except OSError:
            pass
        else:
            log.info("data_folder_closed", folder=str(folder), mode="0700", was=f"{stat.S_IMODE(mode):04o}")
            return
    log.warning("data_folder_is_open", folder=str(folder), hint="others of this machine can read it: chmod 0700")


def only_the_owner_reads() -> None:
    """What this process and its children write from now on."""
    os.umask(OWNER_ONLY)


@contextmanager
def own(folder: Path) -> Iterator[Callable[[str], None]]:
    """Hold `folder` until the block ends; the kernel lets go of it too when the process is killed.

    Gives a function that records who the owner is. Raises FolderInUse with what another owner recorded.
    """
    keep_private(folder)
    with (folder / "serve.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            other = lock.read().strip() or "another process"
            raise FolderInUse(
                f"Threewalls already runs on {folder}: {other}. Stop that one, or choose another folder with --data."
            ) from None

        def record(owner: str) -> None:
            lock.truncate(0)
            lock.write(owner)
            lock.flush()

        yield record

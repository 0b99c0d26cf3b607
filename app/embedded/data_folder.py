"""One service a data folder: SQLite and message files have one owner, and leases are void when it starts."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import Conflict


class FolderInUse(Conflict):
    title = "The data folder is in use"


@contextmanager
def own(folder: Path) -> Iterator[Callable[[str], None]]:
    """Hold `folder` until the block ends; the kernel lets go of it too when the process is killed.

    Gives a function that records who the owner is. Raises FolderInUse with what another owner recorded.
    """
    folder.mkdir(parents=True, exist_ok=True)
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

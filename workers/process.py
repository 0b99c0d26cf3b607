"""Two parts of a worker process: a folder for temporary files, and a heartbeat in the database."""

import fcntl
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import structlog
from celery.signals import task_postrun, task_prerun
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.storage.worker_activity import BEAT_SECONDS, add_counts, beat

# --- Temporary files, in a folder that a later worker removes if this worker is killed.

_locks: list[TextIO] = []
"""Open until this process ends. Pool processes inherit them, so the folder is in use until the last one ends."""


def use_own_folder(parent: Path) -> None:
    """Create the folder of this process and its children in `parent`; remove the folders of dead workers.

    Raises OSError if `parent` is not writable.
    """
    parent.mkdir(parents=True, exist_ok=True)
    # Workers that start concurrently wait here, so that none removes a folder that is not locked yet.
    with (parent / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        for folder in parent.iterdir():
            if folder.is_dir():
                # BlockingIOError: its worker is alive. A folder without a lock file was only partly created or removed.
                with suppress(BlockingIOError):
                    with (folder / "lock").open("w") as lock:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
        own = Path(tempfile.mkdtemp(prefix="worker-", dir=parent))
        _locks.append((own / "lock").open("w"))
        fcntl.flock(_locks[-1], fcntl.LOCK_EX)
    tempfile.tempdir = str(own)


# --- The heartbeat: a pool process records that it is alive at the start of a task and every few seconds during it.
# Sweeps are also tasks. So an idle worker counts as alive as long as it receives messages.

log = structlog.get_logger(__name__)


class Heartbeat:
    """Beats while a task runs. It calls `make_engine` in the pool process, because a fork cannot share connections."""

    def __init__(self, make_engine: Callable[[], Engine]) -> None:
        self._make_engine = make_engine
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None
        task_prerun.connect(self._begin, weak=False)
        task_postrun.connect(self._end, weak=False)

    def _begin(self, **_: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat_while_busy, name="heartbeat", daemon=True)
            self._thread.start()
        self._busy.set()

    def _end(self, **_: Any) -> None:
        self._busy.clear()

    def _beat_while_busy(self) -> None:
        while True:
            self._busy.wait()
            try:
                beat(self._make_engine())
                add_counts(self._make_engine())
            except SQLAlchemyError as error:
                log.warning("heartbeat_not_noted", error=str(error))
            time.sleep(BEAT_SECONDS)

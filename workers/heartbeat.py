"""Record in the database that this pool process is alive, at the start of a task and every few seconds during it.

Sweeps are tasks too, so an idle worker that takes messages counts as alive, and one that takes none does not.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from celery.signals import task_postrun, task_prerun
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.storage.worker_activity import BEAT_SECONDS, add_counts, beat

log = structlog.get_logger(__name__)


class Heartbeat:
    """Beats while a task runs. `make_engine` is called in the pool process: a fork cannot share connections."""

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

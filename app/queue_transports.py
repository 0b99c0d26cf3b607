"""A repair to Kombu's filesystem transport, and the clock of the scaled mode; `queue.py` names both."""

import json
import time
import uuid
from pathlib import Path
from typing import Any

from celery.beat import ScheduleEntry, Scheduler
from kombu.transport import filesystem, virtual

from app.queue import enqueue


class _WholeFilesChannel(filesystem.Channel):
    # Kombu writes its table of bindings in place as well, and no worker starts on one that a full disk or a kill cut
    # short. Every process binds the queue that it uses, so the table in its memory will do.
    supports_fanout = False
    get_table = virtual.Channel.get_table

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]
        # Kombu writes a message in place: a worker that looks in between reads an empty one, and ends.
        folder = Path(self.data_folder_out)
        name = f"{time.time_ns()}_{uuid.uuid4()}"
        unseen = folder / f"{name}.part"
        try:
            unseen.write_text(json.dumps(payload), encoding="utf-8")
            unseen.rename(folder / f"{name}.{queue}.msg")
        except OSError:
            unseen.unlink(missing_ok=True)
            raise


class SweepScheduler(Scheduler):  # type: ignore[misc]
    """Celery's own would queue a sweep every few seconds while no worker takes them."""

    def apply_entry(self, entry: ScheduleEntry, producer: object = None) -> None:  # noqa: ARG002  # Celery's signature
        enqueue(entry.task)


class FilesystemTransport(filesystem.Transport):
    Channel = _WholeFilesChannel

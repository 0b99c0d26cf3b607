"""The Celery queues. Messages carry a task name and an id; the database row is the record (`pipeline/work.py`).

So a lost message loses nothing. Workers take from each queue in turn, so that sweeps and notifications do not wait
behind a backlog of runs.
"""

import json
import time
import uuid
from functools import lru_cache
from pathlib import Path
from queue import Empty
from typing import Any

import structlog
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from kombu.entity import Queue
from kombu.transport import filesystem, virtual

from app import wakes
from app.settings import Settings, get_settings

log = structlog.get_logger(__name__)

PROCESS_RUN = "threewalls.process_run"
PROCESS_PROFILE = "threewalls.process_profile"
JUDGE_STACK = "threewalls.judge_stack"
DELIVER = "threewalls.deliver"
SWEEP = "threewalls.sweep"
RECOMPUTE = "threewalls.recompute"
QUEUE = "threewalls"
SWEEPS = "threewalls-sweeps"
DELIVERIES = "threewalls-deliveries"
_QUEUE_OF = {SWEEP: SWEEPS, DELIVER: DELIVERIES}


def make_celery(settings: Settings) -> Celery:
    """Create the Celery application: on Redis when scaled, on message files in the data folder when embedded."""
    celery = Celery("threewalls", broker=settings.broker_url or "filesystem://localhost", set_as_current=False)
    celery.conf.update(_common(settings) | (_embedded(settings) if settings.embedded else _redis()))
    if not settings.embedded:
        # Redelivery must come after the hard limit, or a long task runs twice at the same time.
        celery.conf.broker_transport_options["visibility_timeout"] = settings.task_hard_limit_seconds + 60
    return celery


@lru_cache
def get_celery() -> Celery:
    """Return the Celery application of this process. It is created on first use, because that creates folders."""
    return make_celery(get_settings())


def enqueue(task_name: str, *args: int) -> bool:
    """Send a message for `task_name`, unless it is a sweep and one is queued already.

    Return False when the broker did not answer: then the next sweep finds the row.
    """
    try:
        if task_name != SWEEP or waiting(SWEEPS) == 0:
            get_celery().send_task(task_name, args=args, queue=_QUEUE_OF.get(task_name, QUEUE), retry=False)
    except Exception as error:  # for any error: the upload is stored and must be acknowledged
        log.warning("message_not_enqueued", task=task_name, args=args, error=str(error))
        return False
    return True


def waiting(queue: str = QUEUE) -> int:
    """Return the number of messages waiting in a queue. Raises OSError or OperationalError without a broker."""
    with get_celery().connection_for_read() as connection:
        channel = connection.ensure_connection(max_retries=1, interval_start=0, timeout=2).default_channel
        return int(channel.queue_declare(queue, passive=False, durable=True).message_count)


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "task_queues": [Queue(name) for name in (QUEUE, SWEEPS, DELIVERIES)],  # type: ignore[no-untyped-call]
        "task_default_queue": QUEUE,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_concurrency": settings.worker_concurrency,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "task_soft_time_limit": settings.task_soft_limit_seconds,
        "task_time_limit": settings.task_hard_limit_seconds,
        "broker_connection_retry_on_startup": True,
        "task_publish_retry": False,
        # One entry, harmless when it runs too often, so the schedule needs no state file.
        "beat_scheduler": "app.queue:SweepScheduler",
        "beat_schedule": {"sweep": {"task": SWEEP, "schedule": settings.sweep_seconds}},
    }


def _redis() -> dict[str, Any]:
    return {
        "broker_transport_options": {
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": 1,
            # Kombu would retry for 6 s while an upload waits for its answer; the sweep enqueues the row anyway.
            "max_retries": 1,
            "interval_start": 0,
            "interval_step": 0,
            "socket_timeout": 5,
        }
    }


def _embedded(settings: Settings) -> dict[str, Any]:
    folder = settings.data_dir.resolve() / "queue"
    for name in ("messages", "processed", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "broker_transport": "app.queue:FilesystemTransport",
        "broker_transport_options": {
            "data_folder_in": str(folder / "messages"),
            "data_folder_out": str(folder / "messages"),
            "processed_folder": str(folder / "processed"),
            "control_folder": str(folder / "control"),
            "store_processed": False,
            "polling_interval": _POLL_SECONDS,
        },
        "worker_enable_remote_control": False,
    }


_POLL_SECONDS = 0.2
"""A worker looks this often for messages of processes that cannot wake it, such as the command line."""


# --- A repair of Kombu's filesystem transport, and the sweep scheduler of the scaled mode.


class _WholeFilesChannel(filesystem.Channel):
    # Kombu also writes its table of bindings in place, and no worker starts if a full disk or a kill truncated it.
    # Every process binds the queue that it uses, so the table in memory suffices.
    supports_fanout = False
    get_table = virtual.Channel.get_table

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]
        # Kombu writes a message in place: a worker that looks in between reads an empty one and exits.
        folder = Path(self.data_folder_out)
        name = f"{time.time_ns()}_{uuid.uuid4()}"
        unseen = folder / f"{name}.part"
        try:
            unseen.write_text(json.dumps(payload), encoding="utf-8")
            unseen.rename(folder / f"{name}.{queue}.msg")
        except OSError:
            unseen.unlink(missing_ok=True)
            raise
        wakes.queued()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        super().basic_ack(delivery_tag, multiple)  # type: ignore[no-untyped-call]
        wakes.queued()  # Celery takes the next message when this one is done


class SweepScheduler(Scheduler):  # type: ignore[misc]
    """Enqueue a sweep only if none is queued. Celery's scheduler would pile them up while no worker runs."""

    def apply_entry(self, entry: ScheduleEntry, producer: object = None) -> None:  # noqa: ARG002  # Celery's signature
        enqueue(entry.task)


class FilesystemTransport(filesystem.Transport):
    Channel = _WholeFilesChannel

    def drain_events(self, connection: Any, timeout: Any = None) -> None:  # type: ignore[override]
        """Deliver a message, as Kombu does, which sleeps between its attempts instead of being woken."""
        cycle: Any = self.cycle
        if timeout is None or not wakes.exist():
            super().drain_events(connection, timeout)  # type: ignore[no-untyped-call]
            return
        end = time.monotonic() + timeout
        while True:
            try:
                cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                if (left := end - time.monotonic()) <= 0:
                    raise TimeoutError from None
                wakes.wait_for_queued(min(left, _POLL_SECONDS))

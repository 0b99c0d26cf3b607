"""The doorbell: task names and ids only. The database row is the record, so a lost ring loses nothing (see `sweep`)."""

from typing import Any

import structlog
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from app.settings import Settings, get_settings

log = structlog.get_logger(__name__)

PROCESS_RUN = "threewalls.process_run"
SWEEP = "threewalls.sweep"


def make_celery(settings: Settings) -> Celery:
    """A Celery application for these settings: Redis when scaled, message files in the data folder when embedded."""
    celery = Celery("threewalls", broker=settings.broker_url or "filesystem://")
    celery.conf.update(_common(settings) | (_embedded(settings) if settings.embedded else _redis(settings)))
    return celery


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "task_queues": [Queue("threewalls")],
        "task_default_queue": "threewalls",
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
        "beat_schedule": {"sweep": {"task": SWEEP, "schedule": settings.sweep_seconds}},
    }


def _redis(settings: Settings) -> dict[str, Any]:
    return {
        "broker_transport_options": {
            # Redelivery must come after the hard limit, or a long task runs twice side by side.
            "visibility_timeout": settings.task_hard_limit_seconds + 60,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": 1,
            "socket_timeout": 5,
        }
    }


def _embedded(settings: Settings) -> dict[str, Any]:
    folder = settings.data_dir.resolve() / "queue"
    for name in ("messages", "processed", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "broker_transport_options": {
            "data_folder_in": str(folder / "messages"),
            "data_folder_out": str(folder / "messages"),
            "processed_folder": str(folder / "processed"),
            "control_folder": str(folder / "control"),
            "store_processed": False,
            "polling_interval": 0.05,
        },
        "worker_enable_remote_control": False,
    }


celery_app = make_celery(get_settings())


def enqueue(task_name: str, *args: int) -> bool:
    """Ring for `task_name`. False when the broker did not answer: the sweep will find the row."""
    try:
        celery_app.send_task(task_name, args=args, queue="threewalls", retry=False)
    except (OperationalError, OSError) as error:
        log.warning("doorbell_unanswered", task=task_name, args=args, error=str(error))
        return False
    return True

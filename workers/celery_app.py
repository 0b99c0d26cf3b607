"""The worker process: `celery -A workers.celery_app worker`. Settings come from the environment (`app/settings.py`)."""

import gc
from typing import Any

import structlog
from celery.signals import setup_logging, worker_init, worker_ready

from app.queue import SWEEP, enqueue, get_celery
from app.service_log import configure_logging
from app.settings import get_settings
from app.storage.visible import see_every_project
from workers import tasks
from workers.process import use_own_folder

log = structlog.get_logger(__name__)

app = get_celery()
tasks.register(app)
see_every_project()


def _configure_logging(**_: Any) -> None:
    configure_logging(get_settings())


def _use_own_temporary_folder(**_: Any) -> None:
    folder = get_settings().data_dir.resolve() / "temporary"
    try:
        use_own_folder(folder)
    except OSError as error:  # the system's folder then keeps the files of a killed worker
        log.warning("no_folder_for_temporary_files", folder=str(folder), error=str(error))


def _freeze_imported_objects(**_: Any) -> None:
    # The garbage collector then skips them, so that pool processes keep sharing these pages of memory.
    gc.freeze()
    gc.enable()


def _sweep_at_start(**_: Any) -> None:
    # Enqueues the work that waited while no worker was alive.
    enqueue(SWEEP)


setup_logging.connect(_configure_logging)
worker_init.connect(_use_own_temporary_folder)
worker_init.connect(_freeze_imported_objects)
worker_ready.connect(_sweep_at_start)

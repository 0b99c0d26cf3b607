"""The worker process: `celery -A workers.celery_app worker`. Settings come from the environment (`app/settings.py`)."""

import gc
from typing import Any

import structlog
from celery.signals import setup_logging, worker_init, worker_ready

from app.queue import SWEEP, enqueue, get_celery
from app.settings import get_settings
from app.storage.visible import see_every_project
from app.web.request import configure_logging
from workers import tasks
from workers.temporary import use_own_folder

log = structlog.get_logger(__name__)

app = get_celery()
tasks.register(app)
see_every_project()


@setup_logging.connect  # type: ignore[untyped-decorator]
def _log_as_the_service_does(**_: Any) -> None:
    configure_logging(get_settings())


@worker_init.connect  # type: ignore[untyped-decorator]
def _keep_temporary_files_apart(**_: Any) -> None:
    folder = get_settings().data_dir.resolve() / "temporary"
    try:
        use_own_folder(folder)
    except OSError as error:  # a worker that is killed then leaves its files among those of the system
        log.warning("no_folder_for_temporary_files", folder=str(folder), error=str(error))


@worker_init.connect  # type: ignore[untyped-decorator]
def _leave_alone_what_was_imported(**_: Any) -> None:
    # The collector skips it from now on, also in the pool processes, which then share these pages of memory.
    gc.freeze()
    gc.enable()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _sweep_at_start(**_: Any) -> None:
    # What waited while no worker was alive is due now.
    enqueue(SWEEP)

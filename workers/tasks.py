"""One thin task per verb. Each may run twice, and calls one function with the process's own engine and store."""

import time
from functools import lru_cache

from celery import Celery
from sqlalchemy import Engine

from app import queue
from app.queue import PROCESS_RUN, RECOMPUTE, SWEEP, enqueue
from app.runs import append, claims, recompute
from app.runs.summarise import summarise_run
from app.settings import get_settings
from app.storage import object_records
from app.storage.database import make_engine, transaction
from app.storage.log_files import LogFiles

_FORGET_SECONDS = 3600


def register(app: Celery) -> None:
    app.task(process_run, name=PROCESS_RUN)
    app.task(sweep, name=SWEEP)
    app.task(recompute_next, name=RECOMPUTE)


def process_run(run_id: int) -> None:
    """Read one run, when it waits to be read."""
    summarise_run(_engine(), _log_files(), get_settings(), run_id)


def sweep() -> None:
    """Ring for every run that waits without a bell, or whose worker died; close and forget what nobody needs."""
    with transaction(_engine()) as session:
        append.close_abandoned(session, get_settings())
        waiting = claims.due(session, get_settings())
    for run_id in waiting:
        enqueue(PROCESS_RUN, run_id)
    recompute_next()
    _forget_unused(int(time.time() // _FORGET_SECONDS))


def recompute_next() -> None:
    """Have the next runs of earlier definitions computed again, and ring for the ones after them at their end."""
    if queue.waiting() > recompute.MOST_QUEUED:
        return  # the next sweep asks again
    with transaction(_engine()) as session:
        asked = recompute.ask_next(session, get_settings())
    for run_id in asked:
        enqueue(PROCESS_RUN, run_id)
    if asked:
        enqueue(RECOMPUTE)


@lru_cache(maxsize=1)
def _forget_unused(period: int) -> None:  # noqa: ARG001  # it looks at every object, so once a period is enough
    object_records.forget_unused(_engine(), _log_files())


@lru_cache
def _engine() -> Engine:
    # Made by the first task of a pool process, so after the fork: connections cannot be shared across one.
    return make_engine(get_settings())


@lru_cache
def _log_files() -> LogFiles:
    return LogFiles.from_settings(get_settings())

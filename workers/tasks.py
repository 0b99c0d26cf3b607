"""One thin task per verb. Each may run twice, and calls one function with the process's own engine and store."""

import time
from functools import lru_cache

from celery import Celery
from sqlalchemy import Engine

from app import queue
from app.pipeline import append, deliver, judge, process, rank, rules
from app.pipeline.process import summarise_run
from app.pipeline.regressions import refresh_costs
from app.pipeline.work import delivery_queue, run_queue, stack_queue
from app.queue import DELIVER, JUDGE_STACK, PROCESS_RUN, RECOMPUTE, SWEEP, enqueue
from app.settings import get_settings
from app.storage import objects
from app.storage.database import make_engine, read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import utc_now
from workers.heartbeat import Heartbeat

_FORGET_SECONDS = 3600
_MOST_SWEPT = 100
"""Runs, and stacks, that one sweep looks at: they are done before the next one, or the next one goes on."""


def register(app: Celery) -> None:
    Heartbeat(_engine)
    app.task(process_next, name=PROCESS_RUN)
    app.task(judge_stack, name=JUDGE_STACK)
    app.task(deliver_one, name=DELIVER)
    app.task(sweep, name=SWEEP)
    app.task(recompute_next, name=RECOMPUTE)


def process_next(_run_id: int) -> None:
    """Process the run that is due longest; each message stands for one run that waits, whichever it was sent for."""
    while (run_id := _next_run()) is not None:
        if process_run(run_id):
            return  # else another worker claimed it in this moment


def process_run(run_id: int) -> str | None:
    """Read one run, when it waits to be read, judge it, and ask what the rules say of it.

    Returns the status that reading left it in; None when it was not this worker's to read.
    """
    status = summarise_run(_engine(), _log_files(), get_settings(), run_id)
    judge.judge_run(_engine(), get_settings(), run_id)
    rules.ask_rules(_engine(), get_settings(), run_id)
    delivery_queue.enqueue_due(_engine())
    return status


def _next_run() -> int | None:
    with read_session(_engine()) as session:
        return next(iter(run_queue.due(session, get_settings(), limit=1)), None)


def judge_stack(work_id: int) -> None:
    """Judge what waits of one stack."""
    judge.judge_stack(_engine(), get_settings(), work_id)
    delivery_queue.enqueue_due(_engine())


def deliver_one(delivery_id: int) -> None:
    """Send one message, and ring for those that waited for it."""
    if deliver.deliver(_engine(), get_settings(), delivery_id) is not None:
        delivery_queue.enqueue_due(_engine())


def sweep() -> None:
    """Enqueue what waits without a message, or whose worker died; close and forget what nobody needs."""
    with transaction(_engine()) as session:
        append.close_abandoned(session, get_settings())
    with read_session(_engine()) as session:
        due = [(PROCESS_RUN, run_id) for run_id in run_queue.due(session, get_settings(), limit=_MOST_SWEPT)]
        due += [(JUDGE_STACK, work_id) for work_id in stack_queue.due(session, get_settings(), limit=_MOST_SWEPT)]
    # One message for each that waits: those in the queue already are for some of them.
    for task, key in due[: max(0, len(due) - queue.waiting())]:
        enqueue(task, key)
    delivery_queue.enqueue_due(_engine())
    if _ask_for_old():
        enqueue(RECOMPUTE)
    rules.ask_next_runs(_engine(), get_settings())
    period = int(time.time() // _FORGET_SECONDS)
    _forget_unused(period)
    _refresh_costs(period)


def recompute_next() -> None:
    """Go on with what earlier definitions and rules left behind; at its end ring for the stacks that waited for it."""
    enqueue(RECOMPUTE if _ask_for_old() else SWEEP)


def _ask_for_old() -> bool:
    """Ring for the next runs of earlier definitions, stacks of earlier rules or priors; False when none is left."""
    if queue.waiting() > process.MOST_QUEUED:
        return False  # the next sweep asks again
    with transaction(_engine()) as session:
        runs = process.ask_next(session)
        stacks = process.ask_to_judge_again(session)
    with transaction(_engine()) as session:  # another one, because each locks its stacks in their order
        stacks += rank.ask_to_rank_again(session)
    for run_id in runs:
        enqueue(PROCESS_RUN, run_id)
    for work_id in stacks:
        enqueue(JUDGE_STACK, work_id)
    return bool(runs or stacks)


@lru_cache(maxsize=1)
def _forget_unused(period: int) -> None:  # noqa: ARG001  # it looks at every object, so once a period is enough
    objects.forget_unused(_engine(), _log_files())


@lru_cache(maxsize=1)
def _refresh_costs(period: int) -> None:  # noqa: ARG001  # it looks at every regression, so once a period is enough
    with transaction(_engine()) as session:
        refresh_costs(session, utc_now())


@lru_cache
def _engine() -> Engine:
    # Made by the first task of a pool process, so after the fork: connections cannot be shared across one.
    return make_engine(get_settings())


@lru_cache
def _log_files() -> LogFiles:
    return LogFiles.from_settings(get_settings())

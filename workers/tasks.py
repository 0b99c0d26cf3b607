"""The Celery tasks. Each calls one function with this process's engine and store. A task may run more than once."""

import threading
import time
from dataclasses import dataclass
from functools import lru_cache

import structlog
from celery import Celery
from sqlalchemy import Engine, func, select
from sqlmodel import col

from app import queue, wakes
from app.pipeline import append, deletion, deliver, judge, process, profiles, rank, suggest
from app.pipeline.notify import notify_silent_stacks
from app.pipeline.regressions import refresh_costs
from app.pipeline.work import delivery_queue, profile_queue, run_queue, stack_queue
from app.queue import DELIVER, JUDGE_STACK, PROCESS_PROFILE, PROCESS_RUN, RECOMPUTE, SWEEP, enqueue
from app.settings import get_settings
from app.storage import backup, objects, search, usage
from app.storage.database import make_engine, only_maintainer, read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import VerdictRow, utc_now
from workers.process import Heartbeat

log = structlog.get_logger(__name__)

TURN_SECONDS = 0.5
"""Seconds after which a message starts no further run, so that sweeps and notifications get their turn."""

_FORGET_SECONDS = 3600
_MOST_SWEPT = 100
"""Maximum runs, and maximum stacks, that one sweep enqueues. The next sweep continues."""


def register(app: Celery) -> None:
    Heartbeat(_engine)
    app.task(process_next, name=PROCESS_RUN)
    app.task(process_profile, name=PROCESS_PROFILE)
    app.task(judge_stack, name=JUDGE_STACK)
    app.task(send_delivery, name=DELIVER)
    app.task(sweep, name=SWEEP)
    app.task(recompute_next, name=RECOMPUTE)


def process_next(_run_id: int) -> None:
    """Process the run that has been due longest. A message stands for any waiting run, not only for its own.

    Then process more runs for a moment, because Celery takes as long to deliver a message as to process a short run.
    The messages of these runs then find nothing to do.
    """
    end = time.monotonic() + TURN_SECONDS
    while (run_id := _next_run()) is not None:
        # None: another worker claimed it first.
        if process_run(run_id) and time.monotonic() >= end:
            return


def process_run(run_id: int) -> str | None:
    """Read one run if it waits, judge it, and evaluate the rules.

    Return its status after reading; None if there was nothing to read.
    """
    status = process.process_run(_engine(), _log_files(), get_settings(), run_id)
    wakes.processed(run_id)
    return status


def _next_run() -> int | None:
    with read_session(_engine()) as session:
        return next(iter(run_queue.due(session, get_settings(), limit=1)), None)


def process_profile(profile_id: int) -> None:
    """Read one profile if it waits, then evaluate the rules of its run with its facts."""
    run_id = profiles.read_profile_of_run(_engine(), _log_files(), get_settings(), profile_id)
    if run_id is not None:
        suggest.evaluate_rules(_engine(), get_settings(), run_id)


def judge_stack(work_id: int) -> None:
    """Judge and rank one stack if it waits."""
    judge.judge_stack(_engine(), get_settings(), work_id)
    wakes.processed()
    delivery_queue.enqueue_due(_engine())


def send_delivery(delivery_id: int) -> None:
    """Send one delivery, then enqueue the deliveries that waited for it."""
    if deliver.deliver(_engine(), get_settings(), delivery_id) is not None:
        delivery_queue.enqueue_due(_engine())


def sweep() -> None:
    """Enqueue work without a message or with a dead worker, close silent runs, and delete unused objects."""
    with transaction(_engine()) as session:
        append.close_abandoned(session, get_settings())
    with read_session(_engine()) as session:
        due = [(PROCESS_RUN, run_id) for run_id in run_queue.due(session, get_settings(), limit=_MOST_SWEPT)]
        due += [(PROCESS_PROFILE, row) for row in profile_queue.due(session, get_settings(), limit=_MOST_SWEPT)]
        due += [(JUDGE_STACK, work_id) for work_id in stack_queue.due(session, get_settings(), limit=_MOST_SWEPT)]
    # One message per waiting row, less the messages that are already in the queue.
    for task, key in due[: max(0, len(due) - queue.waiting())]:
        enqueue(task, key)
    delivery_queue.enqueue_due(_engine())
    if _request_outdated():
        enqueue(RECOMPUTE)
    with only_maintainer(_engine()) as is_ours:  # all workers sweep when they start
        if is_ours:
            _maintain(is_idle=not due)


def _maintain(*, is_idle: bool) -> None:
    suggest.evaluate_next_runs(_engine(), get_settings())
    deletion.continue_deletions(_engine(), TURN_SECONDS)
    _describe_configurations()
    period = int(time.time() // _FORGET_SECONDS)
    _delete_by_age(period)
    _forget_unused(period)
    if is_idle:
        with read_session(_engine()) as session:
            _judged["last"] = session.execute(select(func.max(col(VerdictRow.id)))).scalar() or 0
    _refresh_costs(period, _judged["last"])
    _notify_silent_stacks(period)
    _back_up(period)


def recompute_next() -> None:
    """Continue recomputing outdated results. When all are done, sweep, because stacks waited for that."""
    enqueue(RECOMPUTE if _request_outdated() else SWEEP)


def _request_outdated() -> bool:
    """Enqueue the next runs and stacks with outdated definitions, rules or priors. Return False if there are none."""
    if queue.waiting() > process.MOST_QUEUED:
        return False  # the next sweep tries again
    with transaction(_engine()) as session:
        runs = process.request_next_runs(session)
        stacks = process.request_next_stacks(session)
    with transaction(_engine()) as session:  # separate transactions, because each locks its stacks in order
        stacks += rank.request_next_rankings(session)
    for run_id in runs:
        enqueue(PROCESS_RUN, run_id)
    for work_id in stacks:
        enqueue(JUDGE_STACK, work_id)
    return bool(runs or stacks)


_described: dict[str, int] = {"last": 0}
"""Number of the last run whose configuration this process has checked."""


def _describe_configurations() -> None:
    _described["last"] = search.describe_configurations(_engine(), _described["last"])


_judged: dict[str, int] = {"last": 0}
"""Number of the newest verdict when no run last waited: an upload of many runs refreshes costs once, at its end."""


@lru_cache(maxsize=1)
def _delete_by_age(period: int) -> None:  # noqa: ARG001  # ages are in days
    deletion.finish_deletions(_engine())
    deletion.apply_retention(_engine())
    usage.delete_expired(_engine(), get_settings())
    usage.count_usage(_engine())


@lru_cache(maxsize=1)
def _forget_unused(period: int) -> None:  # noqa: ARG001  # reads every object row, so once per period is enough
    objects.forget_unused(_engine(), _log_files())


@dataclass(slots=True)
class _CostRefresh:
    """The last refresh of costs. `after`: its period and the newest verdict then; `next_at`: not again before."""

    after: tuple[int, int] = (0, 0)
    next_at: float = 0.0


_refreshed = _CostRefresh()


def _refresh_costs(period: int, judged: int) -> None:
    """Refresh costs once per period and after new verdicts. With many regressions, use at most 2 % of the time."""
    began = time.monotonic()
    if _refreshed.after == (period, judged) or began < _refreshed.next_at:
        return
    with transaction(_engine()) as session:
        refresh_costs(session, utc_now())
    took = time.monotonic() - began
    _refreshed.after = period, judged
    _refreshed.next_at = began + 50 * took if took > 1 else 0.0


@lru_cache(maxsize=1)
def _notify_silent_stacks(period: int) -> None:  # noqa: ARG001  # silence is counted in hours
    with transaction(_engine()) as session:
        notify_silent_stacks(session, utc_now())


@lru_cache(maxsize=1)
def _back_up(period: int) -> None:  # noqa: ARG001  # a failed backup is tried again in the next period
    # In a thread, because a large backup takes longer than the time limit of a task and must not delay runs.
    threading.Thread(target=_back_up_if_due, name="backup", daemon=True).start()


def _back_up_if_due() -> None:
    try:
        backup.back_up_if_due(_engine(), get_settings())
    except Exception:
        log.exception("backup_failed", where=get_settings().backup_url)


@lru_cache
def _engine() -> Engine:
    # Created by the first task of a pool process, after the fork, because connections cannot be shared across a fork.
    return make_engine(get_settings())


@lru_cache
def _log_files() -> LogFiles:
    return LogFiles.from_settings(get_settings())

"""Runs that arrive and are judged, for tests of verdicts."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session, col, select

from app.domain.verdict.document import VerdictDocument
from app.pipeline.judge import judge_stack
from app.pipeline.process import group_reruns, read_before, request_judging
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow, StackWorkRow
from app.storage.verdicts import current_verdict
from tests.builders import make_stack

START = datetime(2026, 9, 1, 4, tzinfo=UTC)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def arrive(engine: Engine, step_time_ms: float, at: float, commit: str = "", **columns: Any) -> int:
    """A run that was just read: the state of the database before it is judged."""
    commit = commit or hashlib.sha256(repr((step_time_ms, at, columns)).encode()).hexdigest()[:12]
    with transaction(engine) as session:
        stack = make_stack(session, [step_time_ms], started=day(at), commits=[commit], judged=False, **columns)
        row = session.get_one(RunRow, stack[0])
        before = read_before(session, stack[0])
        request_judging(session, before, row.stack_key)
        group_reruns(session, before, row.stack_key, row.config_key)
    return stack[0]


def judge_all(engine: Engine, settings: Settings) -> None:
    """Until no stack waits."""
    while waiting := _waiting(engine):
        for work_id in waiting:
            judge_stack(engine, settings, work_id)


def _waiting(engine: Engine) -> list[int]:
    with read_session(engine) as session:
        rows = session.exec(select(StackWorkRow.id).where(StackWorkRow.work != "")).all()
    return [work_id for work_id in rows if work_id is not None]


def document_of(engine: Engine, run_id: int) -> VerdictDocument:
    with read_session(engine) as session:
        verdict = current_verdict(session, run_id)
    assert verdict is not None
    return verdict.document


def decisions(engine: Engine) -> list[str]:
    """Of all runs, in the order of their numbers."""
    with read_session(engine) as session:
        return list(session.exec(select(RunRow.verdict).order_by(col(RunRow.id))).all())


def regressions(session: Session) -> list[tuple[str, str, list[int]]]:
    """State, proposal and slow runs of each, oldest first."""
    rows = session.exec(select(RegressionRow).order_by(col(RegressionRow.id))).all()
    return [(row.state, row.proposal, _slow_runs(session, row)) for row in rows]


def _slow_runs(session: Session, row: RegressionRow) -> list[int]:
    chosen = select(RegressionMemberRow.run_id).where(RegressionMemberRow.regression_id == row.id)
    return sorted(session.exec(chosen).all())


def regressions_in(engine: Engine) -> list[tuple[str, str, list[int]]]:
    with read_session(engine) as session:
        return regressions(session)


def steady(level_ms: float, n: int) -> list[float]:
    """A level with 0.3 % of variation between launches, the same each time."""
    return [level_ms * (1 + 0.003 * ((number * 7) % 5 - 2) / 2) for number in range(n)]


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: Any) -> list[int]:
    """Store a run for each step time, judge all, and return their numbers."""
    runs = [arrive(engine, time, at + number, **columns) for number, time in enumerate(times)]
    judge_all(engine, settings)
    return runs


def works(engine: Engine) -> list[str]:
    """Return the queued work of stacks."""
    with read_session(engine) as session:
        return list(session.execute(select(col(StackWorkRow.work))).scalars())

"""One stack's history out of the database: its runs with what counts, configurations, golden runs, regressions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.detection import Prior
from app.domain.history_view import (
    WATCHED,
    Configuration,
    Standing,
    VersionChange,
    VersionProbe,
    changed_versions,
    configurations,
    standing,
)
from app.domain.run import Metric, Stated
from app.history.stacks import Stack
from app.storage.decisions import Pin, pins
from app.storage.findings import stated
from app.storage.judging_tables import RegressionMemberRow, RegressionRow
from app.storage.run_records import metrics_of
from app.storage.stack_runs import StackRun, stack_runs
from app.storage.tables import RunRow
from app.storage.verdicts import current_verdicts

MOST_PROBES = 100
"""Contracts are large. In a longer history versions are looked up at so many runs, evenly spread."""
_AT_ONCE = 500
"""Numbers in one query."""


@dataclass(frozen=True, slots=True)
class History:
    """`runs` in their order, `standings` of each; a place is an index of them."""

    stack: Stack
    runs: tuple[StackRun, ...]
    standings: tuple[Standing, ...]
    configurations: tuple[Configuration, ...]
    pins: tuple[Pin, ...]

    @property
    def last_used(self) -> Configuration:
        """The configuration of the run that was counted last."""
        return next(one for one in self.configurations if one.is_last)

    @property
    def by_key(self) -> dict[str, Configuration]:
        return {one.config_key: one for one in self.configurations}


STANDING = ("open", "acknowledged")
"""States of a regression that somebody has to do something about."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A regression that has the stack as a member: `run_id` is the slow run, `fixed_by` the run that ended it."""

    regression_id: int
    run_id: int
    config_key: str
    state: str
    metric: str
    fixed_by: int | None
    delta_pct: float | None


def read_history(session: Session, stack: Stack) -> History:
    """Without figures, which take longer to read than all else of a long history (`read_figures`)."""
    runs = tuple(stack_runs(session, stack.project_id, stack.stack_key, with_metrics=False))
    version = max((run.definition_version for run in runs), default=0)
    standings = tuple(standing(run, stack.baseline_branch, version) for run in runs)
    return History(
        stack=stack,
        runs=runs,
        standings=standings,
        configurations=configurations(runs, standings, _priors(session, runs, standings)),
        pins=pins(session, stack.project_id, stack.stack_key),
    )


def read_figures(session: Session, runs: Sequence[StackRun], metric: str) -> dict[int, Metric | None]:
    """One headline figure of each of these runs, by number."""
    found: dict[int, Metric | None] = {}
    column = col(RunRow.metrics)[metric].label("stored")
    for start in range(0, len(runs), _AT_ONCE):
        ids = [run.id for run in runs[start : start + _AT_ONCE]]
        rows = session.execute(select(RunRow.id, column).where(col(RunRow.id).in_(ids)))  # type: ignore[call-overload]
        found |= {run_id: metrics_of({metric: stored})[metric] for run_id, stored in rows}
    return found


def read_all_figures(session: Session, run_ids: Sequence[int]) -> dict[int, Mapping[str, Metric | None]]:
    """The headline figures of each of these runs, by number."""
    found: dict[int, Mapping[str, Metric | None]] = {}
    for start in range(0, len(run_ids), _AT_ONCE):
        wanted = col(RunRow.id).in_(run_ids[start : start + _AT_ONCE])
        rows = session.execute(select(RunRow.id, RunRow.metrics).where(wanted))  # type: ignore[call-overload]
        found |= {run_id: metrics_of(stored) for run_id, stored in rows}
    return found


def read_alarms(session: Session, stack_key: str) -> tuple[Alarm, ...]:
    rows = session.execute(
        select(RegressionMemberRow, RegressionRow)
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .where(col(RegressionMemberRow.stack_key) == stack_key)
        .order_by(col(RegressionRow.id))
    )
    return tuple(
        Alarm(
            one.regression_id,
            one.run_id,
            one.config_key,
            found.state,
            found.metric,
            found.proposal_run_id,
            one.delta_pct,
        )
        for one, found in rows
    )


def read_versions(session: Session, runs: Sequence[StackRun], first: int = 0) -> tuple[VersionChange, ...]:
    """Where versions change along `runs`, of which the first stands at place `first`."""
    if len(runs) > MOST_PROBES:
        chosen = sorted({round(k * (len(runs) - 1) / (MOST_PROBES - 1)) for k in range(MOST_PROBES)})
    else:
        chosen = list(range(len(runs)))
    contracts = _contracts(session, [runs[k].id for k in chosen])
    probes = [VersionProbe(first + k, contracts.get(runs[k].id, {})) for k in chosen]
    return changed_versions(probes)


def _priors(session: Session, runs: Sequence[StackRun], standings: Sequence[Standing]) -> Mapping[str, Prior]:
    """What the newest verdict of each configuration assumed of the run-to-run variation: levels must agree with it."""
    judged = {
        run.config_key: run.id for run, why in zip(runs, standings, strict=True) if run.verdict and why == "counts"
    }
    verdicts = current_verdicts(session, list(judged.values()))
    return {key: verdicts[run_id].document.verdict.prior for key, run_id in judged.items() if run_id in verdicts}


def _contracts(session: Session, run_ids: Sequence[int]) -> dict[int, dict[str, Stated]]:
    chosen = select(RunRow.id, RunRow.contract).where(col(RunRow.id).in_(run_ids))  # type: ignore[call-overload]
    return {
        run_id: {name: stated(contract[name]) for name in WATCHED if name in (contract or {})}
        for run_id, contract in session.execute(chosen)
    }

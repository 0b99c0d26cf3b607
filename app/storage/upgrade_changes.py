"""The effects of upgrades: one entry per upgrade of a project, with the change of each job.

Lists and the upgrade report show the change that judging measured and stored. If the upgrade opened a regression of the
job, they show its size instead, as every page does.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import defer
from sqlmodel import Session, col

from app.domain.numbers import THIN, grouped, plural
from app.domain.verdict.evidence import MOVE_OF, Move
from app.domain.verdict.step_time import Verdict, interval_level_pct
from app.domain.verdict.triage import change_of_job, is_once
from app.domain.verdict.upgrade import cause_key
from app.storage.json_text import from_json
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunRow, UpgradeChangeRow, select_any
from app.storage.verdicts import jobs_of_regressions

MOST = 10
MOST_VALUE = 500
"""Characters of a stored value."""
MovedJob = tuple[str, str, str]
"""A job that moved to another stack: key of the stack before, key of the stack, and the job."""
_MOST_READ = 500
_MOST_KEY = 200
"""Characters of a stored cause key."""


@dataclass(frozen=True, slots=True)
class UpgradeOfStack:
    """The change of one job in a stack: the interval and the numbers of runs are those of the stored measurement.

    `run_id`: its first run after the upgrade. `others`: number of other changed fields. `is_in_regression`: the
    regression of this upgrade lists it. `is_unconfirmed`: then see `SlowerJob.is_once`; else one slower run, not
    steady. `already_slow`: see that.
    """

    stack_key: str
    job: str
    run_id: int
    others: int
    decision: str
    delta_pct: float
    ci_low_pct: float
    ci_high_pct: float
    runs: int
    from_runs: int
    is_unconfirmed: bool = False
    is_in_regression: bool = False
    already_slow: int | None = None
    interval_level_pct: float | None = None
    gpu: str = ""

    @property
    def move(self) -> Move:
        """Return how the upgrade moved it, the same in lists, reports and the evidence of suspects."""
        if self.already_slow is not None:
            return "already_slow"
        if self.is_unconfirmed:
            return "slower_in_one_run" if self.is_in_regression else "unconfirmed"
        return MOVE_OF.get(self.decision, "inconclusive")


@dataclass(frozen=True, slots=True)
class UpgradeChange:
    """An upgrade with the change of each stack, slowest first. `at`: the position of the first run after it."""

    project: str
    field: str
    from_value: str
    to_value: str
    at: datetime
    stacks: tuple[UpgradeOfStack, ...]

    @property
    def query(self) -> str:
        """Return the query string of its upgrade report."""
        return urlencode({"project": self.project, "field": self.field, "from": self.from_value, "to": self.to_value})

    @property
    def name(self) -> str:
        """Return `Container nemo:26.06 → nemo:26.08`, without the registry."""
        before, after = ((value or "unknown").rpartition("/")[2] for value in (self.from_value, self.to_value))
        return f"{self.field.capitalize()} {before} → {after}"

    @property
    def sentence(self) -> str:
        """Return `3 jobs slower by 4.1 to 6.8 %, 1 faster by 12.0 %, 2 inconclusive`."""
        return ", ".join(self._parts())

    def of(self, move: Move) -> tuple[UpgradeOfStack, ...]:
        return tuple(stack for stack in self.stacks if stack.move == move)

    @property
    def decided(self) -> int:
        """Return the number of jobs whose change is neither inconclusive nor unconfirmed nor older."""
        return sum(len(self.of(move)) for move in ("slower", "faster", "same"))

    @property
    def is_inconclusive(self) -> bool:
        """Return whether it shows no change of any job, nor that a job is as fast as before."""
        return all(stack.decision == "inconclusive" for stack in self.stacks)

    def _parts(self) -> Iterator[str]:
        noun = "job"
        for move, words in _WORDS.items():
            if stacks := self.of(move):
                sizes = _sizes(sorted(abs(stack.delta_pct) for stack in stacks))
                yield f"{plural(len(stacks), noun) if noun else len(stacks)} {words.format(sizes)}"
                noun = ""


_WORDS: Mapping[Move, str] = {
    "slower": "slower by {}",
    "slower_in_one_run": "slower by {} in one run",
    "unconfirmed": "unconfirmed ({} slower)",
    "faster": "faster by {}",
    "same": "as fast as before",
    "already_slow": "already slow",
    "inconclusive": "inconclusive",
}


def _sizes(sizes: Sequence[float]) -> str:
    low, high = grouped(sizes[0], 1), grouped(sizes[-1], 1)
    return f"{low}{THIN}%" if low == high else f"{low} to {high}{THIN}%"


@dataclass(frozen=True, slots=True)
class SlowerJob:
    """A job that an upgrade made slower: its size in its regression, and its cost now in GPU-hours a day.

    `usual_ms`: its step time before; `slow_ms`: that of the size. `is_once`: a single run was slow, while other jobs of
    the regression have several, so that its size leaves this one out.
    """

    usual_ms: float
    delta_pct: float
    gpu_hours_per_day: float | None
    is_once: bool

    @property
    def slow_ms(self) -> float:
        return self.usual_ms * (1 + self.delta_pct / 100)


def upgrade_changes(
    session: Session, *, project: str = "", since: datetime | None = None, most: int = MOST
) -> tuple[UpgradeChange, ...]:
    """Return up to `most` upgrades with first runs after `since`, newest first."""
    of_project = [col(ProjectRow.slug) == project] if project else []
    return _read(session, most, *of_project, *([] if since is None else [col(UpgradeChangeRow.at) >= since]))


def jobs_of_upgrade(
    session: Session, project_id: int, field: str, from_value: str, to_value: str
) -> tuple[UpgradeOfStack, ...]:
    """Return the change of each job by one upgrade, slowest first."""
    upgrades = _read(session, 1, *_of_upgrade(project_id, field, from_value, to_value))
    return upgrades[0].stacks if upgrades else ()


def _read(session: Session, most: int, *conditions: ColumnElement[bool]) -> tuple[UpgradeChange, ...]:
    looks = col(UpgradeChangeRow.measured)["step_time"]["planned_looks"].as_integer()
    chosen: Select[Any] = (
        select_any(UpgradeChangeRow, ProjectRow.slug, RunRow.is_steady, RunRow.gpu, looks.label("looks"))
        .join(RunRow, col(RunRow.id) == UpgradeChangeRow.run_id)
        .join(ProjectRow, col(ProjectRow.id) == UpgradeChangeRow.project_id)
        .where(col(UpgradeChangeRow.side_by_side).is_(False), *conditions)
        .order_by(col(UpgradeChangeRow.at).desc(), col(UpgradeChangeRow.id).desc())
        .limit(_MOST_READ)
        .options(defer(UpgradeChangeRow.measured))  # type: ignore[arg-type]  # SQLModel types columns as values
    )
    groups: dict[tuple[str, str, str, str], list[UpgradeChangeRow]] = {}
    steady, gpus, looks_of = {}, {}, {}
    for row, slug, is_steady, gpu, number in session.execute(chosen):
        steady[row.id], gpus[row.id], looks_of[row.id] = is_steady, gpu, number
        groups.setdefault((slug, row.field, row.from_value, row.to_value), []).append(row)
    shown = dict(list(groups.items())[:most])
    causes = {(changes[0].project_id, cause_key(*key[1:])) for key, changes in shown.items()}
    slower = slower_jobs(session, causes) if shown else {}
    slowed = [row for changes in shown.values() for row in changes if row.decision == "regression"]
    before = already_slow(session, {row.project_id for row in slowed}, {row.stack_key for row in slowed})
    upgrades = []
    for key, changes in shown.items():
        of_upgrade = slower.get((changes[0].project_id, cause_key(*key[1:])), {})
        stacks = (
            replace(
                _stack(row, of_upgrade.get((row.stack_key, row.job)), steady[row.id], looks_of[row.id], before),
                gpu=gpus[row.id],
            )
            for row in changes
        )
        by_change = sorted(stacks, key=lambda stack: -stack.delta_pct)
        upgrades.append(UpgradeChange(*key, min(row.at for row in changes), tuple(by_change)))
    return tuple(sorted(upgrades, key=lambda upgrade: upgrade.at, reverse=True))


def _stack(
    row: UpgradeChangeRow,
    slower: SlowerJob | None,
    is_steady: bool | None,
    looks: int | None,
    before: Mapping[MovedJob, int],
) -> UpgradeOfStack:
    is_slower = row.decision == "regression"
    since = before.get((row.from_stack_key, row.stack_key, row.job)) if is_slower else None
    return UpgradeOfStack(
        row.stack_key, row.job, row.run_id, row.others, row.decision,
        slower.delta_pct if slower is not None and is_slower else row.delta_pct,
        row.ci_low_pct, row.ci_high_pct, row.runs, row.from_runs,
        since is None and _is_unconfirmed(row, slower, is_steady), slower is not None and is_slower, since,
        None if looks is None else interval_level_pct(row.decision, row.delta_pct, looks),
    )  # fmt: skip


def _is_unconfirmed(row: Any, slower: SlowerJob | None, is_steady: bool | None) -> bool:
    if row.decision != "regression":
        return False
    return slower.is_once if slower is not None else row.runs == 1 and is_steady is False


def judged_levels(
    session: Session, project_id: int, stack_keys: Collection[str]
) -> dict[tuple[str, str, str, str], tuple[str, float, float]]:
    """Return the decisions on upgrades between these stacks, and the step times (ms) before and after.

    The change is that of lists. The decision is `unconfirmed`, `in one run` or `already slow` if lists do not count it
    as slower. By the stack before, the stack after, its config key and the job.
    """
    chosen = select_any(
        UpgradeChangeRow.from_stack_key, UpgradeChangeRow.stack_key, UpgradeChangeRow.config_key, UpgradeChangeRow.job,
        UpgradeChangeRow.field, UpgradeChangeRow.from_value, UpgradeChangeRow.to_value, UpgradeChangeRow.decision,
        UpgradeChangeRow.level, UpgradeChangeRow.delta_pct, UpgradeChangeRow.runs, RunRow.is_steady,
    ).join(RunRow, col(RunRow.id) == UpgradeChangeRow.run_id).where(
        col(UpgradeChangeRow.project_id) == project_id,
        col(UpgradeChangeRow.stack_key).in_(stack_keys),
        col(UpgradeChangeRow.side_by_side).is_(False),
    )  # fmt: skip
    rows = session.execute(chosen).all()
    causes = {row: (project_id, cause_key(row.field, row.from_value, row.to_value)) for row in rows}
    slow = {cause for row, cause in causes.items() if row.decision == "regression"}
    slower = slower_jobs(session, slow) if slow else {}
    before = already_slow(session, [project_id], {row.stack_key for row in rows if row.decision == "regression"})
    levels = {}
    for row, cause in causes.items():
        job = slower.get(cause, {}).get((row.stack_key, row.job))
        decision = row.decision
        if decision == "regression" and (row.from_stack_key, row.stack_key, row.job) in before:
            decision = "already slow"
        elif _is_unconfirmed(row, job, row.is_steady):
            decision = "unconfirmed" if job is None else "in one run"
        if job is not None and row.decision == "regression":
            of_row = job.usual_ms, job.slow_ms
        else:
            of_row = math.exp(row.level) / (1 + row.delta_pct / 100), math.exp(row.level)
        levels[row.from_stack_key, row.stack_key, row.config_key, row.job] = decision, *of_row
    return levels


# --- The regressions that upgrades opened.


def slower_jobs(
    session: Session, causes: Collection[tuple[int, str]]
) -> dict[tuple[int, str], dict[tuple[str, str], SlowerJob]]:
    """Return the jobs that upgrades made slower, by stack key and job. `causes`: project and cause key of upgrades."""
    stored = {(project, key[:_MOST_KEY]): (project, key) for project, key in causes}
    chosen = select_any(RegressionRow.id, RegressionRow.project_id, RegressionRow.cause_key).where(
        col(RegressionRow.project_id).in_({project for project, _ in stored}),
        col(RegressionRow.cause_key).in_({key for _, key in stored}),
        col(RegressionRow.kind) == "upgrade",
        col(RegressionRow.metric) == "step_time_ms",
        col(RegressionRow.state) != "invalid",
    )
    cause_of = {row.id: stored.get((row.project_id, row.cause_key)) for row in session.execute(chosen)}
    slower: dict[tuple[int, str], dict[tuple[str, str], SlowerJob]] = {}
    for number, jobs in jobs_of_regressions(session, cause_of).items():
        cause, are_once = cause_of[number], [is_once(job) for job in jobs]
        for job, one_run in zip(jobs, are_once, strict=True):
            first, size_pct = job[0], change_of_job(job)
            if cause is not None and first.usual_level is not None and size_pct is not None:
                slow_job = SlowerJob(
                    math.exp(first.usual_level), size_pct, job[-1].gpu_hours_per_day, one_run and not all(are_once)
                )
                slower.setdefault(cause, {})[first.stack_key, first.job] = slow_job
    return slower


def already_slow(session: Session, projects: Collection[int], stack_keys: Collection[str]) -> dict[MovedJob, int]:
    """Return the regression of each job that was slow before it moved to one of these stacks, and is as slow there."""
    chosen = (
        select_any(RegressionRow.id)
        .join(RegressionMemberRow, col(RegressionMemberRow.regression_id) == RegressionRow.id)
        .where(
            col(RegressionRow.project_id).in_(projects),
            col(RegressionMemberRow.stack_key).in_(stack_keys),
            col(RegressionRow.metric) == "step_time_ms",
            col(RegressionRow.state) != "invalid",
        )
        .distinct()
    )
    numbers = session.execute(chosen).scalars().all() if stack_keys else []
    members = (member for jobs in jobs_of_regressions(session, numbers).values() for job in jobs for member in job)
    return {(own.follows, own.stack_key, own.job): own.regression_id for own in members if own.follows}


# --- The stored measurements, for the upgrade report.


def measured_changes(
    session: Session, project_id: int, field: str, from_value: str, to_value: str
) -> list[tuple[UpgradeChangeRow, Verdict]]:
    """Return the changes of one upgrade that were judged, with the measurement of each."""
    of_upgrade = _of_upgrade(project_id, field, from_value, to_value)
    chosen = select(UpgradeChangeRow).where(*of_upgrade, col(UpgradeChangeRow.side_by_side).is_(False))
    rows = session.execute(chosen).scalars()
    return [(row, from_json(Verdict, row.measured)) for row in rows if row.measured and row.runs and row.from_runs]


def _of_upgrade(project_id: int, field: str, from_value: str, to_value: str) -> tuple[ColumnElement[bool], ...]:
    return (
        col(UpgradeChangeRow.project_id) == project_id,
        col(UpgradeChangeRow.field) == field,
        col(UpgradeChangeRow.from_value) == from_value[:MOST_VALUE],
        col(UpgradeChangeRow.to_value) == to_value[:MOST_VALUE],
    )

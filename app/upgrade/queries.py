"""Reads the two sides of an upgrade, what it costs, and the regression that it opened."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Select, bindparam, func, select, text
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import shown
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.policy import ANY_BRANCH
from app.domain.verdict.record import RunFacts, RunRecord
from app.domain.verdict.triage import ACTIVE
from app.domain.verdict.upgrade import (
    UPGRADE_FIELDS,
    ConfigRuns,
    JudgedChange,
    Pair,
    UpgradeReport,
    compare_sides,
    slowest_first,
)
from app.storage.regressions import ends_of_costs
from app.storage.remembered import ContractValues, Remembered
from app.storage.stacks import COMPARED, facts_of, full_records
from app.storage.suspect_evidence import cause_of, suspects_of_regression
from app.storage.tables import (
    USABLE,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunResultRow,
    RunRow,
    StackRow,
    select_any,
    utc_now,
)
from app.storage.upgrade_changes import MovedJob, SlowerJob, already_slow, measured_changes, slower_jobs
from app.storage.verdicts import SHOWN_STATE, Costs

MOST_CONFIGURATIONS = 100
"""Configurations with the newest usable runs that are compared; contracts of more would take seconds to read."""
MOST_READ = 2000
"""Newest usable runs in which configurations are looked for."""
MOST_CONTRACTS = 500
"""Newest usable runs in which values of a field that is part of no key are looked for: each has its own contract."""
MOST_RUNS = 100
"""Newest runs of a configuration that are compared; matching takes fewer."""
_EVER = datetime.min.replace(tzinfo=UTC)
_MOST_KEY = 200
"""Characters of a stored cause key."""


@dataclass(frozen=True, slots=True)
class UpgradeValue:
    """A value of the field in usable CI runs. `since`: position of the first of them, None without any.

    `configs`: one record of each configuration.
    """

    value: str
    runs: int
    since: datetime | None
    newest_run: int
    configs: tuple[RunRecord, ...]


@dataclass(frozen=True, slots=True)
class UpgradeRegression:
    """A regression that the upgrade opened. `suspects`: `code likely`, best supported first, as its page has them.

    `possible`: names of the suspects if none is more or less than possible; else empty.
    """

    id: int
    state: str
    shown_state: str
    proposal: str
    cause: str
    metric: str
    stacks: int
    assignee: str
    suspects: tuple[str, ...]
    possible: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredUpgrade:
    """`costs`: GPU-hours a day of each slower pair, by its newest run; None where a factor is unknown.

    A slowdown that is unconfirmed has none. `cost_end`: when they ended, if they are not of now: `, last run 30 Sep`.
    """

    report: UpgradeReport
    costs: dict[str, float | None]
    regressions: tuple[UpgradeRegression, ...]
    cost_end: str = ""

    @property
    def gpu_hours_per_day(self) -> float | None:
        costs = [cost for cost in self.costs.values() if cost is not None]
        return sum(costs) if costs else None

    @property
    def first_open(self) -> UpgradeRegression | None:
        """Return the open regression to decide first: one without a proposal to close it, then one of step time."""
        opened = [regression for regression in self.regressions if regression.shown_state == "open"]
        return min(
            opened,
            key=lambda regression: (regression.proposal != "", regression.metric != "step_time_ms"),
            default=None,
        )


def projects(session: Session) -> tuple[str, ...]:
    return tuple(session.execute(select_any(ProjectRow.slug).order_by(ProjectRow.slug)).scalars())


def values_of(session: Session, project: ProjectRow, field: str) -> tuple[UpgradeValue, ...]:
    """Return the values of `field` in usable CI runs, the latest to appear first.

    They are those of the configurations with the newest runs.
    """
    # A field of role info is not part of a key, so runs of one configuration may differ in it.
    if FIELDS[field].role != "info":
        counts, records = _configurations(session, project)
    else:
        counts = _counts_by_value(session, project, field)
        records = full_records(session, list(counts))
    sides: dict[str, list[RunRecord]] = {}
    for record in records.values():
        stated = record.contract.get(field)
        if stated is not None and stated.value is not None:
            sides.setdefault(shown(stated.value), []).append(record)
    listed = [_side(value_text, configs, counts) for value_text, configs in sides.items()]
    return tuple(sorted(listed, key=lambda side: (side.since or _EVER, side.newest_run), reverse=True))


_Configurations = tuple[Mapping[int, tuple[int, datetime]], Mapping[str, RunRecord]]
_read_configurations = Remembered[_Configurations](most=20)
"""By project: about 1 MB each."""


def _configurations(session: Session, project: ProjectRow) -> _Configurations:
    """Return number and first position of runs by the newest of each configuration, the newest first; and records."""
    of_stacks = select_any(func.count(), func.sum(StackRow.revision), func.sum(StackRow.runs))
    state = tuple(session.execute(of_stacks.where(col(StackRow.project_id) == project.id)).one())
    question = (str(session.get_bind().engine.url), project.id)
    read = _read_configurations.find(question, state)
    if read is None:
        newest = func.max(col(RunRow.id))
        grouped = (
            select_any(newest, func.count(), func.min(col(RunRow.ordered_at)))
            .where(*_usable(project), col(RunRow.config_key).in_(_newest_configurations(session, project)))
            .group_by(col(RunRow.config_key))
        )
        rows = session.execute(grouped.order_by(newest.desc()).limit(MOST_CONFIGURATIONS))
        counts = {run: (n, first) for run, n, first in rows}
        read = counts, full_records(session, list(counts))
        _read_configurations.keep(question, state, read)
    return read


_info_values = ContractValues([name for name in UPGRADE_FIELDS if FIELDS[name].role == "info"], most=20_000)


def _counts_by_value(session: Session, project: ProjectRow, field: str) -> dict[int, tuple[int, datetime]]:
    """Return number and first position of runs by the newest of each configuration and value, the newest first."""
    chosen = select_any(RunRow.id, RunRow.config_key, RunRow.ordered_at, RunRow.processed_at).where(*_usable(project))
    rows = session.execute(chosen.order_by(col(RunRow.ordered_at).desc()).limit(MOST_CONTRACTS)).all()
    values = _info_values.of_runs(session, {row.id: row.processed_at for row in rows})
    groups: dict[tuple[str, str], list[Row[Any]]] = {}
    for row in rows:
        if (value := values.get(row.id, {}).get(field)) is not None:
            groups.setdefault((row.config_key, value), []).append(row)
    counts = {max(row.id for row in own): (len(own), own[-1].ordered_at) for own in groups.values()}
    return dict(sorted(counts.items(), reverse=True)[:MOST_CONFIGURATIONS])


def measure(session: Session, project: ProjectRow, field: str, old: UpgradeValue, new: UpgradeValue) -> MeasuredUpgrade:
    """Compare runs of the baseline branch on the old side with runs of any branch on the new one.

    An upgrade is often tried on a branch of its own.
    """
    branch = None if project.baseline_branch == ANY_BRANCH else project.baseline_branch
    before, after = _configs(session, project, field, old, branch), _configs(session, project, field, new, None)
    judged = _judged(session, project, field, (old.value, new.value), (before, after))
    report = compare_sides(field, old.value, new.value, before, after, judged=judged)
    cause = project.id or 0, report.cause_key
    before_it = already_slow(session, [cause[0]], {pair.new.stack_key for pair in report.pairs})
    report, shown = _with_sizes(report, slower_jobs(session, [cause]).get(cause, {}), before_it)
    costs_now = Costs(session, utc_now())
    costs = {
        pair.new.run: shown[pair.new.run] if pair.new.run in shown else _cost(costs_now, pair)
        for pair in report.counted
        if pair.word == "worse"
    }
    regressions = _regressions(session, project, report)
    active = {item.id for item in regressions if item.metric == "step_time_ms" and item.state in ACTIVE}
    ends = {*ends_of_costs(session, active).values()} if any(costs.values()) else set()
    return MeasuredUpgrade(report, costs, regressions, ends.pop() if len(ends) == 1 else "")


def _judged(
    session: Session,
    project: ProjectRow,
    field: str,
    values: tuple[str, str],
    sides: tuple[Sequence[ConfigRuns], Sequence[ConfigRuns]],
) -> list[JudgedChange]:
    """Return the changes that were judged, with the runs of both sides: one run if they are not among `sides`."""
    before = {run.run: config for config in sides[0] for run in config.runs}
    after = {(side.newest.stack_key, side.newest.config_key, side.newest.job): side for side in sides[1]}
    changes = [
        (
            measured,
            {
                measured.baseline_used[-1]: before.get(measured.baseline_used[-1]),
                measured.candidates_used[-1]: after.get((row.stack_key, row.config_key, row.job)),
            },
        )
        for row, measured in measured_changes(session, project.id or 0, field, *values)
    ]
    missing = [int(run) for _, listed in changes for run, config in listed.items() if config is None]
    records = {record.run: ConfigRuns(record, (record,)) for record in full_records(session, missing).values()}
    judged = []
    for measured, listed in changes:
        old, new = (config or records.get(run) for run, config in listed.items())
        if old is not None and new is not None:
            judged.append(JudgedChange(old, new, measured))
    return judged


def _with_sizes(
    report: UpgradeReport, slower: Mapping[tuple[str, str], SlowerJob], before: Mapping[MovedJob, int]
) -> tuple[UpgradeReport, dict[str, float | None]]:
    """Replace figures by those of the regression that the upgrade opened. Also return the costs of those replaced."""
    pairs: list[Pair] = []
    costs: dict[str, float | None] = {}
    for measured in report.pairs:
        job = slower.get((measured.new.stack_key, measured.new.job))
        moved = measured.old.stack_key, measured.new.stack_key, measured.new.job
        confirmed = None if job is None else not job.is_once
        pair = replace(measured, is_confirmed=confirmed, already_slow=before.get(moved))
        time = measured.measured.step_time
        if time is not None and job is not None and time.decision == "regression":
            same = replace(
                time, shift=math.log1p(job.delta_pct / 100), delta_pct=job.delta_pct, baseline_ms=job.usual_ms,
                candidate_ms=job.slow_ms,
            )  # fmt: skip
            pairs.append(replace(pair, measured=replace(pair.measured, step_time=same)))
            costs[pair.new.run] = job.gpu_hours_per_day
        else:
            pairs.append(pair)
    return replace(report, pairs=slowest_first(pairs)), costs


def _usable(project: ProjectRow) -> tuple[Any, ...]:
    """Return the conditions for a possible baseline. Matching (`RunFacts`) checks the rest of the rule."""
    return (col(RunRow.project_id) == project.id, text(USABLE))


def _newest_usable(project: ProjectRow, column: Any) -> Select[Any]:
    return select_any(column).where(*_usable(project)).order_by(col(RunRow.ordered_at).desc()).limit(MOST_READ)


def _newest_configurations(session: Session, project: ProjectRow) -> set[str]:
    """Return the configurations of the newest runs and, if they are few, those of the newest run of each stack.

    Grouping all runs would take time in proportion to them.
    """
    newest_first = dict.fromkeys(session.execute(_newest_usable(project, RunRow.config_key)).scalars())
    keys = set(list(newest_first)[:MOST_CONFIGURATIONS])
    if len(keys) < MOST_CONFIGURATIONS:
        newest = (
            select_any(RunRow.config_key)
            .where(col(RunRow.project_id) == StackRow.project_id, col(RunRow.stack_key) == StackRow.stack_key)
            .order_by(col(RunRow.ordered_at).desc())
            .limit(1)
            .scalar_subquery()
        )
        stacks = select_any(newest).where(col(StackRow.project_id) == project.id, col(StackRow.runs) > 0)
        newest_stacks = stacks.order_by(col(StackRow.last_at).desc()).limit(MOST_CONFIGURATIONS)
        keys.update(session.execute(newest_stacks).scalars())
    return keys


def _side(value: str, configs: Sequence[RunRecord], counts: Mapping[int, tuple[int, datetime]]) -> UpgradeValue:
    ids = [int(record.run) for record in configs]
    return UpgradeValue(
        value, sum(counts[run][0] for run in ids), min(counts[run][1] for run in ids), max(ids), tuple(configs)
    )


def _configs(
    session: Session, project: ProjectRow, field: str, side: UpgradeValue, branch: str | None
) -> list[ConfigRuns]:
    """Return each configuration and job with its runs, oldest first, of the definitions version of the newest run."""
    chosen: Select[Any] = select_any(*COMPARED).where(
        *_usable(project), col(RunRow.config_key) == bindparam("config_key")
    )
    if branch is not None:
        chosen = chosen.where(col(RunRow.branch) == branch)
    if FIELDS[field].role == "info":
        chosen = chosen.join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        chosen = chosen.where(col(RunResultRow.contract)[field]["value"].as_string() == side.value)
    chosen = chosen.order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc()).limit(MOST_RUNS)
    runs: dict[tuple[str, str], list[RunFacts]] = {}
    for key in sorted({config.config_key for config in side.configs}):
        for row in reversed(session.execute(chosen, {"config_key": key}).all()):
            facts = facts_of(row)
            if not facts.never_a_baseline_because:
                runs.setdefault((facts.config_key, facts.job), []).append(facts)
    newest = full_records(session, [int(members[-1].run) for members in runs.values()])
    configurations = ((newest[members[-1].run], members) for members in runs.values())
    return [
        ConfigRuns(last, tuple(run for run in members if run.definition_version == last.definition_version))
        for last, members in configurations
    ]


def _cost(costs: Costs, pair: Pair) -> float | None:
    """Return GPU-hours a day; None when a factor is unknown."""
    assert pair.measured.step_time is not None  # noqa: S101  # only slower pairs cost
    extra = pair.measured.step_time.candidate_ms - pair.measured.step_time.baseline_ms
    stacks = (pair.old.stack_key, pair.new.stack_key)
    return costs.of_slowdown(int(pair.new.run), stacks, extra).gpu_hours_per_day


def _regressions(session: Session, project: ProjectRow, report: UpgradeReport) -> tuple[UpgradeRegression, ...]:
    """Return the regressions that this upgrade opened, one per metric, in any state; newest first."""
    members = select(func.count()).where(col(RegressionMemberRow.regression_id) == col(RegressionRow.id))
    rows = session.execute(
        select(RegressionRow, SHOWN_STATE, members.scalar_subquery())
        .where(
            col(RegressionRow.project_id) == project.id,
            col(RegressionRow.kind) == "upgrade",
            col(RegressionRow.cause_key) == report.cause_key[:_MOST_KEY],
        )
        .order_by(col(RegressionRow.id).desc())
    )
    regressions = []
    for row, shown_state, count in rows:
        labels = best_labels(suspects_of_regression(session, row))
        regressions.append(
            UpgradeRegression(
                row.id or 0,
                row.state,
                shown_state,
                row.proposal,
                cause_of(session, row).rstrip("."),
                row.metric,
                count,
                row.assignee,
                suspects=tuple(f"{name} {label}" for name, label in labels.items()),
                possible=tuple(sorted(labels)) if {*labels.values()} == {"possible"} else (),
            )
        )
    return tuple(regressions)


def best_labels(suspects: Sequence[RankedSuspect]) -> dict[str, str]:
    """Return the best label of each cause, `likely`: two ranges of commits are one cause. Best first."""
    labels: dict[str, str] = {}
    for item in suspects:
        labels.setdefault(item.name, item.label)
    return labels

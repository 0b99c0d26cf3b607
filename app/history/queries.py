"""Reading one stack's history: runs with their eligibility, configurations, golden runs and regressions."""

import math
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, Self
from urllib.parse import urlencode

from sqlalchemy import Select, bindparam, select
from sqlmodel import Session, col

from app.domain.contract.fields import STACK_FIELDS
from app.domain.contract.resolve import workload
from app.domain.naming import container_tag, stack_title
from app.domain.numbers import UNITS, contract_value
from app.domain.run import Metric, Stated
from app.domain.verdict.comparability import Difference, compare_contracts
from app.domain.verdict.history_view import (
    WATCHED,
    ConfigurationHistory,
    Eligibility,
    HistoryRun,
    Pin,
    VersionChange,
    VersionProbe,
    changed_versions,
    configurations,
    eligibility,
    with_outliers,
)
from app.domain.verdict.step_time import Prior
from app.domain.verdict.triage import ACTIVE, FIX_CLAIMED, is_half_gone
from app.pipeline.decisions import pins
from app.storage.json_text import from_json
from app.storage.remembered import Remembered
from app.storage.runs import metrics_of, stated, stored_contract
from app.storage.stacks import StackRun, full_records, stack_runs
from app.storage.suspect_evidence import cleared_fields
from app.storage.tables import (
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunResultRow,
    RunRow,
    StackRow,
    VerdictRow,
    from_row,
    in_batches,
    not_indexed,
    select_any,
)
from app.storage.verdicts import SHOWN_STATE, changes_of_jobs
from app.web.lists import invalid_filter

# --- The shown part of a history: the query string of `/history/{stack}`, validated as input.

ORDER, DATE = "order", "date"
ALL, OWN = "all", "own"
_CHOICES: Mapping[str, tuple[str, ...]] = {"metric": tuple(UNITS), "axis": (ORDER, DATE), "containers": (ALL, OWN)}
_NUMBERS = ("first", "last", "page")
_MOST_DIGITS = 18
"""Run numbers fit in 63 bits."""
_SHORTEST_KEY = 8
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class HistoryView:
    """The state of the page in its address.

    `config`: first digits of a config key, with `:` and a job if several jobs share it; empty for all. `first` and
    `last`: numbers of the runs at the ends of the zoom, so that an address shows the same runs after later uploads; 0
    for no zoom. `page`: of the table.
    """

    config: str = ""
    metric: str = "step_time_ms"
    axis: str = ORDER
    containers: str = ALL
    first: int = 0
    last: int = 0
    page: int = 1

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Read the query string. Raises InvalidQuery naming the first invalid field."""
        given = {f.name: text for f in fields(cls) if (text := params.get(f.name, "").strip())}
        values: dict[str, Any] = {}
        for name, text in given.items():
            if name in _NUMBERS:
                if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
                    raise invalid_filter(name, f"must be a whole number; {text[:40]!r} is not")
                values[name] = int(text)
            else:
                if text not in _CHOICES.get(name, (text,)):
                    raise invalid_filter(name, f"must be one of {', '.join(_CHOICES[name])}; {text[:40]!r} is not")
                values[name] = text
        view = cls(**values)
        if view.config and not is_key(view.config.partition(":")[0]):
            raise invalid_filter("config", f"must be at least {_SHORTEST_KEY} digits of a config key")
        return replace(view, page=max(1, view.page))

    @property
    def zoomed(self) -> bool:
        return bool(self.first or self.last)

    def query(self, **changes: Any) -> str:
        """Return the query string with `changes` applied, without values that equal the default."""
        changed = replace(self, **changes)
        default = HistoryView()
        return urlencode(
            {f.name: value for f in fields(self) if (value := getattr(changed, f.name)) != getattr(default, f.name)}
        )


def is_key(text: str) -> bool:
    """Return whether the text can be the start of a key and is long enough."""
    return _SHORTEST_KEY <= len(text) <= 64 and set(text) <= _HEX


# --- The stack of an address: a key, or the first digits of one.

MOST_CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class HistoryStack:
    """A stack, described by its newest run with figures. `contract` and `run_id` are those of that run."""

    stack_key: str
    project_id: int
    project: str
    generated: bool
    baseline_branch: str
    commit_url: str
    compare_url: str
    run_id: int
    contract: dict[str, Stated]

    @property
    def title(self) -> str:
        return stack_title(self.contract, dispatcher=False)


_IS_READY = not_indexed(col(RunRow.status)) == "ready"
"""Makes SQLite look up the stacks instead of reading all runs with the status."""

_NEWEST = (
    select_any(RunRow.id)
    .where(col(RunRow.stack_key) == StackRow.stack_key)
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    .limit(1)
    .correlate(StackRow)
)
_NEWEST_OF_STACK = _NEWEST.where(_IS_READY).scalar_subquery()
_NEWEST_READ = _NEWEST.where(not_indexed(col(RunRow.status)).in_(("ready", "failed"))).scalar_subquery()


def matching_keys(session: Session, text: str) -> tuple[str, ...]:
    """Return up to MOST_CANDIDATES + 1 stack keys that begin with `text`; for a whole key, only that key."""
    if not is_key(text):
        return ()
    key = col(StackRow.stack_key)
    # A range, because `LIKE` of a collation other than C would not use the index. `g` comes after every digit.
    begun = select(key).where(key >= text, key < text + "g", col(StackRow.runs) > 0).order_by(key)
    keys = tuple(session.execute(begun.limit(MOST_CANDIDATES + 1)).scalars())
    return (text,) if text in keys else keys


def get_stack(session: Session, stack_key: str) -> HistoryStack | None:
    """Return the stack; None if none of its runs was read."""
    return get_stacks(session, [stack_key]).get(stack_key)


def get_stacks(session: Session, stack_keys: Sequence[str]) -> dict[str, HistoryStack]:
    """Return the stacks by key, without those of which no run was read."""
    newest = (
        select_any(RunRow.id, RunRow.stack_key, RunResultRow.contract, ProjectRow)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id).in_(select_any(_NEWEST_READ).where(col(StackRow.stack_key).in_(stack_keys))))
    )
    return {
        stack_key: from_row(
            HistoryStack,
            project,
            stack_key=stack_key,
            project_id=project.id,
            project=project.slug,
            run_id=run_id,
            contract=stored_contract(contract),
        )
        for run_id, stack_key, contract, project in session.execute(newest)
    }


MOST_PROBES, FEWEST_PROBES = 100, 12
"""Maximum runs at which versions are read, because contracts are large; and how many of each stack at least."""


@dataclass(frozen=True)
class HistoryOfStack:
    """A history. `runs`: in history order. `eligibilities`: one per run. A position is an index into both."""

    stack: HistoryStack
    runs: tuple[StackRun, ...]
    eligibilities: tuple[Eligibility, ...]
    configurations: tuple[ConfigurationHistory, ...]
    pins: tuple[Pin, ...]

    @property
    def last_used(self) -> ConfigurationHistory:
        """Return the configuration of the last counted run."""
        return next(configuration for configuration in self.configurations if configuration.is_last)

    @cached_property
    def letters(self) -> dict[int, str]:
        """Return the letter of each run's configuration, by position."""
        return {position: own.letter for own in self.configurations for position in own.runs}

    @cached_property
    def marked(self) -> frozenset[int]:
        """Return the positions of runs with a mark: a verdict with a change, a failure, an outlier, a golden run, a
        release."""
        pinned = {pin.run_id for pin in self.pins}
        return frozenset(
            position
            for position, (run, eligibility) in enumerate(zip(self.runs, self.eligibilities, strict=True))
            if eligibility == "outlier"
            or run.purpose == "release"
            or run.id in pinned
            or (run.purpose != "experiment" and run.verdict in ("regression", "improvement", "failed"))
        )


OPEN_STATES = (*ACTIVE, FIX_CLAIMED)
"""States of a regression that needs action because its runs are still slow."""


@dataclass(frozen=True, slots=True)
class HistoryAlarm:
    """A regression that includes the stack. `run_id`: the slow run. `fixed_by`: the run that ended it.

    `delta_pct`: the change of its job, `stack_pct`: that in this stack. `usual_ms`: step time before it. `is_back`: the
    runs of this stack have recovered, or its job moved to another stack. `is_stale`: it is proposed for closing,
    because its jobs no longer run. `is_container_cleared`: it began with another container, which its evidence
    clears.
    """

    regression_id: int
    run_id: int
    shown_state: str
    metric: str
    fixed_by: int | None
    delta_pct: float | None
    stack_pct: float | None
    usual_ms: float | None
    is_back: bool
    is_stale: bool
    is_container_cleared: bool = False

    @property
    def proposal(self) -> str:
        """Return as what the service proposes to close it here."""
        return "fixed" if self.is_back else "stale" if self.is_stale else ""

    def is_half_gone(self, newest_ms: float) -> bool:
        """Return whether less than half of the change is left in a run of this step time."""
        return is_half_gone(self.delta_pct, 100 * (newest_ms / self.usual_ms - 1) if self.usual_ms else None)

    @property
    def measured(self) -> "MeasuredChange":
        """Return the change of step time in this stack."""
        return MeasuredChange(self.usual_ms, self.stack_pct)


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """A change of step time, with the level before; both None if unknown."""

    from_ms: float | None
    delta_pct: float | None

    @property
    def to_ms(self) -> float | None:
        """Return the step time of the slow runs."""
        if self.from_ms is None or self.delta_pct is None:
            return None
        return self.from_ms * (1 + self.delta_pct / 100)


@dataclass(frozen=True, slots=True)
class _Analysis:
    """The parts of a history that are slow to read and compute. `judged`: newest judged run of each configuration.

    `eligible`: eligibilities before outliers are marked. `results`: final eligibilities and configurations, by the
    priors with which they were computed.
    """

    runs: tuple[StackRun, ...]
    eligible: tuple[Eligibility, ...]
    judged: Mapping[str, int]
    results: dict[tuple[tuple[str, Prior], ...], tuple[tuple[Eligibility, ...], tuple[ConfigurationHistory, ...]]]


_MOST_REMEMBERED = 20_000
"""Maximum runs over all remembered histories. A run takes 5 kB."""
_remembered: OrderedDict[tuple[object, ...], _Analysis] = OrderedDict()
_remembering = Lock()


def read_history(session: Session, stack: HistoryStack) -> HistoryOfStack:
    """Return the history without figures, which take the most time to read (`read_figures`)."""
    return read_histories(session, [stack])[0]


def read_histories(session: Session, stacks: Sequence[HistoryStack]) -> list[HistoryOfStack]:
    """Return the histories of stacks of one project, in their order, without figures.

    The runs are remembered until one of them changes, so that the chart does not read again what the page has read.
    """
    if not stacks:
        return []
    project_id, keys = stacks[0].project_id, [stack.stack_key for stack in stacks]
    # Reads the revisions first, so that a run which changes between the two reads leads to a newer revision.
    revisions = {
        stack_key: revision
        for stack_key, *revision in session.execute(
            select_any(StackRow.stack_key, StackRow.revision, StackRow.runs).where(
                col(StackRow.project_id) == project_id, col(StackRow.stack_key).in_(keys)
            )
        )
    }
    analyses = [_analysis(session, stack, tuple(revisions.get(stack.stack_key, ()))) for stack in stacks]
    priors = _priors(session, [run for analysis in analyses for run in analysis.judged.values()])
    pinned = pins(session, project_id, keys)
    histories = []
    for stack, analysis in zip(stacks, analyses, strict=True):
        # The prior of each configuration's newest verdict, so that levels agree with verdicts.
        of_stack = {config: priors[run] for config, run in analysis.judged.items() if run in priors}
        key = tuple(sorted(of_stack.items(), key=lambda pair: pair[0]))
        if key not in analysis.results:
            marked = with_outliers(analysis.runs, analysis.eligible, of_stack)
            analysis.results[key] = marked, configurations(analysis.runs, marked, of_stack)
        histories.append(
            HistoryOfStack(stack, analysis.runs, *analysis.results[key], tuple(pinned.get(stack.stack_key, ())))
        )
    return histories


def _priors(session: Session, run_ids: Sequence[int]) -> dict[int, Prior]:
    """Return the prior of the current verdict of these runs, by run number."""
    priors: dict[int, Prior] = {}
    column = col(VerdictRow.document)["verdict"]["prior"].label("prior")
    for some in in_batches(run_ids):
        chosen = col(VerdictRow.run_id).in_(some), col(VerdictRow.current)
        rows = session.execute(select_any(VerdictRow.run_id, column).where(*chosen))
        priors |= {run_id: from_json(Prior, stored) for run_id, stored in rows}
    return priors


def _analysis(session: Session, stack: HistoryStack, revision: tuple[object, ...]) -> _Analysis:
    key = (str(session.get_bind().engine.url), stack.project_id, stack.stack_key, stack.baseline_branch, revision)
    with _remembering:
        if key in _remembered:
            _remembered.move_to_end(key)
            return _remembered[key]
    runs = tuple(stack_runs(session, stack.project_id, stack.stack_key, with_metrics=False))
    version = max((run.definition_version for run in runs), default=0)
    eligible = tuple(eligibility(run, stack.baseline_branch, version) for run in runs)
    judged = {
        run.config_key: run.id for run, why in zip(runs, eligible, strict=True) if run.verdict and why == "counts"
    }
    analysis = _Analysis(runs, eligible, judged, {})
    with _remembering:
        for other in [other for other in _remembered if other[:3] == key[:3]]:
            del _remembered[other]
        _remembered[key] = analysis
        while len(_remembered) > 1 and sum(len(entry.runs) for entry in _remembered.values()) > _MOST_REMEMBERED:
            _remembered.popitem(last=False)
    return analysis


def read_figures(session: Session, runs: Sequence[StackRun], metric: str) -> dict[int, Metric | None]:
    """Return one headline figure of these runs, by run number."""
    figures: dict[int, Metric | None] = {}
    column = col(RunResultRow.metrics)[metric].label("stored")
    for ids in in_batches([run.id for run in runs]):
        rows = session.execute(select_any(RunResultRow.run_id, column).where(col(RunResultRow.run_id).in_(ids)))
        figures |= {run_id: metrics_of({metric: stored})[metric] for run_id, stored in rows}
    return figures


def read_all_figures(session: Session, run_ids: Sequence[int]) -> dict[int, Mapping[str, Metric | None]]:
    """Return the headline figures of these runs, by run number."""
    figures: dict[int, Mapping[str, Metric | None]] = {}
    for some in in_batches(run_ids):
        wanted = col(RunResultRow.run_id).in_(some)
        rows = session.execute(select_any(RunResultRow.run_id, RunResultRow.metrics).where(wanted))
        figures |= {run_id: metrics_of(stored) for run_id, stored in rows}
    return figures


def read_alarms(session: Session, stack_keys: Collection[str]) -> tuple[HistoryAlarm, ...]:
    rows = session.execute(
        select(RegressionMemberRow, RegressionRow, SHOWN_STATE)
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .where(col(RegressionMemberRow.stack_key).in_(stack_keys))
        .order_by(col(RegressionRow.id))
    ).all()
    regressions = {regression.id or 0: regression for _, regression, _ in rows}
    changes = changes_of_jobs(session, regressions)
    cleared = {
        number: "container" in cleared_fields(session, regression)
        for number, regression in regressions.items()
        if regression.kind == "upgrade" and regression.metric == "step_time_ms"
    }
    return tuple(
        HistoryAlarm(
            alarm.regression_id,
            alarm.run_id,
            shown_state,
            regression.metric,
            regression.proposal_run_id,
            changes[alarm.regression_id, alarm.run_id],
            alarm.delta_pct,
            None if alarm.usual_level is None else math.exp(alarm.usual_level),
            alarm.proposal == "fixed",
            regression.proposal == "stale",
            cleared.get(alarm.regression_id, False),
        )
        for alarm, regression, shown_state in rows
    )


def read_versions(
    session: Session, runs: Sequence[StackRun], stacks: Collection[Sequence[int]]
) -> Sequence[VersionChange]:
    """Return the version changes within each stack, in history order. `stacks`: the positions of the runs of each.

    Contracts are read at up to MOST_PROBES runs in all, evenly spread in each stack, and at FEWEST_PROBES of each.
    """
    most = max(FEWEST_PROBES, MOST_PROBES // len(stacks))
    probed = [_evenly(positions, most) for positions in stacks]
    run_ids = tuple(runs[position].id for positions in probed for position in positions)
    question = (str(session.get_bind().engine.url), run_ids)
    changes = _remembered_changes.find(question, runs)
    if changes is None:
        contracts = _contracts(session, run_ids)
        changes = sorted(
            (
                change
                for positions in probed
                for change in changed_versions(
                    [VersionProbe(position, contracts.get(runs[position].id, {})) for position in positions]
                )
            ),
            key=lambda change: change.run,
        )
        _remembered_changes.keep(question, runs, changes)
    return changes


_remembered_changes = Remembered[Sequence[VersionChange]](32)
"""Version changes, valid until one of the runs of the history changes."""


def _evenly(positions: Sequence[int], most: int) -> Sequence[int]:
    last = len(positions) - 1
    return positions if last < most else sorted({positions[round(k * last / (most - 1))] for k in range(most)})


def _contracts(session: Session, run_ids: Sequence[int]) -> dict[int, dict[str, Stated]]:
    chosen = select_any(RunResultRow.run_id, RunResultRow.contract).where(col(RunResultRow.run_id).in_(run_ids))
    return {
        run_id: {name: stated(contract[name], name) for name in WATCHED if name in (contract or {})}
        for run_id, contract in session.execute(chosen)
    }


# --- Stacks that differ only in the container: those before and after an upgrade.

MOST_NEIGHBOURS = 40
"""Maximum stacks of the same model and hardware that are checked, newest runs first."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The same stack in another container. `is_later`: its first run came after the first run here."""

    stack_key: str
    container: str
    runs: int
    first_at: datetime
    last_at: datetime
    is_later: bool


def read_neighbours(session: Session, stack: HistoryStack, since: datetime) -> tuple[Neighbour, ...]:
    """Return the neighbours, oldest first. `since`: history position of the first run of `stack`."""
    similar = [tuple(row) for row in session.execute(_similar_stacks(stack))]
    question = (str(session.get_bind().engine.url), stack.project_id, stack.stack_key)
    containers = _remembered_neighbours.find(question, (stack, similar))
    if containers is None:
        containers = _containers_of_neighbours(session, stack, [key for key, *_ in similar])
        _remembered_neighbours.keep(question, (stack, similar), containers)
    if not containers:
        return ()
    neighbours = []
    for row in session.execute(EXTENTS, {"stack_keys": list(containers)}):
        container, is_later = containers[row.stack_key], row.first_at > since
        neighbours.append(Neighbour(row.stack_key, container, row.runs, row.first_at, row.last_at, is_later=is_later))
    return tuple(sorted(neighbours, key=lambda neighbour: (neighbour.first_at, neighbour.stack_key)))


_remembered_neighbours = Remembered[Mapping[str, str]](1000)
"""Containers of the neighbours of a stack by their keys, until a run of one of these stacks changes."""


def _containers_of_neighbours(session: Session, stack: HistoryStack, similar: Sequence[str]) -> dict[str, str]:
    newest_runs = session.execute(
        select_any(StackRow.stack_key, _NEWEST_OF_STACK).where(
            col(StackRow.stack_key).in_(similar), col(StackRow.project_id) == stack.project_id
        )
    )
    newest = {key: run_id for key, run_id in newest_runs if run_id is not None}
    works = works_of_stacks(session, [stack.stack_key, *newest])
    own_work, _ = works[stack.stack_key]
    candidates = [run_id for key, run_id in newest.items() if key in works and works[key][0] == own_work]
    if not candidates:
        return {}
    records = full_records(session, [stack.run_id, *candidates])
    own = records.pop(str(stack.run_id))
    containers = {}
    for record in records.values():
        compared = compare_contracts(own, record)
        if compared.kind == "contrast" and compared.stack[0].field == "container" and compared.stack[0].b is not None:
            containers[record.stack_key] = contract_value(compared.stack[0].b.value)
    return containers


_FIRST_OF_STACK = (
    select_any(RunRow.ordered_at)
    .where(col(RunRow.stack_key) == StackRow.stack_key, _IS_READY)
    .order_by(col(RunRow.ordered_at))
    .limit(1)
    .correlate(StackRow)
    .scalar_subquery()
)
EXTENTS: Select[Any] = select_any(
    StackRow.stack_key, StackRow.runs, _FIRST_OF_STACK.label("first_at"), col(StackRow.last_at).label("last_at")
).where(col(StackRow.stack_key).in_(bindparam("stack_keys", expanding=True)))


def _similar_stacks(stack: HistoryStack) -> Select[Any]:
    """Return a select of the stacks of the same project, model and hardware, each with what changes with its runs."""
    same = {name: stack.contract[name].value if name in stack.contract else None for name in ("model", "gpu", "gpus")}
    return (
        select_any(StackRow.stack_key, StackRow.revision, StackRow.runs)
        .where(
            col(StackRow.project_id) == stack.project_id,
            col(StackRow.stack_key) != stack.stack_key,
            col(StackRow.runs) > 0,
            *(col(getattr(StackRow, name)) == value for name, value in same.items()),
        )
        .order_by(col(StackRow.last_at).desc())
        .limit(MOST_NEIGHBOURS)
    )


_remembered_works = Remembered[tuple[str, str]](10_000)
"""Workload and container by stack key. The key determines both, so the values stay valid."""


def works_of_stacks(session: Session, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return workload and container of each stack, as its newest run states them."""
    works = {key: work for key in keys if (work := _remembered_works.find((key,), None)) is not None}
    unread = [key for key in keys if key not in works]
    for some in in_batches(unread):
        numbers = select_any(_NEWEST_READ).where(col(StackRow.stack_key).in_(some))
        contracts = session.execute(
            select_any(RunRow.stack_key, RunResultRow.contract)
            .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
            .where(col(RunRow.id).in_(session.execute(numbers).scalars().all()))
        )
        for stack_key, stored in contracts:
            contract = stored_contract({name: stored[name] for name in STACK_FIELDS if name in stored})
            # One text, because Python caches its hash.
            works[stack_key] = "\0".join(workload(contract)), container_tag(contract)
            _remembered_works.keep((stack_key,), None, works[stack_key])
    return works


# --- Texts that several parts of the history pages use.

VERDICTS = {
    "regression": "regression",
    "improvement": "improvement",
    "no_change": "no change",
    "inconclusive": "inconclusive",
    "no_baseline": "no baseline",
    "failed": "failed",
}


def difference_text(difference: Difference) -> str:
    """Format a difference: `driver 550.54 to 560.35`, or `unknown` for a side that no source states."""
    a, b = (contract_value(side.value) if side else "unknown" for side in (difference.a, difference.b))
    return f"{difference.field} {a} to {b}"


def version_text(change: VersionChange, runs: Sequence[HistoryRun]) -> str:
    """Return a description of a version change, with the runs between which it lies unless they are adjacent."""
    differences = "; ".join(difference_text(difference) for difference in change.differences)
    between = "" if change.run == change.before + 1 else f" (after #{runs[change.before].id})"
    return f"{differences}{between}"

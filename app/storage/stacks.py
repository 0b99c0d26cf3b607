"""The runs of a stack in history order, with the columns that segments and baselines need; complete single runs.

A history can have thousands of runs, each with a contract of 15 KB of JSON, so it reads columns only.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol, cast

from sqlalchemy import ColumnElement, Row, Select, bindparam, case, func, select
from sqlmodel import Session, col

from app.domain.contract.fields import CONFIG_FIELDS, METRICS, STACK_FIELDS
from app.domain.naming import TitledStack, stack_names, stack_title
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.run import Metric, Stated
from app.domain.verdict.comparability import Difference, differing, marked
from app.domain.verdict.history import find_changes
from app.domain.verdict.record import FAILED, UNFIT, UNREAD, Losses, RunFacts, RunRecord, typical_losses
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    FEWEST_CONFIGURATIONS,
    FEWEST_ITERATIONS,
    MOST_SKIPPED,
    Prior,
    RunEstimate,
    Sample,
    prior_of,
    sample_of,
)
from app.storage.json_text import frozen
from app.storage.readings import losses_of_runs
from app.storage.remembered import Remembered
from app.storage.runs import metrics_of, newest_contract, stored_contract, stored_contracts
from app.storage.tables import (
    EVERYTHING,
    ProjectRow,
    RunResultRow,
    RunRow,
    StandingRow,
    in_batches,
    not_indexed,
    select_any,
)

_SLIM = (
    RunRow.id, RunRow.project_id, RunRow.commit, RunRow.branch, RunRow.purpose, RunRow.ordered_at, RunRow.created_at,
    RunRow.stack_key, RunRow.config_key, RunRow.gpu, RunRow.reception, RunRow.step_time_ms, RunRow.tokens_per_s_per_gpu,
    RunRow.tflops_per_gpu, RunRow.mfu_pct, RunRow.status, RunRow.outcome, RunRow.quarantine, RunRow.verdict,
    RunRow.log_step_time, RunRow.step_time_se, RunRow.window_length, RunRow.is_steady, RunRow.short,
    RunRow.peak_memory_gib, RunRow.not_finite, RunRow.skipped_share,
    RunRow.shape, RunRow.fair_for_timing, RunRow.definition_version,
    RunRow.semantic_class, RunRow.job, RunRow.model, RunRow.gpus, RunRow.merge_base, RunRow.merge_base_time,
    # Experiments only, because parsing this JSON for hundreds of rows takes time.
    case((col(RunRow.purpose) == "experiment", col(RunRow.tags))).label("experiment_tags"),
)  # fmt: skip
COMPARED = (
    RunRow.id, RunRow.status, RunRow.purpose, RunRow.branch, RunRow.commit, RunRow.stack_key, RunRow.config_key,
    RunRow.semantic_class, RunRow.outcome, RunRow.log_step_time, RunRow.step_time_se, RunRow.window_length,
    RunRow.is_steady, RunRow.short, RunRow.peak_memory_gib, RunRow.not_finite, RunRow.skipped_share,
    RunRow.shape, RunRow.fair_for_timing,
    RunRow.definition_version, RunRow.quarantine, RunRow.job,
)  # fmt: skip
"""Columns that `facts_of` needs."""

# Only pages need these. Each column costs time over hundreds of rows.
_SHOWN: tuple[Any, ...] = (
    RunRow.name,
    RunRow.dispatcher,
    RunRow.evidence_level,
    RunRow.verdict_delta_pct,
)
# Built once: composing a select of thirty columns takes as long as running it.
_TO_JUDGE: Select[Any] = (
    select_any(*_SLIM)
    .where(
        # Makes SQLite look up the runs of the stack instead of scanning the project in order.
        not_indexed(col(RunRow.project_id)) == bindparam("project_id"),
        col(RunRow.stack_key) == bindparam("stack_key"),
        col(RunRow.status).in_(("ready", "failed")),
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
)
RUNS_BY_NUMBER: Select[Any] = (
    select_any(*_SLIM)
    .where(
        col(RunRow.id).in_(bindparam("run_ids", expanding=True)),
        not_indexed(col(RunRow.project_id)) == bindparam("project_id"),
        not_indexed(col(RunRow.stack_key)) == bindparam("stack_key"),
        col(RunRow.status).in_(("ready", "failed")),
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
)
"""For `read_runs`, which supplies `run_ids`: reads these runs of the stack and no others."""
_NEWEST_FIRST = _TO_JUDGE.add_columns(*_SHOWN)
_WITH_METRICS = _NEWEST_FIRST.add_columns(col(RunResultRow.metrics)).join(
    RunResultRow, col(RunResultRow.run_id) == RunRow.id
)
_RANKED_TOO: tuple[Any, ...] = (
    RunRow.dispatcher, RunRow.evidence_level, col(RunResultRow.activity)["dispatcher"].label("carried"),
)  # fmt: skip
_TO_JUDGE_AND_RANK = _TO_JUDGE.add_columns(*_RANKED_TOO).join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
_NEWEST_TO_JUDGE_AND_RANK = _TO_JUDGE_AND_RANK.limit(bindparam("most"))
_COMPARED: Select[Any] = (
    select_any(*COMPARED, RunRow.processed_at, ProjectRow.slug)
    .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    .where(col(RunRow.id).in_(bindparam("run_ids", expanding=True)))
)
_CONTRACTS: Select[Any] = select_any(RunResultRow.run_id, RunResultRow.contract, RunResultRow.steady_state).where(
    col(RunResultRow.run_id).in_(bindparam("run_ids", expanding=True))
)


class _StackColumns(Protocol):
    """The columns of a run that are read without conversion."""

    project_id: int
    name: str
    dispatcher: str | None
    gpu: str | None
    gpus: int | None
    reception: str
    status: str
    verdict: str
    verdict_delta_pct: float | None
    evidence_level: str


@dataclass(frozen=True, slots=True)
class StackRun:
    """One run of a stack. `log_step_time` (ln ms) and its standard error `se` are NaN without an estimate.

    `facts`: what matching compares. The other values are converted on access, because a verdict reads only a few of
    them for hundreds of runs. `gpu`, `gpus` and `dispatcher` are None if unknown.
    """

    id: int
    ordered_at: datetime
    facts: RunFacts
    row: Row[Any]

    @property
    def _columns(self) -> _StackColumns:
        return cast(_StackColumns, self.row)

    @property
    def project_id(self) -> int:
        return self._columns.project_id

    @property
    def name(self) -> str:
        return self._columns.name

    @property
    def commit(self) -> str:
        return self.facts.commit

    @property
    def branch(self) -> str:
        return self.facts.branch

    @property
    def purpose(self) -> str:
        return self.facts.purpose

    @property
    def experiment_tags(self) -> tuple[str, ...]:
        """Return the sorted tags of an experiment's run; empty for other runs."""
        return tuple(sorted(self.row.experiment_tags or ()))

    @property
    def created_at(self) -> datetime:
        created_at: datetime = self.row.created_at
        return created_at

    @property
    def dispatcher(self) -> str | None:
        return self._columns.dispatcher

    @property
    def gpu(self) -> str | None:
        return self._columns.gpu

    @property
    def gpus(self) -> int | None:
        return self._columns.gpus

    @property
    def reception(self) -> str:
        return self._columns.reception

    @property
    def status(self) -> str:
        return self._columns.status

    @property
    def verdict(self) -> str:
        return self._columns.verdict

    @property
    def verdict_delta_pct(self) -> float | None:
        return self._columns.verdict_delta_pct

    @property
    def evidence_level(self) -> str:
        return self._columns.evidence_level

    @property
    def metrics(self) -> Mapping[str, Metric | None]:
        """Return the headline figures, without intervals unless they were read."""
        return metrics_of(self.row.metrics) if "metrics" in self.row._fields else _bare_figures(self.row)

    @property
    def config_key(self) -> str:
        return self.facts.config_key

    @property
    def job(self) -> str:
        return self.facts.job

    @property
    def outcome(self) -> str:
        return self.facts.outcome

    @property
    def quarantine(self) -> str:
        """Return the user's reason; empty if the run counts."""
        return self.facts.quarantined

    @property
    def definition_version(self) -> int:
        return self.facts.definition_version

    @property
    def semantic_class(self) -> str:
        return self.facts.semantic_class

    @property
    def log_step_time(self) -> float:
        return self.facts.estimate.log_step_time

    @property
    def se(self) -> float:
        return self.facts.estimate.se

    @property
    def window_length(self) -> int:
        return self.facts.estimate.window_length

    @property
    def is_steady(self) -> bool:
        return self.facts.estimate.is_steady

    @property
    def short(self) -> bool:
        return self.facts.estimate.short

    @property
    def peak_memory_gib(self) -> float | None:
        memory = self.facts.estimate.peak_memory_bytes
        return None if memory is None else memory / BYTES_PER_GIB

    @property
    def counts_in_segments(self) -> bool:
        """Return whether the run counts for the segments of its history."""
        return self.purpose == "ci" and not self.facts.never_a_baseline_because


def is_stack(session: Session, stack_key: str) -> bool:
    """Return whether a visible run belongs to the stack with this key (all digits)."""
    return session.execute(select_any(RunRow.id).where(col(RunRow.stack_key) == stack_key).limit(1)).first() is not None


def stack_runs(
    session: Session,
    project_id: int,
    stack_key: str,
    *conditions: ColumnElement[bool],
    with_metrics: bool = True,
    newest: int | None = None,
) -> list[StackRun]:
    """Return the processed runs of a stack in history order: by position, then by number.

    `newest`: the maximum number of runs, counted from the newest; None for all.
    """
    chosen = _WITH_METRICS if with_metrics else _NEWEST_FIRST
    if conditions:
        chosen = chosen.where(*conditions)
    rows = session.execute(chosen.limit(newest), {"project_id": project_id, "stack_key": stack_key}).all()
    return _in_order(rows)


def read_runs(session: Session, chosen: Select[Any], stack: tuple[int, str], **values: Any) -> list[StackRun]:
    """Return runs by a prepared select from `runs_where`. `stack`: project and stack key.

    For judging: columns for pages (`_SHOWN`) are not read, and accessing them raises.
    """
    return _in_order(session.execute(chosen, {"project_id": stack[0], "stack_key": stack[1]} | values).all())


def newest_runs(session: Session, stack: tuple[int, str], most: int) -> list[StackRun]:
    """Return up to `most` newest processed runs of a stack in history order, for judging and ranking."""
    key = {"project_id": stack[0], "stack_key": stack[1], "most": most}
    return _in_order(session.execute(_NEWEST_TO_JUDGE_AND_RANK, key).all())


def runs_where(*conditions: ColumnElement[bool], newest: int | None = None) -> Select[Any]:
    """Return a select for `read_runs`, which supplies its `bindparam` values."""
    return _TO_JUDGE.where(*conditions).limit(newest)


def _in_order(newest_first: Sequence[Row[Any]]) -> list[StackRun]:
    return [StackRun(row.id, row.ordered_at, facts_of(row), row) for row in reversed(newest_first)]


def full_record(session: Session, run_id: int) -> RunRecord:
    """Return a run with its whole contract. Raises KeyError if it was deleted."""
    return full_records(session, [run_id])[str(run_id)]


def full_records(session: Session, run_ids: Sequence[int]) -> dict[str, RunRecord]:
    """Return runs by name (the number as text). Losses are missing; comparisons add them."""
    database = str(session.get_bind().engine.url)
    records: dict[str, RunRecord] = {}
    for some in in_batches(run_ids):
        rows = session.execute(_COMPARED, {"run_ids": some}).all()
        read = {row.id: _read.find((database, row.id), row.processed_at) for row in rows}
        if unread := {row.id: row.processed_at for row in rows if read[row.id] is None}:
            for run_id, contract, steady_state in session.execute(_CONTRACTS, {"run_ids": list(unread)}):
                of_run = stored_contract(contract), tuple((steady_state or {}).get("reasons", ()))
                _read.keep((database, run_id), unread[run_id], of_run)
                read[run_id] = of_run
        for row in rows:
            if (stored := read[row.id]) is not None:
                contract, reasons = stored
                facts = facts_of(row)
                facts = replace(facts, estimate=replace(facts.estimate, not_steady_reasons=reasons))
                records[str(row.id)] = RunRecord.of(facts, row.slug, contract)
    return records


_read = Remembered[tuple[Mapping[str, Stated], tuple[str, ...]]](1000)
"""Contracts, and reasons why a run is not steady, until the run is processed again. A run takes 15 kB. Judging compares
each run with the same runs of other stacks as the run before it."""


def changed_knobs(
    session: Session, pairs: Collection[tuple[int, int]]
) -> dict[tuple[int, int], tuple[Difference, ...]]:
    """Return the knobs that differ between the runs of each pair, without those that follow from others."""
    contracts = stored_contracts(session, sorted({run_id for pair in pairs for run_id in pair})) if pairs else {}
    return {
        (a, b): tuple(
            item for item in marked(list(differing(CONFIG_FIELDS, contracts[a], contracts[b]))) if not item.follows
        )
        for a, b in pairs
    }


def facts_of(row: Row[Any] | RunRow) -> RunFacts:
    """Return the facts of a row that has the columns of `COMPARED`."""
    name, outcome = str(row.id), row.outcome
    time, se, memory = row.log_step_time, row.step_time_se, row.peak_memory_gib
    estimate = RunEstimate(
        run=name,
        log_step_time=math.nan if time is None else time,
        se=math.nan if se is None else se,
        window_length=row.window_length or 0,
        is_steady=bool(row.is_steady),
        short=row.short is None or row.short,
        peak_memory_bytes=None if memory is None else memory * BYTES_PER_GIB,
        not_finite_iterations=row.not_finite,
        skipped_share=row.skipped_share,
    )
    return RunFacts(
        run=name,
        purpose=row.purpose,
        branch=row.branch,
        commit=row.commit,
        stack_key=row.stack_key,
        config_key=row.config_key,
        semantic_class=row.semantic_class,
        outcome=UNREAD if row.status == "failed" and outcome not in FAILED else outcome,
        estimate=estimate,
        definition_version=row.definition_version,
        shape=tuple(row.shape.split(",")) if row.shape else (),
        quarantined=row.quarantine,
        fair_for_timing=row.fair_for_timing,
        job=row.job,
    )


def _bare_figures(row: Row[Any]) -> dict[str, Metric | None]:
    values = {name: getattr(row, name) for name in METRICS}
    return {name: None if value is None else Metric(value, math.nan, math.nan, 0) for name, value in values.items()}


# --- Launch-to-launch variation of a family: the project's other configurations of the same GPU and semantic class.
# Only earlier runs count, so that judging a run again gives the same verdict.

MOST_RUNS = 200
"""Maximum runs of a family that are read, newest first: enough for ten configurations of 20 runs."""
_MOST_SEARCHED = 1000
"""Maximum runs on the GPU that are searched for them, newest first, which bounds the cost of a long history."""
_REMEMBERED = 4096

_CHOSEN: Select[Any] = (
    select_any(RunRow.config_key, RunRow.job, RunRow.ordered_at, RunRow.log_step_time)
    .where(
        col(RunRow.project_id) == bindparam("project_id"),
        col(RunRow.gpu) == bindparam("gpu"),
        col(RunRow.semantic_class) == bindparam("semantic_class"),
        col(RunRow.definition_version) == bindparam("definition_version"),
        col(RunRow.config_key) != bindparam("config_key"),
        col(RunRow.ordered_at) >= bindparam("since"),
        col(RunRow.ordered_at) < bindparam("until"),
        col(RunRow.purpose) == "ci",
        col(RunRow.status) == "ready",
        # The condition of `RunFacts.never_a_baseline_because` in SQL.
        col(RunRow.is_steady).is_(True),
        col(RunRow.short).is_(False),
        col(RunRow.quarantine) == "",
        col(RunRow.outcome).not_in(UNFIT),
        col(RunRow.not_finite) == 0,
        col(RunRow.skipped_share) <= MOST_SKIPPED,
        col(RunRow.window_length) >= FEWEST_ITERATIONS,
        col(RunRow.log_step_time).is_not(None),
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
)
_OLDEST_SEARCHED = (
    select(col(RunRow.ordered_at))
    .where(
        col(RunRow.project_id) == bindparam("project_id"),
        col(RunRow.gpu) == bindparam("gpu"),
        col(RunRow.ordered_at) < bindparam("until"),
    )
    .order_by(col(RunRow.ordered_at).desc())
    .limit(1)
    .offset(_MOST_SEARCHED - 1)
    .scalar_subquery()
)
_NEWEST = _CHOSEN.where(col(RunRow.ordered_at) >= func.coalesce(_OLDEST_SEARCHED, bindparam("since"))).limit(MOST_RUNS)


@dataclass(frozen=True, slots=True)
class FamilyKey:
    """The values that identify a run's family. `config_key`: its own configuration, which the family excludes."""

    project_id: int
    gpu: str | None
    semantic_class: str
    definition_version: int
    config_key: str


class FamilyPrior:
    """The priors for runs like `run` at history positions `first` to `last`.

    A run with an unknown GPU has no family.
    """

    def __init__(self, session: Session, run: StackRun | FamilyKey, first: datetime, last: datetime) -> None:
        like = {
            "project_id": run.project_id,
            "gpu": run.gpu or "",
            "semantic_class": run.semantic_class,
            "definition_version": run.definition_version,
            "config_key": run.config_key,
        }
        rows = list(session.execute(_NEWEST, like | {"since": EVERYTHING, "until": first}).all()[::-1])
        if last > first:
            rows += session.execute(_CHOSEN, like | {"since": first, "until": last}).all()[::-1]
        self.rows: Sequence[Row[Any]] = rows
        self._positions = [row.ordered_at for row in rows]
        self._priors: dict[int, Prior] = {}

    def prior(self, position: datetime) -> Prior:
        end = bisect_left(self._positions, position)
        if end not in self._priors:
            groups: dict[tuple[str, str], list[float]] = {}
            for row in self.rows[max(0, end - MOST_RUNS) : end]:
                groups.setdefault((row.config_key, row.job), []).append(row.log_step_time)
            self._priors[end] = family_prior(groups.values())
        return self._priors[end]


def family_prior(groups: Collection[Sequence[float]]) -> Prior:
    """Return the prior of a family. `groups`: the ln(step time) values of each configuration in history order."""
    if len(groups) < FEWEST_CONFIGURATIONS:
        return DEFAULT_PRIOR
    return prior_of(segment_sample(tuple(group)) for group in groups)


@lru_cache(maxsize=_REMEMBERED)
def segment_sample(log_step_times: tuple[float, ...]) -> Sample | None:
    """Return the variation within the current segment of a configuration; `log_step_times`: of possible baselines.

    Cached per process, because all stacks of a family read the same runs.
    """
    start = find_changes(log_step_times, DEFAULT_PRIOR).current.start
    level = enumerate(log_step_times[start:])
    return sample_of([RunEstimate(str(run), value, 0.0, FEWEST_ITERATIONS) for run, value in level])


# --- Contracts and losses of single runs, read once per pass over a stack.


class RunReader:
    """Reads each run once, by name. Judging a whole history uses each run about twenty times."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records: dict[str, RunRecord] = {}
        self._losses: dict[str, Losses] = {}

    def records(self, names: Sequence[str]) -> list[RunRecord]:
        missing = [int(name) for name in names if name not in self._records]
        if missing:
            self._records |= full_records(self._session, missing)
        return [self._records[name] for name in names]

    def record(self, name: str) -> RunRecord:
        return self.records([name])[0]

    @property
    def contracts(self) -> dict[int, Mapping[str, Stated]]:
        """Return the contracts read so far, by run."""
        return {int(name): record.contract for name, record in self._records.items()}

    def with_losses(self, runs: Sequence[RunFacts]) -> list[RunFacts]:
        """Return the same runs with their typical losses over the shared iterations."""
        self._read_losses([run.run for run in runs])
        losses = typical_losses([self._losses[run.run] for run in runs])
        return [
            run if loss is None else replace(run, estimate=replace(run.estimate, loss=loss))
            for run, loss in zip(runs, losses, strict=True)
        ]

    def _read_losses(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self._losses]
        self._losses |= losses_of_runs(self._session, missing)


# --- Unique names of stacks.


def names_of_titles(session: Session, titles: Iterable[str]) -> dict[str, str]:
    """Return the names of all ranked stacks with one of these titles, by stack key."""
    return stack_names(_ranked(session, col(StandingRow.title).in_(sorted(set(titles)))))


def _ranked(session: Session, chosen: ColumnElement[bool]) -> list[TitledStack]:
    rows = session.execute(
        select_any(StandingRow.stack_key, StandingRow.title, ProjectRow.slug, StandingRow.about)
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .where(chosen)
    )
    return [
        TitledStack(key, title, project, {name: frozen(value) for name, value in about.items()})
        for key, title, project, about in rows
    ]


def names_of_stacks(session: Session, stack_keys: Iterable[str]) -> dict[str, str]:
    """Return names by stack key that are unique among all ranked stacks, without stacks that have no visible run.

    Every page and message has this one name. It has no dispatcher, because the runs of a stack can use different ones.
    """
    keys = sorted(set(stack_keys))
    titled = {stack.stack_key: stack for stack in _ranked(session, col(StandingRow.stack_key).in_(keys))}
    for key in keys:
        if key not in titled and (contract := newest_contract(session, key)):
            stated = ((name, contract[name].value) for name in STACK_FIELDS if name in contract)
            values = {name: value for name, value in stated if value is not None}
            titled[key] = TitledStack(key, stack_title(contract, dispatcher=False), "", values)
    return unique_names(session, titled.values())


def unique_names(session: Session, stacks: Iterable[TitledStack]) -> dict[str, str]:
    """Return the same names of stacks whose titles are known."""
    titled = {stack.stack_key: stack for stack in stacks}
    titles = {stack.title for stack in titled.values()}
    alike = {stack.stack_key: stack for stack in _ranked(session, col(StandingRow.title).in_(sorted(titles)))}
    names = stack_names(replace(stack, project="") for stack in (alike | titled).values())
    return {key: names[key] for key in titled}

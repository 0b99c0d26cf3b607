"""Read the data of a comparison: the runs of both sides, the needed series, and runs to choose from."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, Self
from urllib.parse import urlencode

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.numbers import plural
from app.domain.performance.health import LOSS_NAMES
from app.domain.rules.engine import Suggestion, evaluate, rules_of_two
from app.domain.rules.run_facts import memory_kinds
from app.domain.run import FloatArray
from app.domain.verdict.comparison import (
    Distribution,
    MetricOutcome,
    SameField,
    SideComparison,
    compare_sides,
    distribution,
    metric_outcomes,
    same_fields,
    window_step_times,
)
from app.domain.verdict.comparison_words import ComparisonText, comparison_text
from app.domain.verdict.document import contrast_document
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.record import RunRecord, last_shared, losses_of, shared_losses
from app.errors import FieldError, InvalidQuery, NotFound, NotReady
from app.storage import readings
from app.storage.experiments import prior_of_sides
from app.storage.rules import RulesInForce, pair_facts, read_run, window_of
from app.storage.runs import WITH_RESULT, RunDetail, RunListItem, detail, runs_by_id
from app.storage.search import search_conditions
from app.storage.stacks import facts_of
from app.storage.suspect_evidence import suspects_with_evidence
from app.storage.tables import ProjectRow, RunRow, SeriesRow, select_any

MOST_OFFERED = 12
_WINDOW = ("iteration", "step_time_ms", "step_time_true_ms")
_HIDDEN = ("iteration", "log_line", "log_file", "step_time_true_ms")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run for pages and for matching; `columns`: the series that every comparison needs."""

    detail: RunDetail
    record: RunRecord
    columns: Mapping[str, FloatArray]

    @property
    def id(self) -> int:
        return self.detail.id


def read_runs(session: Session, run_ids: Sequence[int]) -> dict[int, ComparedRun]:
    """Return runs by number, with losses over shared iterations. Raises NotFound and NotReady, naming the runs."""
    rows = session.execute(
        select(RunRow, ProjectRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .options(WITH_RESULT)
        .where(col(RunRow.id).in_(run_ids))
    ).all()
    details = {row.id or 0: (row, detail(row, project, ())) for row, project in rows}
    _check(run_ids, {number: detail for number, (_, detail) in details.items()})
    columns = read_columns(session, run_ids, (*_WINDOW, *LOSS_NAMES))
    losses = shared_losses([columns[number] for number in run_ids])
    return {
        number: ComparedRun(details[number][1], _record(*details[number], loss), columns[number])
        for number, loss in zip(run_ids, losses, strict=True)
    }


def read_columns(session: Session, run_ids: Sequence[int], names: Iterable[str]) -> dict[int, dict[str, FloatArray]]:
    """Return, in one query, those of the columns that each run has."""
    columns: dict[int, dict[str, FloatArray]] = {number: {} for number in run_ids}
    rows = session.execute(
        select_any(SeriesRow.run_id, SeriesRow.metric, SeriesRow.blob).where(
            col(SeriesRow.run_id).in_(run_ids), col(SeriesRow.metric).in_(tuple(names))
        )
    )
    for row in rows:
        columns[row.run_id][row.metric] = readings.unpack_series(row.blob)
    return columns


def series_of(session: Session, run_ids: Sequence[int]) -> dict[str, str]:
    """Names of the series that any of the runs has, with their units; step time first."""
    rows = session.execute(
        select_any(SeriesRow.metric, func.max(SeriesRow.unit).label("unit"))
        .where(col(SeriesRow.run_id).in_(run_ids), col(SeriesRow.metric).not_in(_HIDDEN))
        .group_by(col(SeriesRow.metric))
        .order_by(col(SeriesRow.metric) != "step_time_ms", col(SeriesRow.metric))
    )
    return {row.metric: row.unit for row in rows}


def offered_runs(session: Session, q: str, *, near: int | None, without: Sequence[int]) -> tuple[RunListItem, ...]:
    """Return runs that every word of `q` names: those of the stack of run `near` first, then the newest."""
    runs = select_any(RunRow.id).where(
        col(RunRow.status).in_(("ready", "failed")),
        col(RunRow.id).not_in(without),
        *search_conditions(session, q).conditions,
    )
    newest = runs.order_by(col(RunRow.id).desc()).limit(MOST_OFFERED)
    stack = select_any(RunRow.stack_key).where(col(RunRow.id) == near).scalar_subquery()
    # One after the other: sorted together, every run would be read.
    of_stack = session.execute(newest.where(col(RunRow.stack_key) == stack)).scalars().all() if near else []
    others = session.execute(newest).scalars() if len(of_stack) < MOST_OFFERED else ()
    return runs_by_id(session, list(dict.fromkeys((*of_stack, *others)))[:MOST_OFFERED])


def in_order(session: Session, run_ids: Sequence[int]) -> list[tuple[int, str, str]]:
    """Return runs with their config key and commit, in the order of the history. Raises NotFound."""
    rows = session.execute(
        select_any(RunRow.id, RunRow.config_key, RunRow.commit)
        .where(col(RunRow.id).in_(run_ids))
        .order_by(col(RunRow.ordered_at), col(RunRow.id))
    ).all()
    _missing(set(run_ids) - {row.id for row in rows})
    return [(row.id, row.config_key, row.commit) for row in rows]


def _check(run_ids: Sequence[int], details: Mapping[int, RunDetail]) -> None:
    _missing(set(run_ids) - set(details))
    waiting = [number for number in run_ids if not details[number].done]
    if waiting:
        named = ", ".join(f"#{number}" for number in waiting)
        verb = plural(len(waiting), "is", "are", number=False)
        raise NotReady(f"{named} {verb} not processed yet. Try again in a moment.")


def _missing(numbers: set[int]) -> None:
    if numbers:
        named = ", ".join(f"#{number}" for number in sorted(numbers))
        raise NotFound.of(f"Run {named}")


def _record(row: RunRow, detail: RunDetail, loss: float | None) -> RunRecord:
    facts = facts_of(row)
    facts = replace(facts, estimate=replace(facts.estimate, loss=loss))
    return RunRecord.of(facts, detail.project, detail.contract)


# --- The runs of each side and the view: the query string of `/compare`, validated as input.

Side = Literal["a", "b"]
MOST_RUNS = 20
"""As many baseline runs as a verdict uses; more are unreadable side by side."""
_MAX_ID = 2**31 - 1
_MAX_TEXT = 300
_CHOICES = {"view": ("chart", "table"), "pick": ("", "a", "b")}
_TITLE = "Invalid filter."


def _offset(name: str, text: str, errors: list[FieldError]) -> int | None:
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        errors.append(FieldError(name, "must be a whole number"))
        return None
    return int(text)


@dataclass(frozen=True, slots=True)
class SideSelection:
    """`a` is the baseline, `b` the candidate: run numbers.

    `series`, `view` and `page` belong to the chart, like the ends of its zoom: `first` and `last` are iterations since
    the steady windows began, None for the whole. `pick`: the side to choose a run for; `q`: the search text.
    """

    a: tuple[int, ...] = ()
    b: tuple[int, ...] = ()
    series: str = "step_time_ms"
    view: str = "chart"
    page: int = 1
    pick: str = ""
    q: str = ""
    first: int | None = None
    last: int | None = None

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Read the query string. Raises InvalidQuery naming each unusable field."""
        errors: list[FieldError] = []
        a, b = (_numbers(side, params.get(side, ""), errors) for side in ("a", "b"))
        if both := sorted(set(a) & set(b)):
            named = ", ".join(f"#{number}" for number in both)
            errors.append(FieldError("b", f"contains {named}, like `a`: a run cannot be compared with itself"))
        texts = {name: params.get(name, "").strip() for name in ("series", "view", "pick", "q")}
        for name, text in texts.items():
            if name in _CHOICES and text and text not in _CHOICES[name]:
                errors.append(FieldError(name, f"must be one of {', '.join(filter(None, _CHOICES[name]))}"))
            if len(text) > _MAX_TEXT or any(ord(c) < 32 for c in text):
                errors.append(FieldError(name, "is too long, or contains a control character"))
        page = params.get("page", "").strip() or "1"
        if not (page.isascii() and page.isdigit() and 0 < len(page) <= 9):
            errors.append(FieldError("page", "must be a whole number from 1"))
        first, last = (_offset(name, params.get(name, "").strip(), errors) for name in ("first", "last"))
        if errors:
            raise InvalidQuery(_TITLE, tuple(errors))
        given = {name: text for name, text in texts.items() if text}
        return cls(a=a, b=b, page=max(1, int(page)), first=first, last=last, **given)

    @property
    def runs(self) -> tuple[int, ...]:
        return (*self.a, *self.b)

    @property
    def is_zoomed(self) -> bool:
        return self.first is not None or self.last is not None

    @property
    def complete(self) -> bool:
        """Return whether both sides have a run."""
        return bool(self.a and self.b)

    def side(self, name: Side) -> tuple[int, ...]:
        return self.a if name == "a" else self.b

    def query(self, **changes: Any) -> str:
        """Return the query string with `changes` applied, without values that equal the default."""
        changed, default = replace(self, **changes), SideSelection()
        pairs = {
            field.name: ",".join(map(str, value)) if isinstance(value, tuple) else value
            for field in fields(self)
            if (value := getattr(changed, field.name)) != getattr(default, field.name)
        }
        return urlencode(pairs, safe=",")

    def address(self, **changes: object) -> str:
        query = self.query(**changes)
        return f"/compare?{query}" if query else "/compare"

    def swapped(self) -> str:
        return self.address(a=self.b, b=self.a, pick="", q="")

    def without(self, side: Side, run: int) -> str:
        return self.address(**{side: tuple(chosen for chosen in self.side(side) if chosen != run)})

    def instead(self, side: Side, run: int) -> str:
        """Return the address with `run` as the only run of `side`."""
        return self.address(**{side: (run,)}, pick="", q="")

    def added(self, side: Side, run: int) -> str:
        return self.address(**{side: (*self.side(side), run)}, pick="", q="")


def _numbers(side: str, text: str, errors: list[FieldError]) -> tuple[int, ...]:
    """Numbers of runs, separated by commas; each may have its `#`. Named twice is named once."""
    numbers: list[int] = []
    for word in text.split(","):
        number = word.strip().removeprefix("#")
        if not number:
            continue
        if not (number.isascii() and number.isdigit() and len(number) <= 10 and 0 < int(number) <= _MAX_ID):
            errors.append(FieldError(side, f"must be run numbers separated by commas, not {word.strip()[:40]!r}"))
            return ()
        numbers.append(int(number))
    distinct = tuple(dict.fromkeys(numbers))
    if len(distinct) > MOST_RUNS:
        errors.append(FieldError(side, f"names {len(distinct)} runs; the maximum is {MOST_RUNS}"))
        return ()
    return distinct


# --- One comparison, from the database to its answer: what the page and the API both show.


@dataclass(frozen=True, slots=True)
class LossAtEnd:
    """Medians over the last iterations that all runs have, `first_iteration` to `last_iteration`; None where a side has
    no loss. Other runs may share other iterations, so that the loss of one run differs from comparison to comparison.
    """

    first_iteration: int
    last_iteration: int
    baseline: float | None
    candidate: float | None
    delta_pct: float | None
    alarm_pct: float | None
    decision: str


class ComparedSides:
    """Both sides of a complete selection. The constructor raises NotFound and NotReady."""

    def __init__(self, session: Session, selection: SideSelection) -> None:
        self._session = session
        runs = read_runs(session, selection.runs)
        # Oldest first by history position, as verdicts take them.
        self.a, self.b = (
            tuple(sorted((runs[number] for number in side), key=lambda run: (run.detail.ordered_at, run.id)))
            for side in (selection.a, selection.b)
        )
        self.selection = selection
        records_a, records_b = ([run.record for run in side] for side in (self.a, self.b))
        prior = prior_of_sides(session, selection.a, selection.b, self.newest_b.id)
        self.sides: SideComparison = compare_sides(records_a, records_b, prior)

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        return (*self.a, *self.b)

    @property
    def newest_a(self) -> ComparedRun:
        return self.a[-1]

    @property
    def newest_b(self) -> ComparedRun:
        return self.b[-1]

    @property
    def left_out(self) -> Mapping[int, str]:
        """Return, by run number, why a run is not used for its side."""
        refused = {int(run.run): run.why for run in self.sides.left_out}
        outliers = self.sides.measured.dropped if self.sides.measured is not None else ()
        return refused | {int(run.run): run.why for run in outliers}

    @cached_property
    def text(self) -> ComparisonText:
        return comparison_text(self.sides, self.suspects)

    @cached_property
    def suspects(self) -> tuple[RankedSuspect, ...]:
        """Return what may explain the change, with the evidence of the project, best supported first.

        None if nothing changed, and between two jobs or projects, which may differ in anything.
        """
        measured, comparability = self.sides.measured, self.sides.comparability
        time = measured.step_time if measured else None
        projects = {run.detail.project_id for run in self.runs}
        if measured is None or time is None or comparability.two_jobs or len(projects) > 1:
            return ()
        if time.decision not in ("regression", "improvement"):
            return ()
        document = contrast_document(comparability, measured, {str(run.id): run.detail.metrics for run in self.runs})
        return suspects_with_evidence(self._session, self.newest_b.id, document, "step_time_ms")

    @cached_property
    def same(self) -> tuple[SameField, ...]:
        return same_fields(self.newest_a.record.contract, self.newest_b.record.contract)

    @cached_property
    def outcomes(self) -> Mapping[str, MetricOutcome | None]:
        return metric_outcomes(self.sides, {str(run.id): run.detail.metrics for run in self.runs})

    @property
    def loss(self) -> LossAtEnd | None:
        """Return the loss at the end; None when no run has one."""
        a, b = (_middle([run.record.estimate.loss for run in side]) for side in (self.a, self.b))
        if a is None and b is None:
            return None
        shared = last_shared([losses_of(run.columns) for run in self.runs])
        ends = int(shared[0]), int(shared[-1])
        measured = self.sides.measured and self.sides.measured.loss
        if not measured:
            return LossAtEnd(*ends, a, b, None, None, "not_judged")
        return LossAtEnd(*ends, a, b, measured.delta_pct, measured.alarm_pct, measured.decision)

    @cached_property
    def windows(self) -> Mapping[int, FloatArray]:
        """Return step times of each run's steady window, in ms."""
        return {run.id: window_step_times(dict(run.columns), run.detail.steady_state) for run in self.runs}

    @cached_property
    def distributions(self) -> Mapping[int, Distribution | None]:
        return {run.id: distribution(self.windows[run.id], run.detail.steady_state) for run in self.runs}


def pair_suggestions(session: Session, comparison: ComparedSides, rules: RulesInForce) -> tuple[Suggestion, ...]:
    """Return the results of the rules that compare the newest run of side b with the newest one of side a."""
    a, b, measured = comparison.newest_a.detail, comparison.newest_b.detail, comparison.sides.measured
    change = measured.step_time.delta_pct if measured is not None and measured.step_time is not None else None
    pair = pair_facts(
        comparison.sides.comparability, b, change, window=window_of(a.steady_state), memory=memory_kinds(a.health)
    )
    facts = {**read_run(session, b.id).facts, **pair}
    return evaluate(facts, rules_of_two(rules.book), settings=rules.thresholds).fired


def _middle(values: list[float | None]) -> float | None:
    """Return the median; None when one of the values is unknown."""
    present = [value for value in values if value is not None]
    return statistics.median(present) if present and len(present) == len(values) else None

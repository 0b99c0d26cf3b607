"""Filters and queries of reference points. The query string of the list is its whole state, so it is validated."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args

from pydantic import Field
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import shown
from app.domain.numbers import contract_value, plural
from app.domain.ranking.runs import family_of
from app.domain.ranking.standings import Entry
from app.domain.references.nearest import Nearest, OurFigures, nearest_reference
from app.domain.references.point import FIGURES, Kind
from app.domain.run import Stated
from app.domain.verdict.lead import OngoingRegression
from app.errors import FieldError, InvalidQuery, NotFound
from app.storage.references import Reference, references
from app.storage.run_answer import ongoing_regression
from app.storage.runs import stored_contract
from app.storage.standings import StoredStandings, named_stack, stack_standings
from app.storage.tables import ProjectRow, RunResultRow, RunRow, select_any
from app.storage.verdicts import regressions_of
from app.web.lists import CellKind, ListQuery, OneOf, invalid_filter

KINDS: Mapping[str, str] = {
    "release_table": "release table",
    "verification_card": "verification card",
    "model_zoo": "model zoo",
    "guide": "tuning guide",
    "founding_document": "short run of a guide",
    "own": "added by a team",
}
"""Source of a figure, as text."""
assert set(KINDS) == set(get_args(Kind))  # noqa: S101  # told when the module is loaded, not on some page


SORTS: Mapping[str, Callable[[Reference], Any]] = {
    "date": lambda reference: reference.point.date,
    "model": lambda reference: reference.point.family.name,
    "tokens": lambda reference: reference.point.tokens_per_s_per_gpu or 0.0,
    "tflops": lambda reference: reference.point.tflops_per_gpu or 0.0,
}
"""Sort key of each column; unknown figures count as 0."""


class ReferenceQuery(ListQuery):
    """Filters of the list of published figures; an empty one means any."""

    page_size: int = Field(50, ge=1, le=500)
    q: str = Field("", description="Words that must all occur: in the source, the note or the contract.")
    model: str = Field("", description="Name of the model family.")
    gpu: str = ""
    precision: str = ""
    routing: str = Field("", description="Routing mode.")
    kind: Annotated[str, OneOf(tuple(KINDS))] = Field(
        "", description="`own`, `release_table`, `verification_card`, `model_zoo`, `guide`, ..."
    )
    project: str = Field("", description="Figures that teams added for it or for all projects, and built-in ones.")
    sort: Annotated[str, OneOf(tuple(sign + name for name in SORTS for sign in ("-", "")))] = Field(
        "-date", description="`date`, `model`, `tokens` or `tflops`, with `-` for descending."
    )

    def check(self, options: "ReferenceOptions") -> None:
        """Raise NotFound or InvalidQuery for a value that no figure in use has, instead of an empty list."""
        if self.project and self.project not in options.projects:
            raise NotFound(f"There is no project {self.project[:60]!r}.")
        offered = {
            "model": options.models,
            "gpu": options.gpus,
            "precision": options.precisions,
            "routing": options.routings,
        }
        for name, values in offered.items():
            value = getattr(self, name)
            if value and (problem := OneOf(values).problem(value)):
                raise invalid_filter(name, problem)

    def keep(self, candidates: Iterable[Reference]) -> tuple[Reference, ...]:
        """Return the matching candidates, sorted; of equal ones, the first candidate first."""
        words = self.q.casefold().split()
        matching = [
            reference
            for reference in candidates
            if self._matches(reference) and all(word in _text(reference) for word in words)
        ]
        return tuple(sorted(matching, key=SORTS[self.sort.removeprefix("-")], reverse=self.sort.startswith("-")))

    def _matches(self, reference: Reference) -> bool:
        contract = reference.point.contract
        asked = (
            (self.model, reference.point.family.name),
            (self.gpu, contract["gpu"]),
            (self.precision, contract["precision"]),
            (self.routing, contract.get("routing_mode")),
            (self.kind, reference.point.kind),
        )
        return all(not wanted or wanted == has for wanted, has in asked)


def _text(reference: Reference) -> str:
    point = reference.point
    parts = [
        point.measured_by,
        point.source,
        point.note,
        point.date,
        KINDS[point.kind],
        *map(shown, point.contract.values()),
    ]
    return " ".join(parts).casefold()


# --- The published figure nearest to a run or to the leader of a stack: distance, differences, likely causes.
#
# It is another lab's measurement: shown next to our figures and never ranked with them.

FLOORS = ("screen", "smoke")
"""A stack is represented by its leader: at the displayed evidence level, else at any."""


@dataclass(frozen=True, slots=True)
class ComparedResult:
    """A run, or the best result of a stack, to compare with published figures.

    `dispatcher`: that of a stack's result; `run_id`: the newest of the `runs` whose mean it is. `model`, `gpu` empty:
    unknown.
    """

    run_id: int
    runs: int
    stack_key: str
    dispatcher: str
    project: str
    generated: bool
    contract: Mapping[str, Stated]
    figures: OurFigures
    of_stack: bool

    @property
    def model(self) -> str:
        return self._text("model")

    @property
    def gpu(self) -> str:
        return self._text("gpu")

    @property
    def family(self) -> str:
        values = {name: field_value.value for name, field_value in self.contract.items()}
        return family_of(self.model or None, values).name

    @property
    def whose(self) -> str:
        """Name it by the runs that its figures are of: `deepep, run #145`, `deepep, mean of 2 runs, newest #145`."""
        of = f"run #{self.run_id}" if self.runs < 2 else f"mean of {self.runs:,} runs, newest #{self.run_id}"
        return f"{self.dispatcher}, {of}" if self.dispatcher else of

    def _text(self, name: str) -> str:
        value = self.contract[name].value if name in self.contract else None
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """Our figures and the nearest reference point; `nearest` and `reference` are None without one.

    `faster`: the fastest reference point of the same step, if it is another one. `ongoing`: the regression that is a
    part of the gap. `slower_pct`: by how much it slowed our job.
    """

    ours: ComparedResult
    nearest: Nearest | None
    reference: Reference | None
    faster: Reference | None = None
    ongoing: OngoingRegression | None = None
    slower_pct: float = 0.0

    @property
    def measure(self) -> str:
        """Return the name of the compared figure; empty without one."""
        return self.nearest.measure if self.nearest else ""

    @property
    def without_regression(self) -> Nearest | None:
        """Return the comparison at the step time before the regression: the rest of the gap. None without one."""
        if self.nearest is None or self.ongoing is None:
            return None
        times = 1 + self.slower_pct / 100
        factors = {name: 1 / times if name == "step_time_ms" else times for name in self.nearest.more_pct}
        rest = {name: 100 * ((1 + more / 100) * factors[name] - 1) for name, more in self.nearest.more_pct.items()}
        return replace(self.nearest, more_pct=rest)


def compare_with_references(session: Session, *, run: int | None, stack: str) -> ReferenceComparison:
    """Run the claim check of a run or a stack. Raises NotFound, and InvalidQuery unless exactly one is named."""
    if (run is None) == (not stack):
        error = FieldError("run", "or `stack` is required, not both")
        raise InvalidQuery("Name a run or a stack.", (error,))
    ours = _run(session, run) if run is not None else our_stack(session, named_stack(session, stack))
    comparison, own_ms = compare_result(ours, references(session, ours.project)), ours.figures.step_time_ms
    ongoing = ongoing_regression(session, regressions_of(session, ours.run_id), own_ms) if own_ms else None
    if ongoing is None or own_ms is None:
        return comparison
    return replace(comparison, ongoing=ongoing, slower_pct=100 * (own_ms / ongoing.usual_ms - 1))


def compare_result(ours: ComparedResult, offered: Sequence[Reference]) -> ReferenceComparison:
    """Compare with `offered`, the figures that the project of `ours` can use."""
    nearest = nearest_reference(ours.contract, ours.figures, [reference.point for reference in offered])
    if nearest is None:
        return ReferenceComparison(ours, None, None)
    by_point = {id(reference.point): reference for reference in offered}
    faster = by_point.get(id(nearest.faster))
    return ReferenceComparison(ours, nearest, by_point[id(nearest.point)], faster)


def _run(session: Session, run_id: int) -> ComparedResult:
    row = _read(session, run_id)
    if row is None:
        raise NotFound.of(f"Run {run_id}")
    figures = OurFigures(row.tokens_per_s_per_gpu, row.tflops_per_gpu, row.step_time_ms)
    return _ours(row, figures, 1, of_stack=False)


def our_stack(session: Session, stack_key: str) -> ComparedResult:
    """Return the fastest result of a stack, or only its contract when nothing can be ranked."""
    standings: StoredStandings | None = None
    for floor in FLOORS:
        standings = stack_standings(session, stack_key, floor)
        best = (
            next((board.entries[0] for board in standings.standings.boards if board.entries), None)
            if standings
            else None
        )
        if best is not None and (row := _read(session, int(best.runs[-1]))) is not None:
            return _ours(row, _figures(best), len(best.runs), of_stack=True)
    row = _read(session, standings.newest_run_id) if standings else None
    if row is None:
        raise NotFound("No such stack on the leaderboards. None of its runs has been read yet, or the key is wrong.")
    return _ours(row, OurFigures(), 0, of_stack=True)


def _figures(entry: Entry) -> OurFigures:
    tokens, tflops = entry.tokens_per_s_per_gpu, entry.tflops_per_gpu
    return OurFigures(
        None if tokens is None else tokens.value, None if tflops is None else tflops.value, entry.step_time_ms.value
    )


def _ours(row: Any, figures: OurFigures, runs: int, *, of_stack: bool) -> ComparedResult:
    contract = stored_contract(row.contract)
    return ComparedResult(
        row.id, runs, row.stack_key, row.dispatcher or "", row.slug, row.generated, contract, figures, of_stack
    )


def _read(session: Session, run_id: int) -> Any:
    columns = (
        RunRow.id, RunRow.stack_key, RunRow.dispatcher, RunResultRow.contract, RunRow.step_time_ms,
        RunRow.tokens_per_s_per_gpu, RunRow.tflops_per_gpu, ProjectRow.slug, ProjectRow.generated,
    )  # fmt: skip
    chosen = (
        select_any(*columns)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    )
    return session.execute(chosen.where(col(RunRow.id) == run_id)).one_or_none()


# --- The list of reference points: matching ones, a page of them, and the filter values.


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """Existing values of the filters."""

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    precisions: tuple[str, ...]
    routings: tuple[str, ...]
    projects: tuple[str, ...]


def find_references(session: Session, query: ReferenceQuery) -> tuple[Reference, ...]:
    """Return all matching points in use, newest first. Raises NotFound and InvalidQuery for an unknown value."""
    query.check(reference_options(session))
    return query.keep(references(session, query.project or None))


def reference_options(session: Session) -> ReferenceOptions:
    points = [reference.point for reference in references(session)]
    return ReferenceOptions(
        models=_occurring(point.family.name for point in points),
        gpus=_occurring(point.contract["gpu"] for point in points),
        precisions=_occurring(point.contract["precision"] for point in points),
        routings=_occurring(point.contract.get("routing_mode") for point in points),
        projects=tuple(session.execute(select_any(ProjectRow.slug).order_by(col(ProjectRow.slug))).scalars()),
    )


def list_summary(items: tuple[Reference, ...]) -> str:
    """Return the first sentence of the page."""
    if not items:
        return "No published figure matches."
    models = len({reference.point.family for reference in items})
    own = sum(reference.entered is not None for reference in items)
    added = f", {own} added by teams" if own else ""
    what = f"{plural(len(items), 'figure')} of {plural(models, 'model')}{added}"
    best = max(items, key=lambda reference: reference.point.tflops_per_gpu or 0.0).point
    if not best.tflops_per_gpu:
        return f"{what}."
    precision = contract_value(best.contract["precision"])
    what_best = f"{best.family.name}, {best.contract['gpu']}, {precision}"
    best_text = f"{best.texts['tflops_per_gpu']} TFLOP/s/GPU ({what_best})"
    return f"{what}; best {best_text}."


def _occurring(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values if value is not None}))


# --- Reference points as a table: a row each, a column for each contract field that one of them states.

_LAST = ("measured_by", "source", "url", "date", "window", "note")


def reference_table(items: Sequence[Reference]) -> tuple[Mapping[str, CellKind], list[tuple[Any, ...]]]:
    """Return the columns, and the items in their order as rows. Unknown values are None."""
    stated = {name for reference in items for name in reference.point.contract}
    names = [name for name in FIELDS if name in stated]
    columns: dict[str, CellKind] = dict.fromkeys(("id", "label", "kind", *names), "text")
    columns |= dict.fromkeys((*FIGURES, "mfu_pct"), "float")
    columns |= dict.fromkeys(("rounded", "untuned"), "flag")
    columns |= dict.fromkeys((*_LAST, "project", "added_by"), "text")
    rows = []
    for reference in items:
        point, entered = reference.point, reference.entered
        contract = (contract_value(point.contract[name]) if name in point.contract else None for name in names)
        figures = (getattr(point, name) for name in (*FIGURES, "mfu_pct", "rounded", "untuned", *_LAST))
        who = (entered.project, entered.added_by) if entered else (None, None)
        rows.append((reference.id, point.label, point.kind, *contract, *figures, *who))
    return columns, rows


# --- The first sentence of the claim check.


def summary(comparison: ReferenceComparison) -> str:
    """Summarise a comparison: `8.5 % slower than NVIDIA's 20.15 s step; container differs.`"""
    if comparison.nearest is not None:
        return comparison.nearest.sentence
    missing = [name for name, value in (("model", comparison.ours.model), ("GPU", comparison.ours.gpu)) if not value]
    if missing:
        return f"The {' and '.join(missing)} of this result {plural(len(missing), 'is', 'are', number=False)} unknown."
    return f"No published figure for {comparison.ours.family} on {comparison.ours.gpu} is known."

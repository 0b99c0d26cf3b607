"""Reference points as pages show them: rows of the list, the parts of one, and the claim check."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import same_value
from app.domain.numbers import contract_value, grouped, step_time
from app.domain.references.nearest import nearness, why_farther
from app.domain.references.point import FIGURES, ReferencePoint
from app.domain.run import Value
from app.references.queries import ComparedResult, ReferenceComparison, compare_result, our_stack
from app.storage.references import Reference, references
from app.storage.stacks import names_of_titles
from app.storage.tables import ProjectRow, StandingRow, from_row, select_any

LABELS = {"tokens_per_s_per_gpu": "tokens/s/GPU", "tflops_per_gpu": "TFLOP/s/GPU", "step_time_ms": "step time"}
_WORK = (("seq_len", "seq"), ("gbs", "GBS"), ("mbs", "MBS"))
_LAYOUT = (("tp", "TP"), ("pp", "PP"), ("vpp", "VPP"), ("cp", "CP"), ("ep", "EP"), ("etp", "ETP"))


@dataclass(frozen=True, slots=True)
class PointRow:
    """One row of the list. Empty text: unknown. `figures`: texts by name."""

    id: str
    title: str
    hardware: str
    precision: str
    work: str
    layout: str
    routing: str
    dispatcher: str
    figures: Mapping[str, str]
    rounded: bool
    measured_by: str
    source: str
    url: str
    date: str
    own: bool
    project: str


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One contract field of a point, as its page shows it."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure, ours and theirs; empty text: unknown."""

    label: str
    ours: str
    theirs: str
    is_comparable: bool


@dataclass(frozen=True, slots=True)
class FigureBar:
    """One side of the comparison. `length`: percent of the longer one."""

    label: str
    href: str
    length: float
    value: str
    is_ours: bool
    note: str


@dataclass(frozen=True, slots=True)
class ReferenceDifferenceRow:
    field: str
    ours: str
    theirs: str
    is_known: bool


def point_row(reference: Reference) -> PointRow:
    point, contract = reference.point, reference.point.contract
    return from_row(
        PointRow,
        point,
        id=reference.id,
        title=point.family.name,
        hardware=f"{contract['gpus']} × {contract['gpu']}",
        precision=precision_of(point),
        work=_joined(contract, _WORK),
        layout=_joined(contract, _LAYOUT),
        routing=_words(contract.get("routing_mode")),
        dispatcher=_words(contract.get("dispatcher")),
        figures=figure_texts(point.figures),
        own=reference.entered is not None,
        project=reference.entered.project if reference.entered else "",
    )


@dataclass(frozen=True, slots=True)
class FigureDot:
    """A figure on the axis of its GPU. `x`: percent of the axis; `colour`: number of the colour of its model.

    `y`: pixels from the top of the lane; figures that are close to each other have different ones.
    """

    x: float
    y: int
    is_bf16: bool
    colour: int
    title: str


@dataclass(frozen=True, slots=True)
class GpuLane:
    """The published TFLOP/s/GPU on one GPU. `most`: the largest, as text."""

    gpu: str
    dots: tuple[FigureDot, ...]
    most: str


@dataclass(frozen=True, slots=True)
class GpuLanes:
    """`limit`: the end of the axis, which begins at zero. `models`: the models that have a separate colour."""

    lanes: tuple[GpuLane, ...]
    limit: float
    models: tuple[str, ...]


_COLOURED = 5
"""Models with the most figures that have their own colour; all others share the last one."""


def lanes(matching: Sequence[Reference]) -> GpuLanes:
    """Return a lane for each GPU with figures in TFLOP/s/GPU, the fastest GPU first, all on one axis from zero."""
    points: dict[str, list[tuple[float, ReferencePoint]]] = {}
    for reference in matching:
        figure = reference.point.figures["tflops_per_gpu"]
        if figure is not None:
            points.setdefault(str(reference.point.contract["gpu"]), []).append((figure, reference.point))
    most = {gpu: max(figure for figure, _ in figures) for gpu, figures in points.items()}
    limit = 100.0 * math.ceil(max(most.values(), default=1.0) / 98)
    counts = Counter(point.family.name for figures in points.values() for _, point in figures)
    models = tuple(name for name, _ in counts.most_common(_COLOURED))
    for figures in points.values():
        figures.sort(key=lambda item: item[0])
    places = {gpu: _apart([round(100 * figure / limit, 2) for figure, _ in figures]) for gpu, figures in points.items()}
    rows = tuple(
        GpuLane(
            gpu,
            tuple(
                FigureDot(
                    x,
                    y,
                    point.contract["precision"] == "bf16",
                    models.index(point.family.name) + 1 if point.family.name in models else _COLOURED + 1,
                    f"{title_of(point)}: {figures_text(point)}",
                )
                for (_, point), (x, y) in zip(points[gpu], places[gpu], strict=True)
            ),
            _figure("tflops_per_gpu", most[gpu]),
        )
        for gpu in sorted(points, key=lambda gpu: -most[gpu])
    )
    return GpuLanes(rows, limit, models)


_LEVELS = (15, 22, 8)
_LEAST_APART = 0.9
"""Percent of the axis between figures at one height."""


def _apart(places: Sequence[float]) -> list[tuple[float, int]]:
    """Return ascending places with heights, so that close figures do not cover each other."""
    last = dict.fromkeys(_LEVELS, -math.inf)
    result = []
    for x in places:
        free = (y for y in _LEVELS if x - last[y] >= _LEAST_APART)
        y = next(free, min(_LEVELS, key=lambda level: last[level]))
        last[y] = x
        result.append((x, y))
    return result


def title_of(point: ReferencePoint) -> str:
    """Format the title: `Qwen3-30B-A3B · 16 × H100 · bf16`."""
    return f"{point.family.name} · {point.contract['gpus']} × {point.contract['gpu']} · {precision_of(point)}"


def precision_of(point: ReferencePoint) -> str:
    return _words(point.contract["precision"])


def figures_text(point: ReferencePoint) -> str:
    """Format the figures: `about 370 TFLOP/s/GPU`, `13,011 tokens/s/GPU, 299.4 TFLOP/s/GPU, 20.15 s a step`."""
    texts = figure_texts(point.figures)
    parts = [f"{texts[name]} {'a step' if name == 'step_time_ms' else LABELS[name]}" for name in FIGURES if texts[name]]
    return f"{'about ' if point.rounded else ''}{', '.join(parts)}"


def figure_texts(figures: Mapping[str, float | None]) -> dict[str, str]:
    return {name: _figure(name, figures[name]) for name in FIGURES}


def field_rows(point: ReferencePoint) -> tuple[FieldRow, ...]:
    """Return the known fields in the order of the registry."""
    names = [name for name in FIELDS if name in point.contract]
    return tuple(FieldRow(name, _short(name, point.contract[name]), FIELDS[name].meaning) for name in names)


def figure_rows(comparison: ReferenceComparison) -> tuple[FigureRow, ...]:
    """Return the figures that are known on either side."""
    if comparison.nearest is None:
        return ()
    ours = {name: getattr(comparison.ours.figures, name) for name in FIGURES}
    mine, theirs = figure_texts(ours), figure_texts(comparison.nearest.point.figures)
    more = comparison.nearest.more_pct
    rows = (FigureRow(LABELS[name], mine[name], theirs[name], name in more) for name in FIGURES)
    return tuple(row for row in rows if row.ours or row.theirs)


def figure_bars(comparison: ReferenceComparison) -> tuple[FigureBar, ...]:
    """Return our figure and the published one of the same measure; empty where none is comparable.

    The labels state the precisions: they can be the whole gap.
    """
    nearest, reference = comparison.nearest, comparison.reference
    if nearest is None or reference is None or not nearest.measure:
        return ()
    name = nearest.measure
    ours, theirs = getattr(comparison.ours.figures, name) or 0.0, nearest.point.figures[name] or 0.0
    longest = max(ours, theirs)
    run = f"newest run #{comparison.ours.run_id}" if comparison.ours.of_stack else f"#{comparison.ours.run_id}"
    mine = ", ".join(filter(None, (comparison.ours.dispatcher, run)))
    own = comparison.ours.contract.get("precision")
    precisions = f", {_words(own.value)}" if own and own.value else "", f", {precision_of(nearest.point)}"
    return (
        FigureBar(
            f"Yours, {mine}{precisions[0]}", f"/runs/{comparison.ours.run_id}", 100 * ours / longest,
            _figure(name, ours), is_ours=True, note=nearest.gap,
        ),
        FigureBar(
            f"{nearest.point.measured_by}, {nearest.point.date}{precisions[1]}", f"/references/{reference.id}",
            100 * theirs / longest, _figure(name, theirs), is_ours=False,
            note=f"{LABELS[name]}, {'shorter' if name == 'step_time_ms' else 'longer'} is faster",
        ),
    )  # fmt: skip


def difference_rows(comparison: ReferenceComparison) -> tuple[ReferenceDifferenceRow, ...]:
    """Return known differences first, then fields that one side leaves open."""
    differences = comparison.nearest.differences if comparison.nearest else ()
    rows = [
        ReferenceDifferenceRow(
            difference.field,
            _short(difference.field, difference.ours) if difference.ours_known else "",
            _short(difference.field, difference.theirs)
            if difference.theirs_known or difference.theirs is not None
            else "",
            difference.is_known,
        )
        for difference in differences
    ]
    return tuple(sorted(rows, key=lambda row: not row.is_known))


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "step_time_ms":
        return step_time(value)
    return grouped(value, 0 if value >= 1000 or value == int(value) else 1)


def _joined(contract: Mapping[str, Value], names: Sequence[tuple[str, str]]) -> str:
    return " · ".join(f"{label}\u00a0{_shown(name, contract[name])}" for name, label in names if name in contract)


def _shown(name: str, value: Value) -> str:
    if FIELDS[name].kind == "count" and isinstance(value, int):
        return grouped(value)
    return contract_value(value)


def _short(name: str, value: Value) -> str:
    """Format a value, a container without its registry."""
    return _shown(name, value).rpartition("/")[2] if name == "container" else _shown(name, value)


def _words(value: Value) -> str:
    return "" if value is None else contract_value(value).replace("-", " ") if isinstance(value, str) else str(value)


# --- The stacks of a reference point's model and GPU: those it is nearest to, and the nearer points of others.

MOST = 20
"""Maximum number of checked stacks, newest runs first."""


@dataclass(frozen=True, slots=True)
class ComparedStack:
    """A stack that the figure could be compared with.

    `nearer` None: the figure is the nearest; else the nearest one, and `why` it is nearer.
    """

    name: str
    href: str
    nearer: Reference | None
    why: str


@dataclass(frozen=True, slots=True)
class ComparedStacks:
    """The stacks that were checked, of `total`; those whose nearest figure this is come first.

    `own`: the comparison with the checked stack that has the fewest differences; None without a comparable figure.
    """

    stacks: tuple[ComparedStack, ...]
    total: int
    own: ReferenceComparison | None = None

    @property
    def sentence(self) -> str:
        """Summarise: `It is the nearest published figure to 2 of 3 stacks of this model on this GPU.`"""
        if not self.total:
            return "No stack of this model on this GPU is ranked here yet."
        nearest, seen = sum(stack.nearer is None for stack in self.stacks), len(self.stacks)
        of = f"{seen:,} stacks of this model on this GPU" if seen > 1 else "your only stack of this model on this GPU"
        if self.total > seen:
            of = f"the {seen:,} of {self.total:,} stacks of this model on this GPU with the newest runs"
        if not nearest:
            return f"A nearer published figure exists for {'each of ' if seen > 1 else ''}{of}."
        return f"It is the nearest published figure to {f'{nearest:,} of ' if seen > 1 else ''}{of}."


def compared_stacks(session: Session, reference: Reference) -> ComparedStacks:
    """Return the stacks of the projects that the figure is offered to; none once it is withdrawn."""
    if not reference.counts:
        return ComparedStacks((), 0)
    project = reference.entered.project if reference.entered else ""
    rows = [row for row in _stacks(session, reference) if project in ("", row.slug)]
    looked_at = rows[:MOST]
    names = names_of_titles(session, (row.title for row in looked_at))
    ours = [our_stack(session, row.stack_key) for row in looked_at]
    by_project = {slug: references(session, slug) for slug in {each.project for each in ours}}
    stacks = [
        _beside(
            reference,
            each,
            by_project[each.project],
            names[row.stack_key],
            f"/leaderboards/{row.hardware_slug}/{row.family_slug}?stack={row.stack_key[:12]}",
        )
        for row, each in zip(looked_at, ours, strict=True)
    ]
    own = [comparison for each in ours if (comparison := compare_result(each, (reference,))).measure]
    closest = min(own, key=_farness, default=None)
    return ComparedStacks(tuple(sorted(stacks, key=lambda each: each.nearer is not None)), len(rows), closest)


def _farness(comparison: ReferenceComparison) -> tuple[Any, ...]:
    """Return the sort key of comparisons with one figure: the nearest first, then the smallest gap."""
    nearest = comparison.nearest
    if nearest is None:
        return ()
    return *nearness(nearest.point, nearest.differences), abs(nearest.more_pct[nearest.measure])


def _beside(
    reference: Reference, ours: ComparedResult, names: Iterable[Reference], name: str, href: str
) -> ComparedStack:
    comparison = compare_result(ours, tuple(names))
    nearer = comparison.reference
    if nearer is None or nearer.id == reference.id:
        return ComparedStack(name, href, None, "")
    values = {field: stated.value for field, stated in ours.contract.items()}
    return ComparedStack(name, href, nearer, why_farther(values, reference.point, nearer.point))


def _stacks(session: Session, reference: Reference) -> list[Any]:
    """Return stacks of its model and GPU, the newest runs first."""
    columns = (StandingRow.stack_key, StandingRow.title, StandingRow.hardware, StandingRow.hardware_slug)
    chosen = (
        select_any(*columns, StandingRow.family_slug, ProjectRow.slug)
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .where(col(StandingRow.family_slug) == reference.point.family.slug)
        .order_by(col(StandingRow.newest_at).desc(), col(StandingRow.stack_key))
    )
    gpu = reference.point.contract["gpu"]
    return [row for row in session.execute(chosen) if same_value("gpu", row.hardware, gpu)]

"""Reference points as pages show them: rows of the list, the parts of one, and the claim check."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import same_value
from app.domain.numbers import contract_value, grouped, percent, round_step
from app.domain.references.nearest import nearness, why_farther
from app.domain.references.point import FIGURES, ReferencePoint, figure_text
from app.domain.run import Value
from app.references.queries import ReferenceComparison, compare_result, our_stack
from app.storage.references import Reference, references
from app.storage.stacks import names_of_titles
from app.storage.tables import ProjectRow, StandingRow, from_row, select_any

LABELS = {"tokens_per_s_per_gpu": "tokens/s/GPU", "tflops_per_gpu": "TFLOP/s/GPU", "step_time_ms": "step time"}
_WORK = (("seq_len", "seq"), ("gbs", "GBS"), ("mbs", "MBS"))
_LAYOUT = (("tp", "TP"), ("pp", "PP"), ("vpp", "VPP"), ("cp", "CP"), ("ep", "EP"), ("etp", "ETP"))
_SWITCHES = (("ep_overlap", "EP overlap"), ("delay_wgrad", "delayed wgrad"))


@dataclass(frozen=True, slots=True)
class PointRow:
    """One row of the list. Empty text: unknown. `job`: routing, data, dispatcher and switches. `figures`: by name."""

    id: str
    title: str
    hardware: str
    precision: str
    work: str
    layout: str
    job: str
    untuned: bool
    figures: Mapping[str, str]
    mfu: str
    note: str
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
    """One side of the comparison. `href` empty: of the page itself. `length`: percent of the longest one."""

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
        job=_job(contract),
        figures=point.texts,
        mfu="" if point.mfu_pct is None else percent(point.mfu_pct),
        own=reference.entered is not None,
        project=reference.entered.project if reference.entered else "",
    )


def _job(contract: Mapping[str, Value]) -> str:
    words = [_words(contract.get(name)) for name in ("routing_mode", "data_mode", "dispatcher")]
    words += [label for name, label in _SWITCHES if contract.get(name) is True]
    return " · ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class FigureDot:
    """A figure on the axis of its GPU. `x`: percent of the axis; `colour`: number of the colour of its model.

    `y`: pixels from the top of the lane; figures that are close to each other have different ones.
    """

    x: float
    y: int
    is_bf16: bool
    is_untuned: bool
    colour: int
    title: str


@dataclass(frozen=True, slots=True)
class GpuLane:
    """The published TFLOP/s/GPU on one GPU. `most`: the largest, as text.

    `sequence`: the tokens of its sequences where most figures of the GPU have another length; else empty.
    """

    gpu: str
    dots: tuple[FigureDot, ...]
    most: str
    sequence: str


@dataclass(frozen=True, slots=True)
class GpuLanes:
    """`ticks`: texts by their place on the axis, which begins at zero, in percent.

    `models`: the models that have a separate colour; `has_others`: whether there are more. `drawn`: the number of
    figures with TFLOP/s/GPU.
    """

    lanes: tuple[GpuLane, ...]
    ticks: Mapping[float, str]
    models: tuple[str, ...]
    has_others: bool
    drawn: int


_COLOURED = 5
"""Models with the most figures that have their own colour; all others share the last one."""


def lanes(matching: Sequence[Reference]) -> GpuLanes:
    """Return a lane for each GPU with figures in TFLOP/s/GPU, the fastest GPU first, all on one axis from zero."""
    points: dict[str, list[tuple[float, ReferencePoint]]] = {}
    for reference in matching:
        figure = reference.point.figures["tflops_per_gpu"]
        if figure is not None:
            points.setdefault(str(reference.point.contract["gpu"]), []).append((figure, reference.point))
    for figures in points.values():
        figures.sort(key=lambda item: item[0])
    fastest = {gpu: figures[-1] for gpu, figures in points.items()}
    limit = 100.0 * math.ceil(max((figure for figure, _ in fastest.values()), default=1.0) / 98)
    step = round_step(limit, 5)
    counts = Counter(point.family.name for figures in points.values() for _, point in figures)
    models = tuple(name for name, _ in counts.most_common(_COLOURED))
    places = {gpu: _apart([round(100 * figure / limit, 2) for figure, _ in figures]) for gpu, figures in points.items()}
    rows = tuple(
        GpuLane(
            gpu,
            tuple(
                FigureDot(
                    x,
                    y,
                    point.contract["precision"] == "bf16",
                    point.untuned,
                    models.index(point.family.name) + 1 if point.family.name in models else _COLOURED + 1,
                    f"{title_of(point)}{_sequence(point, ' · seq ')}: {figures_text(point)}",
                )
                for (_, point), (x, y) in zip(points[gpu], places[gpu], strict=True)
            ),
            figure_text("tflops_per_gpu", fastest[gpu][0]),
            "" if _is_usual_length(points[gpu]) else _sequence(fastest[gpu][1]),
        )
        for gpu in sorted(points, key=lambda gpu: -fastest[gpu][0])
    )
    ticks = {round(100 * at * step / limit, 2): grouped(at * step) for at in range(int(limit / step) + 1)}
    return GpuLanes(rows, ticks, models, len(counts) > len(models), sum(len(lane.dots) for lane in rows))


def _is_usual_length(ascending: Sequence[tuple[float, ReferencePoint]]) -> bool:
    """Return whether no other sequence length is more frequent than that of the largest figure."""
    lengths = Counter(point.contract.get("seq_len") for _, point in ascending)
    return lengths[ascending[-1][1].contract.get("seq_len")] == max(lengths.values())


def _sequence(point: ReferencePoint, before: str = "") -> str:
    seq_len = point.contract.get("seq_len")
    return f"{before}{grouped(seq_len)}" if isinstance(seq_len, int) else ""


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
    texts = point.texts
    return ", ".join(
        f"{texts[name]} {'a step' if name == 'step_time_ms' else LABELS[name]}" for name in FIGURES if texts[name]
    )


def field_rows(point: ReferencePoint) -> tuple[FieldRow, ...]:
    """Return the known fields in the order of the registry."""
    names = [name for name in FIELDS if name in point.contract]
    return tuple(FieldRow(name, _short(name, point.contract[name]), FIELDS[name].meaning) for name in names)


def figure_rows(comparison: ReferenceComparison) -> tuple[FigureRow, ...]:
    """Return the figures that are known on either side."""
    if comparison.nearest is None:
        return ()
    mine = {name: figure_text(name, getattr(comparison.ours.figures, name)) for name in FIGURES}
    theirs, more = comparison.nearest.point.texts, comparison.nearest.more_pct
    rows = (FigureRow(LABELS[name], mine[name], theirs[name], name in more) for name in FIGURES)
    return tuple(row for row in rows if row.ours or row.theirs)


def figure_bars(comparison: ReferenceComparison, farther: ReferenceComparison | None = None) -> tuple[FigureBar, ...]:
    """Return our figure and the published one of the same measure; empty where none is comparable.

    `farther`: a comparison with a less similar figure, which follows without a gap. The labels state the precisions:
    they can be the whole gap.
    """
    nearest, reference = comparison.nearest, comparison.reference
    if nearest is None or reference is None or not nearest.measure:
        return ()
    other = farther.nearest if farther else None
    name = next((name for name in nearest.measures if other is None or name in other.more_pct), nearest.measure)
    ours, theirs = getattr(comparison.ours.figures, name) or 0.0, nearest.point.figures[name] or 0.0
    third = other.point.figures[name] or 0.0 if other else 0.0
    longest = max(ours, theirs, third)
    own = comparison.ours.contract.get("precision")
    precision = f", {_words(own.value)}" if own and own.value else ""
    against = f"{nearest.point.measured_by} {precision_of(nearest.point)}: " if other and third else ""
    bars = [
        FigureBar(
            f"Yours: {comparison.ours.whose}{precision}", f"/runs/{comparison.ours.run_id}", 100 * ours / longest,
            figure_text(name, ours), is_ours=True, note=against + nearest.gap(name),
        ),
        FigureBar(
            f"{nearest.point.measured_by}, {nearest.point.date}, {precision_of(nearest.point)}",
            f"/references/{reference.id}", 100 * theirs / longest, nearest.point.texts[name], is_ours=False,
            note=f"{LABELS[name]}, {'shorter' if name == 'step_time_ms' else 'longer'} is faster",
        ),
    ]  # fmt: skip
    if other and third:
        bars.append(
            FigureBar(
                f"This figure, {precision_of(other.point)}", "", 100 * third / longest, other.point.texts[name],
                is_ours=False, note=other.known_to_differ,
            )
        )  # fmt: skip
    return tuple(bars)


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
    `nearest`: the comparison of that stack with its nearest figure, if that is another one and comparable.
    """

    stacks: tuple[ComparedStack, ...]
    total: int
    own: ReferenceComparison | None = None
    nearest: ReferenceComparison | None = None

    @property
    def bars(self) -> tuple[FigureBar, ...]:
        """Compare our result with the nearest figure first: a gap to a less similar one says little."""
        if self.own is None:
            return ()
        return figure_bars(self.nearest, self.own) if self.nearest else figure_bars(self.own)

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
    nearest = [compare_result(each, by_project[each.project]) for each in ours]
    stacks = [
        _beside(
            reference,
            comparison,
            names[row.stack_key],
            f"/leaderboards/{row.hardware_slug}/{row.family_slug}?stack={row.stack_key[:12]}",
        )
        for row, comparison in zip(looked_at, nearest, strict=True)
    ]
    own = [comparison for each in ours if (comparison := compare_result(each, (reference,))).measure]
    closest = min(own, key=_farness, default=None)
    other = next((each for each in nearest if closest and each.ours is closest.ours and each.measure), None)
    if other and other.reference and other.reference.id == reference.id:
        other = None
    return ComparedStacks(tuple(sorted(stacks, key=lambda each: each.nearer is not None)), len(rows), closest, other)


def _farness(comparison: ReferenceComparison) -> tuple[Any, ...]:
    """Return the sort key of comparisons with one figure: the nearest first, then the smallest gap."""
    nearest = comparison.nearest
    if nearest is None:
        return ()
    return *nearness(nearest.point, nearest.differences), abs(nearest.more_pct[nearest.measure])


def _beside(reference: Reference, comparison: ReferenceComparison, name: str, href: str) -> ComparedStack:
    nearer = comparison.reference
    if nearer is None or nearer.id == reference.id:
        return ComparedStack(name, href, None, "")
    values = {field: stated.value for field, stated in comparison.ours.contract.items()}
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

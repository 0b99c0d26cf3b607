"""Differences as the page shows them: by axis, each value with its source, unknown ones with how to supply them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from app.compare.queries import ComparedRun, ComparedSides, LossAtEnd, Side
from app.domain.contract.fields import FIELDS, METRICS, PREFIX
from app.domain.contract.values import explained
from app.domain.numbers import THIN, contract_value, figure, grouped, short_commit, significant, step_time
from app.domain.performance.steady_state import readable_range
from app.domain.run import FloatArray, IntArray, Metric, Stated
from app.domain.verdict.comparability import AXES, Axis, Difference, axis_of
from app.domain.verdict.comparison import MetricOutcome, SameField, step_times
from app.domain.verdict.evidence import RankedSuspect
from app.web.charts import Bar, bar_of, bar_span, series_label


@dataclass(frozen=True, slots=True)
class SideValue:
    """`text` None: unknown. `source`: who states it; `address`: where it is stated, or can be supplied."""

    text: str | None
    source: str
    detail: str
    address: str


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """`follows`: the field that this difference results from. `part`: its role in words. `suspect`: with evidence."""

    field: str
    meaning: str
    unit: str
    part: str
    follows: str
    a: SideValue
    b: SideValue
    suspect: RankedSuspect | None


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """`folded`: environment variables known on one side only, listed further down."""

    axis: Axis
    rows: tuple[DifferenceRow, ...]
    folded: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A field that limits a comparison, and the ways to state it. `both`: unknown on both sides."""

    field: str
    meaning: str
    meta: str
    flag: str
    bridge: str
    both: bool


_PARTS = {"stack": "must be equal", "config": "knob", "info": "may explain"}


def axis_groups(comparison: ComparedSides) -> tuple[AxisGroup, ...]:
    differences = comparison.sides.comparability.by_axis()
    return tuple(_group(comparison, axis, differences[axis]) for axis in AXES if axis in differences)


def missing_fields(comparison: ComparedSides) -> tuple[Missing, ...]:
    """Return unknown key members, those of the stack first."""
    contracts = [run.record.contract for run in (comparison.newest_a, comparison.newest_b)]
    return tuple(
        Missing(
            field=name,
            meaning=FIELDS[name].meaning if name in FIELDS else "Environment variables that affect results.",
            meta=f"meta.{name}",
            flag=FIELDS[name].megatron_lm if name in FIELDS else "",
            bridge=FIELDS[name].bridge if name in FIELDS else "env_vars",
            both=not any(name in contract for contract in contracts),
        )
        for name in comparison.sides.comparability.unknown
    )


def environment_rows(comparison: ComparedSides) -> tuple[DifferenceRow, ...]:
    """Return variables, packages and the driver that are known on a side and not equal on both."""
    a, b = comparison.newest_a.record.contract, comparison.newest_b.record.contract
    return tuple(
        _row(comparison, Difference(name, FIELDS[name].role, axis_of(name), a.get(name), b.get(name)))
        for name in _environment()
        if (name in a or name in b) and not _equal(a.get(name), b.get(name))
    )


def environment_same(comparison: ComparedSides) -> int:
    """Return how many of them are equal on both sides."""
    a, b = comparison.newest_a.record.contract, comparison.newest_b.record.contract
    return sum(name in a and name in b and _equal(a[name], b[name]) for name in _environment())


def same_rows(same: Iterable[SameField]) -> tuple[tuple[str, str, str], ...]:
    """Return field, unit and the shared value."""
    return tuple((value.field, FIELDS[value.field].unit, contract_value(value.a.value)) for value in same)


def _environment() -> Sequence[str]:
    """Return the fields of the environment. The container is a separate difference."""
    software = [name for name, field in FIELDS.items() if field.group == "Software" and field.role != "stack"]
    return [*software, "driver", *(name for name in FIELDS if name.startswith(PREFIX))]


def _equal(a: Stated | None, b: Stated | None) -> bool:
    return a is not None and b is not None and a.value == b.value


def _group(comparison: ComparedSides, axis: Axis, differences: Sequence[Difference]) -> AxisGroup:
    folded = [
        difference for difference in differences if difference.field.startswith(PREFIX) and not difference.is_certain
    ]
    shown = [difference for difference in differences if difference not in folded]
    rows = tuple(_row(comparison, difference) for difference in shown)
    return AxisGroup(axis, rows, len(folded))


def _row(comparison: ComparedSides, difference: Difference) -> DifferenceRow:
    name = difference.field
    field = FIELDS.get(name)
    return DifferenceRow(
        field=name,
        meaning=field.meaning if field else {"commit": "The code of the run."}.get(name, "The project of the runs."),
        unit=field.unit if field else "",
        part=_PARTS[difference.role],
        follows=difference.follows,
        a=_side(name, difference.a, comparison.newest_a.id),
        b=_side(name, difference.b, comparison.newest_b.id),
        suspect=next((item for item in comparison.suspects if item.suspect.field == name), None),
    )


def _side(name: str, stated: Stated | None, run: int) -> SideValue:
    if stated is None:
        return SideValue(None, "", "", f"/runs/{run}#a-field.{name}")
    text = contract_value(stated.value)
    source = stated.detail if stated.stated_by else stated.source
    anchor = f"#contract-{name}" if name in FIELDS else ""
    return SideValue(
        short_commit(text) if name.endswith("commit") else text, source, explained(stated), f"/runs/{run}{anchor}"
    )


# --- Figures of both sides in one table, with the change as a bar on a common axis.

_SECONDS_FROM_MS = 10_000
_MACRO_DECISIONS = {"better": "improvement", "worse": "regression", "no_worse": "no_change", "not_finite": "failed"}


@dataclass(frozen=True, slots=True)
class MetricRow:
    """`a` and `b` as text, empty where unknown; `half`: half of each run's own 95 % interval.

    `decision`: the word of a comparison; `word`: the same as templates name it.
    """

    name: str
    label: str
    meaning: str
    a: str
    a_width: str
    b: str
    b_width: str
    outcome: MetricOutcome
    decision: str
    word: str
    bar: Bar | None


def metric_rows(comparison: ComparedSides) -> tuple[MetricRow, ...]:
    outcomes = {name: outcome for name, outcome in comparison.outcomes.items() if outcome is not None}
    span = bar_span(outcomes.values())
    rows = [_metrics_view_row(comparison, name, outcome, span) for name, outcome in outcomes.items()]
    loss = comparison.loss
    if loss is not None:
        word = {"worse": "worse", "no_worse": "no_worse", "not_finite": "not_finite"}.get(loss.decision, "not_judged")
        outcome = MetricOutcome(loss.baseline, loss.candidate, loss.delta_pct)
        rows.append(
            MetricRow(
                "loss",
                _loss_label(loss),
                "Median over the last iterations that all of these runs have. Other runs may share other iterations.",
                _number(loss.baseline),
                "",
                _number(loss.candidate),
                "",
                outcome,
                word,
                _MACRO_DECISIONS.get(word, word),
                bar_of(outcome, span, less_is_better=True),
            )
        )
    return tuple(rows)


def _metrics_view_row(comparison: ComparedSides, name: str, outcome: MetricOutcome, span: float) -> MetricRow:
    a, b = _texts(name, outcome.baseline, outcome.candidate)
    in_seconds = a.endswith(f"{THIN}s") or b.endswith(f"{THIN}s")
    return MetricRow(
        name=name,
        label=series_label(name),
        meaning=METRICS[name].meaning,
        a=a,
        a_width=_width(comparison.a[0].detail.metrics.get(name), name, in_seconds) if len(comparison.a) == 1 else "",
        b=b,
        b_width=_width(comparison.b[0].detail.metrics.get(name), name, in_seconds) if len(comparison.b) == 1 else "",
        outcome=outcome,
        decision=outcome.decision,
        word=_MACRO_DECISIONS.get(outcome.decision, outcome.decision),
        bar=bar_of(outcome, span, less_is_better=METRICS[name].less_is_better),
    )


def _texts(name: str, a: float | None, b: float | None) -> tuple[str, str]:
    """Return both values in the same unit, so that readers need not convert ms to s."""
    sizes = [abs(value) for value in (a, b) if value is not None]
    if name == "step_time_ms" and sizes and max(sizes) >= _SECONDS_FROM_MS:
        first, second = ("" if value is None else f"{significant(value / 1000)}{THIN}s" for value in (a, b))
        return first, second
    first, second = ("" if value is None else figure(Metric(value, value, value, 0), name).text for value in (a, b))
    return first, second


def _width(metric: Metric | None, name: str, in_seconds: bool) -> str:
    """Return the run's own interval, in the unit of the row."""
    return figure(metric, name, "s" if in_seconds else None).width if metric else ""


def _number(value: float | None) -> str:
    return "" if value is None else grouped(value, 4)


def _loss_label(loss: LossAtEnd) -> str:
    """Return `Loss at iterations 991 to 1,000`."""
    first, last = grouped(loss.first_iteration), grouped(loss.last_iteration)
    return f"Loss at iteration {last}" if first == last else f"Loss at iterations {first} to {last}"


# --- Where the step time goes on both sides: timers that a run of each side printed, the largest difference first.

_WIDTH = 100.0


@dataclass(frozen=True, slots=True)
class TimerRow:
    """Medians over the steady window in ms; for several runs, the median of those. `*_bar`: 0 to 100 on one axis."""

    label: str
    a: str
    b: str
    share_a_pct: float
    share_b_pct: float
    delta: str
    a_bar: float
    b_bar: float


@dataclass(frozen=True, slots=True)
class TimerTable:
    """`only`: by side, timers that the other side lacks."""

    rows: tuple[TimerRow, ...]
    only: tuple[tuple[str, tuple[str, ...]], ...]


def timer_table(comparison: ComparedSides) -> TimerTable:
    a, b = _timers(comparison.a), _timers(comparison.b)
    shared = sorted(a.keys() & b.keys(), key=lambda name: -abs(b[name][0] - a[name][0]))
    longest = max((max(a[name][0], b[name][0]) for name in shared), default=1.0) or 1.0
    rows = tuple(_timers_view_row(name, a[name], b[name], longest) for name in shared)
    only = (("A", tuple(sorted(a.keys() - b.keys()))), ("B", tuple(sorted(b.keys() - a.keys()))))
    return TimerTable(rows, tuple((side, tuple(map(series_label, names))) for side, names in only if names))


def _timers(runs: Sequence[ComparedRun]) -> dict[str, tuple[float, float]]:
    """Return median and share of the step for each timer that all runs of a side have."""
    by_run = [{timer.name: (timer.median_ms, timer.share_of_step) for timer in run.detail.timers} for run in runs]
    names = set.intersection(*map(set, by_run)) if by_run else set()
    return {
        name: (median(timers[name][0] for timers in by_run), median(timers[name][1] for timers in by_run))
        for name in names
    }


def _timers_view_row(name: str, a: tuple[float, float], b: tuple[float, float], longest: float) -> TimerRow:
    delta = b[0] - a[0]
    return TimerRow(
        label=series_label(name),
        a=step_time(a[0]),
        b=step_time(b[0]),
        share_a_pct=100 * a[1],
        share_b_pct=100 * b[1],
        delta=f"{'+' if delta > 0 else ''}{step_time(delta)}",
        a_bar=round(_WIDTH * a[0] / longest, 1),
        b_bar=round(_WIDTH * b[0] / longest, 1),
    )


# --- Series of several runs on one axis: iterations counted from the start of each run's steady window.

MOST_POINTS = 1200
"""Points of all lines together: a screen has no more columns. Longer lines become medians and ranges of stretches."""
_LEAST_POINTS = 120


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One run.

    `offsets`: iterations since its steady window began, negative before; `inside`: whether in the window.
    """

    run: int
    side: Side
    offsets: IntArray
    iterations: IntArray
    values: FloatArray
    inside: FloatArray


@dataclass(frozen=True, slots=True)
class Overlay:
    """`values` of the lines in `unit`. `missing`: runs without this series; `thinned`: points that are not drawn."""

    name: str
    title: str
    lines: tuple[TraceLine, ...]
    low: float
    high: float
    missing: tuple[int, ...]
    points: int

    @property
    def outside(self) -> list[float]:
        """Return the values beyond the axis."""
        return [value for line in self.lines for value in line.values.tolist() if not self.low <= value <= self.high]


def overlay(
    comparison: ComparedSides,
    columns: Mapping[int, Mapping[str, FloatArray]],
    name: str,
    unit: str,
    zoom: tuple[int | None, int | None] = (None, None),
) -> Overlay:
    """Return the series `name` of all runs; `columns` hold it in addition to those that every comparison has.

    `zoom`: the first and the last offset that are shown; None for the ends.
    """
    sides: list[tuple[Side, ComparedRun]] = [("a", run) for run in comparison.a]
    sides += [("b", run) for run in comparison.b]
    lines = [line for side, run in sides if (line := _line(side, run, columns[run.id], name)) is not None]
    if name == "step_time_ms" and any(np.median(line.values) >= _SECONDS_FROM_MS for line in lines):
        unit = "s"
        lines = [
            TraceLine(line.run, line.side, line.offsets, line.iterations, line.values / 1000, line.inside)
            for line in lines
        ]
    lines = [line for whole in lines if len((line := _between(whole, *zoom)).values)]
    low, high = _scale(lines)
    label = series_label(name)
    drawn = {line.run for line in lines}
    return Overlay(
        name=name,
        title=f"{label} ({unit})" if unit and unit != label else label,
        lines=tuple(lines),
        low=low,
        high=high,
        missing=tuple(run.id for run in comparison.runs if run.id not in drawn),
        points=sum(len(line.values) for line in lines),
    )


@dataclass(frozen=True, slots=True)
class Drawn:
    """The drawn part of a line: its points, or the median, lowest and highest of each stretch.

    `stretch`: iterations that a point represents; 1 when every point is drawn.
    """

    offsets: IntArray
    iterations: IntArray
    values: FloatArray
    low: FloatArray
    high: FloatArray
    stretch: int


def drawn(line: TraceLine, lines: int) -> Drawn:
    """Return a line with as many points as a screen can show among `lines` lines."""
    budget = max(MOST_POINTS // max(lines, 1), _LEAST_POINTS)
    n = len(line.values)
    if n <= budget:
        return Drawn(line.offsets, line.iterations, line.values, line.values, line.values, 1)
    width = -(-n // budget)
    # The last stretch is padded with its last value, so that all have one length.
    filled = np.pad(line.values, (0, -n % width), mode="edge").reshape(-1, width)
    middles = np.minimum(np.arange(len(filled)) * width + width // 2, n - 1)
    return Drawn(
        offsets=line.offsets[middles],
        iterations=line.iterations[middles],
        values=np.median(filled, axis=1),
        low=filled.min(axis=1),
        high=filled.max(axis=1),
        stretch=width,
    )


def _line(side: Side, run: ComparedRun, columns: Mapping[str, FloatArray], name: str) -> TraceLine | None:
    all_columns = {**run.columns, **columns}
    if name not in all_columns or "iteration" not in all_columns:
        return None
    values = step_times(all_columns) if name == "step_time_ms" else all_columns[name]
    keep = np.isfinite(values) & np.isfinite(all_columns["iteration"])
    if not keep.any():
        return None
    iterations = all_columns["iteration"][keep].astype(np.int64)
    steady = run.detail.steady_state
    start = int(iterations[0]) if steady is None else steady.first_iteration
    end = int(iterations[-1]) if steady is None else steady.last_iteration
    inside = (iterations >= start) & (iterations <= end)
    return TraceLine(run.id, side, iterations - start, iterations, values[keep], inside.astype(np.float64))


def _between(line: TraceLine, first: int | None, last: int | None) -> TraceLine:
    keep = np.ones(len(line.values), dtype=bool)
    if first is not None:
        keep &= line.offsets >= first
    if last is not None:
        keep &= line.offsets <= last
    return TraceLine(
        line.run, line.side, line.offsets[keep], line.iterations[keep], line.values[keep], line.inside[keep]
    )


def _scale(lines: Sequence[TraceLine]) -> tuple[float, float]:
    """Return an axis that shows the windows in detail; it does not start at zero."""
    if not lines:
        return 0.0, 1.0
    # Use the windows where there are any; values far off go into a lane.
    ends = [readable_range(window if len(window := line.values[line.inside > 0]) else line.values) for line in lines]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


# --- The overlaid series as a table: a row per iteration since the windows began; for several runs the median.

ROWS = 100


@dataclass(frozen=True, slots=True)
class AlignedRow:
    """`a` and `b`: values as text, empty where no run of the side has one there."""

    offset: int
    a: str
    b: str
    in_window: bool


@dataclass(frozen=True, slots=True)
class AlignedTable:
    items: tuple[AlignedRow, ...]
    page: int
    pages: int
    first: int
    last: int
    total: int


def aligned_table(overlay: Overlay, page: int) -> AlignedTable:
    offsets = sorted({int(offset) for line in overlay.lines for offset in line.offsets})
    pages = max(1, -(-len(offsets) // ROWS))
    page = min(page, pages)
    start = (page - 1) * ROWS
    shown = offsets[start : start + ROWS]
    by_line = [(line, _at(line, shown)) for line in overlay.lines]
    rows = tuple(
        AlignedRow(offset, _typical(by_line, "a", offset), _typical(by_line, "b", offset), in_window=offset >= 0)
        for offset in shown
    )
    return AlignedTable(rows, page, pages, start + 1 if rows else 0, start + len(rows), len(offsets))


def _at(line: TraceLine, offsets: list[int]) -> dict[int, float]:
    """Return values of a line at `offsets`; of an iteration printed twice, the later one."""
    wanted = set(offsets)
    pairs = zip(line.offsets.tolist(), line.values.tolist(), strict=True)
    return {offset: value for offset, value in pairs if offset in wanted}


def _typical(by_line: list[tuple[TraceLine, dict[int, float]]], side: str, offset: int) -> str:
    values = [by_offset[offset] for line, by_offset in by_line if line.side == side and offset in by_offset]
    return significant(median(values)) if values else ""

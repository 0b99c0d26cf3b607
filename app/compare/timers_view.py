"""Where the step goes on both sides: timers that a run of each side printed, the largest difference first."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from app.compare.comparison import Comparison
from app.compare.queries import ComparedRun
from app.domain.numbers import step_time
from app.web.series_groups import series_label

_WIDTH = 100.0


@dataclass(frozen=True, slots=True)
class TimerRow:
    """Medians over the steady window, in ms; over the runs of a side their median. `*_bar`: 0 to 100, on one axis."""

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
    """`only`: timers that one side alone has, by side."""

    rows: tuple[TimerRow, ...]
    only: tuple[tuple[str, tuple[str, ...]], ...]


def timer_table(comparison: Comparison) -> TimerTable:
    a, b = _timers(comparison.a), _timers(comparison.b)
    shared = sorted(a.keys() & b.keys(), key=lambda name: -abs(b[name][0] - a[name][0]))
    longest = max((max(a[name][0], b[name][0]) for name in shared), default=1.0) or 1.0
    rows = tuple(_row(name, a[name], b[name], longest) for name in shared)
    only = (("A", tuple(sorted(a.keys() - b.keys()))), ("B", tuple(sorted(b.keys() - a.keys()))))
    return TimerTable(rows, tuple((side, tuple(map(series_label, names))) for side, names in only if names))


def _timers(runs: Sequence[ComparedRun]) -> dict[str, tuple[float, float]]:
    """Median and share of the step of each timer that all runs of a side have."""
    found = [{timer.name: (timer.median_ms, timer.share_of_step) for timer in run.detail.timers} for run in runs]
    names = set.intersection(*map(set, found)) if found else set()
    return {name: (median(one[name][0] for one in found), median(one[name][1] for one in found)) for name in names}


def _row(name: str, a: tuple[float, float], b: tuple[float, float], longest: float) -> TimerRow:
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

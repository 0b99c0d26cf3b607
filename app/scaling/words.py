"""Scaling in words: what a kind of series is, and what one of them says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.numbers import counted, grouped, percent
from app.domain.ranking import ScalingPoint, ScalingSeries
from app.domain.ranking.scaling import Kind
from app.domain.ranking.sentences import listed
from app.domain.ranking.standings import Interval

_WHOLE = Interval(100.0, 100.0, 100.0)


@dataclass(frozen=True, slots=True)
class KindWords:
    """`axis`: what the sizes are. `meaning`: what grows, what stays, and what the efficiency counts."""

    title: str
    axis: str
    unit: str
    meaning: str


KINDS: Mapping[Kind, KindWords] = {
    "weak": KindWords(
        "Weak scaling", "GPUs", "GPUs", "GPUs and batch grow together: every GPU has the same work at every size."
    ),
    "strong": KindWords(
        "Strong scaling", "GPUs", "GPUs", "GPUs grow, the batch stays: more of them share the same work."
    ),
    "sequence_batch": KindWords(
        "Longer sequences, the same number of them",
        "tokens of a sequence",
        "tokens a sequence",
        "Sequences grow, their number stays. Efficiency counts FLOPs: a token of a longer sequence costs more of them.",
    ),
    "sequence_tokens": KindWords(
        "Longer sequences, the same tokens a step",
        "tokens of a sequence",
        "tokens a sequence",
        "Sequences grow, the tokens of a step stay. Efficiency counts FLOPs: a token of a longer sequence costs more.",
    ),
}


def efficiency(point: ScalingPoint) -> Interval | None:
    """In percent of the smallest size: by FLOPs, and where no log shows them, by tokens. None on other code."""
    return point.efficiency_pct or point.tokens_pct


def counts_tokens(series: ScalingSeries) -> bool:
    """True where a log lacks the FLOPs, so that the series can only be told in tokens."""
    return any(point.efficiency_pct is None for point in series.compared)


def told(series: ScalingSeries, name: str) -> str:
    """`alltoall keeps 92.4 % (91.8 to 93.1) of its throughput per GPU from 16 to 128 GPUs, in runs of 2026-09-04.`"""
    compared, unit = series.compared, KINDS[series.kind].unit
    if not compared:
        sizes = listed([grouped(point.size) for point in series.points])
        return (
            f"{name}: {sizes} {unit} were never measured on the same code, so nothing is said of how it scales"
            f" ({changed(series.points)})."
        )
    first, last = compared[0], compared[-1]
    what = "tokens/s/GPU" if counts_tokens(series) else "throughput per GPU"
    value = (last.tokens_pct if counts_tokens(series) else efficiency(last)) or _WHOLE
    verb = "keeps" if value.value <= 100 else "reaches"
    rests = "; directional, as it rests on short runs" if last.directional else ""
    sizes = f"from {grouped(first.size)} to {grouped(last.size)} {unit}"
    kept = f"{name} {verb} {percent(value.value)}{interval(value)} of its {what} {sizes}, {_when(first, last)}{rests}."
    return f"{kept}{_left_out(series)}"


def _when(first: ScalingPoint, last: ScalingPoint) -> str:
    """That no change is known between runs that lie apart is not that there was none."""
    if last.days_apart < 1:
        return f"in runs of {span(min(first.first_at, last.first_at), max(first.last_at, last.last_at))}"
    return (
        f"measured {counted(round(last.days_apart), 'day')} apart ({span(first.first_at, first.last_at)} and"
        f" {span(last.first_at, last.last_at)}) with no change of the speed known between"
    )


def _left_out(series: ScalingSeries) -> str:
    others = [point for point in series.points if not point.compared]
    if not others:
        return ""
    sizes = listed([grouped(point.size) for point in others])
    return f" Not held against them: {sizes} {KINDS[series.kind].unit}, measured on other code ({changed(others)})."


def changed(points: Sequence[ScalingPoint]) -> str:
    """`the speed changed on 2026-09-10 and 2026-09-14`: what lies between these points and those compared."""
    days = sorted({f"{at:%Y-%m-%d}" for point in points for at in point.changed_at})
    return f"the speed changed on {listed(days)}" if days else "their runs lie within a change of the speed"


def span(first: datetime, last: datetime) -> str:
    """`2026-09-01 to 2026-09-09`, or one day."""
    days = [f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"]
    return days[0] if days[0] == days[1] else " to ".join(days)


def interval(value: Interval) -> str:
    """` (91.8 to 93.1)`; empty for the smallest size, which is 100 by definition."""
    if value.low is None or value.high is None or value.low == value.high:
        return ""
    return f" ({grouped(value.low, 1)} to {grouped(value.high, 1)})"

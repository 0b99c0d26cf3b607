"""Scaling in words: what a kind of series is, and what one of them says."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.numbers import grouped, percent
from app.domain.ranking import ScalingPoint, ScalingSeries
from app.domain.ranking.scaling import Kind
from app.domain.ranking.standings import Interval


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


def efficiency(point: ScalingPoint) -> Interval:
    """In percent of the smallest size: by FLOPs, and where no log shows them, by tokens."""
    return point.efficiency_pct or point.tokens_pct


def counts_tokens(series: ScalingSeries) -> bool:
    """True where a log lacks the FLOPs, so that the series can only be told in tokens."""
    return any(point.efficiency_pct is None for point in series.points)


def told(series: ScalingSeries, name: str) -> str:
    """`alltoall keeps 92.4 % (91.8 to 93.1) of its throughput per GPU from 16 to 128 GPUs.`"""
    first, last = series.points[0], series.points[-1]
    what = "tokens/s/GPU" if counts_tokens(series) else "throughput per GPU"
    value = last.tokens_pct if counts_tokens(series) else efficiency(last)
    verb = "keeps" if value.value <= 100 else "reaches"
    rests = "; directional, as it rests on short runs" if last.directional else ""
    sizes = f"from {grouped(first.size)} to {grouped(last.size)} {KINDS[series.kind].unit}"
    return f"{name} {verb} {percent(value.value)}{interval(value)} of its {what} {sizes}{rests}."


def interval(value: Interval) -> str:
    """` (91.8 to 93.1)`; empty for the smallest size, which is 100 by definition."""
    if value.low is None or value.high is None or value.low == value.high:
        return ""
    return f" ({grouped(value.low, 1)} to {grouped(value.high, 1)})"

"""Series of sizes as the page, its charts and its exports show them: sections by kind, names, differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.numbers import TimeUnit, contract_value, grouped, percent, plural, time_unit_of
from app.domain.ranking.scaling import KINDS as ORDER
from app.domain.ranking.scaling import Kind, ScalingPoint, ScalingSeries, value_or_unknown
from app.domain.ranking.standings import Interval, listed
from app.domain.run import Value
from app.domain.text import capitalized
from app.leaderboards.scaling_queries import MeasuredSeries

# --- Scaling in words: the kinds of series, and the sentence of each series.

_WHOLE = Interval(100.0, 100.0, 100.0)


@dataclass(frozen=True, slots=True)
class KindWords:
    """`short`: the title within a sentence. `axis`: the sizes. `meaning`: what grows and what stays constant."""

    title: str
    short: str
    axis: str
    unit: str
    meaning: str


KINDS: Mapping[Kind, KindWords] = {
    "weak": KindWords("Weak scaling", "weak", "GPUs", "GPUs", "GPUs and batch grow together: constant work per GPU."),
    "strong": KindWords(
        "Strong scaling", "strong", "GPUs", "GPUs", "GPUs grow, the batch is constant: less work per GPU."
    ),
    "sequence_batch": KindWords(
        "Longer sequences, same batch size",
        "same-batch",
        "tokens per sequence",
        "tokens a sequence",
        "Sequences grow, the batch size is constant.",
    ),
    "sequence_tokens": KindWords(
        "Longer sequences, same tokens per step",
        "long-sequence",
        "tokens per sequence",
        "tokens a sequence",
        "Sequences grow, tokens per step are constant.",
    ),
}


def efficiency(point: ScalingPoint) -> Interval | None:
    """Return percent of the smallest size, by FLOPs, or by tokens when no log shows FLOPs; None on other code."""
    return point.efficiency_pct or point.tokens_pct


def counts_tokens(series: ScalingSeries) -> bool:
    """Return True when a log lacks the FLOPs, so that the series is reported in tokens."""
    return any(point.efficiency_pct is None for point in series.compared)


def scaling_sentence(series: ScalingSeries, name: str) -> str:
    """Describe a series: `alltoall keeps 92.4 % (91.8 to 93.1) of its TFLOP/s per GPU from 16 to 128 GPUs, ...`"""
    compared, unit = series.compared, KINDS[series.kind].unit
    if not compared:
        sizes = listed([grouped(point.size) for point in series.points])
        return (
            f"{name}: {sizes} {unit} were never measured on the same code, so scaling is unknown"
            f" ({changed(series.points)})."
        )
    first, last = compared[0], compared[-1]
    what = "tokens/s/GPU" if counts_tokens(series) else "TFLOP/s per GPU"
    value = (last.tokens_pct if counts_tokens(series) else efficiency(last)) or _WHOLE
    verb = "keeps" if value.value <= 100 else "reaches"
    tokens = _tokens(last) if unit != "GPUs" and not counts_tokens(series) else ""
    rests = "; directional (short runs)" if last.directional else ""
    sizes = f"from {grouped(first.size)} to {grouped(last.size)} {unit}"
    sentence = f"{name} {verb} {percent(value.value)}{interval(value)} of its {what} {sizes}{tokens}"
    return f"{sentence}, {_when(first, last)}{rests}.{_left_out(series)}"


def _tokens(point: ScalingPoint) -> str:
    """Say what becomes of the tokens, which cost more FLOPs in longer sequences."""
    if point.tokens_pct is None:
        return ""
    return f" ({percent(point.tokens_pct.value)} of its tokens/s per GPU)"


def _when(first: ScalingPoint, last: ScalingPoint) -> str:
    """Give the dates of the runs. If they are far apart, an unnoticed change is possible."""
    if last.days_apart < 1:
        return f"in runs of {span(min(first.first_at, last.first_at), max(first.last_at, last.last_at))}"
    return (
        f"measured {plural(round(last.days_apart), 'day')} apart ({span(first.first_at, first.last_at)} and"
        f" {span(last.first_at, last.last_at)}) without a known speed change in between"
    )


def _left_out(series: ScalingSeries) -> str:
    others = [point for point in series.points if not point.compared]
    if not others:
        return ""
    sizes = listed([grouped(point.size) for point in others])
    return f" Not compared: {sizes} {KINDS[series.kind].unit}, measured on different code ({changed(others)})."


def changed(points: Sequence[ScalingPoint]) -> str:
    """List changes between these points and the compared ones: `the speed changed on 2026-09-10 and 2026-09-14`."""
    days = sorted({f"{at:%Y-%m-%d}" for point in points for at in point.changed_at})
    return f"the speed changed on {listed(days)}" if days else "their runs overlap a speed change"


def span(first: datetime, last: datetime) -> str:
    """Format a range of days: `2026-09-01 to 2026-09-09`, or one day."""
    days = [f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"]
    return days[0] if days[0] == days[1] else " to ".join(days)


def interval(value: Interval) -> str:
    """Format an interval: ` (91.8 to 93.1)`; empty for the smallest size, which is 100 by definition."""
    if value.low is None or value.high is None or value.low == value.high:
        return ""
    return f" ({grouped(value.low, 1)} to {grouped(value.high, 1)})"


_GROWS = frozenset({"gpus", "gbs", "seq_len", "cp", "cp_comm", "hcp_sizes"})
_MOST_APART = 6
_MOST_NAMED = 3
"""Maximum fields that a sentence names."""


@dataclass(frozen=True, slots=True)
class ScalingPointRow:
    """One size. `efficiency` is by FLOPs where the series has them, None on code other than the compared one.

    `is_first`: of its series; `is_least`: the reference of the others.
    """

    point: ScalingPoint
    stack_key: str
    efficiency: Interval | None
    is_first: bool
    is_least: bool

    @property
    def when(self) -> str:
        return span(self.point.first_at, self.point.last_at)

    @property
    def changed(self) -> str:
        return changed([self.point])

    @property
    def runs(self) -> tuple[str, ...]:
        return self.point.runs


@dataclass(frozen=True, slots=True)
class SeriesView:
    """`name`: its dispatcher, with a suffix when several series have it. `apart`: how else it differs.

    On the chart it has the colour of its dispatcher; `look` numbers the series of one dispatcher from 0.
    """

    look: int
    name: str
    series: ScalingSeries
    sentence: str
    apart: tuple[tuple[str, str], ...]
    points: tuple[ScalingPointRow, ...]
    tokens_only: bool


@dataclass(frozen=True, slots=True)
class Section:
    """All series of one kind."""

    kind: Kind
    words: KindWords
    series: tuple[SeriesView, ...]

    @property
    def time_unit(self) -> TimeUnit:
        """Return the unit of its step times, which share one column."""
        return time_unit_of(row.point.step_time_ms.value for view in self.series for row in view.points)

    @property
    def loss(self) -> str:
        """Return `At 128 GPUs, the loss equals 10 GPUs.` for the widest series; empty for sequences."""
        compared = self.series[0].series.compared
        value = efficiency(compared[-1]) if compared and self.words.unit == "GPUs" else None
        if value is None:
            return ""
        size = compared[-1].size
        lost = round(size * (1 - value.value / 100))
        return f"At {grouped(size)} GPUs, the loss equals {plural(lost, 'GPU')}." if lost > 0 else ""

    @property
    def context_parallel(self) -> str:
        """Return `CP 1; CP 2 at 131,072.` where sizes of the widest series differ in CP; else empty."""
        compared = self.series[0].series.compared
        first = compared[0].cp if compared else None
        others = [f"CP {point.cp} at {grouped(point.size)}" for point in compared if point.cp != first]
        return f"CP {first}; {', '.join(others)}." if others else ""

    @property
    def tokens(self) -> str:
        """Return `Tokens/s per GPU at seq 8,192: 61.3 % of that at seq 512.` of sequences, by FLOPs; else empty."""
        series = self.series[0].series
        value = series.compared[-1].tokens_pct if series.compared else None
        if self.words.unit == "GPUs" or counts_tokens(series) or value is None:
            return ""
        first = grouped(series.compared[0].size)
        return f"Tokens/s per GPU at {self.largest_size}: {percent(value.value)} of that at seq {first}."

    @property
    def largest(self) -> str:
        """Return the newest run of the largest compared size; empty without one."""
        compared = self.series[0].series.compared
        return compared[-1].runs[-1] if compared else ""

    @property
    def largest_size(self) -> str:
        """Return `128 GPUs` or `seq 131,072`; empty without a compared size."""
        compared = self.series[0].series.compared
        if not compared:
            return ""
        size = grouped(compared[-1].size)
        return f"{size} GPUs" if self.words.unit == "GPUs" else f"seq {size}"

    @property
    def at_largest(self) -> str:
        """Return the efficiency at the largest compared size; empty without one."""
        compared = self.series[0].series.compared
        value = efficiency(compared[-1]) if compared else None
        return percent(value.value) if value else ""

    @property
    def figure(self) -> str:
        """Return what the efficiency compares."""
        return "tokens/s per GPU" if all(view.tokens_only for view in self.series) else "TFLOP/s per GPU"

    @property
    def drawn(self) -> bool:
        """Return whether there is an efficiency to draw."""
        return any(view.series.compared for view in self.series)


def sections(measured: MeasuredSeries) -> tuple[Section, ...]:
    """Return sections in the order of their kinds; in each, the series with the widest span comes first."""
    result = []
    for kind in ORDER:
        series = sorted((each for each in measured.series if each.kind == kind), key=_widest_first)
        if series:
            result.append(Section(kind, KINDS[kind], _views(series, measured)))
    return tuple(result)


@dataclass(frozen=True, slots=True)
class NearSizesRow:
    """The nearest two sizes that make no series. `fields`: what differs besides the size, with both values.

    `runs`: the newest of each.
    """

    kind: Kind
    sizes: tuple[int, int]
    runs: tuple[str, str]
    fields: tuple[tuple[str, str, str], ...]

    @property
    def what(self) -> str:
        """Return `4 and 8 GPUs`."""
        return f"{grouped(self.sizes[0])} and {grouped(self.sizes[1])} {KINDS[self.kind].unit}"


def near_rows(measured: MeasuredSeries) -> tuple[NearSizesRow, ...]:
    return tuple(
        NearSizesRow(
            near.kind,
            near.sizes,
            (near.small.runs[-1], near.large.runs[-1]),
            tuple((name, _text(near.small.known, name), _text(near.large.known, name)) for name in near.fields),
        )
        for near in measured.near
    )


def answer(sections: Sequence[Section], near: Sequence[NearSizesRow] = ()) -> str:
    """Return the first sentence of the page: the result of the widest series of each kind."""
    if not sections and near:
        names = [name for name, *_ in near[0].fields]
        others = f" and {plural(len(names) - _MOST_NAMED, 'more field')}" if len(names) > _MOST_NAMED else ""
        differ = plural(len(names), "differs", "differ", number=False)
        return f"{near[0].what} cannot be compared: {', '.join(names[:_MOST_NAMED])}{others} {differ}."
    if not sections:
        return "No two sizes of this workload can be compared."
    return " ".join(f"{section.words.title}: {section.series[0].sentence}" for section in sections)


def common_range(sections: Sequence[Section]) -> tuple[float, float]:
    """Return the even percentages around all efficiencies and their intervals, so that charts share one scale."""
    values = [row.efficiency for section in sections for view in section.series for row in view.points]
    ends = [end for value in values if value for end in (value.value, value.low, value.high) if end is not None]
    return 2.0 * math.floor(min(ends) / 2), 2.0 * math.ceil(max(ends) / 2)


def worst_first(sections: Sequence[Section]) -> list[Section]:
    """Return the sections whose largest size has an efficiency, the lowest first."""
    rated = [
        (value.value, section)
        for section in sections
        if (compared := section.series[0].series.compared) and (value := efficiency(compared[-1])) is not None
    ]
    return [section for _, section in sorted(rated, key=lambda item: item[0])]


def lead(sections: Sequence[Section], near: Sequence[NearSizesRow] = ()) -> str:
    """Return the two lowest results: `Efficiency: strong 85.4 % at 64 GPUs, weak 92.1 % at 128 GPUs.`

    Of sequences `MFU at seq 131,072: 95.9 % of that at seq 512`, because tokens/s fall with the length.
    """
    ordered = worst_first(sections)[:2]
    if not ordered:
        return answer(sections, near)
    of_gpus = [section for section in ordered if section.words.unit == "GPUs"]
    rated = [f"{section.words.short} {section.at_largest} at {section.largest_size}" for section in of_gpus]
    parts = [f"Efficiency: {', '.join(rated)}"] if rated else []
    for section in ordered:
        if section not in of_gpus:
            series = section.series[0].series
            figure = "tokens/s/GPU" if counts_tokens(series) else "MFU"
            what = section.words.short + " " if not of_gpus and len(ordered) > 1 else ""
            first = grouped(series.compared[0].size)
            parts.append(f"{what}{figure} at {section.largest_size}: {section.at_largest} of that at seq {first}")
    return capitalized(f"{'; '.join(parts)}.")


def _views(series: Sequence[ScalingSeries], measured: MeasuredSeries) -> tuple[SeriesView, ...]:
    apart = _apart([measured.fields[scaling.points[0].config_key] for scaling in series])
    names = _names(series, apart)
    dispatchers = [scaling.dispatcher for scaling in series]
    return tuple(
        SeriesView(
            dispatchers[:number].count(scaling.dispatcher),
            name,
            scaling,
            scaling_sentence(scaling, name),
            fields,
            tuple(
                ScalingPointRow(
                    point,
                    measured.stack_keys[point.config_key],
                    efficiency(point),
                    index == 0,
                    point in scaling.compared[:1],
                )
                for index, point in enumerate(scaling.points)
            ),
            counts_tokens(scaling),
        )
        for number, (scaling, name, fields) in enumerate(zip(series, names, apart, strict=True))
    )


def _widest_first(series: ScalingSeries) -> tuple[float, int, str, str]:
    """Return the sort key for the span of compared sizes."""
    sizes = [point.size for point in series.compared] or [1]
    return (-sizes[-1] / sizes[0], -len(series.compared), series.dispatcher, series.points[0].config_key)


def _names(series: Sequence[ScalingSeries], apart: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Return the dispatcher of each series, with the one differing field, else a number, when several share it."""
    dispatchers = [each.dispatcher or "unknown dispatcher" for each in series]
    with_field = [
        f"{dispatcher} ({' '.join(fields[0])})" if len(fields) == 1 else dispatcher
        for dispatcher, fields in zip(dispatchers, apart, strict=True)
    ]
    chosen = with_field if len(set(with_field)) == len(series) else dispatchers
    seen: dict[str, int] = {}
    names = []
    for dispatcher, name in zip(dispatchers, chosen, strict=True):
        seen[name] = seen.get(name, 0) + 1
        alone = dispatchers.count(dispatcher) == 1
        names.append(dispatcher if alone else name if chosen.count(name) == 1 else f"{name} {seen[name]}")
    return names


def _apart(contracts: Sequence[Mapping[str, Value]]) -> list[tuple[tuple[str, str], ...]]:
    """Return the fields that differ among the series at their smallest size, with each one's value."""
    fields = [name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name not in _GROWS and not name.startswith(PREFIX)]
    differing = [name for name in fields if len({value_or_unknown(contract, name) for contract in contracts}) > 1]
    shown = [name for name in differing if name != "dispatcher"][:_MOST_APART]
    return [tuple((name, _text(contract, name)) for name in shown) for contract in contracts]


def _text(contract: Mapping[str, Value], name: str) -> str:
    return contract_value(contract[name]) if name in contract else "unknown"

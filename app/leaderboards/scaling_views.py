"""Series of sizes as the page, its charts and its exports show them: sections by kind, names, what sets them apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.values import comparable
from app.domain.numbers import TimeUnit, contract_value, counted, grouped, percent, time_unit_of
from app.domain.ranking.scaling import KINDS as ORDER
from app.domain.ranking.scaling import Kind, ScalingPoint, ScalingSeries
from app.domain.ranking.standings import Interval, listed
from app.domain.run import Value
from app.leaderboards.scaling_queries import Measured

# --- Scaling in words: what a kind of series is, and what one of them says.

_WHOLE = Interval(100.0, 100.0, 100.0)


@dataclass(frozen=True, slots=True)
class KindWords:
    """`axis`: what the sizes are. `meaning`: what grows, what stays, and what the efficiency counts."""

    title: str
    axis: str
    unit: str
    meaning: str


KINDS: Mapping[Kind, KindWords] = {
    "weak": KindWords("Weak scaling", "GPUs", "GPUs", "GPUs and batch grow together: constant work per GPU."),
    "strong": KindWords("Strong scaling", "GPUs", "GPUs", "GPUs grow, the batch is constant: less work per GPU."),
    "sequence_batch": KindWords(
        "Longer sequences, same batch size",
        "tokens per sequence",
        "tokens a sequence",
        "Sequences grow, the batch size is constant. Efficiency counts FLOPs: tokens of longer sequences cost more.",
    ),
    "sequence_tokens": KindWords(
        "Longer sequences, same tokens per step",
        "tokens per sequence",
        "tokens a sequence",
        "Sequences grow, tokens per step are constant. Efficiency counts FLOPs: tokens of longer sequences cost more.",
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
            f"{name}: {sizes} {unit} were never measured on the same code, so scaling is unknown"
            f" ({changed(series.points)})."
        )
    first, last = compared[0], compared[-1]
    what = "tokens/s/GPU" if counts_tokens(series) else "throughput per GPU"
    value = (last.tokens_pct if counts_tokens(series) else efficiency(last)) or _WHOLE
    verb = "keeps" if value.value <= 100 else "reaches"
    rests = "; directional (short runs)" if last.directional else ""
    sizes = f"from {grouped(first.size)} to {grouped(last.size)} {unit}"
    sentence = (
        f"{name} {verb} {percent(value.value)}{interval(value)} of its {what} {sizes}, {_when(first, last)}{rests}."
    )
    return f"{sentence}{_left_out(series)}"


def _when(first: ScalingPoint, last: ScalingPoint) -> str:
    """That no change is known between runs that lie apart is not that there was none."""
    if last.days_apart < 1:
        return f"in runs of {span(min(first.first_at, last.first_at), max(first.last_at, last.last_at))}"
    return (
        f"measured {counted(round(last.days_apart), 'day')} apart ({span(first.first_at, first.last_at)} and"
        f" {span(last.first_at, last.last_at)}) without a known speed change in between"
    )


def _left_out(series: ScalingSeries) -> str:
    others = [point for point in series.points if not point.compared]
    if not others:
        return ""
    sizes = listed([grouped(point.size) for point in others])
    return f" Not compared: {sizes} {KINDS[series.kind].unit}, measured on different code ({changed(others)})."


def changed(points: Sequence[ScalingPoint]) -> str:
    """`the speed changed on 2026-09-10 and 2026-09-14`: what lies between these points and those compared."""
    days = sorted({f"{at:%Y-%m-%d}" for point in points for at in point.changed_at})
    return f"the speed changed on {listed(days)}" if days else "their runs overlap a speed change"


def span(first: datetime, last: datetime) -> str:
    """`2026-09-01 to 2026-09-09`, or one day."""
    days = [f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"]
    return days[0] if days[0] == days[1] else " to ".join(days)


def interval(value: Interval) -> str:
    """` (91.8 to 93.1)`; empty for the smallest size, which is 100 by definition."""
    if value.low is None or value.high is None or value.low == value.high:
        return ""
    return f" ({grouped(value.low, 1)} to {grouped(value.high, 1)})"


_GROWS = frozenset({"gpus", "gbs", "seq_len", "cp", "cp_comm", "hcp_sizes"})
_MOST_APART = 6


@dataclass(frozen=True, slots=True)
class PointRow:
    """One size. `efficiency` is by FLOPs where the series has them, None on other code than that which is compared.

    `is_first`: of its series; `is_least`: what the others are held against.
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
    """`name`: its dispatcher, with more where several have it. `apart`: what else differs.

    On the chart its colour is that of its dispatcher; `look` tells it from the others of that one, from 0.
    """

    look: int
    name: str
    series: ScalingSeries
    sentence: str
    apart: tuple[tuple[str, str], ...]
    points: tuple[PointRow, ...]
    tokens_only: bool


@dataclass(frozen=True, slots=True)
class Section:
    """All series of one kind."""

    kind: Kind
    words: KindWords
    series: tuple[SeriesView, ...]

    @property
    def time_unit(self) -> TimeUnit:
        """Of its step times, which stand in one column."""
        return time_unit_of(row.point.step_time_ms.value for view in self.series for row in view.points)

    @property
    def drawn(self) -> bool:
        """Whether there is an efficiency to draw."""
        return any(view.series.compared for view in self.series)


def sections(measured: Measured) -> tuple[Section, ...]:
    """By kind, in their order; within one, the series that spans the most sizes first."""
    result = []
    for kind in ORDER:
        series = sorted((each for each in measured.series if each.kind == kind), key=_widest_first)
        if series:
            result.append(Section(kind, KINDS[kind], _views(series, measured)))
    return tuple(result)


def answer(sections: Sequence[Section]) -> str:
    """The first sentence of the page: what the widest series of each kind says."""
    if not sections:
        return "No workload has several comparable sizes."
    return " ".join(f"{section.words.title}: {section.series[0].sentence}" for section in sections)


def _views(series: Sequence[ScalingSeries], measured: Measured) -> tuple[SeriesView, ...]:
    apart = _apart([measured.known[scaling.points[0].config_key] for scaling in series])
    names = _names(series, apart)
    dispatchers = [scaling.dispatcher for scaling in series]
    return tuple(
        SeriesView(
            dispatchers[:number].count(scaling.dispatcher),
            name,
            scaling,
            told(scaling, name),
            fields,
            tuple(
                PointRow(
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
    """Of the sizes that are held against each other."""
    sizes = [point.size for point in series.compared] or [1]
    return (-sizes[-1] / sizes[0], -len(series.compared), series.dispatcher, series.points[0].config_key)


def _names(series: Sequence[ScalingSeries], apart: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Of each its dispatcher; with the one field that sets several of a dispatcher apart, else with a number."""
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
    """Fields in which the series differ among themselves, at their smallest size, with each one's value."""
    fields = [name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name not in _GROWS and not name.startswith(PREFIX)]
    differing = [name for name in fields if len({_value(contract, name) for contract in contracts}) > 1]
    shown = [name for name in differing if name != "dispatcher"][:_MOST_APART]
    return [tuple((name, _text(contract, name)) for name in shown) for contract in contracts]


def _value(contract: Mapping[str, Value], name: str) -> object:
    return comparable(name, contract[name]) if name in contract else ("unknown",)


def _text(contract: Mapping[str, Value], name: str) -> str:
    return contract_value(contract[name]) if name in contract else "unknown"

"""Series of sizes as the page, its charts and its exports show them: sections by kind, names, what sets them apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.fields.environment import PREFIX
from app.domain.contract.values import comparable
from app.domain.numbers import TimeUnit
from app.domain.ranking import ScalingPoint, ScalingSeries
from app.domain.ranking.scaling import KINDS as ORDER
from app.domain.ranking.scaling import Kind
from app.domain.ranking.standings import Interval
from app.domain.run import Value
from app.scaling.measure import Measured
from app.scaling.words import KINDS, KindWords, changed, counts_tokens, efficiency, span, told
from app.web.numbers import contract_value, time_unit_of

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
    found = []
    for kind in ORDER:
        series = sorted((one for one in measured.series if one.kind == kind), key=_widest_first)
        if series:
            found.append(Section(kind, KINDS[kind], _views(series, measured)))
    return tuple(found)


def answer(found: Sequence[Section]) -> str:
    """The first sentence of the page: what the widest series of each kind says."""
    if not found:
        return "No workload has several sizes that can be held against each other."
    return " ".join(f"{section.words.title}: {section.series[0].sentence}" for section in found)


def _views(series: Sequence[ScalingSeries], measured: Measured) -> tuple[SeriesView, ...]:
    apart = _apart([measured.known[one.points[0].config_key] for one in series])
    names = _names(series, apart)
    dispatchers = [one.dispatcher for one in series]
    return tuple(
        SeriesView(
            dispatchers[:number].count(one.dispatcher),
            name,
            one,
            told(one, name),
            fields,
            tuple(
                PointRow(
                    point,
                    measured.stack_keys[point.config_key],
                    efficiency(point),
                    index == 0,
                    point in one.compared[:1],
                )
                for index, point in enumerate(one.points)
            ),
            counts_tokens(one),
        )
        for number, (one, name, fields) in enumerate(zip(series, names, apart, strict=True))
    )


def _widest_first(one: ScalingSeries) -> tuple[float, int, str, str]:
    """Of the sizes that are held against each other."""
    sizes = [point.size for point in one.compared] or [1]
    return (-sizes[-1] / sizes[0], -len(one.compared), one.dispatcher, one.points[0].config_key)


def _names(series: Sequence[ScalingSeries], apart: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Of each its dispatcher; with the one field that sets several of a dispatcher apart, else with a number."""
    dispatchers = [one.dispatcher or "unknown dispatcher" for one in series]
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

"""The same workload at several sizes: more GPUs, or longer sequences. No ranking: a series crosses stacks by design.

weak              GPUs and batch grow together: a GPU has the same work in every point
strong            GPUs grow, the batch stays: the same work is shared by more of them
sequence_batch    sequences grow, their number in a step stays
sequence_tokens   sequences grow, the tokens of a step stay

Everything else in the two keys must be equal: project, model and its shape, class, container, routing, precision,
cluster, pipeline, dispatcher and all knobs. Along a sequence series context parallelism may grow, too, with the way it
communicates. And their runs must be of the same code (`scaling_code.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import cache
from typing import Literal, TypeVar

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.fields.environment import PREFIX
from app.domain.contract.values import comparable
from app.domain.ranking.scaling_code import Made, Measured, Sized, measured
from app.domain.ranking.scaling_pool import ScalingRuns
from app.domain.ranking.standings import Interval
from app.domain.run import Value

Key = TypeVar("Key")
Kind = Literal["weak", "strong", "sequence_batch", "sequence_tokens"]
KINDS: tuple[Kind, ...] = ("weak", "strong", "sequence_batch", "sequence_tokens")

_CONTEXT = ("cp", "cp_comm", "hcp_sizes")
_FREE: Mapping[Kind, tuple[str, ...]] = {
    "weak": ("gpus", "gbs"),
    "strong": ("gpus",),
    "sequence_batch": ("seq_len", *_CONTEXT),
    "sequence_tokens": ("seq_len", "gbs", *_CONTEXT),
}
_ALONG: Mapping[Kind, str] = {
    "weak": "gpus",
    "strong": "gpus",
    "sequence_batch": "seq_len",
    "sequence_tokens": "seq_len",
}


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One size. `size`: GPUs, or tokens of a sequence. Efficiencies are against the smallest size, in percent.

    `efficiency_pct`: throughput per GPU, with its 99 % interval; of sequences it counts FLOPs, because longer ones cost
    more a token, and is None where a log shows none. `tokens_pct`: tokens/s/GPU. `ideal` is 100 for both. Both are None
    where no other size was measured on the same code (`compared` is False): then `changed_at` are the changes of the
    speed that lie between its runs and those that are compared, each by the place of the first run after it.
    `first_at` and `last_at`: places of its runs in the history. `days_apart`: how far these are from those of the
    smallest size, 0 where the two overlap.
    """

    size: int
    cp: int | None
    config_key: str
    runs: tuple[str, ...]
    first_at: datetime
    last_at: datetime
    step_time_ms: Interval
    efficiency_pct: Interval | None
    tokens_pct: Interval | None
    directional: bool
    compared: bool = True
    days_apart: float = 0.0
    changed_at: tuple[datetime, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalingSeries:
    """At least two sizes of one workload, smallest first. `along`: the contract field that grows.

    `unknown`: members of the keys that nobody states: they are assumed to be equal, so the series is provisional.
    """

    kind: Kind
    along: str
    dispatcher: str
    routing_mode: str
    semantic_class: str
    points: tuple[ScalingPoint, ...]
    unknown: tuple[str, ...]

    @property
    def provisional(self) -> bool:
        return bool(self.unknown)

    @property
    def compared(self) -> tuple[ScalingPoint, ...]:
        """Those that were measured on the same code: none, or at least two. The first one is what they are held to."""
        return tuple(point for point in self.points if point.compared)


def may_scale(stacks: Mapping[Key, Mapping[str, Value]]) -> frozenset[Key]:
    """Of the stacks of one project, by what is known of them, those of which another size is among them.

    A first sieve, by the stack keys alone: whether they make a series is for their configurations to say.
    """
    several = (names for sizes in _by_size(stacks) if len(sizes) > 1 for names in sizes.values())
    return frozenset(name for names in several for name in names)


def most_sizes(stacks: Sequence[Mapping[str, Value]]) -> int:
    """How many sizes the longest series of these stacks may have, by the same sieve."""
    return max((len(sizes) for sizes in _by_size(dict(enumerate(stacks)))), default=0)


def _by_size(stacks: Mapping[Key, Mapping[str, Value]]) -> Iterable[Mapping[int, Sequence[Key]]]:
    """Stacks in which everything else is equal, by size, for each kind of series."""
    sizes: dict[tuple[object, ...], dict[int, list[Key]]] = {}
    for name, known in stacks.items():
        gpus, gbs, seq_len = (_count(known.get(field)) for field in ("gpus", "gbs", "seq_len"))
        if gpus is None or gbs is None or seq_len is None:
            continue
        values = {field: _known(known, field) for field in STACK_FIELDS}
        for kind in KINDS:
            members = (value for field, value in values.items() if field not in _FREE[kind])
            key = (kind, _invariant(kind, gpus, gbs, seq_len), *members)
            sizes.setdefault(key, {}).setdefault(gpus if _ALONG[kind] == "gpus" else seq_len, []).append(name)
    return sizes.values()


def scaling_series(runs: Iterable[ScalingRuns]) -> tuple[ScalingSeries, ...]:
    """All series that the configurations of one project make. One may be part of several, of different kinds."""
    series: dict[tuple[Kind, tuple[object, ...]], list[Sized]] = {}
    for one in runs:
        values = {name: _known(one.known, name) for name in (*STACK_FIELDS, *CONFIG_FIELDS)}
        for kind in KINDS:
            made = _size(one, kind)
            if made is not None:
                series.setdefault((kind, _key(made, kind, values)), []).append(made)
    several = ((kind, sizes) for (kind, _), sizes in series.items() if len({one.size for one in sizes}) > 1)
    pools: Made = {}
    found = [_series(kind, sizes, pools) for kind, sizes in several]
    return tuple(sorted(found, key=lambda one: (KINDS.index(one.kind), one.dispatcher, one.points[0].config_key)))


def _size(one: ScalingRuns, kind: Kind) -> Sized | None:
    """None where a number that the series rests on is unknown."""
    gpus, gbs, seq_len, cp = (_count(one.known.get(name)) for name in ("gpus", "gbs", "seq_len", "cp"))
    if gpus is None or gbs is None or seq_len is None:
        return None
    return Sized(gpus if _ALONG[kind] == "gpus" else seq_len, gbs * seq_len, gpus, cp, one)


def _count(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _key(one: Sized, kind: Kind, values: Mapping[str, object]) -> tuple[object, ...]:
    """What must be equal in all points; `values`: of all members of both keys."""
    known = one.runs.known
    gpus, gbs, seq_len = (_count(known.get(name)) or 0 for name in ("gpus", "gbs", "seq_len"))
    members = tuple(values[name] for name in _members(kind))
    return (one.runs.semantic_class, one.runs.shape, _invariant(kind, gpus, gbs, seq_len), *members)


def _invariant(kind: Kind, gpus: int, gbs: int, seq_len: int) -> object:
    """What of the numbers stays the same along the series, beside those that do not move at all."""
    if kind == "weak":
        return Fraction(gbs, gpus)
    return gbs * seq_len if kind == "sequence_tokens" else None


@cache
def _members(kind: Kind) -> tuple[str, ...]:
    return tuple(name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name not in _FREE[kind])


def _known(known: Mapping[str, Value], name: str) -> object:
    return comparable(name, known[name]) if name in known else ("unknown",)


def _series(kind: Kind, members: Sequence[Sized], pools: Made) -> ScalingSeries:
    unknown = [
        name
        for name in _members(kind)
        if not name.startswith(PREFIX) and any(name not in one.runs.known for one in members)
    ]
    newest = members[-1].runs
    return ScalingSeries(
        kind=kind,
        along=_ALONG[kind],
        dispatcher=newest.dispatcher,
        routing_mode=newest.routing_mode,
        semantic_class=newest.semantic_class,
        points=tuple(_point(kind, one) for one in measured(members, pools)),
        unknown=tuple(unknown),
    )


def _point(kind: Kind, one: Measured) -> ScalingPoint:
    tokens = one.tokens_pct
    return ScalingPoint(
        size=one.size.size,
        cp=one.size.cp,
        config_key=one.pool.of.config_key,
        runs=one.pool.runs,
        first_at=one.pool.first_at,
        last_at=one.pool.last_at,
        step_time_ms=one.step_time_ms,
        efficiency_pct=tokens if kind in ("weak", "strong") else one.flops_pct,
        tokens_pct=tokens,
        directional=one.directional,
        compared=one.compared,
        days_apart=one.days_apart,
        changed_at=one.changed_at,
    )

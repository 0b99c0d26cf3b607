"""The same workload at several sizes: more GPUs, or longer sequences. No ranking: a series crosses stacks by design.

weak              GPUs and batch grow together: a GPU has the same work in every point
strong            GPUs grow, the batch stays: the same work is shared by more of them
sequence_batch    sequences grow, their number in a step stays
sequence_tokens   sequences grow, the tokens of a step stay

Everything else in the two keys must be equal: project, model and its shape, class, container, routing, precision,
cluster, pipeline, dispatcher and all knobs. Along a sequence series context parallelism may grow, too, with the way it
communicates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeVar

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.fields.environment import PREFIX
from app.domain.contract.values import comparable
from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.ranking.duels import duel
from app.domain.ranking.eligibility import other_shapes, refusal
from app.domain.ranking.pooling import Pool, log_work, pool
from app.domain.ranking.rank import Priors
from app.domain.ranking.ranked_run import RankedRun
from app.domain.ranking.standings import Interval
from app.domain.run import Stated, Value

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
class Configured:
    """The runs of one config key, with the contract that they share."""

    project: str
    contract: Mapping[str, Stated]
    runs: tuple[RankedRun, ...]


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One size. `size`: GPUs, or tokens of a sequence. Efficiencies are against the smallest size, in percent.

    `efficiency_pct`: throughput per GPU, with its 99 % interval; of sequences it counts FLOPs, because longer ones cost
    more a token, and is None where a log shows none. `tokens_pct`: tokens/s/GPU. `ideal` is 100 for both.
    """

    size: int
    cp: int | None
    config_key: str
    runs: tuple[str, ...]
    step_time_ms: Interval
    efficiency_pct: Interval | None
    tokens_pct: Interval
    directional: bool


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


@dataclass(frozen=True, slots=True)
class _Size:
    """A pool of one size: `tokens` of a step, over `gpus`."""

    size: int
    tokens: int
    gpus: int
    cp: int | None
    pool: Pool

    @property
    def order(self) -> tuple[bool, float, str]:
        """Of several configurations of one size, a full one, and then the fastest, stands for it."""
        return self.pool.directional, self.pool.log_step_time, self.pool.config_key


def may_scale(stacks: Mapping[Key, Mapping[str, Value]]) -> frozenset[Key]:
    """Of the stacks of one project, by what is known of them, those of which another size is among them.

    A first sieve, by the stack keys alone: whether they make a series is for their configurations to say.
    """
    sizes: dict[tuple[object, ...], dict[int, list[Key]]] = {}
    for name, known in stacks.items():
        gpus, gbs, seq_len = (_count(known.get(field)) for field in ("gpus", "gbs", "seq_len"))
        if gpus is None or gbs is None or seq_len is None:
            continue
        for kind in KINDS:
            members = (_known(known, field) for field in STACK_FIELDS if field not in _FREE[kind])
            key = (kind, _invariant(kind, gpus, gbs, seq_len), *members)
            sizes.setdefault(key, {}).setdefault(gpus if _ALONG[kind] == "gpus" else seq_len, []).append(name)
    several = (names for group in sizes.values() if len(group) > 1 for names in group.values())
    return frozenset(name for names in several for name in names)


def scaling_series(configurations: Iterable[Configured], prior: Priors = DEFAULT_PRIOR) -> tuple[ScalingSeries, ...]:
    """All series that the configurations make. A configuration may be part of several, of different kinds."""
    series: dict[tuple[Kind, tuple[object, ...]], list[tuple[Configured, _Size]]] = {}
    for one in configurations:
        measured = _pool(one, prior)
        for kind in KINDS if measured is not None else ():
            made = _size(one.contract, kind, measured)
            if made is not None:
                series.setdefault((kind, _key(one, kind)), []).append((one, made))
    several = ((kind, members) for (kind, _), members in series.items() if len({one.size for _, one in members}) > 1)
    found = [_series(kind, members) for kind, members in several]
    return tuple(sorted(found, key=lambda one: (KINDS.index(one.kind), one.dispatcher, one.points[0].config_key)))


def _pool(one: Configured, prior: Priors) -> Pool | None:
    ordered = sorted(one.runs, key=lambda run: run.place_in_time)
    known = prior if isinstance(prior, Prior) else prior.get(ordered[-1].facts.semantic_class, DEFAULT_PRIOR)
    eligible = [run for run in ordered if refusal(run) is None]
    refused = {odd.run for odd in other_shapes(eligible)}
    eligible = [run for run in eligible if run.name not in refused]
    return pool(eligible, known) if eligible else None


def _size(contract: Mapping[str, Stated], kind: Kind, measured: Pool | None) -> _Size | None:
    """None where a number that the series rests on is unknown."""
    gpus, gbs, seq_len = (_whole(contract, name) for name in ("gpus", "gbs", "seq_len"))
    if measured is None or gpus is None or gbs is None or seq_len is None:
        return None
    size = gpus if _ALONG[kind] == "gpus" else seq_len
    return _Size(size, gbs * seq_len, gpus, _whole(contract, "cp"), measured)


def _whole(contract: Mapping[str, Stated], name: str) -> int | None:
    return _count(contract[name].value if name in contract else None)


def _count(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _key(one: Configured, kind: Kind) -> tuple[object, ...]:
    """What must be equal in all points."""
    newest = max(one.runs, key=lambda run: run.place_in_time)
    gpus, gbs, seq_len = (_whole(one.contract, name) or 0 for name in ("gpus", "gbs", "seq_len"))
    invariant = _invariant(kind, gpus, gbs, seq_len)
    members = tuple(_value(one.contract, name) for name in _members(kind))
    return (one.project.casefold(), newest.facts.semantic_class, newest.facts.shape, invariant, *members)


def _invariant(kind: Kind, gpus: int, gbs: int, seq_len: int) -> object:
    """What of the numbers stays the same along the series, beside those that do not move at all."""
    if kind == "weak":
        return Fraction(gbs, gpus)
    return gbs * seq_len if kind == "sequence_tokens" else None


def _members(kind: Kind) -> list[str]:
    return [name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name not in _FREE[kind]]


def _value(contract: Mapping[str, Stated], name: str) -> object:
    return comparable(name, contract[name].value) if name in contract else ("unknown",)


def _known(known: Mapping[str, Value], name: str) -> object:
    return comparable(name, known[name]) if name in known else ("unknown",)


def _series(kind: Kind, members: Sequence[tuple[Configured, _Size]]) -> ScalingSeries:
    best: dict[int, _Size] = {}
    for _, one in sorted(members, key=lambda item: item[1].order):
        best.setdefault(one.size, one)
    sizes = [best[size] for size in sorted(best)]
    newest = sizes[-1].pool.runs[-1]
    unknown = [
        name
        for name in _members(kind)
        if not name.startswith(PREFIX) and any(name not in one.contract for one, _ in members)
    ]
    return ScalingSeries(
        kind=kind,
        along=_ALONG[kind],
        dispatcher=newest.dispatcher or "",
        routing_mode=newest.routing_mode,
        semantic_class=newest.facts.semantic_class,
        points=tuple(_point(kind, one, sizes[0]) for one in sizes),
        unknown=tuple(unknown),
    )


def _point(kind: Kind, one: _Size, smallest: _Size) -> ScalingPoint:
    tokens = _ratio(one, smallest, math.log(one.tokens / one.gpus) - math.log(smallest.tokens / smallest.gpus))
    middle, half = one.pool.log_step_time, one.pool.half_width
    return ScalingPoint(
        size=one.size,
        cp=one.cp,
        config_key=one.pool.config_key,
        runs=tuple(run.name for run in one.pool.runs),
        step_time_ms=Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half)),
        efficiency_pct=tokens if kind in ("weak", "strong") else _flops_ratio(one, smallest),
        tokens_pct=tokens,
        directional=one.pool.directional or smallest.pool.directional,
    )


def _flops_ratio(one: _Size, smallest: _Size) -> Interval | None:
    work, least = (log_work(size.pool, [run.tflops_per_gpu for run in size.pool.runs]) for size in (one, smallest))
    return None if work is None or least is None else _ratio(one, smallest, work - least)


def _ratio(one: _Size, smallest: _Size, log_work_ratio: float) -> Interval:
    """Percent of the smallest size's throughput; the smallest itself is 100 by definition, without an interval."""
    if one is smallest:
        return Interval(100.0, 100.0, 100.0)
    met = duel(one.pool, smallest.pool)
    factor = math.exp(log_work_ratio)
    value, low, high = (factor * (100 + (pct or 0.0)) for pct in (met.gain_pct, met.low_pct, met.high_pct))
    return Interval(value, low, high)

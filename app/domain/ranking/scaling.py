"""The same workload at several sizes: more GPUs, or longer sequences. No ranking: a series crosses stacks by design.

weak              GPUs and batch grow together: a GPU has the same work at every point
strong            GPUs grow, the batch stays: the same work is shared by more of them
sequence_batch    sequences grow, their number in a step stays
sequence_tokens   sequences grow, the tokens of a step stay

Everything else in the two keys must be equal: project, model and its shape, class, container, routing, precision,
cluster, pipeline, dispatcher and all knobs. Along a sequence series, context parallelism and its communication may
change too. All runs must be of the same code (`scaling_code.py`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations
from typing import Literal, TypeVar

import numpy as np

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.values import comparable
from app.domain.ranking.pairwise import PairwiseComparison, compare_pair, gain
from app.domain.ranking.pools import (
    HistoryPosition,
    Segments,
    SpeedChange,
    between,
    interval_half_width,
    merged,
    number_of,
)
from app.domain.ranking.rank import Class, Priors, class_of
from app.domain.ranking.runs import RankedRun, other_shapes, refusal
from app.domain.ranking.standings import Interval
from app.domain.run import FloatArray, Stated, Value
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    FEWEST_ITERATIONS,
    Prior,
    RunEstimate,
    centre,
    moderated_variance,
    select_baseline,
)

# --- The result of one configuration at its size. Its runs are stored with the standings of its stack and the changes
# of its speed, because which runs are comparable with those of another stack depends on the series.

MOST_STORED = 60
"""Newest runs of a configuration stored for each segment: another stack may cut the segment shorter."""


@dataclass(frozen=True, slots=True)
class StoredChange:
    """A change of a stack's speed, after the run `last` and at the latest at `first`; by position and name."""

    last_at: float
    last: str
    first_at: float
    first: str

    @property
    def change(self) -> SpeedChange:
        at = datetime.fromtimestamp(self.first_at, UTC)
        return SpeedChange(_place(self.last_at, self.last), _place(self.first_at, self.first), at)


@dataclass(frozen=True, slots=True)
class ScalingRuns:
    """The eligible runs of one configuration, oldest first.

    Names, history positions, ln(step time) and its standard error. Short runs only when there are no others
    (`directional`). `log_flops`: ln of TFLOP per step and GPU; None when no log shows them. `known`: known members of
    both keys. `changes`: changes of the stack's speed.
    """

    config_key: str
    dispatcher: str
    routing_mode: str
    semantic_class: str
    shape: tuple[str, ...]
    directional: bool
    runs: tuple[str, ...]
    at: tuple[float, ...]
    log_step_times: tuple[float, ...]
    errors: tuple[float, ...]
    log_flops: float | None
    prior: Prior
    known: Mapping[str, Value]
    changes: tuple[StoredChange, ...] = ()

    def position(self, index: int) -> HistoryPosition:
        return _place(self.at[index], self.runs[index])


class ScalingPool:
    """Some runs of one configuration as one result, with the attributes of `Pool` that comparisons read."""

    def __init__(self, of: ScalingRuns, chosen: Sequence[int]) -> None:
        """Keep the newest 20 of `chosen` (indices in `of`, ascending, at least one) without outliers."""
        offered = {of.runs[k]: k for k in chosen}
        estimates = [
            RunEstimate(name, of.log_step_times[k], of.errors[k], FEWEST_ITERATIONS) for name, k in offered.items()
        ]
        used = [offered[estimate.run] for estimate in select_baseline(estimates, of.prior.variance).used] or [
            chosen[-1]
        ]
        self.of = of
        self.runs = tuple(of.runs[k] for k in used)
        self.first_at, self.last_at = (datetime.fromtimestamp(of.at[k], UTC) for k in (used[0], used[-1]))
        self.values: FloatArray = np.array([of.log_step_times[k] for k in used])
        self.noise = float(np.mean([of.errors[k] ** 2 for k in used]))
        self.log_step_time = centre(self.values)

    @property
    def dispatcher(self) -> str:
        return self.of.dispatcher

    @property
    def directional(self) -> bool:
        return self.of.directional

    @property
    def prior(self) -> Prior:
        return self.of.prior

    @cached_property
    def variance(self) -> float:
        return moderated_variance(self.prior, self.values)

    @cached_property
    def half_width(self) -> float:
        """Return the half width of the 95 % interval of ln(step time) over launches."""
        return interval_half_width(len(self.runs), self.variance, self.noise, self.prior)


def compare_configurations(first: ScalingRuns, second: ScalingRuns) -> PairwiseComparison | None:
    """Compare all runs of two configurations of one stack, as its boards do: those of the newest segment with both.

    None if no segment has runs of both.
    """
    changes = merged(dated.change for dated in first.changes)
    ours, theirs = (_by_code(runs, changes) for runs in (first, second))
    segment = max(ours.keys() & theirs.keys(), default=None)
    if segment is None:
        return None
    return compare_pair(ScalingPool(first, ours[segment]), ScalingPool(second, theirs[segment]), ("first", "second"))


def scaling_runs(
    runs: Iterable[RankedRun], contracts: Mapping[str, Mapping[str, Stated]], prior: Priors = DEFAULT_PRIOR
) -> tuple[ScalingRuns, ...]:
    """Return, for the runs of one stack, an entry per configuration with an eligible run.

    `contracts`: by config key.
    """
    configurations: dict[str, list[RankedRun]] = {}
    classes: dict[Class, list[RankedRun]] = {}
    for run in _eligible(runs):
        configurations.setdefault(run.facts.config_key, []).append(run)
        classes.setdefault(class_of(run), []).append(run)
    priors = {class_: prior if isinstance(prior, Prior) else prior.get(class_[1], DEFAULT_PRIOR) for class_ in classes}
    segments = {class_: Segments(own, priors[class_]) for class_, own in classes.items()}
    measured_runs = []
    for key in sorted(configurations):
        own = configurations[key]
        of = class_of(own[-1])
        measured_runs.append(_stored_runs(own, contracts.get(key, {}), priors[of], segments[of]))
    return tuple(measured_runs)


def _eligible(runs: Iterable[RankedRun]) -> list[RankedRun]:
    """Return eligible runs, oldest first."""
    ordered = [run for run in sorted(runs, key=lambda run: run.history_position) if refusal(run) is None]
    refused = {odd.run for odd in other_shapes(ordered)}
    return [run for run in ordered if run.name not in refused]


def _stored_runs(
    runs: Sequence[RankedRun], contract: Mapping[str, Stated], prior: Prior, segments: Segments
) -> ScalingRuns:
    full = [run for run in runs if not run.directional]
    newest, own = runs[-1], _newest_of_each(full or runs, segments)
    estimates = [run.facts.estimate for run in own]
    return ScalingRuns(
        config_key=newest.facts.config_key,
        dispatcher=newest.dispatcher or "",
        routing_mode=newest.routing_mode,
        semantic_class=newest.facts.semantic_class,
        shape=newest.facts.shape,
        directional=not full,
        runs=tuple(run.name for run in own),
        at=tuple(run.history_position[0] for run in own),
        log_step_times=tuple(estimate.log_step_time for estimate in estimates),
        errors=tuple(estimate.se for estimate in estimates),
        log_flops=_log_flops(own),
        prior=replace(prior, degrees_of_freedom=float(prior.degrees_of_freedom)),  # as it is read back
        known={name: contract[name].value for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name in contract},
        changes=tuple(
            StoredChange(change.last[0], change.last[2], change.first[0], change.first[2])
            for change in segments.changes
        ),
    )


def _newest_of_each(runs: Sequence[RankedRun], segments: Segments) -> list[RankedRun]:
    """Return the newest runs of each segment. Runs older than the segments count only if there are no others."""
    own = [run for _, group in sorted(segments.grouped(runs).items()) for run in group[-MOST_STORED:]]
    return sorted(own, key=lambda run: run.history_position) or list(runs[-MOST_STORED:])


def _log_flops(runs: Sequence[RankedRun]) -> float | None:
    logs = [
        math.log(run.tflops_per_gpu) + run.facts.estimate.log_step_time
        for run in runs
        if run.tflops_per_gpu is not None and run.tflops_per_gpu > 0
    ]
    return sum(logs) / len(logs) if logs else None


def _place(at: float, name: str) -> HistoryPosition:
    return at, len(name), name


# --- The same code for every size of a series: an efficiency across a code change does not describe scaling.
#
# The sizes of a series are different stacks without a common history. Their code is known only by the times at which
# any of them changed its speed: together these changes cut the time into segments. Runs of one segment are
# compared, and within a change runs of one commit. The segment with the most sizes is used, the newest of several; a
# size that was not measured in it has figures but no efficiency.

_DAY = 86_400.0

Code = tuple[int, float]
"""A segment; within a change also the position of the commit, else 0. Ascending with time."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A configuration of one size: `tokens` per step, over `gpus`."""

    size: int
    tokens: int
    gpus: int
    cp: int | None
    runs: ScalingRuns

    @property
    def log_tokens(self) -> float:
        """Return ln of the tokens per step and GPU."""
        return math.log(self.tokens / self.gpus)


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """The result of one size.

    `compared`: it is compared with other sizes on the same code, `smallest` of them; None is itself. `changed_at`: see
    `ScalingPoint`.
    """

    size: Sized
    pool: ScalingPool
    compared: bool
    smallest: "MeasuredSize | None" = None
    changed_at: tuple[datetime, ...] = ()

    @property
    def step_time_ms(self) -> Interval:
        return Interval.of_logarithms(self.pool.log_step_time, self.pool.half_width)

    @property
    def directional(self) -> bool:
        return self.pool.directional or (self.smallest is not None and self.smallest.pool.directional)

    @property
    def days_apart(self) -> float:
        if self.smallest is None:
            return 0.0
        mine, other = self.pool, self.smallest.pool
        gap = max((mine.first_at - other.last_at).total_seconds(), (other.first_at - mine.last_at).total_seconds())
        return max(0.0, gap) / _DAY

    @property
    def tokens_pct(self) -> Interval | None:
        return self._throughput(lambda measured: measured.size.log_tokens)

    @property
    def flops_pct(self) -> Interval | None:
        """Return the efficiency by FLOPs; None also when a log shows no FLOPs."""
        return self._throughput(lambda measured: measured.pool.of.log_flops)

    def _throughput(self, log_work: Callable[["MeasuredSize"], float | None]) -> Interval | None:
        """Return percent of the smallest size's throughput; the smallest is 100 by definition.

        `log_work`: of a step.
        """
        work, least = log_work(self), log_work(self.smallest or self)
        if not self.compared or work is None or least is None:
            return None
        if self.smallest is None:
            return Interval(100.0, 100.0, 100.0)
        factor = math.exp(work - least)
        value, low, high = (factor * (100 + pct) for pct in gain(self.pool, self.smallest.pool))
        return Interval(value, low, high)


PoolCache = dict[tuple[str, tuple[int, ...]], ScalingPool]
"""Results by configuration and runs, shared by series of several kinds."""


def measured(sizes: Sequence[Sized], pools: PoolCache) -> tuple[MeasuredSize, ...]:
    """Return a result per size, smallest first. `sizes`: configurations of one series, possibly several of a size."""
    changes = merged(dated.change for dated in {change for size in sizes for change in size.runs.changes})
    by_code: dict[Code, dict[int, list[_Chosen]]] = {}
    for size in sizes:
        for code, chosen in _by_code(size.runs, changes).items():
            by_code.setdefault(code, {}).setdefault(size.size, []).append(_Chosen(size, tuple(chosen)))
    here = max(by_code, key=lambda code: (len(by_code[code]), _full(by_code[code]), code))
    several = len(by_code[here]) > 1
    sizes_measured: list[MeasuredSize] = []
    for number in sorted({size.size for size in sizes}):
        # A size without runs there uses the nearest segment, of two equally near the newer one.
        codes = [code for code, of_sizes in by_code.items() if number in of_sizes]
        code = min(codes, key=lambda code: (len(_apart(changes, code, here)), code != here, -code[0], -code[1]))
        best = min((_measured(size, pools) for size in by_code[code][number]), key=lambda size: size.order)
        compared = several and code == here
        smallest = next((size for size in sizes_measured if size.compared), None) if compared else None
        changed_at = tuple(change.at for change in _apart(changes, code, here))
        sizes_measured.append(MeasuredSize(best.size, best.pool, compared, smallest, changed_at))
    return tuple(sizes_measured)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Runs of one configuration in one segment, by index."""

    size: Sized
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    size: Sized
    pool: ScalingPool

    @property
    def order(self) -> tuple[bool, float, str]:
        """Return the sort key by which one configuration represents its size: full results first, then the fastest."""
        return self.pool.directional, self.pool.log_step_time, self.pool.of.config_key


def _measured(chosen: _Chosen, pools: PoolCache) -> _Candidate:
    key = (chosen.size.runs.config_key, chosen.runs)
    if key not in pools:
        pools[key] = ScalingPool(chosen.size.runs, chosen.runs)
    return _Candidate(chosen.size, pools[key])


def _by_code(runs: ScalingRuns, changes: Sequence[SpeedChange]) -> Mapping[Code, Sequence[int]]:
    if not changes:
        return {(0, 0.0): range(len(runs.runs))}
    by_code: dict[Code, list[int]] = {}
    for index in range(len(runs.runs)):
        number = number_of(runs.position(index), changes)
        by_code.setdefault((number, runs.at[index] if number % 2 else 0.0), []).append(index)
    return by_code


def _full(sizes: Mapping[int, Sequence[_Chosen]]) -> int:
    """Return how many sizes have full runs."""
    return sum(any(not chosen.size.runs.directional for chosen in own) for own in sizes.values())


def _apart(changes: Sequence[SpeedChange], code: Code, other: Code) -> Sequence[SpeedChange]:
    return () if code == other else between(changes, code[0], other[0])


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
    """One size of a series.

    `size`: GPUs, or tokens of a sequence. Efficiencies are in percent of the smallest size. `efficiency_pct`:
    throughput per GPU with the interval of the test of verdicts; for sequences by FLOPs, because longer ones cost
    more per token, and None when a log shows none. `tokens_pct`: tokens/s/GPU. `ideal` is 100 for both. Both are
    None when no other size was measured on the same code (`compared` is False): then `changed_at` are the changes
    of speed between its runs and the compared ones, each as the position of the first run after it. `first_at`,
    `last_at`: history positions of its runs. `days_apart`: distance to the runs of the smallest size, 0 when they
    overlap.
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

    `unknown`: unknown members of the keys, assumed to be equal, so that the series is provisional.
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
        """Return the points on the same code: none, or at least two. The first one is the reference."""
        return tuple(point for point in self.points if point.compared)


Sizes = tuple[tuple[int, int], ...]
"""For each kind of series: what must be equal, as a hash, and the size. Empty when a number is unknown."""


def sizes_of(fields: Mapping[str, Value]) -> Sizes:
    """Return the sizes of a stack by its known fields. They follow from its key."""
    gpus, gbs, seq_len = (_count(fields.get(field)) for field in ("gpus", "gbs", "seq_len"))
    if gpus is None or gbs is None or seq_len is None:
        return ()
    values = {field: value_or_unknown(fields, field) for field in STACK_FIELDS}
    return tuple(
        (
            hash((kind, _invariant(kind, gpus, gbs, seq_len), *(values[field] for field in _equal_fields(kind)))),
            gpus if _ALONG[kind] == "gpus" else seq_len,
        )
        for kind in KINDS
    )


@cache
def _equal_fields(kind: Kind) -> tuple[str, ...]:
    return tuple(field for field in STACK_FIELDS if field not in _FREE[kind])


def may_scale(stacks: Mapping[Key, Sizes]) -> frozenset[Key]:
    """Return the stacks of one project that exist in another size.

    A first filter by stack keys; their configurations decide whether they form a series.
    """
    several = (names for sizes in _by_size(stacks) if len(sizes) > 1 for names in sizes.values())
    return frozenset(name for names in several for name in names)


def most_sizes(stacks: Sequence[Sizes]) -> int:
    """Return the largest number of sizes that a series of these stacks can have, by the same filter."""
    return max((len(sizes) for sizes in _by_size(dict(enumerate(stacks)))), default=0)


def _by_size(stacks: Mapping[Key, Sizes]) -> Iterable[Mapping[int, Sequence[Key]]]:
    """Return, for each kind of series, stacks by size in which everything else is equal."""
    sizes: dict[int, dict[int, list[Key]]] = {}
    for name, of_stack in stacks.items():
        for key, size in of_stack:
            sizes.setdefault(key, {}).setdefault(size, []).append(name)
    return sizes.values()


def scaling_series(runs: Iterable[ScalingRuns]) -> tuple[ScalingSeries, ...]:
    """Return all series of one project's configurations. A configuration may be in several, of different kinds."""
    by_key: dict[tuple[Kind, tuple[object, ...]], list[Sized]] = {}
    for configuration in runs:
        values = {name: value_or_unknown(configuration.known, name) for name in (*STACK_FIELDS, *CONFIG_FIELDS)}
        for kind in KINDS:
            size = _size(configuration, kind)
            if size is not None:
                by_key.setdefault((kind, _key(size, kind, values)), []).append(size)
    several = ((kind, sizes) for (kind, _), sizes in by_key.items() if len({size.size for size in sizes}) > 1)
    pools: PoolCache = {}
    result = [_series(kind, sizes, pools) for kind, sizes in several]
    return tuple(
        sorted(result, key=lambda series: (KINDS.index(series.kind), series.dispatcher, series.points[0].config_key))
    )


@dataclass(frozen=True, slots=True)
class NearSizes:
    """Two configurations of different sizes, smallest first, and the fields in which they differ besides the size."""

    kind: Kind
    small: ScalingRuns
    large: ScalingRuns
    fields: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        name = _ALONG[self.kind]
        return _count(self.small.known.get(name)) or 0, _count(self.large.known.get(name)) or 0


def near_sizes(runs: Iterable[ScalingRuns]) -> tuple[NearSizes, ...]:
    """Return, for each kind, the pair of sizes that differs in the fewest fields; meant for runs without a series."""
    nearest: dict[Kind, NearSizes] = {}
    for first, second in combinations(runs, 2):
        for kind in KINDS:
            small, large = sorted((first, second), key=lambda of: _count(of.known.get(_ALONG[kind])) or 0)
            fields = _differing(kind, small, large)
            if fields and (kind not in nearest or len(fields) < len(nearest[kind].fields)):
                nearest[kind] = NearSizes(kind, small, large, fields)
    return tuple(nearest[kind] for kind in KINDS if kind in nearest)


def _differing(kind: Kind, small: ScalingRuns, large: ScalingRuns) -> tuple[str, ...]:
    """Return the fields that keep two configurations out of one series; empty for those that are no two sizes of it."""
    sizes = [_size(of, kind) for of in (small, large)]
    numbers = [[_count(of.known.get(name)) or 0 for name in ("gpus", "gbs", "seq_len")] for of in (small, large)]
    if None in sizes or len({size.size for size in sizes if size}) < 2:
        return ()
    if len({_invariant(kind, *of) for of in numbers}) > 1:
        return ()
    values = [{name: value_or_unknown(of.known, name) for name in _members(kind)} for of in (small, large)]
    return tuple(name for name in _members(kind) if values[0][name] != values[1][name])


def _size(runs: ScalingRuns, kind: Kind) -> Sized | None:
    """Return the configuration with its size; None when a number that the series needs is unknown."""
    gpus, gbs, seq_len, cp = (_count(runs.known.get(name)) for name in ("gpus", "gbs", "seq_len", "cp"))
    if gpus is None or gbs is None or seq_len is None:
        return None
    return Sized(gpus if _ALONG[kind] == "gpus" else seq_len, gbs * seq_len, gpus, cp, runs)


def _count(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _key(size: Sized, kind: Kind, values: Mapping[str, object]) -> tuple[object, ...]:
    """Return what must be equal in all points; `values`: of all members of both keys."""
    contract = size.runs.known
    gpus, gbs, seq_len = (_count(contract.get(name)) or 0 for name in ("gpus", "gbs", "seq_len"))
    members = tuple(values[name] for name in _members(kind))
    return (size.runs.semantic_class, size.runs.shape, _invariant(kind, gpus, gbs, seq_len), *members)


def _invariant(kind: Kind, gpus: int, gbs: int, seq_len: int) -> object:
    """Return the derived number that stays constant along the series."""
    if kind == "weak":
        return Fraction(gbs, gpus)
    return gbs * seq_len if kind == "sequence_tokens" else None


@cache
def _members(kind: Kind) -> tuple[str, ...]:
    return tuple(name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name not in _FREE[kind])


def value_or_unknown(contract: Mapping[str, Value], name: str) -> object:
    """Return the value of a field as comparisons use it, or a mark that equals no value."""
    return comparable(name, contract[name]) if name in contract else ("unknown",)


def _series(kind: Kind, members: Sequence[Sized], pools: PoolCache) -> ScalingSeries:
    unknown = [
        name
        for name in _members(kind)
        if not name.startswith(PREFIX) and any(name not in member.runs.known for member in members)
    ]
    newest = members[-1].runs
    return ScalingSeries(
        kind=kind,
        along=_ALONG[kind],
        dispatcher=newest.dispatcher,
        routing_mode=newest.routing_mode,
        semantic_class=newest.semantic_class,
        points=tuple(_point(kind, member) for member in measured(members, pools)),
        unknown=tuple(unknown),
    )


def _point(kind: Kind, measured_size: MeasuredSize) -> ScalingPoint:
    tokens = measured_size.tokens_pct
    return ScalingPoint(
        size=measured_size.size.size,
        cp=measured_size.size.cp,
        config_key=measured_size.pool.of.config_key,
        runs=measured_size.pool.runs,
        first_at=measured_size.pool.first_at,
        last_at=measured_size.pool.last_at,
        step_time_ms=measured_size.step_time_ms,
        efficiency_pct=tokens if kind in ("weak", "strong") else measured_size.flops_pct,
        tokens_pct=tokens,
        directional=measured_size.directional,
        compared=measured_size.compared,
        days_apart=measured_size.days_apart,
        changed_at=measured_size.changed_at,
    )

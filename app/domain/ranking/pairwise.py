"""Compare two results with the test of verdicts, in both directions, so that it is symmetric.

A is better than B only when A against B is an improvement and B against A a regression (docs/verdicts.md). Otherwise
they tie: `equal` when both directions show them to be within 2 %, else `undecided`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

from app.domain.contract.values import comparable
from app.domain.numbers import percent
from app.domain.ranking.pools import Pool
from app.domain.run import Value
from app.domain.verdict.comparability import FOLLOWS
from app.domain.verdict.decide import compare_loss, compare_memory
from app.domain.verdict.policy import EQUAL_PCT
from app.domain.verdict.record import Losses, typical_losses
from app.domain.verdict.step_time import (
    EQUIVALENCE_P,
    IMPROVEMENT_P,
    MOST_RERUNS,
    REGRESSION_P,
    RELEVANT_SHIFT,
    Comparison,
    Prior,
    two_sided_pct,
)

# --- The loss guard: a faster dispatcher with a worse loss is not an improvement and does not win.

NEWEST = 5
"""Most runs per side whose losses are read: whole series are costly, and launches of one job differ little."""

LossReader = Callable[[Sequence[str]], Mapping[str, Losses]]
"""Run names -> losses, where known."""


@dataclass(frozen=True, slots=True)
class WorseLoss:
    """The dispatcher of a pair with the clearly worse loss, by `delta_pct` percent of the other's."""

    dispatcher: str
    delta_pct: float


def no_losses(names: Sequence[str]) -> Mapping[str, Losses]:  # noqa: ARG001
    return {}


class LossGuard:
    """Compares losses of results and caches each pair, because most evidence floors leave the same runs."""

    def __init__(self, read: LossReader = no_losses) -> None:
        self._read = read
        self._losses: dict[str, Losses] = {}
        self._compared: dict[tuple[tuple[str, ...], ...], WorseLoss | None] = {}

    def read(self, pools: Sequence[Pool]) -> None:
        """Read the losses of these results in one call."""
        names = [run.name for pool in pools for run in pool.runs[-NEWEST:] if run.name not in self._losses]
        if names:
            self._losses |= self._read(names)

    def worse(self, first: Pool, second: Pool) -> WorseLoss | None:
        """Compare losses with the guard of verdicts, over shared iterations. None: neither is worse, or unknown."""
        key = tuple(tuple(run.name for run in pool.runs[-NEWEST:]) for pool in (first, second))
        if key not in self._compared:
            self.read((first, second))
            self._compared[key] = _worse(first, second, self._losses)
        return self._compared[key]


def _worse(first: Pool, second: Pool, losses: Mapping[str, Losses]) -> WorseLoss | None:
    sides = [[run.facts.estimate for run in item.runs[-NEWEST:] if run.name in losses] for item in (first, second)]
    if not all(sides):
        return None
    typical = iter(typical_losses([losses[item.run] for side in sides for item in side]))
    mine, theirs = ([replace(item, loss=next(typical)) for item in side] for side in sides)
    for name, new, old in ((first.dispatcher, mine, theirs), (second.dispatcher, theirs, mine)):
        change = compare_loss(new, old)
        if change is not None and change.decision == "worse" and change.delta_pct is not None:
            return WorseLoss(name, change.delta_pct)
    return None


Outcome = Literal["first", "second", "equal", "undecided"]
_TURNED: dict[Outcome, Outcome] = {"first": "second", "second": "first", "equal": "equal", "undecided": "undecided"}


@dataclass(frozen=True, slots=True)
class PairwiseComparison:
    """`first` compared with `second`, dispatchers or configurations. `gain_pct`: extra throughput of the first.

    The interval belongs to the test that decided, as in verdicts: for an `equal` pair the two one-sided tests (95 %
    each), so that it lies within 2 %; else the stricter direction (99.8 % certainty of an improvement). Comparisons by
    memory have none, and their `gain_pct` is the saving of the first. `more_runs`: further runs per side that would
    decide if nothing else changes; None: decided, or over 20. `tie_because`: the rule that makes a tie although the
    interval excludes zero; else empty. `worse_loss`: the one with the clearly worse loss, by `loss_delta_pct` percent
    of the other's.
    """

    first: str
    second: str
    outcome: Outcome
    gain_pct: float
    low_pct: float | None = None
    high_pct: float | None = None
    directional: bool = False
    more_runs: int | None = None
    tie_because: str = ""
    worse_loss: str = ""
    loss_delta_pct: float | None = None

    @property
    def interval_level_pct(self) -> float:
        return two_sided_pct(EQUIVALENCE_P if self.outcome == "equal" else IMPROVEMENT_P)

    @property
    def tie(self) -> bool:
        return self.outcome in ("equal", "undecided")

    @property
    def is_small(self) -> bool:
        """Return whether the difference, as measured, is smaller than what counts as equal."""
        return abs(self.gain_pct) < EQUAL_PCT

    @property
    def winner(self) -> str:
        """Return the better one; empty for a tie."""
        return {"first": self.first, "second": self.second}.get(self.outcome, "")

    def turned(self) -> "PairwiseComparison":
        """Exchange the sides."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            outcome=_TURNED[self.outcome],
            gain_pct=_turn(self.gain_pct),
            low_pct=_turned(self.high_pct),
            high_pct=_turned(self.low_pct),
        )


class Pooled(Protocol):
    """The attributes of a result that a comparison by step time reads: a `Pool`, or a stored one."""

    @property
    def runs(self) -> Sequence[object]: ...
    @property
    def dispatcher(self) -> str: ...
    @property
    def directional(self) -> bool: ...
    @property
    def prior(self) -> Prior: ...
    @property
    def log_step_time(self) -> float: ...
    @property
    def variance(self) -> float: ...
    @property
    def noise(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Test:
    """Both directions of the verdict's test; the shift of ln(step time) is positive when the first is slower."""

    forward: Comparison
    backward: Comparison

    def outcome(self, k: int, m: int) -> Outcome:
        there, back = self.forward.decide(k, m), self.backward.decide(m, k)
        if there == "improvement" and back == "regression":
            return "first"
        if there == "regression" and back == "improvement":
            return "second"
        return "equal" if there == back == "no_change" else "undecided"

    def half_width(self, k: int, m: int) -> float:
        """Return the half width of the deciding interval: of the two one-sided tests for an equal pair, else the
        smallest shift that is an improvement one way and a regression the other way.
        """
        if self.outcome(k, m) == "equal":
            return max(self.forward.half_width(EQUIVALENCE_P, k, m), self.backward.half_width(EQUIVALENCE_P, m, k))
        if self.forward.shift > 0:
            return max(self.forward.half_width(REGRESSION_P, k, m), self.backward.half_width(IMPROVEMENT_P, m, k))
        return max(self.forward.half_width(IMPROVEMENT_P, k, m), self.backward.half_width(REGRESSION_P, m, k))


def compare_pair(
    first: Pooled, second: Pooled, names: tuple[str, str] | None = None, worse_loss: WorseLoss | None = None
) -> PairwiseComparison:
    """Compare by step time. `names`: labels, else the dispatchers. The one with the worse loss cannot win."""
    test, k, m = _test(first, second), len(first.runs), len(second.runs)
    outcome, half, shift = test.outcome(k, m), test.half_width(k, m), test.forward.shift
    name, other_name = names or (first.dispatcher, second.dispatcher)
    result = PairwiseComparison(
        first=name,
        second=other_name,
        outcome=outcome,
        gain_pct=_gain(shift),
        low_pct=_gain(shift + half),
        high_pct=_gain(shift - half),
        directional=first.directional or second.directional,
        more_runs=_more_runs(test, k, m) if outcome == "undecided" else None,
    )
    if worse_loss is not None:
        return _guarded(result, worse_loss)
    if result.tie and half < abs(shift) < RELEVANT_SHIFT:
        return replace(result, tie_because="differences under 1 % do not count, however certain")
    return result


def gain(first: Pooled, second: Pooled) -> tuple[float, float, float]:
    """Return the extra throughput of the first in percent, with the ends of the interval that decides."""
    test = _test(first, second)
    shift, half = test.forward.shift, test.half_width(len(first.runs), len(second.runs))
    return _gain(shift), _gain(shift + half), _gain(shift - half)


def _guarded(result: PairwiseComparison, worse: WorseLoss) -> PairwiseComparison:
    result = replace(result, worse_loss=worse.dispatcher, loss_delta_pct=worse.delta_pct)
    if result.winner != worse.dispatcher:
        return result
    because = f"the loss of {worse.dispatcher} is {percent(worse.delta_pct)} worse, so it does not win"
    return replace(result, outcome="undecided", tie_because=because)


def compare_pair_by_memory(first: Pool, second: Pool) -> PairwiseComparison | None:
    """Compare by peak memory with the rule of verdicts, in both directions; None when one side is unknown."""
    there = compare_memory(first.estimates, second.estimates)
    back = compare_memory(second.estimates, first.estimates)
    if there is None or back is None:
        return None
    outcome: Outcome = "undecided"
    if there.decision == "improvement" and back.decision == "regression":
        outcome = "first"
    elif there.decision == "regression" and back.decision == "improvement":
        outcome = "second"
    elif there.decision == back.decision == "no_change":
        outcome = "equal"
    return PairwiseComparison(
        first.dispatcher, second.dispatcher, outcome, _less(there.candidate_bytes, there.baseline_bytes),
        directional=first.directional or second.directional,
    )  # fmt: skip


def _test(first: Pooled, second: Pooled) -> _Test:
    shift = first.log_step_time - second.log_step_time
    return _Test(
        Comparison(shift, second.variance, second.prior, first.noise, second.noise),
        Comparison(-shift, first.variance, first.prior, second.noise, first.noise),
    )


def _more_runs(test: _Test, k: int, m: int) -> int | None:
    more = range(1, MOST_RERUNS + 1)
    return next((n for n in more if test.outcome(k + n, m + n) != "undecided"), None)


def _gain(shift: float) -> float:
    return 100 * math.expm1(-shift)


def _turn(gain_pct: float) -> float:
    return 100 * (1 / (1 + gain_pct / 100) - 1)


def _turned(gain_pct: float | None) -> float | None:
    return None if gain_pct is None else _turn(gain_pct)


def _less(first: float, second: float) -> float:
    """Return the memory saving of the first as a gain, so that it inverts like throughput."""
    return 100 * (second / first - 1)


# --- Equal knobs: configurations that differ in one axis only, so that their difference is the effect of the axis.

DISPATCHER_AXIS = frozenset({"dispatcher", "dispatcher_type", "flex_backend"}) | {
    follower for follower, switch in FOLLOWS.items() if switch == "dispatcher"
}
"""Fields in which two dispatchers differ at equal knobs."""
Knobs = frozenset[tuple[str, object]]
AnyPool = TypeVar("AnyPool", bound=Pooled)


def knobs_without(axis: frozenset[str], fields: Mapping[str, Value]) -> Knobs:
    return frozenset((name, comparable(name, value)) for name, value in fields.items() if name not in axis)


def at_equal_knobs(
    own: Iterable[tuple[Knobs, AnyPool]], against: Iterable[tuple[Knobs, AnyPool]]
) -> tuple[AnyPool, AnyPool] | None:
    """Return the pair with most runs whose knobs are equal; of several the fastest, full results before short ones."""
    by_knobs = dict(sorted(against, key=lambda item: len(item[1].runs)))
    pairs = [(pool, by_knobs[knobs]) for knobs, pool in own if knobs in by_knobs]
    return min(
        pairs,
        key=lambda pair: (-min(len(pair[0].runs), len(pair[1].runs)), pair[0].directional, pair[0].log_step_time),
        default=None,
    )


# --- The result that represents a name: of several that tie with its fastest one, the one with the best evidence.

ENOUGH_RUNS = 5
"""From this many runs on, results count as equally well evidenced and the faster one is taken."""


def best_first(pools: Iterable[AnyPool], level_of: Callable[[AnyPool], int] = lambda _: 0) -> list[AnyPool]:
    """Return the results of one name, fastest first, after the one with the best evidence of those that tie with it.

    The fastest of many results with one run each was often lucky. A short result never precedes a full one.
    `level_of`: strength of the evidence; of equally strong ones that with more runs, up to `ENOUGH_RUNS`.
    """
    ordered = sorted(pools, key=lambda pool: (pool.directional, pool.log_step_time))
    fastest = ordered[0]
    tied = [
        pool
        for pool in ordered
        if pool is fastest
        or (pool.directional == fastest.directional and compare_pair(pool, fastest, ("own", "fastest")).tie)
    ]
    best = max(tied, key=lambda pool: (level_of(pool), min(len(pool.runs), ENOUGH_RUNS)))
    return [best, *(pool for pool in ordered if pool is not best)]


# --- Places with ties. Ties are not transitive: A may tie with B and B with C while A is better than C. So there are no
# groups; each result has the range of places that the tests leave open.
#
# The range begins at 1 + the number of clearly better results and ends at the number of all results minus the clearly
# worse ones (Mogstad, Romano, Shaikh and Wilhelm, "Inference for ranks", 2024). A clear winner has 1 to 1; two that tie
# both have 1 to 2.


@dataclass(frozen=True, slots=True)
class PositionRange:
    """The possible places of a result, `first` to `last`. `ties`: results that it ties with, in ranking order."""

    name: str
    first: int
    last: int
    beats: tuple[str, ...]
    beaten_by: tuple[str, ...]
    ties: tuple[str, ...]

    @property
    def text(self) -> str:
        """Format the range: `1`, or `1–2`."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def position_ranges(names: Sequence[str], comparisons: Iterable[PairwiseComparison]) -> tuple[PositionRange, ...]:
    """Return the places of `names`, in their order; a pair that was not compared is a tie."""
    winners = {frozenset((pair.first, pair.second)): pair.winner for pair in comparisons}
    ranks = []
    for name in names:
        against = [(other, winners.get(frozenset((name, other)), "")) for other in names if other != name]
        beats = tuple(other for other, winner in against if winner == name)
        beaten_by = tuple(other for other, winner in against if winner == other)
        ties = tuple(other for other, winner in against if not winner)
        ranks.append(PositionRange(name, 1 + len(beaten_by), len(names) - len(beats), beats, beaten_by, ties))
    return tuple(ranks)

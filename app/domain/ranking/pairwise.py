"""Which of two results is better: the verdict's own test, held in both directions, so that it is symmetric.

A is better than B only when A against B is an improvement and B against A a regression (docs/verdicts.md). Neither
better is a tie: `equal` when both directions show them to be within 2 %, else `undecided`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from app.domain.numbers import percent
from app.domain.ranking.pools import Pool
from app.domain.verdict.decide import compare_loss, compare_memory
from app.domain.verdict.record import Losses, typical_losses
from app.domain.verdict.step_time import (
    EQUIVALENCE_P,
    IMPROVEMENT_P,
    MOST_RERUNS,
    REGRESSION_P,
    RELEVANT_SHIFT,
    Comparison,
    Prior,
)

# --- Loss as a guard of a ranking: a faster dispatcher whose loss is worse is no improvement, so it beats nobody by it.

NEWEST = 5
"""Runs of a side whose losses are read: that of one job moves little between launches, and it takes whole series."""

LossReader = Callable[[Sequence[str]], Mapping[str, Losses]]
"""Names of runs -> their losses, of those that are known."""


@dataclass(frozen=True, slots=True)
class WorseLoss:
    """Who of two dispatchers has the clearly worse loss, and by how many percent of the other's."""

    dispatcher: str
    delta_pct: float


def no_losses(names: Sequence[str]) -> Mapping[str, Losses]:  # noqa: ARG001
    return {}


class LossGuard:
    """Compares the losses of results, each pair once: most floors of evidence leave the same runs."""

    def __init__(self, read: LossReader = no_losses) -> None:
        self._read = read
        self._losses: dict[str, Losses] = {}
        self._compared: dict[tuple[tuple[str, ...], ...], WorseLoss | None] = {}

    def read(self, pools: Sequence[Pool]) -> None:
        """Read what `worse` needs of these results, at once."""
        names = [run.name for pool in pools for run in pool.runs[-NEWEST:] if run.name not in self._losses]
        if names:
            self._losses |= self._read(names)

    def worse(self, first: Pool, second: Pool) -> WorseLoss | None:
        """By the verdict's test of losses, over iterations that all of the runs have. None: neither, or unknown."""
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
class Duel:
    """`first` against `second`, dispatchers or configurations. `gain_pct`: more throughput of the first, in percent.

    The interval is the 99 % one of the test; of memory there is none. `gain_pct` of memory is what the first needs
    less. `more_runs`: further runs of each that would decide, when nothing else changes; None: decided, or not by 20.
    `decides_low_pct` and `decides_high_pct`: the interval by which the faster one is called so: that has to be sure to
    99.8 %; of an `equal` pair that of the two one-sided tests (95 % each), which lies within 2 %. `tie_because`: the
    rule, in words, that makes a tie of an interval that leaves zero out; else empty.
    `worse_loss`: the one whose loss is clearly worse, by `loss_delta_pct` of the other's.
    """

    first: str
    second: str
    outcome: Outcome
    gain_pct: float
    low_pct: float | None = None
    high_pct: float | None = None
    directional: bool = False
    more_runs: int | None = None
    decides_low_pct: float | None = None
    decides_high_pct: float | None = None
    tie_because: str = ""
    worse_loss: str = ""
    loss_delta_pct: float | None = None

    @property
    def tie(self) -> bool:
        return self.outcome in ("equal", "undecided")

    @property
    def winner(self) -> str:
        """Empty for a tie."""
        return {"first": self.first, "second": self.second}.get(self.outcome, "")

    def turned(self) -> "Duel":
        """The same, seen from the other side."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            outcome=_TURNED[self.outcome],
            gain_pct=_turn(self.gain_pct),
            low_pct=_turned(self.high_pct),
            high_pct=_turned(self.low_pct),
            decides_low_pct=_turned(self.decides_high_pct),
            decides_high_pct=_turned(self.decides_low_pct),
        )


class Pooled(Protocol):
    """What a duel by step time needs of a result: a `Pool`, or what is kept of one."""

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
    """Both directions of the verdict's test; `shift` of ln(step time), positive when the first is slower."""

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
        """The wider of the two: each direction takes the variance of its own baseline."""
        return max(self.forward.half_width(REGRESSION_P, k, m), self.backward.half_width(REGRESSION_P, m, k))

    def deciding_half_width(self, k: int, m: int) -> float:
        """What the shift must exceed so that the faster one is called so: an improvement, and a regression turned."""
        if self.forward.shift > 0:
            return _Test(self.backward, self.forward).deciding_half_width(m, k)
        return max(self.forward.half_width(IMPROVEMENT_P, k, m), self.backward.half_width(REGRESSION_P, m, k))

    def equivalence_half_width(self, k: int, m: int) -> float:
        """With the shift it must stay within the limit of equivalence, in both directions."""
        return max(self.forward.half_width(EQUIVALENCE_P, k, m), self.backward.half_width(EQUIVALENCE_P, m, k))


def duel(
    first: Pooled, second: Pooled, names: tuple[str, str] | None = None, worse_loss: WorseLoss | None = None
) -> Duel:
    """By step time. `names`: what to call the two; else their dispatchers. Who has the worse loss wins nothing."""
    test, k, m = _test(first, second), len(first.runs), len(second.runs)
    outcome, half, shift = test.outcome(k, m), test.half_width(k, m), test.forward.shift
    decides = test.deciding_half_width(k, m)
    name, other = names or (first.dispatcher, second.dispatcher)
    result = Duel(
        first=name,
        second=other,
        outcome=outcome,
        gain_pct=_gain(shift),
        low_pct=_gain(shift + half),
        high_pct=_gain(shift - half),
        directional=first.directional or second.directional,
        more_runs=_more_runs(test, k, m) if outcome == "undecided" else None,
        decides_low_pct=_gain(shift + decides),
        decides_high_pct=_gain(shift - decides),
    )
    if worse_loss is not None:
        result = _guarded(result, worse_loss)
    elif result.tie and abs(shift) > half:
        result = replace(result, tie_because=_because(result, shift))
    if result.outcome != "equal":
        return result
    within = test.equivalence_half_width(k, m)
    return replace(result, decides_low_pct=_gain(shift + within), decides_high_pct=_gain(shift - within))


def gain(first: Pooled, second: Pooled) -> tuple[float, float, float]:
    """More throughput of the first in percent, with the ends of its 99 % interval: what a duel says, and no more."""
    test = _test(first, second)
    shift, half = test.forward.shift, test.half_width(len(first.runs), len(second.runs))
    return _gain(shift), _gain(shift + half), _gain(shift - half)


def _guarded(result: Duel, worse: WorseLoss) -> Duel:
    result = replace(result, worse_loss=worse.dispatcher, loss_delta_pct=worse.delta_pct)
    if result.winner != worse.dispatcher:
        return result
    because = f"the loss of {worse.dispatcher} is {percent(worse.delta_pct)} worse, so its speed is no improvement"
    return replace(result, outcome="undecided", tie_because=because)


def _because(result: Duel, shift: float) -> str:
    """Why two tie although the 99 % interval between them leaves zero out."""
    if abs(shift) < RELEVANT_SHIFT:
        return "under 1 %, a difference is nothing to act on, however certain it is"
    ends = f"{percent(result.decides_low_pct or 0.0)} to {percent(result.decides_high_pct or 0.0)}"
    return f"an improvement has to be sure to 99.8 %, and by that measure the gain is {ends}"


def duel_by_memory(first: Pool, second: Pool) -> Duel | None:
    """By peak memory, by the verdict's rule for it, in both directions; None where it is unknown on a side."""
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
    return Duel(
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
    """How much less the first needs: as a gain, so that it turns over as throughput does."""
    return 100 * (second / first - 1)


# --- Places with ties. A tie is a fact about two results, and it does not pass on: A and B may tie, B and C too, and A
# may still be better than C. So nobody is put into groups: each result has the range of places that the tests leave
# open.
#
# The range is 1 + the number that are clearly better, up to the number of all less those that are clearly worse
# (Mogstad, Romano, Shaikh and Wilhelm, "Inference for ranks", 2024). One clear winner has 1 to 1; of two that tie
# both have 1 to 2.


@dataclass(frozen=True, slots=True)
class Place:
    """`first` to `last`: the places it may have. `ties`: with whom, in the order of the ranking."""

    name: str
    first: int
    last: int
    beats: tuple[str, ...]
    beaten_by: tuple[str, ...]
    ties: tuple[str, ...]

    @property
    def text(self) -> str:
        """`1`, or `1–2`."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def places(names: Sequence[str], duels: Iterable[Duel]) -> tuple[Place, ...]:
    """The places of `names`, which are in the order in which they are shown; a pair without a duel is a tie."""
    winners = {frozenset((pair.first, pair.second)): pair.winner for pair in duels}
    ranks = []
    for name in names:
        against = [(other, winners.get(frozenset((name, other)), "")) for other in names if other != name]
        beats = tuple(other for other, winner in against if winner == name)
        beaten_by = tuple(other for other, winner in against if winner == other)
        ties = tuple(other for other, winner in against if not winner)
        ranks.append(Place(name, 1 + len(beaten_by), len(names) - len(beats), beats, beaten_by, ties))
    return tuple(ranks)

"""Suspects of a verdict with the evidence that the service has, and in the order that it gives them.

Two kinds of evidence: earlier A/Bs on the same knob with the same two values, and other stacks at the same time.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.contract.values import shown
from app.domain.numbers import change_text, counted
from app.domain.run import Stated
from app.domain.verdict.comparability import Suspect
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.step_time import RELEVANT_SHIFT

Standing = Literal["supported", "open", "unlikely"]
_ORDER: tuple[Standing, ...] = ("supported", "open", "unlikely")
EXPLAINS = 0.5
"""An A/B supports a suspect that explains half of the change: the rest may well be noise or a second cause."""
FEWEST_STILL = 2
"""One other stack that stands still may not use the code in question; two or more are a hint."""
MOST_VALUE = 500
"""Characters of a value that are stored beside a verdict."""


@dataclass(frozen=True, slots=True)
class PastResult:
    """One A/B, or contrast, on a field, as the step time changed from the first value to the second."""

    run: str
    stack_key: str
    from_value: str
    to_value: str
    delta_pct: float


@dataclass(frozen=True, slots=True)
class PastResults:
    """What `n` A/Bs on one field measured between the same two values, in per cent of step time; positive is slower.

    `stacks`: their keys; `runs`: the runs, newest first, as links for whoever doubts.
    """

    n: int
    median_pct: float
    low_pct: float
    high_pct: float
    stacks: tuple[str, ...]
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StackMove:
    """What another stack did where this one changed: its decisive run and its change in per cent, None if unknown."""

    run: str
    stack_key: str
    move: Literal["moved", "still", "undecided"]
    delta_pct: float | None


@dataclass(frozen=True, slots=True)
class OtherStacks:
    """Stacks that went through the same change; `moved` in the same direction as this one, `still` certainly not."""

    moved: tuple[StackMove, ...]
    still: tuple[StackMove, ...]
    undecided: int

    @property
    def n(self) -> int:
        return len(self.moved) + len(self.still) + self.undecided


@dataclass(frozen=True, slots=True)
class RankedSuspect:
    """`past` and `elsewhere` are None where the service knows nothing. `evidence`: the same in sentences."""

    suspect: Suspect
    standing: Standing
    past: PastResults | None
    elsewhere: OtherStacks | None
    evidence: tuple[str, ...]


def suspects_of(document: VerdictDocument) -> tuple[Suspect, ...]:
    """Those of the verdict; without a baseline what a measured contrast would belong to."""
    return document.suspects or _of_contrast(document.contrast)


def change_pct(document: VerdictDocument) -> float | None:
    """The change of step time that wants an explanation: that of the verdict, else of the contrast."""
    return document.measured.delta_pct if document.measured else None


def past_results(found: Iterable[PastResult], from_value: str, to_value: str) -> PastResults | None:
    """Pooled over both directions: what was measured the other way round counts inversely. `found`: newest first."""
    pairs = {(from_value, to_value): 1, (to_value, from_value): -1}
    hits = [(one, sign) for one in found if (sign := pairs.get((one.from_value, one.to_value)))]
    if not hits:
        return None
    changes = [100 * math.expm1(sign * math.log1p(one.delta_pct / 100)) for one, sign in hits]
    stacks = tuple(dict.fromkeys(one.stack_key for one, _ in hits))
    runs = tuple(one.run for one, _ in hits)
    return PastResults(len(hits), statistics.median(changes), min(changes), max(changes), stacks, runs)


def other_stacks(moves: Iterable[StackMove]) -> OtherStacks | None:
    """One move a stack: if any of its runs moved it did, else if any stood still it did."""
    best: dict[str, StackMove] = {}
    rank = {"moved": 2, "still": 1, "undecided": 0}
    for one in moves:
        before = best.get(one.stack_key)
        if before is None or rank[one.move] > rank[before.move]:
            best[one.stack_key] = one
    if not best:
        return None
    moved, still = (tuple(one for one in best.values() if one.move == move) for move in ("moved", "still"))
    return OtherStacks(moved, still, len(best) - len(moved) - len(still))


def rank_suspects(
    change: float | None, found: Sequence[tuple[Suspect, PastResults | None, OtherStacks | None]]
) -> tuple[RankedSuspect, ...]:
    """What evidence supports first, what it speaks against last; otherwise in the order given."""
    ranked = [
        RankedSuspect(suspect, _standing(change, past, elsewhere), past, elsewhere, _sentences(past, elsewhere))
        for suspect, past, elsewhere in found
    ]
    return tuple(sorted(ranked, key=lambda one: _ORDER.index(one.standing)))


def value_text(stated: Stated | None) -> str:
    """A side of a difference as it is stored beside a verdict, to be found again."""
    return "" if stated is None else shown(stated.value)[:MOST_VALUE]


def _of_contrast(contrast: MeasuredContrast | None) -> tuple[Suspect, ...]:
    if contrast is None:
        return ()
    found = contrast.comparability
    differ = (*found.stack, *found.knobs)
    reason = (
        "The only field of the contract that is known to differ."
        if len(differ) == 1
        else f"One of {len(differ)} that differ."
    )
    code = (Suspect(one.axis, one.field, "All code between the two commits.", one) for one in found.other_code)
    return (*(Suspect(one.axis, one.field, reason, one) for one in differ), *code)


def _standing(change: float | None, past: PastResults | None, elsewhere: OtherStacks | None) -> Standing:
    votes = _vote_of_past(change, past) + _vote_of_stacks(elsewhere)
    return "supported" if votes > 0 else "unlikely" if votes < 0 else "open"


def _vote_of_past(change: float | None, past: PastResults | None) -> int:
    if past is None or change is None:
        return 0
    measured, wanted = math.log1p(past.median_pct / 100), math.log1p(change / 100)
    if measured * wanted > 0 and abs(measured) >= max(RELEVANT_SHIFT, EXPLAINS * abs(wanted)):
        return 1
    return -1 if measured * wanted <= 0 or abs(measured) < RELEVANT_SHIFT else 0


def _vote_of_stacks(elsewhere: OtherStacks | None) -> int:
    if elsewhere is None:
        return 0
    moved, still = len(elsewhere.moved), len(elsewhere.still)
    if moved > still:
        return 1
    return -1 if moved == 0 and still >= FEWEST_STILL else 0


def _sentences(past: PastResults | None, elsewhere: OtherStacks | None) -> tuple[str, ...]:
    return tuple(text for text in (past and _past_sentence(past), elsewhere and _stacks_sentence(elsewhere)) if text)


def _past_sentence(past: PastResults) -> str:
    told = change_text(past.median_pct, past.low_pct, past.high_pct)
    where = f"on {counted(len(past.stacks), 'stack')}"
    if past.n == 1:
        return f"Measured here once, {where}: {told.sentence}."
    return f"Measured here in {past.n} A/Bs {where}: {told.sentence} (median; {told.interval})."


def _stacks_sentence(elsewhere: OtherStacks) -> str:
    moved, still = len(elsewhere.moved), len(elsewhere.still)
    if elsewhere.n == 1:
        what = "moved, too" if moved else "did not move" if still else "is undecided"
        return f"One other stack went through the same change: it {what}."
    tail = f", {elsewhere.undecided} undecided" if elsewhere.undecided else ""
    return f"Of {elsewhere.n} other stacks with the same change {moved} moved, too, and {still} did not{tail}."

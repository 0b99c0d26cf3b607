"""Control the false discoveries among many stacks: Benjamini and Hochberg 1995.

Every stack is judged on its own, with at most 0.5 % false regressions. Over 100 stacks of one commit or upgrade, one
such regression is likely. The q-value of a change is the expected share of chance among the changes that are at least
as clear, so it depends on the number of tested stacks. It changes no decision; it shows which ones to doubt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.numbers import plural
from app.domain.verdict.special import t_two_sided_p
from app.domain.verdict.step_time import StepTimeChange

MOST_Q = 0.05
"""A called change with a larger q-value may be chance."""
CALLED = ("regression", "improvement")


@dataclass(frozen=True, slots=True)
class Discovery:
    """`p_value`: two-sided, of no change in this stack; `q_value`: the same over all stacks."""

    p_value: float
    q_value: float

    @property
    def may_be_chance(self) -> bool:
        return self.q_value > MOST_Q


def discoveries(changes: Sequence[StepTimeChange | None]) -> list[Discovery | None]:
    """Return p- and q-values of the changes of several stacks, in their order; None without a change."""
    tested = [(place, _p_value(change)) for place, change in enumerate(changes) if change is not None]
    result: list[Discovery | None] = [None] * len(changes)
    q_value = 1.0
    for rank, (place, p) in reversed(list(enumerate(sorted(tested, key=lambda pair: pair[1]), 1))):
        q_value = min(q_value, p * len(tested) / rank)
        result[place] = Discovery(p, q_value)
    return result


def doubt(changes: Sequence[StepTimeChange | None]) -> str:
    """Say how many of the called changes may be chance, given the number of stacks; empty for none."""
    pairs = list(zip(changes, discoveries(changes), strict=True))
    doubtful = [
        change
        for change, discovery in pairs
        if change and discovery and change.decision in CALLED and discovery.may_be_chance
    ]
    if not doubtful:
        return ""
    tested = sum(change is not None for change in changes)
    return f"{len(doubtful)} of these changes may be chance, given {plural(tested, 'stack')}"


def _p_value(change: StepTimeChange) -> float:
    if change.standard_error <= 0:
        return 0.0 if change.shift else 1.0
    return t_two_sided_p(change.shift / change.standard_error, change.degrees_of_freedom)

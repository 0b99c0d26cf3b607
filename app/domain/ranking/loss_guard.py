"""Loss as a guard of a ranking: a faster dispatcher whose loss is worse is no improvement, so it beats nobody by it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.domain.detection.guards import compare_loss
from app.domain.matching.shared_loss import Losses, typical_losses
from app.domain.ranking.pooling import Pool

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
        names = [run.name for one in pools for run in one.runs[-NEWEST:] if run.name not in self._losses]
        if names:
            self._losses |= self._read(names)

    def worse(self, first: Pool, second: Pool) -> WorseLoss | None:
        """By the verdict's test of losses, over iterations that all of the runs have. None: neither, or unknown."""
        key = tuple(tuple(run.name for run in one.runs[-NEWEST:]) for one in (first, second))
        if key not in self._compared:
            self.read((first, second))
            self._compared[key] = _worse(first, second, self._losses)
        return self._compared[key]


def _worse(first: Pool, second: Pool, losses: Mapping[str, Losses]) -> WorseLoss | None:
    sides = [[run.facts.estimate for run in one.runs[-NEWEST:] if run.name in losses] for one in (first, second)]
    if not all(sides):
        return None
    typical = iter(typical_losses([losses[one.run] for side in sides for one in side]))
    mine, theirs = ([replace(one, loss=next(typical)) for one in side] for side in sides)
    for name, new, old in ((first.dispatcher, mine, theirs), (second.dispatcher, theirs, mine)):
        change = compare_loss(new, old)
        if change is not None and change.decision == "worse" and change.delta_pct is not None:
            return WorseLoss(name, change.delta_pct)
    return None

"""The loss of runs that are compared, over iterations that all of them have: an earlier loss is always higher."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from app.domain.run import FloatArray

LAST_ITERATIONS = 10
"""One loss jumps with its batch; the median of ten stays within 0.5 % between launches of one job."""
LOSS_NAMES = ("lm_loss", "loss", "reduced_train_loss")
_NOTHING = np.empty(0)


@dataclass(frozen=True, slots=True)
class Losses:
    """Finite losses by iteration; iterations ascend, each once."""

    iterations: FloatArray
    values: FloatArray

    def at(self, iterations: FloatArray) -> FloatArray:
        return self.values[np.searchsorted(self.iterations, iterations)]


def shared_losses(runs: Sequence[Mapping[str, FloatArray]]) -> list[float | None]:
    """`typical_losses` of runs that are given by their columns."""
    return typical_losses([losses_of(columns) for columns in runs])


def typical_losses(runs: Sequence[Losses]) -> list[float | None]:
    """Of each run the median loss over the last iterations that all have printed; None where none is known.

    A run without any loss is left out of the sharing; where nothing is shared, all are None.
    """
    known = [one.iterations for one in runs if len(one.iterations)]
    shared = reduce(_in_both, known)[-LAST_ITERATIONS:] if known else _NOTHING
    if not len(shared):
        return [None] * len(runs)
    typical = iter(np.median([one.at(shared) for one in runs if len(one.iterations)], axis=1).tolist())
    return [next(typical) if len(one.iterations) else None for one in runs]


def losses_of(columns: Mapping[str, FloatArray]) -> Losses:
    """The later one of two for the same iteration counts."""
    loss = next((columns[name] for name in LOSS_NAMES if name in columns), None)
    if loss is None or "iteration" not in columns:
        return Losses(_NOTHING, _NOTHING)
    finite = np.isfinite(loss)
    counts = columns["iteration"][finite]
    if (counts[1:] > counts[:-1]).all():  # as in all runs but those that were restarted
        return Losses(counts, loss[finite])
    iterations, last = np.unique(counts[::-1], return_index=True)
    return Losses(iterations, loss[finite][::-1][last])


def _in_both(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.intersect1d(a, b, assume_unique=True)

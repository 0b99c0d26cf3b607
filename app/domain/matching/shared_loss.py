"""The loss of runs that are compared, over iterations that all of them have: an earlier loss is always higher."""

from collections.abc import Mapping, Sequence

import numpy as np

from app.domain.run import FloatArray

LAST_ITERATIONS = 10
"""One loss jumps with its batch; the median of ten stays within 0.5 % between launches of one job."""
_NAMES = ("lm_loss", "loss", "reduced_train_loss")


def shared_losses(runs: Sequence[Mapping[str, FloatArray]]) -> list[float | None]:
    """Of each run's columns the median loss over the last iterations that all have printed; None where none is known.

    A run without any loss is left out of the sharing; where nothing is shared, all are None.
    """
    series = [_losses(columns) for columns in runs]
    known = [one for one in series if one]
    shared = sorted(set.intersection(*map(set, known)))[-LAST_ITERATIONS:] if known else []
    if not shared:
        return [None] * len(series)
    return [float(np.median([one[iteration] for iteration in shared])) if one else None for one in series]


def _losses(columns: Mapping[str, FloatArray]) -> dict[float, float]:
    """Finite losses by iteration."""
    loss = next((columns[name] for name in _NAMES if name in columns), None)
    if loss is None or "iteration" not in columns:
        return {}
    finite = np.isfinite(loss)
    return dict(zip(columns["iteration"][finite].tolist(), loss[finite].tolist(), strict=True))

"""The interleaved order of an experiment's runs: ABBA, so that a cluster that drifts slows both sides alike."""

from itertools import cycle, islice

from app.domain.experiments.values import Side

_ABBA: tuple[Side, ...] = ("baseline", "candidate", "candidate", "baseline")


def interleaved(runs_each: int) -> tuple[Side, ...]:
    """`runs_each` of either side. At no point is one side ahead by more than one run.

    It begins with the baseline, because the run that the plan is made from is there already.
    """
    return tuple(islice(cycle(_ABBA), 2 * runs_each))

"""The runs of one config key become one result. The run is the sample: more iterations do not make it surer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from app.domain.detection import DroppedRun, Prior, RunEstimate
from app.domain.detection.baseline import centre, select_baseline
from app.domain.detection.prior import degrees_of_freedom, moderated_variance
from app.domain.detection.special import t_quantile
from app.domain.health import BYTES_PER_GIB
from app.domain.ranking.ranked_run import LEVELS, RankedRun, reaches
from app.domain.run import FloatArray

INTERVAL_P = 0.975
FEWEST_VALIDATED = 2
"""Runs that a validated result takes: of one launch nobody knows whether another one is like it."""


@dataclass(frozen=True)
class Pool:
    """Runs of one configuration that stand for it, oldest first, at least one. `dropped`: eligible ones that do not.

    `directional`: only runs that are too short for more than a direction.
    """

    runs: tuple[RankedRun, ...]
    dropped: tuple[DroppedRun, ...]
    directional: bool
    prior: Prior

    @property
    def config_key(self) -> str:
        return self.runs[-1].facts.config_key

    @property
    def dispatcher(self) -> str:
        return self.runs[-1].dispatcher or ""

    @cached_property
    def estimates(self) -> list[RunEstimate]:
        return [run.facts.estimate for run in self.runs]

    @cached_property
    def values(self) -> FloatArray:
        return np.array([estimate.log_step_time for estimate in self.estimates])

    @cached_property
    def log_step_time(self) -> float:
        return centre(self.values)

    @cached_property
    def noise(self) -> float:
        """Mean squared standard error inside the runs."""
        return float(np.mean([estimate.se**2 for estimate in self.estimates]))

    @cached_property
    def variance(self) -> float:
        """Of ln(step time) between launches, drawn towards the family's."""
        return moderated_variance(self.prior, self.values)

    @cached_property
    def half_width(self) -> float:
        """Of the 95 % interval of the configuration's step time over launches, in ln."""
        runs = len(self.runs)
        error = math.sqrt(max(self.variance, self.noise) / runs)
        return t_quantile(INTERVAL_P, degrees_of_freedom(self.prior, runs)) * error

    @cached_property
    def peak_memory_gib(self) -> float | None:
        known = [estimate.peak_memory_bytes for estimate in self.estimates]
        found = [value for value in known if value is not None and math.isfinite(value) and value > 0]
        return float(np.median(found)) / BYTES_PER_GIB if found else None

    @cached_property
    def level(self) -> str:
        """The strongest evidence level that at least half of its runs reach; a single run only screens."""
        needed = (len(self.runs) + 1) // 2
        level = next((one for one in reversed(LEVELS) if self.runs_at(one) >= needed), LEVELS[0])
        return "screen" if reaches(level, "screen") and len(self.runs) < FEWEST_VALIDATED else level

    def runs_at(self, level: str) -> int:
        return sum(reaches(run.evidence_level, level) for run in self.runs)


def pool(runs: Sequence[RankedRun], prior: Prior) -> Pool:
    """The result of one configuration on one stretch of the stack's code, from its eligible runs there, oldest first,
    at least one.

    Short runs count only where there are no others. The newest 20 runs stand for it, without those far off the others:
    what a verdict would take as its baseline.
    """
    full = [run for run in runs if not run.directional]
    offered = full or list(runs)
    # A short run is no baseline of a verdict. Here one may stand for itself, and the result says that it is short.
    estimates = [replace(run.facts.estimate, short=False) for run in offered]
    chosen = {estimate.run for estimate in select_baseline(estimates, prior.variance).used}
    used = tuple(run for run in offered if run.name in chosen) or tuple(offered[-1:])
    taken = {run.name for run in used}
    dropped = tuple(DroppedRun(run.name, _why(run, bool(full))) for run in runs if run.name not in taken)
    return Pool(used, dropped, not full, prior)


class Pools:
    """The results of one family's prior, each made once: most floors of evidence leave the same runs."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._made: dict[tuple[str, ...], Pool] = {}

    def pool(self, runs: Sequence[RankedRun]) -> Pool:
        names = tuple(run.name for run in runs)
        if names not in self._made:
            self._made[names] = pool(runs, self._prior)
        return self._made[names]


def log_work(one: Pool, figures: Sequence[float | None]) -> float | None:
    """ln of figure (of each run) times step time: what a step is worth in units of the figure. No mean of ratios."""
    pairs = zip(figures, one.estimates, strict=True)
    known = [math.log(value) + estimate.log_step_time for value, estimate in pairs if value is not None and value > 0]
    return sum(known) / len(known) if known else None


def _why(run: RankedRun, full_runs_exist: bool) -> str:
    if run.directional and full_runs_exist:
        return "short, and there are longer runs of this configuration"
    return "far off the other runs of this configuration, or older than the newest 20"

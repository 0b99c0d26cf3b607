"""What one configuration is worth at its size. Its runs are kept beside the standings of its stack, with the changes of
the stack's speed: which of them may be held against those of another stack, only the series tells.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.detection import DEFAULT_PRIOR, Prior, RunEstimate
from app.domain.detection.baseline import centre, select_baseline
from app.domain.detection.prior import degrees_of_freedom, moderated_variance
from app.domain.detection.special import t_quantile
from app.domain.detection.values import FEWEST_ITERATIONS
from app.domain.ranking.eligibility import other_shapes, refusal
from app.domain.ranking.pooling import INTERVAL_P
from app.domain.ranking.rank import Class, Priors, class_of
from app.domain.ranking.ranked_run import RankedRun
from app.domain.ranking.stretches import Change, Place, Stretches
from app.domain.run import FloatArray, Stated, Value

KEPT = 60
"""Newest runs of a configuration that are kept of each stretch of the stack: another stack may cut it shorter."""


@dataclass(frozen=True, slots=True)
class KeptChange:
    """A change of the speed of a stack, after the run `last` and not later than at `first`; by places and names."""

    last_at: float
    last: str
    first_at: float
    first: str

    @property
    def change(self) -> Change:
        at = datetime.fromtimestamp(self.first_at, UTC)
        return Change(_place(self.last_at, self.last), _place(self.first_at, self.first), at)


@dataclass(frozen=True, slots=True)
class ScalingRuns:
    """The runs of one configuration that may count, oldest first: names, places in the history, ln(step time) and its
    standard error. Short ones only where there are no others (`directional`).

    `log_flops`: ln of TFLOP of a step and GPU; None where no log shows them. `known`: members of both keys, as far as
    they are known. `changes`: of the speed of the stack.
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
    changes: tuple[KeptChange, ...] = ()

    def place(self, index: int) -> Place:
        return _place(self.at[index], self.runs[index])


class ScalingPool:
    """Some runs of one configuration as one result: what a duel needs of a `Pool`."""

    def __init__(self, of: ScalingRuns, chosen: Sequence[int]) -> None:
        """`chosen`: places in `of`, ascending, at least one. The newest 20 of them count, without outliers."""
        offered = {of.runs[k]: k for k in chosen}
        estimates = [
            RunEstimate(name, of.log_step_times[k], of.errors[k], FEWEST_ITERATIONS) for name, k in offered.items()
        ]
        used = [offered[one.run] for one in select_baseline(estimates, of.prior.variance).used] or [chosen[-1]]
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
        """Of the 95 % interval of ln(step time) over launches."""
        runs = len(self.runs)
        error = math.sqrt(max(self.variance, self.noise) / runs)
        return t_quantile(INTERVAL_P, degrees_of_freedom(self.prior, runs)) * error


def scaling_runs(
    runs: Iterable[RankedRun], contracts: Mapping[str, Mapping[str, Stated]], prior: Priors = DEFAULT_PRIOR
) -> tuple[ScalingRuns, ...]:
    """Of the runs of one stack: one for each configuration that has a run which counts; `contracts` by config key."""
    configurations: dict[str, list[RankedRun]] = {}
    classes: dict[Class, list[RankedRun]] = {}
    for run in _eligible(runs):
        configurations.setdefault(run.facts.config_key, []).append(run)
        classes.setdefault(class_of(run), []).append(run)
    known = {one: prior if isinstance(prior, Prior) else prior.get(one[1], DEFAULT_PRIOR) for one in classes}
    stretches = {one: Stretches(own, known[one]) for one, own in classes.items()}
    made = []
    for key in sorted(configurations):
        own = configurations[key]
        of = class_of(own[-1])
        made.append(_kept(own, contracts.get(key, {}), known[of], stretches[of]))
    return tuple(made)


def _eligible(runs: Iterable[RankedRun]) -> list[RankedRun]:
    """Oldest first."""
    ordered = [run for run in sorted(runs, key=lambda run: run.place_in_time) if refusal(run) is None]
    refused = {odd.run for odd in other_shapes(ordered)}
    return [run for run in ordered if run.name not in refused]


def _kept(runs: Sequence[RankedRun], contract: Mapping[str, Stated], prior: Prior, stretches: Stretches) -> ScalingRuns:
    full = [run for run in runs if not run.directional]
    newest, own = runs[-1], _newest_of_each(full or runs, stretches)
    estimates = [run.facts.estimate for run in own]
    return ScalingRuns(
        config_key=newest.facts.config_key,
        dispatcher=newest.dispatcher or "",
        routing_mode=newest.routing_mode,
        semantic_class=newest.facts.semantic_class,
        shape=newest.facts.shape,
        directional=not full,
        runs=tuple(run.name for run in own),
        at=tuple(run.place_in_time[0] for run in own),
        log_step_times=tuple(estimate.log_step_time for estimate in estimates),
        errors=tuple(estimate.se for estimate in estimates),
        log_flops=_log_flops(own),
        prior=replace(prior, degrees_of_freedom=float(prior.degrees_of_freedom)),  # as it is read again
        known={name: contract[name].value for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name in contract},
        changes=tuple(KeptChange(one.last[0], one.last[2], one.first[0], one.first[2]) for one in stretches.changes),
    )


def _newest_of_each(runs: Sequence[RankedRun], stretches: Stretches) -> list[RankedRun]:
    """Of each stretch; those that are older than the stretches reach are left out, unless there are no others."""
    by_number: dict[int, list[RankedRun]] = {}
    for run in runs:
        number = stretches.number(run)
        if number is not None:
            by_number.setdefault(number, []).append(run)
    own = [run for number in sorted(by_number) for run in by_number[number][-KEPT:]]
    return sorted(own, key=lambda run: run.place_in_time) or list(runs[-KEPT:])


def _log_flops(runs: Sequence[RankedRun]) -> float | None:
    known = [
        math.log(run.tflops_per_gpu) + run.facts.estimate.log_step_time
        for run in runs
        if run.tflops_per_gpu is not None and run.tflops_per_gpu > 0
    ]
    return sum(known) / len(known) if known else None


def _place(at: float, name: str) -> Place:
    return at, len(name), name

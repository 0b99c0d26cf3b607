"""What one configuration is worth at its size. It is kept beside the standings of its stack: a page reads no runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.history import find_changes
from app.domain.ranking.eligibility import other_shapes, refusal
from app.domain.ranking.pooling import log_work, pool
from app.domain.ranking.rank import Priors
from app.domain.ranking.ranked_run import RankedRun
from app.domain.run import Stated, Value

LOOK_BACK = 400
"""The newest runs of a configuration in which its current level is looked for, as for a verdict."""


@dataclass(frozen=True, slots=True)
class ScalingPool:
    """The runs of one config key as one result: what a duel needs of a `Pool`, and what a series is recognised by.

    `runs`: names, oldest first. `half_width`: of the 95 % interval of ln(step time). `log_flops`: ln of TFLOP of a
    step and GPU; None where a log shows none. `known`: members of both keys, as far as they are known.
    """

    config_key: str
    dispatcher: str
    routing_mode: str
    semantic_class: str
    shape: tuple[str, ...]
    runs: tuple[str, ...]
    directional: bool
    log_step_time: float
    variance: float
    noise: float
    half_width: float
    log_flops: float | None
    prior: Prior
    known: Mapping[str, Value]


def scaling_pools(
    runs: Iterable[RankedRun], contracts: Mapping[str, Mapping[str, Stated]], prior: Priors = DEFAULT_PRIOR
) -> tuple[ScalingPool, ...]:
    """One for each configuration that has a run which counts; `contracts` by config key."""
    configurations: dict[str, list[RankedRun]] = {}
    for run in runs:
        configurations.setdefault(run.facts.config_key, []).append(run)
    made = (_pooled(configurations[key], contracts.get(key, {}), prior) for key in sorted(configurations))
    return tuple(one for one in made if one is not None)


def _pooled(runs: Sequence[RankedRun], contract: Mapping[str, Stated], prior: Priors) -> ScalingPool | None:
    ordered = sorted(runs, key=lambda run: run.place_in_time)
    newest = ordered[-1]
    known = prior if isinstance(prior, Prior) else prior.get(newest.facts.semantic_class, DEFAULT_PRIOR)
    eligible = [run for run in ordered if refusal(run) is None]
    refused = {odd.run for odd in other_shapes(eligible)}
    eligible = [run for run in eligible if run.name not in refused]
    if not eligible:
        return None
    made = pool(_of_current_level(eligible, known), known)
    return ScalingPool(
        config_key=made.config_key,
        dispatcher=made.dispatcher,
        routing_mode=made.runs[-1].routing_mode,
        semantic_class=newest.facts.semantic_class,
        shape=newest.facts.shape,
        runs=tuple(run.name for run in made.runs),
        directional=made.directional,
        log_step_time=made.log_step_time,
        variance=made.variance,
        noise=made.noise,
        half_width=made.half_width,
        log_flops=log_work(made, [run.tflops_per_gpu for run in made.runs]),
        prior=replace(made.prior, degrees_of_freedom=float(made.prior.degrees_of_freedom)),  # as it is read again
        known={name: contract[name].value for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name in contract},
    )


def _of_current_level(eligible: Sequence[RankedRun], prior: Prior) -> Sequence[RankedRun]:
    """Oldest first, as they came; all of them where none is long enough to have a level."""
    recent = [run for run in eligible if not run.directional][-LOOK_BACK:]
    if not recent:
        return eligible
    level = find_changes([run.facts.estimate.log_step_time for run in recent], prior).current
    return recent[level.start : level.stop]

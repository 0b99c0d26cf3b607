"""Choose the baseline of a run and judge the run against it.

A failed run gets no speed verdict. A run without a baseline gets its nearest misses, and a measured contrast where
exactly one stack field differs. An experiment gets an A/B.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.domain.text import capitalized
from app.domain.verdict.baseline import (
    BaselineChoice,
    BaselineRules,
    NearMiss,
    choose_baseline,
    nearest_misses,
    unfit_because,
)
from app.domain.verdict.comparability import (
    TASK_FIELDS,
    Comparability,
    Difference,
    Suspect,
    compare_contracts,
    differing,
    differing_stack,
    is_other_task,
    suspects,
)
from app.domain.verdict.decide import judge, look_number, reruns_wanted
from app.domain.verdict.policy import Thresholds
from app.domain.verdict.record import RunFacts, RunRecord
from app.domain.verdict.step_time import DEFAULT_PRIOR, PLANNED_LOOKS, DroppedRun, Prior, Verdict

UPGRADES = ("container", "cluster")
"""Stack fields that a project changes as a whole. More GPUs or another model make a different task."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A difference measured between two stacks: not a verdict, and never ranked.

    `measured.decision` says whether the difference is certain, `comparability.attributed_to` which field explains it.
    `side_by_side`: the other side still runs, so this is not an upgrade.
    """

    runs: tuple[RunFacts, ...]
    comparability: Comparability
    measured: Verdict
    same_job: bool = False
    side_by_side: bool = False


@dataclass(frozen=True, slots=True)
class Assessment:
    """The verdict on a run with its baseline.

    `raises_regression` is false for experiments, quarantined runs, and a baseline of another configuration or job.

    `rests_on`: iterations of the shorter side of an A/B that only gives a direction, because a side is short; else
    None. `misses` and `contrast` are set only without a baseline, `suspects` only with one and unless the verdict is
    `no_change`.
    """

    verdict: Verdict
    choice: BaselineChoice
    raises_regression: bool
    rests_on: int | None = None
    suspects: tuple[Suspect, ...] = ()
    misses: tuple[NearMiss, ...] = ()
    contrast: Contrast | None = None


def assess(
    candidates: Sequence[RunRecord],
    earlier: Sequence[RunRecord],
    *,
    rules: BaselineRules | None = None,
    prior: Prior = DEFAULT_PRIOR,
    looks: int | None = None,
) -> Assessment:
    """Judge reruns of one commit and config, at least one, against what `earlier` runs (oldest first) offer.

    `candidates`: oldest first. `looks`: how often the commit was judged, if the plan of reruns does not decide that.
    """
    candidate, reruns = candidates[-1], {run.run for run in candidates}
    earlier = [run for run in earlier if run.run not in reruns]
    choice = choose_baseline(candidate, earlier, rules, prior)
    rules = rules or BaselineRules()
    thresholds = rules.thresholds
    assessment = conclude(candidate, candidates, choice, prior=prior, looks=looks, thresholds=thresholds)
    if choice.comparability is not None:
        return assessment
    usable = [run for run in earlier if not unfit_because(run, candidate, rules)]
    nearest = nearest_contrast(candidate, usable)
    contrast = None
    if nearest is not None:
        runs = [run for run in usable if run.config_key == nearest[0].config_key and run.is_of_job(nearest[0])]
        contrast = measure_contrast(candidates, runs, nearest[1], prior, thresholds)
    return replace(assessment, misses=nearest_misses(candidate, earlier), contrast=contrast)


def conclude(
    candidate: RunRecord,
    candidates: Sequence[RunFacts],
    choice: BaselineChoice,
    *,
    prior: Prior,
    looks: int | None = None,
    thresholds: Thresholds,
) -> Assessment:
    """Judge `candidates` (reruns; `candidate` is the newest) against the chosen baseline.

    `looks` as in `assess`. The runs of an experiment have a separate plan, so each of them is a look.
    """
    is_experiment = candidate.purpose == "experiment"
    if looks is None and is_experiment:
        looks = len(candidates)
    verdict = _judge(
        candidates,
        choice.runs,
        prior,
        looks,
        thresholds,
        directional=choice.kind == "nearest",
    )
    if choice.comparability is None:
        return Assessment(verdict, choice, raises_regression=False)
    rests_on = _rests_on(verdict, candidates, choice.runs) if is_experiment else None
    if rests_on is not None:
        verdict = replace(
            verdict,
            notes=(
                f"Direction only: the shorter side has {rests_on} iterations. Confirm it with runs of 50 steps.",
                *verdict.notes,
            ),
        )
    same = verdict.decision == "no_change"
    causes = () if same else suspects(candidate, choice.runs, choice.comparability)
    quarantined = all(run.quarantined for run in candidates)
    same_history = all(run.config_key == candidate.config_key and run.is_of_job(candidate) for run in choice.runs)
    raises = same_history and not is_experiment and not quarantined
    return Assessment(verdict, choice, raises, rests_on, causes)


def nearest_contrast(candidate: RunRecord, usable: Sequence[RunRecord]) -> tuple[RunRecord, Comparability] | None:
    """Return the best run for a contrast, with its comparability; None when no run qualifies.

    The stacks differ in a single field; those of one stated job may differ in more, but not in the task. Runs of the
    same stated job come first, then those from before an upgrade, and other workloads last; then the fewest fields that
    differ, then the newest.

    `usable`: oldest first; one run of each job and config key is enough.
    """
    newest: dict[tuple[str, str], RunRecord] = {}
    for run in reversed(usable):
        newest.setdefault((run.job, run.config_key), run)
    contrasts = [(run, compare_contracts(run, candidate)) for run in newest.values() if is_contrast(run, candidate)]
    return min(contrasts, key=lambda pair: _remoteness(pair[0], candidate, pair[1]), default=None)


def is_contrast(run: RunRecord, candidate: RunRecord) -> bool:
    """Return whether the two may be contrasted: one field of their stacks differs, or they state the same job.

    More GPUs, another batch or another model make a different task, whose step time says nothing about this one.
    """
    if any(difference.is_certain for difference in differing(TASK_FIELDS, run.contract, candidate.contract)):
        return False  # most runs of a project: the rest needs no comparison
    stack = differing_stack(run, candidate)  # names a model of another shape, too
    certain = [difference for difference in stack if difference.is_certain]
    if not certain or any(is_other_task(difference) for difference in certain):
        return False
    return len(stack) == 1 or (run.job != "" and run.job == candidate.job)


def _remoteness(run: RunRecord, candidate: RunRecord, contrast: Comparability) -> tuple[int, int, int]:
    """Rank a contrast: the same job before others, and an upgrade, which the same job went through, before the rest."""
    jobs = 2 if contrast.two_jobs else 0 if run.job and run.job == candidate.job else 1
    field = changed_field(contrast)
    rank = 0 if field.field in UPGRADES else 2 if field.axis == "workload" else 1
    return jobs, rank, len(contrast.stack) + len(contrast.knobs)


def changed_field(contrast: Comparability) -> Difference:
    """Return the field that a contrast is about: the upgraded one, else the first differing field of the stack key."""
    upgraded = (difference for difference in contrast.stack if difference.field in UPGRADES and difference.is_certain)
    return next(upgraded, contrast.stack[0])


def measure_contrast(
    candidates: Sequence[RunFacts],
    runs: Sequence[RunFacts],
    comparability: Comparability,
    prior: Prior,
    thresholds: Thresholds,
    *,
    looks: int = 1,
) -> Contrast | None:
    """Measure a contrast; None when a candidate failed. `looks`: how often it is measured."""
    if any(run.failed_because for run in candidates):
        return None
    measured = judge(
        [run.estimate for run in candidates],
        [run.estimate for run in runs],
        prior,
        looks=looks,
        thresholds=thresholds,
    )
    jobs = {run.job for run in (*candidates, *runs)}
    return Contrast(tuple(runs), comparability, measured, len(jobs) == 1 and "" not in jobs)


def _judge(
    candidates: Sequence[RunFacts],
    baseline: Sequence[RunFacts],
    prior: Prior,
    looks: int | None,
    thresholds: Thresholds,
    *,
    directional: bool,
) -> Verdict:
    """Judge the reruns that did not fail; the verdict is `failed` when all of them did."""
    alive = [run for run in candidates if not run.failed_because]
    reruns = [run.estimate for run in alive or candidates]
    against = [run.estimate for run in baseline]

    def at_look(launches: int, number: int, awaits: int = 0) -> Verdict:
        return judge(
            reruns[:launches],
            against,
            prior,
            looks=number,
            awaits=awaits,
            thresholds=thresholds,
            directional=directional,
        )

    verdict = _by_plan(len(reruns), at_look) if looks is None else at_look(len(reruns), looks)
    if not alive:
        last = candidates[-1]
        # A log without iterations counts as failed, although its job may have ended well.
        is_unmeasured = last.outcome == "failed" and math.isnan(last.estimate.log_step_time)
        reason = f"{capitalized(last.failed_because)}, so its speed does not count."
        reason = "No step time was read, so there is no speed to compare." if is_unmeasured else reason
        return replace(verdict, decision="failed", reason=reason, notes=(), step_time=None, memory=None)
    used = {*verdict.candidates_used, *(dropped.run for dropped in verdict.dropped)}
    is_decided = bool(verdict.candidates_used)  # else no run of the commit has a step time to judge
    late = tuple(DroppedRun(run.run, LATE) for run in alive if is_decided and run.run not in used)
    failed = tuple(DroppedRun(run.run, run.failed_because) for run in candidates if run.failed_because)
    return replace(verdict, dropped=(*failed, *late, *verdict.dropped))


LATE = "it ran after the decision, which is final"


def _by_plan(launches: int, at_look: Callable[..., Verdict]) -> Verdict:
    """Judge the launches of one commit as planned: the first alone, then together with the reruns that it requested.

    What the requested reruns decided is final, unless a later launch contradicts them.
    """
    first = at_look(1, 1)
    if launches == 1:
        return first
    wanted = reruns_wanted(first)
    if launches <= wanted:
        return at_look(launches, PLANNED_LOOKS, awaits=1 + wanted - launches)
    pooled = at_look(launches, look_number(launches, wanted))
    if not wanted or launches == 1 + wanted or (pooled.step_time and pooled.step_time.reruns_apart_pct is not None):
        return pooled
    planned = at_look(1 + wanted, PLANNED_LOOKS)
    return pooled if planned.decision == "inconclusive" else planned


def _rests_on(verdict: Verdict, candidates: Sequence[RunFacts], baseline: Sequence[RunFacts]) -> int | None:
    """Return the iterations of the shorter side when one side has only short runs, else None."""
    used = {*verdict.candidates_used, *verdict.baseline_used}
    sides = [[run.estimate for run in side if run.run in used] for side in (candidates, baseline)]
    if verdict.step_time is None or not any(all(run.short for run in side) for side in sides):
        return None
    return min(sum(run.window_length for run in side) for side in sides)

"""The overall verdict of a run, or of k reruns pooled, against its baseline.

Step time decides; memory and loss can only make it worse. So a faster run that needs more memory is a regression, and
one with a clearly worse loss is no improvement.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.domain.detection import sentences
from app.domain.detection.baseline import select_baseline
from app.domain.detection.guards import compare_loss, compare_memory
from app.domain.detection.step_time import compare_step_time
from app.domain.detection.values import (
    DEFAULT_PRIOR,
    DroppedRun,
    LossChange,
    MemoryChange,
    Outcome,
    Prior,
    RunEstimate,
    StepTimeChange,
    Verdict,
)


def judge(
    candidates: Sequence[RunEstimate],
    baseline: Sequence[RunEstimate],
    prior: Prior = DEFAULT_PRIOR,
    *,
    looks: int = 1,
    directional: bool = False,
) -> Verdict:
    """Judge reruns of one commit and config, pooled as one candidate, against earlier comparable runs.

    `baseline`: runs of the same config key in the current segment of its history, oldest first; unusable ones and
    outliers are left out and named. `prior`: from `family_prior`. `looks`: how many times this commit was judged so
    far, this time included; it changes no threshold, but the verdict says it. `directional`: a baseline of short runs
    counts, and the result is an indication. Raises ValueError without a candidate.
    """
    if not candidates:
        raise ValueError("a verdict needs at least one run to judge")
    against = select_baseline(baseline, prior.variance, also_short=directional)
    usable = [run for run in candidates if not run.unusable_because]
    step_time = compare_step_time(usable, against, prior) if usable and against.used else None
    # Memory and loss are facts of every rerun, also of one whose step time never settled.
    memory = compare_memory(candidates, against.used)
    loss = compare_loss(candidates, against.used)
    refused = [DroppedRun(run.run, why) for run in candidates if (why := run.unusable_because)]
    verdict = Verdict(
        decision=_overall(bool(against.used), step_time, memory, loss),
        reason="",
        notes=(),
        candidates_used=tuple(run.run for run in usable),
        baseline_used=tuple(run.run for run in against.used),
        # A single run that cannot be judged is not left out of anything: it is the reason itself.
        dropped=(*(refused if len(candidates) > 1 else ()), *against.dropped),
        prior=prior,
        looks=looks,
        step_time=step_time,
        memory=memory,
        loss=loss,
    )
    obstacle = refused[0].why if refused else ""
    return replace(verdict, reason=sentences.reason(verdict, obstacle), notes=sentences.notes(verdict))


def _overall(
    has_baseline: bool, step_time: StepTimeChange | None, memory: MemoryChange | None, loss: LossChange | None
) -> Outcome:
    if loss is not None and loss.decision == "not_finite":
        return "failed"
    if not has_baseline:
        return "no_baseline"
    if memory is not None and memory.decision == "regression":
        return "regression"
    if step_time is None:
        return "inconclusive"
    if loss is not None and loss.decision == "worse" and step_time.decision != "regression":
        return "inconclusive"
    return step_time.decision

"""What goes into a verdict and what comes out. Shifts are differences of ln(step time): positive is slower."""

import math
from dataclasses import dataclass
from typing import Literal, Self

from app.domain.run import SteadyState

Decision = Literal["regression", "improvement", "no_change", "inconclusive"]
Outcome = Literal["regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed"]
MemoryDecision = Literal["regression", "improvement", "changed", "no_change"]
LossDecision = Literal["not_finite", "worse", "no_worse"]

FEWEST_ITERATIONS = 5
"""A window below this has no usable standard error (DETECTION section 1, steps 5 and 6)."""


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """One run as a verdict sees it. `run` is its name, unique among the runs of one verdict.

    `log_step_time` is the median of ln(milliseconds) over the steady window and `se` its standard error; NaN where a
    run is too short for an estimate. `short`: under 15 iterations. `peak_memory_bytes`: maximum over ranks and window.
    `loss`: the typical lm loss at the end of training, over iterations that all compared runs share (the caller sees
    to it). `not_finite_iterations`: iterations whose loss was NaN or infinite. None means unknown.
    """

    run: str
    log_step_time: float
    se: float
    window_length: int
    is_steady: bool = True
    short: bool = False
    not_steady_reasons: tuple[str, ...] = ()
    peak_memory_bytes: float | None = None
    loss: float | None = None
    not_finite_iterations: int = 0

    @classmethod
    def from_steady_state(
        cls,
        run: str,
        steady: SteadyState | None,
        *,
        peak_memory_bytes: float | None = None,
        loss: float | None = None,
        not_finite_iterations: int = 0,
    ) -> Self:
        """`steady` None is a run with fewer than four step times: it is kept, and can decide nothing."""
        return cls(
            run=run,
            log_step_time=math.nan if steady is None else steady.log_step_time,
            se=math.nan if steady is None else steady.se,
            window_length=0 if steady is None else steady.n,
            is_steady=steady is not None and steady.is_steady,
            short=steady is None or steady.short,
            not_steady_reasons=("too short for an estimate",) if steady is None else steady.reasons,
            peak_memory_bytes=peak_memory_bytes,
            loss=loss,
            not_finite_iterations=not_finite_iterations,
        )

    @property
    def unusable_because(self) -> str:
        """Why this run's step time decides nothing; empty when it can."""
        if self.window_length < FEWEST_ITERATIONS or not math.isfinite(self.log_step_time):
            return f"only {self.window_length} steady iterations, {FEWEST_ITERATIONS} are needed"
        if not self.is_steady:
            return "not steady" + (f": {'; '.join(self.not_steady_reasons)}" if self.not_steady_reasons else "")
        return ""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known about run-to-run variation before looking at this baseline.

    `variance` of ln(step time) between launches of one job; `degrees_of_freedom`: how many runs' worth of knowledge
    that is; `configurations`: how many other config keys it was learned from, 0 for the default.
    """

    variance: float
    degrees_of_freedom: float
    configurations: int = 0


DEFAULT_PRIOR = Prior(variance=0.015**2, degrees_of_freedom=4)
"""Launches of the same job vary by 1.4 % (sd) over 1,873 Megatron-LM CI runs; 4 because the tails are heavy."""


@dataclass(frozen=True, slots=True)
class DroppedRun:
    """A run that was offered, as baseline or as rerun, and left out."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class RunsNeeded:
    """More `reruns` of the candidate and `baseline_runs` in total, which would decide if nothing else changes."""

    reruns: int
    baseline_runs: int


@dataclass(frozen=True, slots=True)
class StepTimeChange:
    """Step time of k pooled reruns against m baseline runs. Percentages are of step time: positive is slower.

    `shift` and `standard_error` are in ln, `ci_*` bound a 99 % interval, `smallest_callable_pct` is the smallest
    slow-down this comparison could have called. `need_runs`: further reruns that would decide an inconclusive result;
    `alternative` when no number of reruns up to 20 would. `run_to_run_sd` is the moderated one that was used (ln).
    `needs_confirmation`: a regression that rests on short runs. `reruns_apart_pct`: how far apart the candidate's
    reruns lie where that is more than launches vary; they then decide nothing together.
    """

    decision: Decision
    shift: float
    standard_error: float
    degrees_of_freedom: float
    delta_pct: float
    ci_low_pct: float
    ci_high_pct: float
    smallest_callable_pct: float
    baseline_ms: float
    candidate_ms: float
    run_to_run_sd: float
    need_runs: int | None = None
    alternative: RunsNeeded | None = None
    needs_confirmation: bool = False
    reruns_apart_pct: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Peak memory against the median of the baseline; `alarm_pct` is the increase from which it is a regression."""

    decision: MemoryDecision
    baseline_bytes: float
    candidate_bytes: float
    delta_pct: float
    alarm_pct: float


@dataclass(frozen=True, slots=True)
class LossChange:
    """Loss against the median of the baseline; percentages are None where the loss was not finite."""

    decision: LossDecision
    delta_pct: float | None = None
    alarm_pct: float | None = None
    not_finite_iterations: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer about step time, memory and loss, with its reason in a sentence and the rest of the story in `notes`.

    `step_time` is None where it could not be compared, `memory` and `loss` where nothing was known on one side.
    `looks`: how many times this commit was judged so far, this time included.
    """

    decision: Outcome
    reason: str
    notes: tuple[str, ...]
    candidates_used: tuple[str, ...]
    baseline_used: tuple[str, ...]
    dropped: tuple[DroppedRun, ...]
    prior: Prior
    looks: int = 1
    step_time: StepTimeChange | None = None
    memory: MemoryChange | None = None
    loss: LossChange | None = None

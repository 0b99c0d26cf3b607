"""The test of step time, and what would decide an inconclusive one.

Step time, tokens/s and TFLOP/s/GPU differ by a constant in ln, so this is the test of all three.
Moderated t: Smyth 2004. Equivalence by two one-sided tests: Schuirmann 1987.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from app.domain.numbers import THIN, change_text, percent
from app.domain.performance.steady_state import MAX_SPREAD, MOST_DRIFT, clip_around_median, mad, median
from app.domain.run import FloatArray, SteadyState
from app.domain.verdict.policy import DEFAULTS, EQUAL_PCT, Thresholds
from app.domain.verdict.special import digamma, t_quantile, trigamma

# --- Input and output of a verdict. Shifts are differences of ln(step time); positive is slower.

Decision = Literal["regression", "improvement", "no_change", "inconclusive"]
Outcome = Literal["regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed"]
MemoryDecision = Literal["regression", "improvement", "changed", "no_change"]
LossDecision = Literal["not_finite", "worse", "no_worse"]

FEWEST_ITERATIONS = 5
"""A shorter window has no usable standard error."""


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """One run as a verdict sees it. `run` is its name, unique among the runs of one verdict.

    `log_step_time` is the median of ln(milliseconds) over the steady window and `se` its standard error; NaN where a
    run is too short for an estimate. `short`: under 15 iterations. `peak_memory_bytes`: maximum over ranks and window.
    `loss`: the typical final lm loss, over iterations that all compared runs share (ensured by the caller).
    `not_finite_iterations`: iterations whose loss was NaN or infinite; `skipped_share`: share of skipped
    optimizer steps, 0 to 1. None means unknown.
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
    skipped_share: float = 0.0

    @classmethod
    def from_steady_state(
        cls,
        run: str,
        steady: SteadyState | None,
        *,
        peak_memory_bytes: float | None = None,
        loss: float | None = None,
        not_finite_iterations: int = 0,
        skipped_share: float = 0.0,
    ) -> Self:
        """Build from a steady state; None for a run with fewer than four step times, which cannot decide anything."""
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
            skipped_share=skipped_share,
        )

    @property
    def unusable_because(self) -> str:
        """Return why this run's step time is unusable; empty when it is usable."""
        if self.window_length < FEWEST_ITERATIONS or not math.isfinite(self.log_step_time):
            return f"only {self.window_length} steady iterations, {FEWEST_ITERATIONS} are needed"
        if not self.is_steady:
            return "not steady" + (f": {'; '.join(self.not_steady_reasons)}" if self.not_steady_reasons else "")
        return ""


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior knowledge about run-to-run variation, independent of the baseline.

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
    """A run, baseline or rerun, that was left out of the test, with the reason."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class RunsNeeded:
    """Further `reruns` of the candidate and total `baseline_runs` that would decide if nothing else changes."""

    reruns: int
    baseline_runs: int


@dataclass(frozen=True, slots=True)
class StepTimeChange:
    """Step time of k pooled reruns against m baseline runs. Percentages are of step time: positive is slower.

    `shift` and `standard_error` are in ln, `ci_*` bound the interval that decided (`_deciding_p`), and
    `smallest_callable_pct` is the smallest slowdown this comparison can detect.
    `need_runs`: further reruns that would decide an inconclusive result if nothing else changes; `alternative` when no
    number of reruns up to 20 would. With a `power`, as in an experiment, `need_runs` are of each side, and decide with
    that probability. `run_to_run_sd`: moderated, as used (ln).
    `needs_confirmation`: a regression that rests on short runs. `reruns_apart_pct`: how far apart the candidate's
    reruns lie when that exceeds run-to-run variation; the result is then inconclusive. `not_steady`: the run drifts or
    has two speeds, by which its interval is widened. `planned_looks`: the looks whose certainty the decision needs, 2
    with the requested reruns (`PLANNED_LOOKS`). `awaits`: requested reruns that are still missing.
    `relevant_pct`, `equal_pct`: the thresholds of a relevant change and of no change.
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
    power: float | None = None
    needs_confirmation: bool = False
    reruns_apart_pct: float | None = None
    not_steady: bool = False
    planned_looks: int = 1
    awaits: int = 0
    relevant_pct: float = DEFAULTS.relevance_pct
    equal_pct: float = EQUAL_PCT

    @property
    def interval_p(self) -> float:
        """Return the one-sided certainty of the interval, that of the test that decided: 0.995 for a 99 % interval."""
        return _surer(_deciding_p(self.decision, self.shift), self.planned_looks)

    @property
    def interval_level_pct(self) -> float:
        """Return the level of the interval in percent: 99 with 0.5 % beyond each end."""
        return interval_level_pct(self.decision, self.shift, self.planned_looks)

    def interval_of(self, delta_pct: float, p: float) -> tuple[float, float] | None:
        """Return `interval(p)` if it belongs to this change as printed; a regression may have another size since."""
        if change_text(delta_pct).figure != change_text(self.tested_pct).figure:
            return None
        return self.interval(p)

    @property
    def tested_pct(self) -> float:
        """Return the change that the test measured, in the middle of its interval."""
        return _pct(self._middle)

    @property
    def _middle(self) -> float:
        return (math.log1p(self.ci_low_pct / 100) + math.log1p(self.ci_high_pct / 100)) / 2

    def interval(self, p: float) -> tuple[float, float]:
        """Return the ends, in percent, of the measured interval with the one-sided certainty `p`."""
        half = t_quantile(p, self.degrees_of_freedom) * self.standard_error
        return _pct(self._middle - half), _pct(self._middle + half)


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Peak memory against the baseline's median; an increase above `alarm_pct` is a regression."""

    decision: MemoryDecision
    baseline_bytes: float
    candidate_bytes: float
    delta_pct: float
    alarm_pct: float


@dataclass(frozen=True, slots=True)
class LossChange:
    """Loss against the median of the baseline.

    Values and percentages are None where the loss was not finite; `baseline` and `candidate` also in verdicts stored
    before they were kept. `since`: the first of the runs right before this one whose loss was as much worse; empty
    when this run is the first.
    """

    decision: LossDecision
    delta_pct: float | None = None
    alarm_pct: float | None = None
    not_finite_iterations: int = 0
    baseline: float | None = None
    candidate: float | None = None
    since: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on step time, memory and loss, with its `reason` in a sentence and further facts in `notes`.

    `step_time` is None where it could not be compared, `memory` and `loss` where nothing was known on one side.
    `looks`: at how many numbers of launches this commit was judged so far, this time included.
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

    @property
    def is_one_drifting_run(self) -> bool:
        """Return whether this is one slower run that is not steady."""
        time = self.step_time
        is_slower = time is not None and time.not_steady and time.decision == "regression"
        return is_slower and len(self.candidates_used) == 1


# --- The certainty of a change of step time, in words.

UNCERTAIN = "too uncertain to call"


def certainty(time: StepTimeChange) -> str:
    """Return the certainty, such as `beyond run-to-run variation`, or why the change is undecided.

    Whether to act is not said here: the badge says whether a slowdown is confirmed.
    """
    if time.not_steady:
        undecided = f"{UNCERTAIN}: " if time.decision == "inconclusive" else ""
        return f"{undecided}the run is not steady, which widens the interval"
    if time.needs_confirmation:
        return "but on few iterations: a full run must confirm it"
    if time.decision == "no_change":
        return f"shown to be {within(time)}"
    return "beyond run-to-run variation" if time.decision in ("regression", "improvement") else _undecided(time)


def within(time: StepTimeChange) -> str:
    """Return `within 2 %`."""
    return f"within {time.equal_pct:g}{THIN}%"


def _undecided(time: StepTimeChange) -> str:
    if time.reruns_apart_pct is not None:
        return f"but its runs differ by {percent(time.reruns_apart_pct)}, so the result is inconclusive"
    return UNCERTAIN


def shows_no_difference(time: StepTimeChange) -> bool:
    """Return whether the change is inconclusive and its interval contains zero."""
    return time.decision == "inconclusive" and time.ci_low_pct <= 0 <= time.ci_high_pct


# --- The usable baseline runs and their centre.

MOST_BASELINE_RUNS = 20
_FEWEST_TO_CLEAN = 3  # of two runs that disagree, either may be the bad one
_FEWEST_TO_HUBER = 5
_LEAST_OUTLIER = 0.05
_HUBER_CLIP = 2.5


@dataclass(frozen=True, slots=True)
class Baseline:
    """The runs that count, oldest first, and the dropped ones with reasons."""

    used: tuple[RunEstimate, ...]
    dropped: tuple[DroppedRun, ...]

    @property
    def log_step_times(self) -> FloatArray:
        return np.array([run.log_step_time for run in self.used])


def select_baseline(offered: Sequence[RunEstimate], prior_variance: float, *, also_short: bool = False) -> Baseline:
    """Select the newest 20 usable runs of `offered` (oldest first), without outliers.

    `also_short`: short runs count, too, when only a direction is needed.
    """
    refused = {run.run: why for run in offered if (why := unusable_as_baseline(run, also_short=also_short))}
    newest = [run for run in offered if run.run not in refused][-MOST_BASELINE_RUNS:]
    outliers = _alarming(newest) | _outliers(newest, prior_variance)
    return Baseline(
        used=tuple(run for run in newest if run.run not in outliers),
        dropped=tuple(DroppedRun(run, why) for run, why in (refused | outliers).items()),
    )


def centre(log_step_times: FloatArray) -> float:
    """Return the mean; from five runs on a one-step Huber mean, which a single outlier moves less."""
    if len(log_step_times) < _FEWEST_TO_HUBER:
        return float(np.mean(log_step_times))
    middle = median(log_step_times)
    limit = _HUBER_CLIP * mad(log_step_times)
    return middle + float(np.mean(np.clip(log_step_times - middle, -limit, limit)))


def range_if_apart(log_step_times: Sequence[float], variance: float) -> float:
    """Return the range (ln) of reruns when it exceeds what their variation allows, else 0.

    Up to four reruns must all agree, because the bad one cannot be identified. With five or more, one outlier by the
    rule of baselines is enough.
    """
    values = np.array(log_step_times)
    allowed = max(5 * math.sqrt(variance), _LEAST_OUTLIER)
    width = float(np.ptp(values))
    if len(values) >= _FEWEST_TO_HUBER:
        furthest = float(np.max(np.abs(values - median(values))))
        return width if furthest > max(allowed, 6 * mad(values)) else 0.0
    return width if width > allowed else 0.0


def unusable_as_baseline(run: RunEstimate, *, also_short: bool = False) -> str:
    """Say why a run's figures cannot be a baseline; empty when they can. Stricter than for a candidate."""
    if why := run.unusable_because:
        return why
    if run.not_finite_iterations:
        return f"the loss was not finite in {run.not_finite_iterations} iterations"
    if run.skipped_share > MOST_SKIPPED:
        return f"it skipped {percent(100 * run.skipped_share)} of its steps"
    return "too short to show that warm-up was over" if run.short and not also_short else ""


MOST_SKIPPED = 0.05
"""A run that skips more of its optimizer steps cannot be a reference. FP16 skips a few while its loss scale settles."""


def _outliers(runs: Sequence[RunEstimate], prior_variance: float) -> dict[str, str]:
    if len(runs) < _FEWEST_TO_CLEAN:
        return {}
    values = np.array([run.log_step_time for run in runs])
    middle = median(values)
    limit = max(6 * mad(values), 5 * math.sqrt(prior_variance), _LEAST_OUTLIER)
    shifts = {run.run: run.log_step_time - middle for run in runs}
    return {
        run: f"{abs(100 * math.expm1(shift)):.1f} % {'slower' if shift > 0 else 'faster'} than the other baseline runs"
        for run, shift in shifts.items()
        if abs(shift) > limit
    }


ALARM_PCT = 1.0
"""For memory and for loss: the loss of one job moved by less than 0.5 % in 99 % of 318 pairs of adjacent CI runs."""


def _alarming(runs: Sequence[RunEstimate]) -> dict[str, str]:
    """Return runs that need more memory or end with a higher loss than most, which would hide the next such run."""
    memory = {run.run: run.peak_memory_bytes for run in runs if run.peak_memory_bytes}
    loss = {run.run: run.loss for run in runs if run.loss}
    return _higher("peak memory", memory) | _higher("loss", loss)


def _higher(name: str, values: Mapping[str, float]) -> dict[str, str]:
    """Return the outliers with the reason. Three newest runs that are all outliers are a new level, and count."""
    if len(values) < _FEWEST_TO_CLEAN:
        return {}
    array = np.array(list(values.values()))
    middle = median(array)
    limit = max(ALARM_PCT, 300 * mad(array) / middle)
    more = {run: 100 * (value / middle - 1) for run, value in values.items()}
    if all(pct > limit for pct in list(more.values())[-_FEWEST_TO_CLEAN:]):
        return {}
    return {
        run: f"its {name} is {percent(pct)} higher than that of most baseline runs"
        for run, pct in more.items()
        if pct > limit
    }


# --- Run-to-run variation, learned from other configurations.
#
# Moments of the log variances: Smyth 2004, "Linear models and empirical Bayes methods", section 6.2.

Sample = tuple[float, int]
"""Variance of ln(step time) between the runs of a configuration, and its degrees of freedom."""

FEWEST_CONFIGURATIONS = 5
_FEWEST_TO_WINSORISE = 10
_TAIL = 0.05
_LEAST_SD = 1e-4  # runs equal to the last digit: a logarithm needs something
_MOST_SD = 0.05
"""Configurations that vary by more than an outlier teach about changes, not about launches."""
CLIPPING_LOSS = 1.15
"""Clipping takes this much from the variance of normal data with a few heavy tails."""
_LEAST_SPREAD = 0.01
_LEAST_DF, _MOST_DF = 4.0, 20.0
"""Under 4 degrees of freedom a t quantile is so wide that no change could be called."""
MOST_TEST_DF = 12.0  # accounts for tails heavier than Student's


def family_prior(configurations: Iterable[Sequence[RunEstimate]]) -> Prior:
    """Return the prior of a family: same project, GPU and workload style.

    Each item holds the baseline runs of one *other* config key, oldest first; those with fewer than two clean runs do
    not count. With fewer than five that do, nothing was learned: `DEFAULT_PRIOR`.
    """
    return prior_of(sample_of(runs) for runs in configurations)


def sample_of(runs: Sequence[RunEstimate]) -> Sample | None:
    """Return the sample of one configuration; None with fewer than two clean runs."""
    values = select_baseline(runs, DEFAULT_PRIOR.variance).log_step_times
    if len(values) < 2:
        return None
    lost = 1.0
    if len(values) >= _FEWEST_TO_HUBER:
        values, lost = clip_around_median(values, max(mad(values), _LEAST_SD), _HUBER_CLIP), CLIPPING_LOSS
    return lost * float(np.var(values, ddof=1)), len(values) - 1


def prior_of(offered: Iterable[Sample | None]) -> Prior:
    """Estimate the prior from the samples of configurations."""
    samples = [sample for sample in offered if sample is not None]
    if len(samples) < FEWEST_CONFIGURATIONS:
        return DEFAULT_PRIOR
    variance, df = _fit(np.array([s for s, _ in samples]), [f for _, f in samples])
    return Prior(variance=min(variance, _MOST_SD**2), degrees_of_freedom=df, configurations=len(samples))


def moderated_variance(prior: Prior, *sides: FloatArray) -> float:
    """Return the variance of launches within the sides, shrunk towards the prior; a single run has no variance."""
    own_df = sum(len(side) - 1 for side in sides)
    own = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    d0 = prior.degrees_of_freedom
    return (d0 * prior.variance + own) / (d0 + own_df)


def degrees_of_freedom(prior: Prior, baseline_runs: int) -> float:
    """Return the degrees of freedom of the moderated t with `baseline_runs` runs."""
    return min(prior.degrees_of_freedom + baseline_runs - 1, MOST_TEST_DF)


def _fit(variances: FloatArray, dfs: Sequence[int]) -> tuple[float, float]:
    """`(v0, d0)` of the scaled inverse chi-square from which the variances were drawn."""
    expected = np.array([math.log(f / 2) - digamma(f / 2) for f in dfs])
    e = np.log(np.maximum(variances, _LEAST_SD**2)) + expected
    if len(e) >= _FEWEST_TO_WINSORISE:
        e = np.clip(e, *np.quantile(e, [_TAIL, 1 - _TAIL]))
    spread = float(np.var(e, ddof=1)) - float(np.mean([trigamma(f / 2) for f in dfs]))
    d0 = _df_of_spread(spread)
    return math.exp(float(np.mean(e)) + digamma(d0 / 2) - math.log(d0 / 2)), d0


def _df_of_spread(spread: float) -> float:
    """Return the d0 in [4, 20] with trigamma(d0 / 2) = `spread`, by bisection: trigamma falls."""
    if spread <= max(_LEAST_SPREAD, trigamma(_MOST_DF / 2)):
        return _MOST_DF
    if spread >= trigamma(_LEAST_DF / 2):
        return _LEAST_DF
    low, high = _LEAST_DF, _MOST_DF
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(middle / 2) > spread else (low, middle)
    return (low + high) / 2


RELEVANT_SHIFT = 0.01
"""Smaller changes are never called, however certain, because they are not worth acting on."""
EQUIVALENCE_LIMIT = EQUAL_PCT / 100
REGRESSION_P = 0.995
IMPROVEMENT_P = 0.998
"""Stricter than for a regression: a false improvement corrupts the baseline."""
EQUIVALENCE_P = 0.95
MOST_RERUNS = 20
PLANNED_LOOKS = 2
"""A commit is looked at alone, and once more with its reruns: Bonferroni halves the error of a verdict with reruns."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A shift with the parts of its standard error, so that other numbers of runs can be evaluated.

    `variance` is the moderated run-to-run variance; `candidate_noise` and `baseline_noise` are mean squared standard
    errors inside the runs. `rerun_df`: degrees of freedom that the spread of requested reruns adds. All in
    ln(step time).
    """

    shift: float
    variance: float
    prior: Prior
    candidate_noise: float
    baseline_noise: float
    rerun_df: int = 0
    thresholds: Thresholds = DEFAULTS

    @classmethod
    def planned(cls, prior: Prior, noise: float) -> Self:
        """Return the comparison of runs that are still to be made. `noise`: standard error within each (ln)."""
        return cls(shift=0.0, variance=prior.variance, prior=prior, candidate_noise=noise**2, baseline_noise=noise**2)

    def standard_error(self, k: int, m: int) -> float:
        """Return the standard error of the shift with k reruns against m baseline runs."""
        return math.sqrt(max(self.variance, self.candidate_noise) / k + max(self.variance, self.baseline_noise) / m)

    def half_width(self, p: float, k: int, m: int) -> float:
        return t_quantile(p, degrees_of_freedom(self.prior, m + self.rerun_df)) * self.standard_error(k, m)

    def smallest_callable_shift(self, k: int, m: int) -> float:
        """Return the smallest slowdown, in ln, that k against m runs could have called a regression."""
        return max(self.thresholds.relevant_shift, self.half_width(REGRESSION_P, k, m))

    def smallest_seen_shift(self, power: float, k: int, m: int) -> float:
        """Return the smallest speed-up (ln, positive) that k against m runs call with probability `power` > 0.5."""
        limit = max(self.thresholds.relevant_shift, self.half_width(IMPROVEMENT_P, k, m))
        return limit + self.half_width(power, k, m)

    def is_at_limit(self, k: int, m: int) -> bool:
        """Return whether k against m runs can call any speed-up that is large enough to be called at all."""
        return self.half_width(IMPROVEMENT_P, k, m) <= self.thresholds.relevant_shift

    def shows_equality(self, shift: float, power: float, k: int, m: int) -> bool:
        """Return whether k against m runs call a true change `shift` (ln) equal with probability `power` > 0.5."""
        half = self.half_width(EQUIVALENCE_P, k, m) + self.half_width(power, k, m)
        return abs(shift) + half <= self.thresholds.equal_pct / 100

    def decide(self, k: int, m: int, looks: int = 1) -> Decision:
        """Decide with k reruns against m baseline runs. `looks`: planned interim looks (Bonferroni correction)."""
        shift, relevant = self.shift, self.thresholds.relevant_shift
        if shift >= relevant and shift > self.half_width(_surer(REGRESSION_P, looks), k, m):
            return "regression"
        if shift <= -relevant and -shift > self.half_width(_surer(IMPROVEMENT_P, looks), k, m):
            return "improvement"
        if abs(shift) + self.half_width(_surer(EQUIVALENCE_P, looks), k, m) <= self.thresholds.equal_pct / 100:
            return "no_change"
        return "inconclusive"

    def need_runs(self, k: int, m: int) -> int | None:
        """Return the fewest further reruns that decide if shift and variance stay; None when 20 do not."""
        if self.decide(k + MOST_RERUNS, m) == "inconclusive":  # fewer runs have wider intervals
            return None
        more = range(1, MOST_RERUNS + 1)
        return next((n for n in more if self.decide(k + n, m) != "inconclusive"), None)

    def cheapest_alternative(self, k: int, m: int) -> RunsNeeded | None:
        """Return the fewest runs of both sides that decide with a larger baseline; None when 20 + 20 do not."""
        if self.decide(k + MOST_RERUNS, MOST_BASELINE_RUNS) == "inconclusive":  # fewer runs have wider intervals
            return None
        by_cost = (
            RunsNeeded(reruns=n, baseline_runs=total - n)
            for total in range(m + 1, MOST_RERUNS + MOST_BASELINE_RUNS + 1)
            for n in range(max(0, total - MOST_BASELINE_RUNS), min(MOST_RERUNS, total - m - 1) + 1)
        )
        enough = (runs for runs in by_cost if self.decide(k + runs.reruns, runs.baseline_runs) != "inconclusive")
        return next(enough, None)


def compare_step_time(
    candidates: Sequence[RunEstimate],
    baseline: Baseline,
    prior: Prior,
    looks: int = 1,
    thresholds: Thresholds = DEFAULTS,
) -> StepTimeChange:
    """Judge k >= 1 usable reruns, pooled, against m >= 1 clean baseline runs. `looks`: how many are planned.

    Contradicting reruns are inconclusive, because their mean is a step time that none of them had.
    """
    k, m = len(candidates), len(baseline.used)
    comparison = replace(_comparison(candidates, baseline, prior), thresholds=thresholds)
    launches = comparison.variance
    if looks > 1:
        # Requested reruns are a sample of launches as well.
        own = np.array([run.log_step_time for run in candidates])
        pooled = moderated_variance(prior, baseline.log_step_times, own)
        comparison = replace(comparison, variance=pooled, rerun_df=k - 1)
    baseline_ms = math.exp(centre(baseline.log_step_times))
    change = _describe(comparison, k, m, baseline_ms, looks, decision=comparison.decide(k, m, looks))
    apart = range_if_apart([run.log_step_time for run in candidates], max(launches, comparison.candidate_noise))
    if apart:
        contradictory = _describe(comparison, k, m, change.baseline_ms, looks, decision="inconclusive")
        return replace(contradictory, reruns_apart_pct=_pct(apart))
    if not all(run.is_steady for run in candidates):
        undecided = change.decision == "no_change" or max(run.se for run in candidates) > MAX_SPREAD
        decision: Decision = "inconclusive" if undecided else change.decision
        return replace(_describe(comparison, k, m, change.baseline_ms, looks, decision=decision), not_steady=True)
    if change.decision == "inconclusive":
        need = comparison.need_runs(k, m)
        alternative = comparison.cheapest_alternative(k, m) if need is None else None
        return replace(change, need_runs=need, alternative=alternative)
    rests_on_short = change.decision == "regression" and any(run.short for run in candidates)
    return replace(change, needs_confirmation=rests_on_short)


def unsteady(candidates: Sequence[RunEstimate]) -> list[RunEstimate]:
    """Return the runs that are not steady but long enough to be measured, with the least uncertainty of a drift.

    They never show that nothing changed, and one with two speeds decides nothing.
    """
    return [
        replace(run, se=max(run.se, MOST_DRIFT / 2))
        for run in candidates
        if not run.is_steady and run.window_length >= FEWEST_ITERATIONS and math.isfinite(run.log_step_time)
    ]


def decide_step_time(
    candidates: Sequence[RunEstimate], baseline: Baseline, prior: Prior, *, looks: int = 1
) -> Decision:
    """Return only the decision on pooled runs. `looks` as in `decide`."""
    return _comparison(candidates, baseline, prior).decide(len(candidates), len(baseline.used), looks)


def throughput_pct(change: StepTimeChange) -> tuple[float, float, float]:
    """Convert a change to tokens/s or TFLOP/s/GPU: `(delta, low, high)` in percent, positive is faster."""
    delta, slow, fast = (
        100 * (1 / (1 + pct / 100) - 1) for pct in (change.delta_pct, change.ci_high_pct, change.ci_low_pct)
    )
    return delta, slow, fast


def _comparison(candidates: Sequence[RunEstimate], baseline: Baseline, prior: Prior) -> Comparison:
    values = baseline.log_step_times
    return Comparison(
        shift=float(np.mean([run.log_step_time for run in candidates])) - centre(values),
        variance=moderated_variance(prior, values),
        prior=prior,
        candidate_noise=float(np.mean([run.se**2 for run in candidates])),
        baseline_noise=float(np.mean([run.se**2 for run in baseline.used])),
    )


def _describe(
    comparison: Comparison, k: int, m: int, baseline_ms: float, looks: int, *, decision: Decision
) -> StepTimeChange:
    shift = comparison.shift
    half = comparison.half_width(_surer(_deciding_p(decision, shift), looks), k, m)
    return StepTimeChange(
        decision=decision,
        planned_looks=looks,
        shift=shift,
        standard_error=comparison.standard_error(k, m),
        degrees_of_freedom=degrees_of_freedom(comparison.prior, m + comparison.rerun_df),
        delta_pct=_pct(shift),
        ci_low_pct=_pct(shift - half),
        ci_high_pct=_pct(shift + half),
        smallest_callable_pct=_pct(comparison.smallest_callable_shift(k, m)),
        baseline_ms=baseline_ms,
        candidate_ms=baseline_ms * math.exp(shift),
        run_to_run_sd=math.sqrt(comparison.variance),
        relevant_pct=comparison.thresholds.relevance_pct,
        equal_pct=comparison.thresholds.equal_pct,
    )


def _deciding_p(decision: str, shift: float) -> float:
    """Return the one-sided certainty of the test that decided, or that failed to decide."""
    if decision == "no_change":
        return EQUIVALENCE_P
    return IMPROVEMENT_P if shift < 0 else REGRESSION_P


def interval_level_pct(decision: str, shift: float, looks: int) -> float:
    """Return the level, in percent, of the interval of a change that was decided with the certainty of `looks`."""
    return two_sided_pct(_surer(_deciding_p(decision, shift), looks))


def two_sided_pct(p: float) -> float:
    """Return the level, in percent, of the interval whose ends have the one-sided certainty `p` each."""
    return 100 * (2 * p - 1)


def _surer(p: float, looks: int) -> float:
    return 1 - (1 - p) / looks


def _pct(shift: float) -> float:
    return 100 * math.expm1(shift)

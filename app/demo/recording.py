"""What happened in a demo job, iteration by iteration: step times with the noise of real jobs, losses, memory.

The noise is that of 1,873 Megatron-LM CI runs: inside a run a coefficient of variation of 1.2 %, lag-1 autocorrelation
0.4, spikes in 2 % of iterations (typically +25 %, a quarter of them over +70 %); between launches of one job 1.4 %,
heavy-tailed.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.domain.run import FloatArray

Failure = Literal["deepep missing", "hybridep missing", "out of memory"]

WITHIN_RUN_CV = 0.012
AUTOCORRELATION = 0.4
SPIKE_SHARE = 0.02
SPIKE_MEDIAN = 0.25
SPIKE_SIGMA = 1.526
"""Of ln(spike size): puts the upper quartile at 70 %."""

BETWEEN_RUNS_SD = 0.014
BETWEEN_RUNS_DF = 4
"""Degrees of freedom of the Student distribution that gives the heavy tails."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One job's values, one an iteration from the first; all arrays are equally long. Memory: bytes of rank 0."""

    step_time_ms: FloatArray
    lm_loss: FloatArray
    load_balancing_loss: FloatArray
    grad_norm: FloatArray
    max_allocated_bytes: float
    failure: Failure | None = None

    @property
    def n(self) -> int:
        return len(self.step_time_ms)


def record(
    random: np.random.Generator, step_time_ms: FloatArray, max_allocated_bytes: float, last_loss: float | None = None
) -> Recording:
    """A job with these step times; the loss falls as a new model's does, to `last_loss` where that is given."""
    n = len(step_time_ms)
    iteration = np.arange(n)
    lm_loss = 7.9 + 4.45 * np.exp(-iteration / 18) + random.normal(0, 0.012, n)
    if last_loss is not None:
        lm_loss += (last_loss - lm_loss[-1]) * (iteration + 1) / n
    return Recording(
        step_time_ms=step_time_ms,
        lm_loss=lm_loss,
        load_balancing_loss=1 + np.abs(random.normal(0, 4e-4, n)),
        grad_norm=1.5 + 18 * np.exp(-iteration / 12) * random.lognormal(0, 0.05, n),
        max_allocated_bytes=max_allocated_bytes,
    )


def never_started(failure: Failure) -> Recording:
    """A job that failed while it built its model: no iteration at all."""
    nothing = np.empty(0)
    return Recording(nothing, nothing, nothing, nothing, max_allocated_bytes=0, failure=failure)


def launch_level(random: np.random.Generator, sd: float = BETWEEN_RUNS_SD) -> float:
    """How much slower than usual one launch of a job happens to be, as a natural logarithm."""
    return float(sd / np.sqrt(BETWEEN_RUNS_DF / (BETWEEN_RUNS_DF - 2)) * random.standard_t(BETWEEN_RUNS_DF))


def ci_step_times(random: np.random.Generator, centre_ms: float, n: int, launch: float | None = None) -> FloatArray:
    """A CI job: this launch's own level around `centre_ms`, noise and spikes, and a slow start."""
    level = centre_ms * np.exp(launch_level(random) if launch is None else launch)
    spikes = (random.random(n) < SPIKE_SHARE) * random.lognormal(np.log(SPIKE_MEDIAN), SPIKE_SIGMA, n)
    times = level * np.exp(_correlated_noise(random, n)) * (1 + np.minimum(spikes, 3))
    return _with_slow_start(random, times)


def smoke_step_times(random: np.random.Generator, mean_ms: float, n: int, first: int) -> FloatArray:
    """A short smoke whose mean over iterations `first` to `n` is `mean_ms`, as it was published."""
    times = np.exp(_correlated_noise(random, n))
    times *= mean_ms / times[first - 1 :].mean()
    return _with_slow_start(random, times, until=first - 1)


def smoke_step_times_with_rate(
    random: np.random.Generator, mean_ms: float, mean_rate: float, work: float
) -> FloatArray:
    """Five steps whose last four have both published means: of time, and of `work / time`.

    The two means disagree as much as the steps differ among themselves (the mean of ratios is not the ratio of
    means), so the second one says how far apart the steps were.
    """
    shape = np.array([1.0, -0.93, 0.91, -0.98]) + random.normal(0, 0.01, 4)
    shape -= shape.mean()
    low, high = 0.0, 0.5
    for _ in range(60):  # bisection: the mean rate grows with the spread
        spread = (low + high) / 2
        if np.mean(work / (mean_ms * (1 + spread * shape))) < mean_rate:
            low = spread
        else:
            high = spread
    return _with_slow_start(random, mean_ms * np.concatenate(([1.0], 1 + low * shape)), until=1)


def _correlated_noise(random: np.random.Generator, n: int) -> FloatArray:
    innovation = WITHIN_RUN_CV * np.sqrt(1 - AUTOCORRELATION**2)
    noise = np.empty(n)
    noise[0] = random.normal(0, WITHIN_RUN_CV)
    for i in range(1, n):
        noise[i] = AUTOCORRELATION * noise[i - 1] + random.normal(0, innovation)
    return noise


def _with_slow_start(random: np.random.Generator, times: FloatArray, until: int = 2) -> FloatArray:
    """The first iteration also compiles, allocates and connects; the next ones up to `until` still warm up."""
    times = times.copy()
    times[0] += random.uniform(75_000, 110_000)
    times[1:until] *= 1 + random.uniform(0.03, 0.08)
    return times

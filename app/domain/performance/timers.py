"""Where the step goes: Megatron's timers over the steady window, and whether their barriers made the run unfair."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.logs.steps import RUNNING_MEANS
from app.domain.performance.steady_state import MAX_STEP_MS
from app.domain.run import ParsedLog, SteadyState, Timer, Value

PREFIX, SUFFIX, MIN_SUFFIX = "timer_", "_ms", "_min_ms"

MIN_TIMER_MS = 1e-3
"""Megatron prints timers with two decimals; smaller values cannot be divisors."""

_LEVEL_ZERO = frozenset(
    {
        "interval_time",
        "model_and_optimizer_setup",
        "train_valid_test_data_iterators_setup",
        "save_checkpoint",
        "load_checkpoint",
        "save_checkpoint_non_persistent",
        "eval_time",
    }
)
"""Timers of `--timing-log-level 0`, which every run has; they need no barriers inside the step."""

_WITHOUT_BARRIERS = ("veRL", "slime")
"""Trainers that time the parts of their steps without barriers."""


def read_timers(log: ParsedLog, steady: SteadyState | None) -> tuple[Timer, ...]:
    """Return the timers of the step, the largest share first. Timers nest, so shares may sum to more than the step."""
    if steady is None:
        return ()
    rows = steady.contains(log.columns["iteration"])
    timers = []
    for name in timer_names(log):
        slowest = log.columns[f"{PREFIX}{name}{SUFFIX}"][rows]
        usable = np.isfinite(slowest) & (slowest <= MAX_STEP_MS)
        if name in _LEVEL_ZERO or not usable.any():
            continue
        median = float(np.median(slowest[usable]))
        fastest = log.columns.get(f"{PREFIX}{name}{MIN_SUFFIX}")
        timers.append(
            Timer(
                name.replace("_", "-"),
                median / steady.step_time_ms,
                median,
                _spread(slowest[usable], fastest[rows][usable]) if fastest is not None else None,
            )
        )
    return tuple(sorted(timers, key=lambda timer: (-timer.share_of_step, timer.name)))


_GRADIENTS = "(all-grads-sync|grads-all-reduce|grads-reduce-scatter|.*-grads-all-reduce|.*params-all-reduce)"
_INSIDE: tuple[tuple[str, str, str], ...] = (
    ("forward", "forward", "forward-compute"),
    ("backward", "backward", "backward-compute"),
    ("pipeline", "between pipeline stages", "(forward|backward)-(send|recv)(-.*)?|forward-backward-send-.*"),
    ("gradients", "gradients", _GRADIENTS),
)
_WHOLE, _OPTIMIZER = "forward-backward", "optimizer"


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the step by timers. `kind` names its colour."""

    kind: str
    label: str
    ms: float


def step_parts(timers: Sequence[Timer], step_time_ms: float) -> tuple[StepPart, ...]:
    """Return where the step goes by Megatron's timers, without counting nested ones twice; empty without them.

    Each timer is its slowest rank's, so the parts may exceed the step.
    """
    times = {timer.name: timer.median_ms for timer in timers}
    if _WHOLE not in times and "forward-compute" not in times:
        return ()
    parts = []
    for kind, label, pattern in _INSIDE:
        of_kind = {name: ms for name, ms in times.items() if re.fullmatch(pattern, name)}
        # Megatron's sum of all gradient synchronization contains the single ones.
        ms = of_kind.get("all-grads-sync", sum(of_kind.values()))
        parts.append(StepPart(kind, label, ms))
    rest = times.get(_WHOLE, 0.0) - sum(part.ms for part in parts)
    parts.append(StepPart("rest", "rest of forward and backward", rest))
    parts.append(StepPart("optimizer", "optimizer", times.get(_OPTIMIZER, 0.0)))
    parts.append(StepPart("untimed", "not timed", step_time_ms - sum(part.ms for part in parts if part.ms > 0)))
    return tuple(part for part in parts if part.ms >= MIN_TIMER_MS)


def timer_names(log: ParsedLog) -> list[str]:
    """Names of the timers that the log prints, made words."""
    return [
        column.removeprefix(PREFIX).removesuffix(SUFFIX)
        for column in log.columns
        if column.startswith(PREFIX) and column.endswith(SUFFIX) and not column.endswith(MIN_SUFFIX)
    ]


def _spread(slowest: np.ndarray[tuple[int], np.dtype[np.float64]], fastest: object) -> float | None:
    """Return the median over the window of slowest over fastest rank."""
    low = np.asarray(fastest, dtype=np.float64)
    usable = (low >= MIN_TIMER_MS) & (low <= MAX_STEP_MS)
    return float(np.median(slowest[usable] / low[usable])) if usable.any() else None


def unfair_because(log: ParsedLog) -> str | None:
    """Return a sentence when barriers slowed the steps or their times are means; None for a run fair for timing."""
    arguments: Mapping[str, Value] = log.arguments
    if any(problem.kind == RUNNING_MEANS for problem in log.problems):
        return "This run is not fair for timing: its step times are running means, whose interval is too narrow."
    if arguments.get("barrier_with_L1_time") is False or log.trainer in _WITHOUT_BARRIERS:
        return None
    level = arguments.get("timing_log_level")
    inner = [name for name in timer_names(log) if name not in _LEVEL_ZERO]
    if isinstance(level, int) and not isinstance(level, bool) and level >= 1:
        why = f"timing_log_level is {level}"
    elif inner:
        why = f"the log has timers of a higher timing_log_level ({', '.join(inner[:3])})"
    else:
        return None
    return (
        f"This run is not fair for timing: {why}, and such timers add barriers inside the step, which slow it down. "
        f"Compare its figures only with runs that have the same timers."
    )

"""Settings of a project for verdicts: which changes matter, fixed limits, reruns and the reference job."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app.domain.contract.fields import METRICS
from app.domain.numbers import figure
from app.domain.run import Metric

ANY_BRANCH = "*"
"""The baseline branch of a project whose runs of every branch are baselines."""

# --- Thresholds: how much has to change before it matters, in percent.


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The smallest changes that matter, in percent.

    `relevance_pct`: of step time; smaller changes are never called. `memory_pct` and `loss_pct`: an increase above it
    is a regression, or a worse loss.
    """

    relevance_pct: float = 1.0
    memory_pct: float = 1.0
    loss_pct: float = 1.0

    @property
    def relevant_shift(self) -> float:
        """Return the smallest relevant change of ln(step time)."""
        return self.relevance_pct / 100

    @property
    def equal_pct(self) -> float:
        """Return how far, in percent, a step time may be from the baseline and still count as unchanged."""
        return max(EQUAL_PCT, self.relevance_pct)


EQUAL_PCT = 2.0
DEFAULTS = Thresholds()
RANGES: Mapping[str, tuple[float, float]] = {
    "relevance_pct": (0.2, 20.0),
    "memory_pct": (0.1, 50.0),
    "loss_pct": (0.1, 50.0),
}
"""Smallest and largest value of each threshold. Launches vary by more than 0.2 %, so smaller thresholds are useless."""

# --- Fixed limits of a figure, which need no baseline.

SILENCE = "hours_without_run"
"""The limit of the time since the newest run, in hours."""
BOUNDS = ("at_least", "at_most")


@dataclass(frozen=True, slots=True)
class FixedLimit:
    """A figure that must stay `at_least` or `at_most` `value`, in the unit of the metric, or `hours_without_run`."""

    metric: str
    bound: Literal["at_least", "at_most"]
    value: float

    def is_broken_by(self, value: float) -> bool:
        return value < self.value if self.bound == "at_least" else value > self.value


@dataclass(frozen=True, slots=True)
class Breach:
    """A figure of a run that breaks a fixed limit of its project."""

    limit: FixedLimit
    value: float

    def text(self) -> str:
        """Return `MFU is 28.1 %; the limit is at least 30.0 %.`"""
        label, bound = METRICS[self.limit.metric].label, self.limit.bound.replace("_", " ")
        value, limit = (_shown(self.limit.metric, number) for number in (self.value, self.limit.value))
        return f"{label} is {value}; the limit is {bound} {limit}."


def _shown(metric: str, value: float) -> str:
    text = figure(Metric(value, value, value, 0), metric)
    unit = text.unit or METRICS[metric].unit
    return f"{text.value} {unit}"


# --- Reruns: how many a project can afford.


@dataclass(frozen=True, slots=True)
class RerunBudget:
    """`reruns_a_day` and `gpu_hours_a_day` limit what verdicts may request; None: no limit."""

    reruns_a_day: int | None = None
    gpu_hours_a_day: float | None = None

    @property
    def is_limited(self) -> bool:
        return self.reruns_a_day is not None or self.gpu_hours_a_day is not None

    def allows(self, runs: int, gpu_hours: float | None) -> bool:
        """Return whether another rerun fits after `runs` of the last 24 hours, which took `gpu_hours`."""
        if self.reruns_a_day is not None and runs >= self.reruns_a_day:
            return False
        return self.gpu_hours_a_day is None or (gpu_hours or 0.0) < self.gpu_hours_a_day


# --- The policy of a project.


@dataclass(frozen=True, slots=True)
class StackPolicy:
    """Settings of one stack. `fixed`: its limits of figures."""

    thresholds: Thresholds = DEFAULTS
    fixed: tuple[FixedLimit, ...] = ()

    def breaches(self, metrics: Mapping[str, Metric | None]) -> tuple[Breach, ...]:
        """Return the limits that the figures of a run break."""
        limited = ((limit, metrics.get(limit.metric)) for limit in self.fixed)
        return tuple(
            Breach(limit, metric.value)
            for limit, metric in limited
            if metric is not None and math.isfinite(metric.value) and limit.is_broken_by(metric.value)
        )


NO_POLICY = StackPolicy()


@dataclass(frozen=True, slots=True)
class ReferenceMove:
    """The reference job was slower on the cluster and day of a run: `run` by `delta_pct`. So the machine changed."""

    run: str
    job: str
    cluster: str
    delta_pct: float | None


@dataclass(frozen=True, slots=True)
class Policy:
    """The decisions of a project. `stacks`: what replaces or adds to `every` in a stack, by stack key.

    `reference_job`: the job whose change shows that the machine changed; empty without one. `upgrades`: values of a
    container, driver or cluster that replace the value before, also while that is still in use.
    """

    every: Mapping[str, Any] = field(default_factory=dict)
    stacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    budget: RerunBudget = RerunBudget()
    reference_job: str = ""
    upgrades: tuple[str, ...] = ()

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> "Policy":
        """Build from the stored JSON."""
        stored = stored or {}
        return cls(
            every=stored.get("every", {}),
            stacks=stored.get("stacks", {}),
            budget=RerunBudget(**stored.get("budget", {})),
            reference_job=stored.get("reference_job", ""),
            upgrades=tuple(stored.get("upgrades", ())),
        )

    @property
    def has_fixed(self) -> bool:
        """Return whether any stack has a fixed limit."""
        return any(scope.get("fixed") for scope in (self.every, *self.stacks.values()))

    def of_stack(self, stack_key: str) -> StackPolicy:
        own = self.stacks.get(stack_key, {})
        values = {**self.every.get("thresholds", {}), **own.get("thresholds", {})}
        limits = {(limit["metric"], limit["bound"]): FixedLimit(**limit) for limit in self.every.get("fixed", [])}
        limits |= {(limit["metric"], limit["bound"]): FixedLimit(**limit) for limit in own.get("fixed", [])}
        return StackPolicy(replace(DEFAULTS, **values), tuple(limits.values()))


def read_thresholds(values: Mapping[str, Any]) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Return the stated thresholds, and a field with its problem for each that is wrong. None: as before."""
    read: dict[str, float] = {}
    problems = []
    for name, value in values.items():
        if value is None:
            continue
        if name not in RANGES:
            problems.append((f"thresholds.{name}", f"must be one of {', '.join(RANGES)}"))
            continue
        low, high = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            problems.append((f"thresholds.{name}", f"must be a number from {low:g} to {high:g} (percent)"))
        else:
            read[name] = float(value)
    return read, problems


MOST_FIXED = 20


def read_fixed(limits: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Return the fixed limits as they are stored, and a field with its problem for each that is wrong."""
    read: list[dict[str, Any]] = []
    problems = []
    if len(limits) > MOST_FIXED:
        problems.append(("fixed", f"must be at most {MOST_FIXED} limits"))
    for number, limit in enumerate(limits[:MOST_FIXED]):
        metric, bound, value = limit.get("metric"), limit.get("bound"), limit.get("value")
        where = f"fixed.{number}"
        if metric not in METRICS and metric != SILENCE:
            problems.append((f"{where}.metric", f"must be one of {', '.join((*METRICS, SILENCE))}"))
        elif bound not in BOUNDS or (metric == SILENCE and bound != "at_most"):
            allowed = "at_most" if metric == SILENCE else " or ".join(BOUNDS)
            problems.append((f"{where}.bound", f"must be {allowed}"))
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            problems.append((f"{where}.value", "must be a positive number, in the unit of the metric"))
        else:
            read.append({"metric": metric, "bound": bound, "value": float(value)})
    return read, problems


def silent_for(limits: Iterable[FixedLimit]) -> float | None:
    """Return the hours without a run that a stack may have; None without such a limit."""
    return min((limit.value for limit in limits if limit.metric == SILENCE), default=None)

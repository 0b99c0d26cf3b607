"""Which runs may stand in a ranking, and why each of the others may not."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.definitions import DEFINITION_VERSION
from app.domain.detection.values import FEWEST_ITERATIONS
from app.domain.ranking.ranked_run import NEED_A_PACKAGE, RankedRun

Why = Literal[
    "quarantined",
    "import_failed",
    "ended_badly",
    "not_finite",
    "slowed_by_timers",
    "other_definitions",
    "dispatcher_unknown",
    "not_active",
    "too_short",
    "not_steady",
    "other_shape",
    "below_level",
]
"""Strongest reason first: a run that has several is named with the first of them."""

MEASURED: frozenset[Why] = frozenset({"too_short", "not_steady"})
"""Such a run has a figure that says something happened, though nothing may be ranked by it."""

DID_NOT_RUN: frozenset[Why] = frozenset({"import_failed", "not_active", "ended_badly", "dispatcher_unknown"})
"""Nothing shows that such a run came to iterations of its dispatcher."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A run that is kept and shown, and ranked nowhere. `dispatcher`: the one it does not count for; "" when unknown.

    `step_time_ms` None where there is no figure, or none that says anything.
    """

    run: str
    dispatcher: str
    why: Why
    sentence: str
    step_time_ms: float | None = None


def refusal(run: RankedRun, definition_version: int = DEFINITION_VERSION) -> Refusal | None:
    """Why `run` by itself may stand in no ranking; None when it may."""
    found = next(((why, sentence) for why, sentence in _reasons(run, definition_version) if sentence), None)
    if found is None:
        return None
    why, sentence = found
    name = run.requested if why in ("import_failed", "not_active") else run.dispatcher
    figure = _step_time(run) if why in MEASURED else None
    return Refusal(run.name, name or "", why, sentence, figure)


def _reasons(run: RankedRun, definition_version: int) -> Iterable[tuple[Why, str]]:
    facts, estimate = run.facts, run.facts.estimate
    yield "quarantined", facts.unfit_because if facts.quarantined else ""
    yield "import_failed", _import_failed(run)
    yield "ended_badly", facts.unfit_because
    not_finite = estimate.not_finite_iterations
    yield "not_finite", f"its loss was not finite in {not_finite} iterations" if not_finite else ""
    yield "slowed_by_timers", "" if facts.fair_for_timing else "barriers of its own timers slowed it down"
    older = facts.definition_version != definition_version
    yield "other_definitions", "its figures are of another version of the definitions" if older else ""
    yield "dispatcher_unknown", "" if run.dispatcher else "nobody states its dispatcher, and its log shows none"
    unproven = run.active is None and run.requested in NEED_A_PACKAGE
    yield "not_active", f"{run.requested} was asked for, but nothing in its log shows that it ran" if unproven else ""
    too_short = estimate.window_length < FEWEST_ITERATIONS
    yield "too_short" if too_short else "not_steady", estimate.unusable_because


def _import_failed(run: RankedRun) -> str:
    """Said of a run that ended because of it; a run that went on with another dispatcher is a run of that one."""
    if run.requested in run.missing and run.active is None:
        return f"the package of {run.requested} is not in its container: a fact about the container, not a speed"
    return ""


def fallbacks(runs: Iterable[RankedRun]) -> tuple[Refusal, ...]:
    """Runs that asked for one dispatcher and ran another: they count for what ran, and not for what was asked for."""
    return tuple(
        Refusal(run.name, run.requested, "not_active", f"{run.requested} was asked for, but {run.active} ran")
        for run in runs
        if run.requested and run.active and run.requested != run.active
    )


def other_shapes(runs: Sequence[RankedRun]) -> tuple[Refusal, ...]:
    """Of runs oldest first, those whose model has another outline than that of the newer ones, whatever its name is."""
    outline: list[str] = []
    refused = []
    for run in reversed(runs):
        shape = run.facts.shape
        if any(known and stated and known != stated for known, stated in zip(outline, shape, strict=False)):
            sentence = "its model has another shape than that of the newest run"
            refused.append(Refusal(run.name, run.dispatcher or "", "other_shape", sentence))
            continue
        longer = range(max(len(outline), len(shape)))
        outline = [(_at(outline, i) or _at(shape, i)) for i in longer]
    return tuple(reversed(refused))


def _at(values: Sequence[str], index: int) -> str:
    return values[index] if index < len(values) else ""


def _step_time(run: RankedRun) -> float | None:
    value = run.facts.estimate.log_step_time
    return math.exp(value) if math.isfinite(value) else None

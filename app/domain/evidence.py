"""What a run's figures are worth: how much was measured, and whether it may stand for real training.

Numbers of the published tuning workflow: 6 to 12 iterations after warm-up may screen a candidate, a result needs 50
steps with a window such as 41 to 50.
"""

from collections.abc import Mapping
from typing import Literal

from app.domain.run import Stated, SteadyState

EvidenceLevel = Literal["smoke", "screen", "matched_ab", "validated"]
SemanticClass = Literal["training_equivalent", "benchmark_only", "unknown"]

_LABELS = {"matched_ab": "matched A/B", "validated": "full length"}

SCREEN_WINDOW = 6
VALIDATED_WINDOW = 10
VALIDATED_STEPS = 50

_FORCED = ("forced-balance", "forced-biased")


def evidence_label(level: str) -> str:
    """Return what pages call a level.

    `validated` is about the length and health of a measurement. Whether a result holds for real training, the step
    "validate" of the workflow says, and nothing else is called by that word.
    """
    return _LABELS.get(level, level.replace("_", " "))


def evidence_level(
    steady: SteadyState | None, health: Mapping[str, object], *, fair_for_timing: bool = True
) -> EvidenceLevel:
    """`validated` only for a healthy, steady, fair run of 50 steps, whose window is declared when it is short.

    `matched_ab` takes two runs, so no single run has it.
    """
    if steady is None or steady.n < SCREEN_WINDOW:
        return "smoke"
    healthy = health["outcome"] == "completed" and health["loss_finite"] is True
    clean = health["skipped_iterations"] in (0, None) and health["nan_iterations"] in (0, None)
    long = steady.last_iteration >= VALIDATED_STEPS and steady.n >= VALIDATED_WINDOW
    warm = steady.is_steady and (not steady.short or steady.method == "declared")
    return "validated" if healthy and clean and long and warm and fair_for_timing else "screen"


def semantic_class(contract: Mapping[str, Stated]) -> SemanticClass:
    """`benchmark_only` when routing is forced, data are made up or NaN checks are off; `unknown` when nobody says."""
    value = {name: stated.value for name, stated in contract.items()}
    if value.get("routing_mode") in _FORCED or value.get("data_mode") == "mock" or value.get("nan_checks") is False:
        return "benchmark_only"
    if "routing_mode" in contract and value.get("data_mode") == "real":
        return "training_equivalent"
    return "unknown"

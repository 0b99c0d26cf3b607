"""Baseline runs and one run, or its reruns, in; a verdict with its reason out. Prose: `docs/verdicts.md`."""

from app.domain.detection.prior import family_prior
from app.domain.detection.step_time import throughput_pct
from app.domain.detection.values import (
    DEFAULT_PRIOR,
    DroppedRun,
    LossChange,
    MemoryChange,
    Outcome,
    Prior,
    RunEstimate,
    RunsNeeded,
    StepTimeChange,
    Verdict,
)
from app.domain.detection.verdict import judge

__all__ = [
    "DEFAULT_PRIOR",
    "DroppedRun",
    "LossChange",
    "MemoryChange",
    "Outcome",
    "Prior",
    "RunEstimate",
    "RunsNeeded",
    "StepTimeChange",
    "Verdict",
    "family_prior",
    "judge",
    "throughput_pct",
]

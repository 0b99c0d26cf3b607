"""A run as matching and verdicts see it, and why some runs can never be a baseline."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from app.domain.contract.values import shown
from app.domain.detection import RunEstimate
from app.domain.detection.baseline import unusable_as_baseline
from app.domain.health import BYTES_PER_GIB
from app.domain.matching.differences import SHAPE
from app.domain.run import Metadata, RunSummary, Stated

UNREAD = "unread"
"""In place of an outcome: its files hold no figure at all."""
_ENDINGS = {
    UNREAD: "no iteration could be read from its files",
    "failed": "the job failed",
    "out_of_memory": "the job ran out of memory",
    "not_finite": "the loss or the gradient was not finite",
    "truncated": "its log ends before the training does",
    "stopped": "it was stopped by a time limit or a signal",
    "running": "it is still running",
}
UNFIT = frozenset(_ENDINGS)
"""Outcomes after which a run is measured against nothing."""
FAILED = frozenset({"failed", "out_of_memory", "not_finite", UNREAD})
"""Outcomes after which a run's speed is no evidence of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is to be known of a run before its contract is read: enough to tell whether it may be a baseline.

    `run` is its name, unique among those compared; `outcome` as in its health; `quarantined` is a person's reason to
    leave it out of everything, else empty; `definition_version` that of its figures; `shape` from `shape_of`.
    """

    run: str
    purpose: str
    branch: str
    commit: str
    stack_key: str
    config_key: str
    semantic_class: str
    outcome: str
    estimate: RunEstimate
    definition_version: int
    shape: tuple[str, ...] = ()
    quarantined: str = ""
    fair_for_timing: bool = True

    @property
    def failed_because(self) -> str:
        """Why its speed is no evidence; empty when the job did not fail."""
        return _ENDINGS[self.outcome] if self.outcome in FAILED else ""

    @property
    def never_a_baseline_because(self) -> str:
        """Empty when the run by itself can be a baseline."""
        return self.unfit_because or unusable_as_baseline(self.estimate)

    @property
    def unfit_because(self) -> str:
        """Why it can be measured against nothing, not even as an indication; empty when it can."""
        return f"quarantined: {self.quarantined}" if self.quarantined else _ENDINGS.get(self.outcome, "")

    def has_shape_of(self, other: "RunFacts") -> bool:
        """False when the outlines of their models are known to differ, whatever the models are called."""
        return not any(a and b and a != b for a, b in zip(self.shape, other.shape, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(RunFacts):
    """All that is stored of a processed run, as far as its comparison needs it."""

    project: str
    contract: Mapping[str, Stated]

    @classmethod
    def of(cls, facts: RunFacts, project: str, contract: Mapping[str, Stated]) -> Self:
        known = {field.name: getattr(facts, field.name) for field in fields(RunFacts)}
        return cls(**known, project=project, contract=contract)

    @classmethod
    def from_summary(cls, run: str, metadata: Metadata, summary: RunSummary, *, loss: float | None = None) -> Self:
        """`loss`: typical loss at the end, over iterations that all compared runs share (`shared_losses`)."""
        memory = summary.metrics.get("peak_memory_gib")
        return cls(
            run=run,
            project=metadata.project,
            purpose=metadata.purpose,
            branch=metadata.branch,
            commit=metadata.commit,
            contract=summary.contract,
            stack_key=summary.stack_key,
            config_key=summary.config_key,
            semantic_class=summary.semantic_class,
            outcome=str(summary.health.get("outcome") or ""),
            estimate=RunEstimate.from_steady_state(
                run,
                summary.steady_state,
                peak_memory_bytes=None if memory is None else memory.value * BYTES_PER_GIB,
                loss=loss,
                not_finite_iterations=not_finite_iterations(summary.health),
            ),
            definition_version=summary.definition_version,
            shape=shape_of(summary.contract),
            fair_for_timing=summary.fair_for_timing,
        )


def shape_of(contract: Mapping[str, Stated]) -> tuple[str, ...]:
    """The outline of the model: layers, width and so on, each as text, empty where unknown. () when nothing is known.

    No key holds it, since most logs name the model; where they do not, it is what tells two models apart.
    """
    shape = tuple(shown(contract[name].value) if name in contract else "" for name in SHAPE)
    return shape if any(shape) else ()


def not_finite_iterations(health: Mapping[str, object]) -> int:
    counted = health.get("nan_iterations")
    known = counted if isinstance(counted, int) else 0
    return max(known, 1) if health.get("loss_finite") is False else known

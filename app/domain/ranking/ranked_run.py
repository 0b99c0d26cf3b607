"""A run as the leaderboards see it: its estimate, what carried its tokens, and what its figures are worth."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.domain.evidence import EvidenceLevel
from app.domain.matching import RunFacts

LEVELS: tuple[EvidenceLevel, ...] = ("smoke", "screen", "matched_ab", "validated")
"""Weakest first."""
_STRENGTHS: dict[str, int] = {name: strength for strength, name in enumerate(LEVELS)}

DISPATCHERS = ("allgather", "alltoall", "deepep", "hybridep", "ncclep")
NEED_A_PACKAGE = frozenset({"deepep", "hybridep", "ncclep"})
"""Backends that a container may lack: that one was asked for does not show that it ran."""

RoutingClass = Literal["forced", "natural", "unknown"]
_FORCED = frozenset({"forced-balance", "forced-biased"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRun:
    """What is read of a run for its standings. Empty text and None mean unknown.

    `requested`: the dispatcher asked for; `active`: the one that the log shows to have run, `inferred` from iterations
    alone where no line says so. `missing`: dispatchers whose package the log shows to be missing. `ordered_at`: its
    place in its history.
    """

    facts: RunFacts
    ordered_at: datetime
    requested: str | None
    active: str | None
    evidence_level: str
    hardware: str = ""
    family: str = ""
    precision: str = ""
    routing_mode: str = ""
    ep: int | None = None
    gpus: int | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    missing: tuple[str, ...] = ()
    inferred: bool = False

    @property
    def name(self) -> str:
        return self.facts.run

    @property
    def dispatcher(self) -> str | None:
        """The one it counts for: what ran, else what was asked for."""
        return self.active or self.requested

    @property
    def directional(self) -> bool:
        """Too short to tell whether it was warm. A short window counts in full when it was declared after 50 steps."""
        return self.facts.estimate.short and self.evidence_level != "validated"

    @property
    def place_in_time(self) -> tuple[float, int, str]:
        """Sorts runs the same way in whatever order they arrived; names that are numbers by their value."""
        return self.ordered_at.timestamp(), len(self.name), self.name


def reaches(level: str, floor: str) -> bool:
    """Whether evidence of `level` is at least `floor`; a level nobody knows is the weakest."""
    return _strength(level) >= _strength(floor)


def _strength(level: str) -> int:
    return _STRENGTHS.get(level, 0)


def routing_class(routing_mode: str) -> RoutingClass:
    """Forced routing is a benchmark of its own: its speed is a ceiling that no real router reaches."""
    if not routing_mode:
        return "unknown"
    return "forced" if routing_mode in _FORCED else "natural"

"""A run as the leaderboards see it: its estimate, its dispatcher, and its eligibility."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.domain.contract.fields import FLEX_BACKENDS
from app.domain.contract.values import (
    GPU_MEMORY_GIB,
    canonical_model,
    differences,
    gpu_sku,
    known_model,
    recognise,
)
from app.domain.definitions import DEFINITION_VERSION
from app.domain.run import EVIDENCE_LEVELS, FORCED_ROUTING, Value
from app.domain.verdict.record import RunFacts
from app.domain.verdict.step_time import FEWEST_ITERATIONS

_STRENGTHS: dict[str, int] = {name: strength for strength, name in enumerate(EVIDENCE_LEVELS)}

DISPATCHERS = ("allgather", "alltoall", "deepep", "hybridep", "ncclep")
NEED_A_PACKAGE = frozenset(FLEX_BACKENDS)
"""Backends that a container may lack: requesting one does not prove that it ran."""

RoutingClass = Literal["forced", "natural", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRun:
    """The attributes of a run that standings depend on. Empty text and None mean unknown.

    `requested`: the dispatcher requested; `active`: the one that ran according to the log, `inferred` from iterations
    where no line states it. `missing`: dispatchers whose package is missing according to the log. `ordered_at`: its
    position in the history.
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
        """Return the dispatcher that the run counts for: the active one, else the requested one."""
        return self.active or self.requested

    @property
    def directional(self) -> bool:
        """Return whether the run is too short to prove that warm-up was over.

        A window declared after 50 steps is accepted.
        """
        return self.facts.estimate.short and self.evidence_level != "validated"

    @property
    def history_position(self) -> tuple[float, int, str]:
        """Sort key that does not depend on the order of arrival; numeric names sort by value."""
        return self.ordered_at.timestamp(), len(self.name), self.name


def reaches(level: str, floor: str) -> bool:
    """Return whether evidence of `level` is at least `floor`; an unknown level is the weakest."""
    return _strength(level) >= _strength(floor)


def _strength(level: str) -> int:
    return _STRENGTHS.get(level, 0)


def routing_class(routing_mode: str) -> RoutingClass:
    """Return the class of a routing mode. Forced routing is separate: its speed is a ceiling for real routers."""
    if not routing_mode:
        return "unknown"
    return "forced" if routing_mode in FORCED_ROUTING else "natural"


# --- Eligibility: which runs may be ranked, and why the others may not.

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
"""Strongest reason first; a run with several reasons gets the first one."""

MEASURED: frozenset[Why] = frozenset({"too_short", "not_steady"})
"""Reasons of runs that still have a step time to show."""

DID_NOT_RUN: frozenset[Why] = frozenset({"import_failed", "not_active", "ended_badly", "dispatcher_unknown"})
"""Reasons of runs without proof that their dispatcher completed an iteration."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A run that is shown but not ranked. `dispatcher`: the one it does not count for; "" when unknown.

    `step_time_ms`: None without a usable figure.
    """

    run: str
    dispatcher: str
    why: Why
    sentence: str
    step_time_ms: float | None = None


def refusal(run: RankedRun, definition_version: int = DEFINITION_VERSION) -> Refusal | None:
    """Return why `run` by itself may not be ranked; None when it may."""
    reason = next(((why, sentence) for why, sentence in _reasons(run, definition_version) if sentence), None)
    if reason is None:
        return None
    why, sentence = reason
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
    yield "slowed_by_timers", "" if facts.fair_for_timing else "timer barriers slowed it down"
    older = facts.definition_version != definition_version
    yield "other_definitions", "its figures use another version of the definitions" if older else ""
    yield "dispatcher_unknown", "" if run.dispatcher else "its dispatcher is neither stated nor shown by its log"
    unproven = run.active is None and run.requested in NEED_A_PACKAGE
    yield "not_active", f"{run.requested} was requested, but its log does not show that it ran" if unproven else ""
    too_short = estimate.window_length < FEWEST_ITERATIONS
    yield "too_short" if too_short else "not_steady", estimate.unusable_because


def _import_failed(run: RankedRun) -> str:
    """Return the reason for a run that ended because of a missing package; a run that fell back counts for the
    dispatcher that ran."""
    if run.requested in run.missing and run.active is None:
        return f"the {run.requested} package is not in its container"
    return ""


def fallbacks(runs: Iterable[RankedRun]) -> tuple[Refusal, ...]:
    """Return runs whose active dispatcher is not the requested one; they count for the active one."""
    return tuple(
        Refusal(run.name, run.requested, "not_active", f"{run.requested} was requested, but {run.active} ran")
        for run in runs
        if run.requested and run.active and run.requested != run.active
    )


def other_shapes(runs: Sequence[RankedRun]) -> tuple[Refusal, ...]:
    """Return those of `runs` (oldest first) whose model shape differs from that of newer runs."""
    outline: list[str] = []
    refused = []
    for run in reversed(runs):
        shape = run.facts.shape
        if any(expected and stated and expected != stated for expected, stated in zip(outline, shape, strict=False)):
            sentence = "its model has a different shape than the newest run's"
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


# --- Model family and hardware of a stack, each with its part of the address.

LONGEST_SLUG = 60


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are the same under different names. `slug`: its part of an address."""

    name: str
    slug: str


UNKNOWN_FAMILY = Family("unknown model", "unknown-model")
UNKNOWN_HARDWARE = Family("unknown GPU", "unknown-gpu")


def family_of(model: str | None, shape: Mapping[str, Value] | None = None) -> Family:
    """Return the family of a model by its name, else by its shape (contract values).

    A known name with a different shape, such as fewer layers, is a separate family.
    """
    shape = shape or {}
    if not model or not model.strip():
        recognised = recognise(shape)
        return _named(recognised.name) if recognised else UNKNOWN_FAMILY
    name = canonical_model(model.strip())
    reference = known_model(name)
    if reference is not None and differences(reference, shape):
        return _named(f"{name} (other shape)")
    return _named(name)


def hardware_of(gpu: str | None) -> Family:
    """Return the GPU's SKU as heading and address part."""
    return _named(gpu_sku(gpu) or gpu.strip()) if gpu and gpu.strip() else UNKNOWN_HARDWARE


def _named(name: str) -> Family:
    return Family(name, slug(name))


def slug(name: str) -> str:
    """Return lower-case ASCII words with hyphens: `Qwen3-30B-A3B` is `qwen3-30b-a3b`.

    Names with other scripts or too many characters end with eight hexadecimal digits of their hash, so that two
    families never share an address.
    """
    text = name.casefold()
    words = re.sub(r"[^a-z0-9]+", "-", text).strip("-")
    if text.isascii() and words and len(words) <= LONGEST_SLUG:
        return words
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{words[: LONGEST_SLUG - 9].strip('-')}-{digest}".strip("-")


# --- Size of expert parallelism, on which the useful dispatchers depend.

EpSize = Literal["small", "medium", "large", "unknown"]

SMALL_UP_TO = 8
"""One NVLink domain of an HGX board. The dispatcher is second-order here (Megatron-Bridge dispatcher card, 2026-07)."""
LARGE_FROM = 32
"""From here on the same card starts with a topology-aware backend."""


def ep_size(ep: int | None) -> EpSize:
    if ep is None:
        return "unknown"
    if ep <= SMALL_UP_TO:
        return "small"
    return "large" if ep >= LARGE_FROM else "medium"


def headroom_pct(gpu: str, peak_memory_gib: float | None) -> float | None:
    """Return the percentage of GPU memory that the run never allocated; None when unknown, at least 0."""
    size = GPU_MEMORY_GIB.get(gpu)
    if size is None or peak_memory_gib is None:
        return None
    return max(0.0, 100 * (1 - peak_memory_gib / size))

"""Facts that the rules take from a profile. None where the profile cannot tell."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.profiles.budget import Blocking, Budget, Device
from app.domain.profiles.intervals import Coverage
from app.domain.profiles.kernels import (
    CLASSES,
    COLLECTIVE,
    COPY_PEER,
    EXPERT_COMMUNICATION,
    LOW_PRECISION,
    NUMBER,
    POINT_TO_POINT,
    TENSOR_PARALLEL,
    dispatcher_of,
)
from app.domain.profiles.ranks import Ranks
from app.domain.profiles.steps import ProfiledSteps

MAX_UNRESOLVED = 0.10
"""Above this share of the compute-absent time without a known launch, starvation is not reported. Our choice."""
HIDDEN_PROOF = 0.01

Fact = float | int | bool | str | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """One measured device: its steps, the whole span as one window, and the windows behind the facts."""

    device: Device
    steps: ProfiledSteps
    whole: Budget
    budgets: tuple[Budget, ...]
    blocking: Blocking | None = None
    """None where the trace records no dependencies."""

    @property
    def windows(self) -> tuple[Budget, ...]:
        """Return the regular steps, or the whole span without any."""
        return tuple(budget for budget in self.budgets if budget.is_regular) or (self.whole,)


def facts_of(analysis: Analysis, ranks: Ranks | None = None, rank: int | None = None) -> dict[str, Fact]:
    """Return the facts of docs/profiles.md; `ranks` when several were captured, `rank` when only one was."""
    windows = analysis.windows
    has_graphs = any(budget.has_whole_graphs for budget in windows)
    facts: dict[str, Fact] = {
        "exposed_comm_frac": None if has_graphs else _share(windows, [b.exposed_comm for b in windows]),
        "comm_hidden_frac": None if has_graphs else _hidden(windows),
        **({} if has_graphs else _exposed_by_class(analysis.device, windows)),
        "gpu_idle_frac": _share(windows, [b.idle for b in windows]),
        "launch_starved_frac": _share(windows, [b.idle_reasons["launch_starved"] for b in windows])
        if _is_resolved(windows)
        else None,
        "exposed_copy_frac": _share(windows, [b.exposed_copy for b in windows]),
        "host_sync_frac": _share(windows, [b.idle_reasons["host_sync"] for b in windows])
        if _is_resolved(windows)
        else None,
        "dispatcher_share": None if has_graphs else _share(windows, [b.dispatcher for b in windows]),
        "expert_gemm_share": None
        if has_graphs
        else _share(windows, [budget.by_class.get("gemm.grouped", 0) for budget in windows]),
        "profiled_step_s": _profiled_step(analysis),
        "profile_rank": rank if ranks is None else None,
        "budget_residual_ms": max(budget.residual for budget in windows) / 1e6,
        "dependency_trace": analysis.blocking is not None and analysis.blocking.is_traced,
        "start_skew": None if ranks is None else ranks.start_skew,
        "stage_spread_frac": None,
        "exposed_wait_frac": None,
        "straggler_rank": None if ranks is None else ranks.straggler_rank,
        "straggler_frac": None if ranks is None else ranks.straggler_frac,
        "comm_sm_share": None if has_graphs else _hidden_sm_share(analysis.device, windows),
        "replay_proof": None,
        **_of_kernels(analysis, has_graphs=has_graphs),
    }
    if ranks is not None:
        waits = [row.exposed_wait_frac for row in ranks.ranks if row.rank == rank]
        facts["exposed_wait_frac"] = waits[0] if waits else None
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in facts.items()}


def _share(windows: Sequence[Budget], times: Sequence[int]) -> float:
    shares = [time / budget.window for budget, time in zip(windows, times, strict=True) if budget.window]
    return float(np.median(shares)) if shares else 0.0


def _exposed_by_class(device: Device, windows: Sequence[Budget]) -> dict[str, Fact]:
    """Return the exposed time of collectives, of point-to-point and of expert communication.

    Copies between GPUs may belong to either of the first two. The last is None if no kernel is known to be of experts.
    """
    trace = device.trace
    facts: dict[str, Fact] = {}
    for name, classes in _CLASSES_OF.items():
        which = np.isin(trace.class_by_use, [NUMBER[kernel_class] for kernel_class in classes])
        coverage = Coverage.of(trace.start[which], trace.end[which])
        exposed = [coverage.outside(device.compute, budget.first, budget.last) for budget in windows]
        facts[name] = _share(windows, exposed)
    if not (trace.class_by_use == NUMBER[EXPERT_COMMUNICATION]).any():
        facts["exposed_ep_frac"] = None
    return facts


_CLASSES_OF = {
    "exposed_collective_frac": (COLLECTIVE, TENSOR_PARALLEL, COPY_PEER),
    "exposed_p2p_frac": (POINT_TO_POINT, COPY_PEER),
    "exposed_ep_frac": (EXPERT_COMMUNICATION,),
}


def _hidden(windows: Sequence[Budget]) -> float | None:
    shares = [(budget.comm - budget.exposed_comm) / budget.comm for budget in windows if budget.comm]
    return float(np.median(shares)) if shares else None


def _is_resolved(windows: Sequence[Budget]) -> bool:
    absent = sum(budget.window - budget.compute for budget in windows)
    return sum(budget.reasons["unresolved"] for budget in windows) <= MAX_UNRESOLVED * absent


def _profiled_step(analysis: Analysis) -> float | None:
    lengths = [budget.host_ns for budget in analysis.budgets if budget.is_regular and budget.host_ns]
    return float(np.median(lengths)) / 1e9 if lengths else None


def _hidden_sm_share(device: Device, windows: Sequence[Budget]) -> float | None:
    """Return the share of the SMs that communication occupies while computation runs at the same time."""
    trace = device.trace
    if not trace.sms:
        return None
    communication = np.array([name.startswith("comm.") for name in CLASSES], np.bool_)
    uses = np.flatnonzero(communication[trace.class_by_use] & (trace.blocks > 0))
    first, last = windows[0].first, windows[-1].last
    uses = uses[(trace.start[uses] >= first) & (trace.start[uses] < last)]
    hidden = device.compute.between(trace.start[uses], trace.end[uses])
    total = int(hidden.sum())
    if not total:
        return None
    return float((hidden * np.minimum(trace.blocks[uses], trace.sms) / trace.sms).sum()) / total


def _of_kernels(analysis: Analysis, *, has_graphs: bool) -> dict[str, Fact]:
    trace, device = analysis.device.trace, analysis.device
    names = {int(name): trace.names[name] for name in np.unique(trace.name)}
    classes = {name: CLASSES[trace.class_by_use[trace.name == name][0]] for name in names}
    libraries = {
        dispatcher
        for name, text in names.items()
        if classes[name] == EXPERT_COMMUNICATION and (dispatcher := dispatcher_of(text))
    }
    expert = trace.class_by_use == NUMBER[EXPERT_COMMUNICATION]
    facts: dict[str, Fact] = {"overlap_proof": None, "precision_proof": None, "resolved_dispatcher": None}
    if has_graphs:
        return {**facts, "backend_proof": None}
    facts["precision_proof"] = any(
        classes[name].startswith("gemm") and LOW_PRECISION.search(text) is not None for name, text in names.items()
    )
    if expert.any():
        coverage = Coverage.of(trace.start[expert], trace.end[expert])
        first, last = analysis.windows[0].first, analysis.windows[-1].last
        time = int(coverage.between(first, last))
        hidden = time - coverage.outside(device.compute, first, last)
        facts["overlap_proof"] = hidden > HIDDEN_PROOF * time
        facts["resolved_dispatcher"] = libraries.pop() if len(libraries) == 1 else None if libraries else "alltoall"
    return {**facts, "backend_proof": True if facts["resolved_dispatcher"] else None}

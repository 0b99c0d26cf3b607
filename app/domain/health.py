"""How a run ended and whether its numbers stayed finite, each with the line that shows it."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from app.domain.run import FloatArray, LogEvent, ParsedLog

Outcome = str
"""completed, truncated, failed, out_of_memory, not_finite or stopped."""

BYTES_PER_GIB = 2**30

_FATAL: dict[str, Outcome] = {
    "out_of_memory": "out_of_memory",
    "not_finite": "not_finite",
    "deepep_missing": "failed",
    "hybridep_missing": "failed",
    "ncclep_missing": "failed",
    "dispatcher_refused": "failed",
    "deepep_timeout": "failed",
    "nccl_timeout": "failed",
    "nccl_error": "failed",
    "error": "failed",
    "exit_code": "failed",
    "process_failed": "failed",
}
"""Most telling first: a rank that runs out of memory makes others report NCCL errors and torchrun a failed process."""

_ENDS: dict[str, Outcome] = {
    "training_done": "completed",
    "exit_iteration": "completed",
    "exit_duration": "stopped",
    "exit_signal": "stopped",
}
_EXIT_CODE = re.compile(r"exitcode\s*: (-?\d+)")
_FOLLOWERS = ("0", "-15")
"""Exit codes of processes that ended well, or were ended (SIGTERM) because another one had failed."""
_STOPPED_BY_SCHEDULER = ("TIME LIMIT", "PREEMPTION", "SIGTERM", "Terminated")
_LOSSES = ("lm_loss", "loss", "reduced_train_loss")


def read_health(log: ParsedLog) -> dict[str, object]:
    """Outcome with its evidence, losses, skipped and NaN iterations, gradient norm, memory. None: not printed."""
    outcome, evidence = outcome_of(log)
    loss = _loss(log)
    lost = _lost_losses(log, loss)
    return {
        "outcome": outcome,
        "evidence": evidence.text if isinstance(evidence, LogEvent) else evidence,
        "evidence_line": evidence.line if isinstance(evidence, LogEvent) else None,
        "iterations": log.n,
        "last_iteration": int(log.columns["iteration"][-1]) if log.n else None,
        "total_iterations": log.total_iterations,
        "restarts": max(len(log.segment_starts) - 1, 0),
        "loss_finite": None if lost is None else not bool(lost.any()),
        "first_loss": _first(loss),
        "last_loss": _last(loss),
        "skipped_iterations": _total(log.columns, "skipped_iterations"),
        "nan_iterations": _total(log.columns, "nan_iterations"),
        "last_grad_norm": _last(log.columns.get("grad_norm")),
        "largest_grad_norm": _largest(log.columns.get("grad_norm")),
        "peak_allocated_gib": _gib([report.max_allocated_bytes for report in log.memory]),
        "peak_reserved_gib": _gib([report.max_reserved_bytes for report in log.memory]),
        "alloc_retries": max((r.alloc_retries for r in log.memory if r.alloc_retries is not None), default=None),
    }


def outcome_of(log: ParsedLog) -> tuple[Outcome, LogEvent | str]:
    """How the run ended, and the event that says so, or a sentence where none does."""
    fatal = fatal_event(log)
    if fatal is not None:
        return _FATAL[fatal.kind], fatal
    if log.n == 0:
        return "failed", "No iteration line was read."
    if _ends_without_loss(log):
        return "not_finite", "The last iterations print no finite loss."
    return _ending(log)


def _ending(log: ParsedLog) -> tuple[Outcome, LogEvent | str]:
    """The end of a run whose iterations were fine: the trainer's word, the plan, the scheduler's word, or none."""
    last = int(log.columns["iteration"][-1])
    ends = [event for event in log.events if event.kind in _ENDS and event.line > _last_start(log)]
    stops = [event for event in ends if _ENDS[event.kind] == "stopped"]
    if stops and not _reached_the_end(log):  # a trainer that stops at its time limit also says that training is done
        return "stopped", stops[0]
    if ends:
        return "completed", ends[-1]
    if _reached_the_end(log):
        return "completed", f"The last planned iteration, {last}, was printed."
    scheduler = next((event for event in reversed(log.events) if event.kind == "scheduler"), None)
    if scheduler is not None:
        stopped = any(word in scheduler.text for word in _STOPPED_BY_SCHEDULER)
        return "stopped" if stopped else "failed", scheduler
    planned = f" of {log.total_iterations}" if log.total_iterations else ""
    return "truncated", f"The log ends after iteration {last}{planned} without saying that training ended."


def fatal_event(log: ParsedLog) -> LogEvent | None:
    """The most telling failure that ended the run; None when training went on, or had ended well, all the same."""
    start = _last_start(log)
    if any(event.kind == "training_done" and event.line > start for event in log.events):
        return None
    events = [event for event in log.events if event.line > start and _ends_a_run(event, log)]
    return min(events, key=lambda event: (list(_FATAL).index(event.kind), event.line), default=None)


def _ends_a_run(event: LogEvent, log: ParsedLog) -> bool:
    """Exceptions that iterations follow were caught; one after the last planned iteration came on the way out."""
    if event.kind not in _FATAL:
        return False
    if event.kind == "exit_code":
        code = _EXIT_CODE.search(event.text)
        return code is not None and code[1] not in _FOLLOWERS and not _reached_the_end(log)
    if event.kind == "error" and log.n:
        return event.line > int(log.line_numbers[-1]) and not _reached_the_end(log)
    return True


def _last_start(log: ParsedLog) -> int:
    """The line from which on failures count: the last start of a process, or the first iteration it printed."""
    starts = [event.line for event in log.events if event.kind == "training_started"]
    starts += [int(log.line_numbers[start]) for start in (log.segment_starts or (0,)) if log.n]
    return max(starts, default=0)


def _reached_the_end(log: ParsedLog) -> bool:
    if log.n == 0 or log.total_iterations is None:
        return False
    return bool(log.columns["iteration"][-1] >= log.total_iterations)


def _loss(log: ParsedLog) -> FloatArray | None:
    return next((log.columns[name] for name in _LOSSES if name in log.columns), None)


def _lost_losses(log: ParsedLog, loss: FloatArray | None) -> npt.NDArray[np.bool_] | None:
    """Rows whose loss is not finite though the step was made; None when the log prints neither loss nor gradient norm.

    Megatron-LM leaves a NaN loss out of the line, so a missing loss counts, too; not that of a line that was cut, nor
    that of a skipped step.
    """
    norm = log.columns.get("grad_norm")
    if log.n == 0 or (loss is None and norm is None):
        return None
    values = loss if loss is not None else norm
    assert values is not None  # noqa: S101  (one of the two is there)
    lost = ~np.isfinite(values)
    skipped = log.columns.get("skipped_iterations")
    if skipped is not None:
        lost &= ~(skipped > 0)
    if log.truncated:
        lost[-1] = False
    return lost


def _ends_without_loss(log: ParsedLog) -> bool:
    lost = _lost_losses(log, _loss(log))
    if lost is None:
        return False
    complete = lost[:-1] if log.truncated else lost
    return bool(len(complete) and complete[-1])


def _finite(values: FloatArray | None) -> FloatArray:
    return np.empty(0) if values is None else values[np.isfinite(values)]


def _first(values: FloatArray | None) -> float | None:
    finite = _finite(values)
    return float(finite[0]) if len(finite) else None


def _last(values: FloatArray | None) -> float | None:
    finite = _finite(values)
    return float(finite[-1]) if len(finite) else None


def _largest(values: FloatArray | None) -> float | None:
    finite = _finite(values)
    return float(finite.max()) if len(finite) else None


def _total(columns: Mapping[str, FloatArray], name: str) -> int | None:
    finite = _finite(columns.get(name))
    return int(finite.sum()) if len(finite) else None


def _gib(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) / BYTES_PER_GIB if known else None

"""How a run ended and whether its numbers stayed finite, each with the line that shows it."""

import math
from collections.abc import Sequence

import numpy as np

from app.domain.contract.values import MAX_WHOLE
from app.domain.ending import counts_of, loss_of, lost_losses, outcome_of
from app.domain.run import FloatArray, LogEvent, ParsedLog

BYTES_PER_GIB = 2**30


def read_health(log: ParsedLog) -> dict[str, object]:
    """Outcome with its evidence, losses, skipped and NaN iterations, gradient norm, memory. None: not printed."""
    outcome, evidence = outcome_of(log)
    loss, lost = loss_of(log), lost_losses(log)
    return {
        "outcome": outcome,
        "evidence": evidence.text if isinstance(evidence, LogEvent) else evidence,
        "evidence_line": evidence.line if isinstance(evidence, LogEvent) else None,
        "evidence_file": evidence.file if isinstance(evidence, LogEvent) else None,
        "iterations": log.n,
        "last_iteration": _last_iteration(log.columns["iteration"]),
        "total_iterations": log.total_iterations,
        "restarts": max(len(log.segment_starts) - 1, 0),
        "loss_finite": None if lost is None else not bool(lost.any()),
        "first_loss": _first(loss),
        "last_loss": _last(loss),
        "skipped_iterations": _total(counts_of(log, "skipped_iterations")),
        "nan_iterations": _total(counts_of(log, "nan_iterations")),
        "last_grad_norm": _last(log.columns.get("grad_norm")),
        "largest_grad_norm": _largest(log.columns.get("grad_norm")),
        "peak_allocated_gib": _gib([report.max_allocated_bytes for report in log.memory]),
        "peak_reserved_gib": _gib([report.max_reserved_bytes for report in log.memory]),
        "alloc_retries": max((r.alloc_retries for r in log.memory if r.alloc_retries is not None), default=None),
    }


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


def _total(counts: FloatArray | None) -> int | None:
    """A sum of counts; None when no line prints a possible one, or when no job could count so far."""
    possible = _finite(counts)
    return int(total) if len(possible) and (total := possible.sum()) <= MAX_WHOLE else None


def _last_iteration(iterations: FloatArray) -> int | None:
    """The last number that can be one."""
    possible = iterations[np.abs(iterations) <= MAX_WHOLE]
    return int(possible[-1]) if len(possible) else None


def _gib(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return max(known) / BYTES_PER_GIB if known else None

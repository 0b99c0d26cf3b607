"""Health as the run page shows it: how the job ended and who says so, the loss, what was skipped, memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.web.numbers import THIN, counted, grouped, significant
from app.web.outcomes import OUTCOMES


@dataclass(frozen=True, slots=True)
class HealthRow:
    """`text` is None when the log does not say. `line` of log file `file` shows it, None when no line does."""

    label: str
    text: str | None
    line: int | None = None
    file: int = 0


def health_rows(health: Mapping[str, Any]) -> tuple[HealthRow, ...]:
    """In the order in which an engineer asks: did it end well, did it learn, what did it cost."""
    outcome = health.get("outcome")
    return (
        HealthRow("Ended", OUTCOMES.get(str(outcome), outcome)),
        HealthRow("Seen in", health.get("evidence"), health.get("evidence_line"), health.get("evidence_file") or 0),
        HealthRow("Iterations", _iterations(health)),
        HealthRow("Loss", _loss(health)),
        HealthRow("Skipped", _count(health, "skipped_iterations")),
        HealthRow("NaN", _count(health, "nan_iterations")),
        HealthRow("Gradient norm", _gradient(health)),
        HealthRow("Memory", _memory(health)),
    )


def _iterations(health: Mapping[str, Any]) -> str | None:
    read = health.get("iterations")
    if read is None:
        return None
    planned = f", the last is {health['last_iteration']:,}" if health.get("last_iteration") is not None else ""
    planned += f" of {health['total_iterations']:,}" if planned and health.get("total_iterations") else ""
    restarts = health.get("restarts") or 0
    return f"{read:,} read{planned}" + (f"; {counted(restarts, 'restart')}" if restarts else "")


def _loss(health: Mapping[str, Any]) -> str | None:
    first, last, finite = health.get("first_loss"), health.get("last_loss"), health.get("loss_finite")
    if finite is None and last is None:
        return None
    words = {True: "finite throughout", False: "not finite in some iterations", None: ""}[finite]
    if first is None or last is None:
        return words or None
    return ", ".join(filter(None, (f"{significant(first)} to {significant(last)}", words)))


def _count(health: Mapping[str, Any], name: str) -> str | None:
    value = health.get(name)
    return None if value is None else counted(value, "iteration")


def _gradient(health: Mapping[str, Any]) -> str | None:
    last, largest = health.get("last_grad_norm"), health.get("largest_grad_norm")
    return None if last is None or largest is None else f"last {significant(last)}, largest {significant(largest)}"


def _memory(health: Mapping[str, Any]) -> str | None:
    parts = [
        f"{grouped(health[name], 1)}{THIN}GiB {word}"
        for name, word in (("peak_allocated_gib", "allocated"), ("peak_reserved_gib", "reserved"))
        if health.get(name) is not None
    ]
    if health.get("alloc_retries") is not None:
        parts.append(counted(health["alloc_retries"], "allocation retry", "allocation retries"))
    return ", ".join(parts) or None

"""How a run ended and whether its numbers stayed finite, each with the line that shows it."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from app.domain.contract.values import MAX_WHOLE
from app.domain.logs.steps import STATE_NO_END
from app.domain.performance.failures import FROM_OUTSIDE, KINDS, Outcome, detail_of, failure_kind
from app.domain.run import (
    UNKNOWN_STEP,
    Failure,
    FloatArray,
    LogEvent,
    LogEvidence,
    ParsedLog,
    events_of_earlier_processes,
    events_of_last_process,
    is_after_last_iteration,
    last_row_before,
)

# --- How a run ended, and the line that says so.

_ENDS: dict[str, Outcome] = {
    "training_done": "completed",
    "exit_iteration": "completed",
    "exit_duration": "stopped",
    "exit_signal": "stopped",
}
_ORDER = {kind: place for place, kind in enumerate(KINDS)}
_REPORTS = frozenset({"error", "exit_code", "process_failed", "scheduler"})
"""Events that indicate an end only if training had stopped unfinished."""
LOSS_NAMES = ("lm_loss", "loss", "reduced_train_loss")


def outcome_of(log: ParsedLog) -> tuple[Outcome, LogEvent | str]:
    """Return how the run ended, and the event that shows it, or a sentence without one."""
    fatal = fatal_event(log)
    if fatal is not None:
        return KINDS[failure_kind(fatal) or "exception"].outcome or "failed", fatal
    if is_unread(log):
        return "unread", "The log format is unknown."
    if log.n == 0:
        return "failed", "No iteration line was read."
    if _ends_without_loss(log):
        return "not_finite", "The last iterations print no finite loss."
    return _ending(log)


def _ending(log: ParsedLog) -> tuple[Outcome, LogEvent | str]:
    """Return the end of a run whose iterations were fine: as the trainer or the plan states it, or unknown."""
    last = int(log.columns["iteration"][-1])
    ends = [event for event in events_of_last_process(log) if event.kind in _ENDS]
    stops = [event for event in ends if _ENDS[event.kind] == "stopped"]
    if stops and not reached_the_end(log):  # a trainer that stops at its time limit also prints that training is done
        return "stopped", stops[0]
    if ends:
        return "completed", ends[-1]
    if reached_the_end(log):
        return "completed", f"The last planned iteration, {last}, was printed."
    if log.line_count == 0:
        return "", f"Without a log, the documents do not show how the run ended after iteration {last}."
    if log.total_iterations is None and log.trainer in STATE_NO_END and not log.truncated:
        return "", f"Logs of this trainer ({log.trainer}) do not state how a run ended; the last iteration is {last}."
    planned = f" of {log.total_iterations}" if log.total_iterations else ""
    return "truncated", f"The log ends after iteration {last}{planned} without a line that ends training."


def fatal_event(log: ParsedLog) -> LogEvent | None:
    """Return the most specific failure that ended the run; None when training continued or ended well."""
    events = [event for event in events_of_last_process(log) if not _steps_follow(event, log)]
    if any(event.kind == "training_done" for event in events):
        return None
    return root_of([event for event in events if ends_a_run(event, log)])


def is_unread(log: ParsedLog) -> bool:
    """Return whether no iteration, trainer or failure was found, which says nothing about how the job went."""
    return log.n == 0 and not log.trainer and fatal_event(log) is None


def _steps_follow(event: LogEvent, log: ParsedLog) -> bool:
    """Return whether an unknown trainer went on after the event: it was caught."""
    lines = (
        example.line for example in log.not_understood if example.kind == UNKNOWN_STEP and example.file == event.file
    )
    return any(line > event.line for line in lines)


def root_of(events: Sequence[LogEvent]) -> LogEvent | None:
    """Return the cause among the failures of one process: an external stop that came first, else by kind."""
    failures = [(kind, event) for event in events if (kind := failure_kind(event)) is not None]
    if not failures:
        return None
    kind, first = min(failures, key=lambda pair: (pair[1].file, pair[1].line))
    if kind in FROM_OUTSIDE:
        return first
    # A specific kind says more than torchrun's exit code, and the exit code more than its headline.
    return min(failures, key=lambda pair: (_ORDER[pair[0]], pair[1].kind == "process_failed", pair[1].line))[1]


def ends_a_run(event: LogEvent, log: ParsedLog) -> bool:
    """Return whether an event ended the run.

    An exception followed by iterations was caught; one after the last planned iteration came during shutdown.
    """
    if event.kind in _ENDS or failure_kind(event) is None:
        return False
    if event.kind in ("error", "scheduler") and log.n and not is_after_last_iteration(event, log):
        return False
    return event.kind not in _REPORTS - {"process_failed"} or not reached_the_end(log)


def reached_the_end(log: ParsedLog) -> bool:
    """Return whether the last planned iteration was printed."""
    if log.n == 0 or log.total_iterations is None:
        return False
    return bool(log.columns["iteration"][-1] >= log.total_iterations)


def loss_of(log: ParsedLog) -> FloatArray | None:
    """Return the column of the training loss under any trainer's name."""
    return next((log.columns[name] for name in LOSS_NAMES if name in log.columns), None)


def counts_of(log: ParsedLog, name: str) -> FloatArray | None:
    """Return a column of counts, NaN where a damaged line prints an impossible one; None when it is not printed."""
    printed = log.columns.get(name)
    return None if printed is None else np.where((printed >= 0) & (printed <= MAX_WHOLE), printed, np.nan)


def lost_losses(log: ParsedLog) -> npt.NDArray[np.bool_] | None:
    """Return rows whose loss is not finite although the step was made; None without loss and gradient norm.

    Megatron-LM omits a NaN loss from the line, so a missing loss counts too, except in truncated lines and skipped
    steps.
    """
    loss, norm = loss_of(log), log.columns.get("grad_norm")
    values = loss if loss is not None else norm
    if log.n == 0 or values is None:
        return None
    # A document omits values that were not recorded: only infinity is a lost loss there.
    lost = ~np.isfinite(values) if log.line_count else np.isinf(values)
    skipped = counts_of(log, "skipped_iterations")
    if skipped is not None:
        lost &= ~(skipped > 0)
    if log.truncated:
        lost[-1] = False
    return lost


def _ends_without_loss(log: ParsedLog) -> bool:
    lost = lost_losses(log)
    if lost is None:
        return False
    complete = lost[:-1] if log.truncated else lost
    return bool(len(complete) and complete[-1])


BYTES_PER_GIB = 2**30


def read_health(log: ParsedLog) -> dict[str, object]:
    """Return outcome with evidence, losses, skipped and NaN iterations, gradient norm, memory. None: not printed."""
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
    """Return the sum of counts; None when no line prints a plausible one, or when no process could count yet."""
    possible = _finite(counts)
    return int(total) if len(possible) and (total := possible.sum()) <= MAX_WHOLE else None


def _last_iteration(iterations: FloatArray) -> int | None:
    """Return the last plausible number."""
    possible = iterations[np.abs(iterations) <= MAX_WHOLE]
    return int(possible[-1]) if len(possible) else None


def _gib(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return max(finite) / BYTES_PER_GIB if finite else None


# --- From the events and columns of a log to failures with advice.

MAX_EVIDENCE = 8
MAX_FAILURES = 20
"""A job restarted a hundred times shows its last ends; health shows the number of restarts."""

_SURVIVED = frozenset({"error", "scheduler", "exit_code"})
"""Events of an earlier process that are meaningful only next to a specific failure."""


def explain_failures(log: ParsedLog) -> tuple[Failure, ...]:
    """Return all failures: how the run ended, what it survived, then ends of earlier processes, last first."""
    failures = [*_end(log), *_values(log), *_crash_loops(log), *_earlier(log)]
    return tuple(failures[:MAX_FAILURES])


def _end(log: ParsedLog) -> Iterator[Failure]:
    """Yield how the last process ended, unless it ended well."""
    outcome, evidence = outcome_of(log)
    if isinstance(evidence, LogEvent):
        if failure_kind(evidence) is not None and outcome != "completed":
            yield _from_events(evidence, [e for e in events_of_last_process(log) if ends_a_run(e, log)], log)
    elif outcome == "truncated" and not reached_the_end(log):
        planned = f" of {log.total_iterations}" if log.total_iterations else ""
        last = f"The last iteration is {log.columns['iteration'][-1]:.0f}{planned}."
        yield _from_rows("truncated", log, np.array([log.n - 1]), f"{KINDS['truncated'].explanation} {last}")


def _from_events(root: LogEvent, chain: Iterable[LogEvent], log: ParsedLog, *, earlier: bool = False) -> Failure:
    """Return one failure of a chain: the root's own lines, then one line of each kind that followed from it."""
    kind = failure_kind(root) or "exception"
    same = [event for event in chain if failure_kind(event) == kind and event != root]
    others = {event.kind: event for event in reversed(list(chain)) if failure_kind(event) != kind}
    lines = [root, *same[: MAX_EVIDENCE // 2], *sorted(others.values(), key=lambda event: (event.file, event.line))]
    explanation = " ".join((KINDS[kind].explanation, *detail_of(kind, [root, *same])))
    return Failure(
        kind=kind,
        title=KINDS[kind].title,
        explanation=f"Before a restart: {explanation}" if earlier else explanation,
        advice=KINDS[kind].advice,
        iteration=root.iteration if root.iteration is not None else _iteration_before(root, log),
        rank=root.rank,
        evidence=tuple(LogEvidence(event.file, event.line, event.text) for event in lines[:MAX_EVIDENCE]),
    )


def _iteration_before(event: LogEvent, log: ParsedLog) -> int | None:
    """Return the last iteration printed before the event: in its own file, else in any."""
    row = last_row_before(event, log)
    if row is None and log.n and "log_file" in log.columns and event in events_of_last_process(log):
        row = log.n - 1
    return None if row is None else int(log.columns["iteration"][row])


def _from_rows(kind: str, log: ParsedLog, rows: npt.NDArray[np.intp], explanation: str) -> Failure:
    """Return a failure shown by iteration lines: the first of them are the evidence."""
    files = log.columns.get("log_file")
    return Failure(
        kind=kind,
        title=KINDS[kind].title,
        explanation=explanation,
        advice=KINDS[kind].advice,
        iteration=int(log.columns["iteration"][rows[0]]),
        evidence=tuple(
            LogEvidence(0 if files is None else int(files[row]), int(log.line_numbers[row]), _shown(log, int(row)))
            for row in rows[:MAX_EVIDENCE]
        ),
    )


def _shown(log: ParsedLog, row: int) -> str:
    """Return the values of an iteration line that matter for a failure."""
    parts = [f"iteration {log.columns['iteration'][row]:.0f}"]
    for name in ("lm_loss", "loss", "grad_norm", "loss_scale", "skipped_iterations", "nan_iterations"):
        if name in log.columns:
            value = log.columns[name][row]
            parts.append(f"{name} {'not a number' if np.isnan(value) else f'{value:g}'}")
    return ", ".join(parts)


def _values(log: ParsedLog) -> Iterator[Failure]:
    """Yield failures for lost losses and skipped steps."""
    lost = lost_losses(log)
    if lost is not None and lost.any():
        rows = np.flatnonzero(lost)
        text = f"{KINDS['loss_not_finite'].explanation} {_share(rows, log)}"
        yield _from_rows("loss_not_finite", log, rows, text)
    for kind in ("skipped_iterations", "nan_iterations"):
        counts = counts_of(log, kind)
        rows = np.flatnonzero(counts > 0) if counts is not None else np.empty(0, np.intp)
        if counts is not None and len(rows):
            text = f"{KINDS[kind].explanation} {_share(rows, log, counts)}"
            yield _from_rows(kind, log, rows, text)


def _share(rows: npt.NDArray[np.intp], log: ParsedLog, counts: FloatArray | None = None) -> str:
    iterations = log.columns["iteration"]
    n = len(rows) if counts is None else int(counts[rows].sum())
    first, last = int(iterations[rows[0]]), int(iterations[rows[-1]])
    where = f"at iteration {first}" if first == last else f"between iterations {first} and {last}"
    return f"Here: {n} {where}."


def _crash_loops(log: ParsedLog) -> Iterator[Failure]:
    kind = KINDS["crash_loop"]
    for problem in log.problems:
        if problem.kind == "crash loop":
            evidence = LogEvidence(problem.file, problem.line, "the last of these starts")
            yield Failure("crash_loop", kind.title, problem.message, kind.advice, evidence=(evidence,))


def _earlier(log: ParsedLog) -> Iterator[Failure]:
    """Yield how processes ended that a restart replaced; an exception alone may have been caught."""
    for events in reversed(list(events_of_earlier_processes(log))):
        chain: Sequence[LogEvent] = [event for event in events if failure_kind(event) is not None]
        if any(event.kind not in _SURVIVED for event in chain) and (root := root_of(chain)) is not None:
            yield _from_events(root, chain, log, earlier=True)

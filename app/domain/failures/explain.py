"""From the events and columns of a log to failures that a person can act on."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from app.domain.ending import counts_of, ends_a_run, lost_losses, outcome_of, reached_the_end, root_of
from app.domain.failures.classify import failure_kind
from app.domain.failures.details import detail_of
from app.domain.failures.kinds import KINDS
from app.domain.processes import events_of_earlier_processes, events_of_last_process, last_row_before
from app.domain.run import Evidence, Failure, FloatArray, LogEvent, ParsedLog

MAX_EVIDENCE = 8
MAX_FAILURES = 20
"""A job that was restarted a hundred times shows its last ends; health tells how many restarts there were."""

_SURVIVED = frozenset({"error", "scheduler", "exit_code"})
"""Events of an earlier process that mean something only beside a failure that is known by name."""


def explain_failures(log: ParsedLog) -> tuple[Failure, ...]:
    """All failures: how the run ended, then what it survived, then how earlier processes of it ended, last first."""
    found = [*_end(log), *_values(log), *_crash_loops(log), *_earlier(log)]
    return tuple(found[:MAX_FAILURES])


def _end(log: ParsedLog) -> Iterator[Failure]:
    """How the last process ended, unless it ended well."""
    outcome, evidence = outcome_of(log)
    if isinstance(evidence, LogEvent):
        if failure_kind(evidence) is not None and outcome != "completed":
            yield _from_events(evidence, [e for e in events_of_last_process(log) if ends_a_run(e, log)], log)
    elif outcome == "truncated" and not reached_the_end(log):
        planned = f" of {log.total_iterations}" if log.total_iterations else ""
        last = f"The last iteration is {log.columns['iteration'][-1]:.0f}{planned}."
        yield _from_rows("truncated", log, np.array([log.n - 1]), f"{KINDS['truncated'].explanation} {last}")


def _from_events(root: LogEvent, chain: Iterable[LogEvent], log: ParsedLog, *, earlier: bool = False) -> Failure:
    """One failure of a chain: the root's own lines first, then one line of every other kind that followed from it."""
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
        evidence=tuple(Evidence(event.file, event.line, event.text) for event in lines[:MAX_EVIDENCE]),
    )


def _iteration_before(event: LogEvent, log: ParsedLog) -> int | None:
    """The last iteration printed before the event: by its own file, else by any."""
    row = last_row_before(event, log)
    if row is None and log.n and "log_file" in log.columns and event in events_of_last_process(log):
        row = log.n - 1
    return None if row is None else int(log.columns["iteration"][row])


def _from_rows(kind: str, log: ParsedLog, rows: npt.NDArray[np.intp], explanation: str) -> Failure:
    """A failure that iteration lines show: the first of them are the evidence."""
    files = log.columns.get("log_file")
    return Failure(
        kind=kind,
        title=KINDS[kind].title,
        explanation=explanation,
        advice=KINDS[kind].advice,
        iteration=int(log.columns["iteration"][rows[0]]),
        evidence=tuple(
            Evidence(0 if files is None else int(files[row]), int(log.line_numbers[row]), _shown(log, int(row)))
            for row in rows[:MAX_EVIDENCE]
        ),
    )


def _shown(log: ParsedLog, row: int) -> str:
    """What was read of an iteration line that matters to a failure."""
    parts = [f"iteration {log.columns['iteration'][row]:.0f}"]
    for name in ("lm_loss", "loss", "grad_norm", "loss_scale", "skipped_iterations", "nan_iterations"):
        if name in log.columns:
            value = log.columns[name][row]
            parts.append(f"{name} {'not a number' if np.isnan(value) else f'{value:g}'}")
    return ", ".join(parts)


def _values(log: ParsedLog) -> Iterator[Failure]:
    """Losses that were lost, and steps that were skipped."""
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
            evidence = Evidence(problem.file, problem.line, "the last of these starts")
            yield Failure("crash_loop", kind.title, problem.message, kind.advice, evidence=(evidence,))


def _earlier(log: ParsedLog) -> Iterator[Failure]:
    """How processes ended that a restart replaced; an exception alone may have been caught."""
    for events in reversed(list(events_of_earlier_processes(log))):
        chain: Sequence[LogEvent] = [event for event in events if failure_kind(event) is not None]
        if any(event.kind not in _SURVIVED for event in chain) and (root := root_of(chain)) is not None:
            yield _from_events(root, chain, log, earlier=True)

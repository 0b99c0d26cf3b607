"""How a run ended, and the line that says so."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.domain.contract.values import MAX_WHOLE
from app.domain.failures.classify import FROM_OUTSIDE, failure_kind
from app.domain.failures.kinds import KINDS, Outcome
from app.domain.processes import events_of_last_process, is_after_last_iteration
from app.domain.run import UNKNOWN_STEP, FloatArray, LogEvent, ParsedLog

_ENDS: dict[str, Outcome] = {
    "training_done": "completed",
    "exit_iteration": "completed",
    "exit_duration": "stopped",
    "exit_signal": "stopped",
}
_ORDER = {kind: place for place, kind in enumerate(KINDS)}
_REPORTS = frozenset({"error", "exit_code", "process_failed", "scheduler"})
"""Events that tell of an end only when training had stopped, and not when it was over."""
_LOSSES = ("lm_loss", "loss", "reduced_train_loss")


def outcome_of(log: ParsedLog) -> tuple[Outcome, LogEvent | str]:
    """How the run ended, and the event that says so, or a sentence where none does."""
    fatal = fatal_event(log)
    if fatal is not None:
        return KINDS[failure_kind(fatal) or "exception"].outcome or "failed", fatal
    if is_unread(log):
        return "unread", "No reader knows a line of this log."
    if log.n == 0:
        return "failed", "No iteration line was read."
    if _ends_without_loss(log):
        return "not_finite", "The last iterations print no finite loss."
    return _ending(log)


def _ending(log: ParsedLog) -> tuple[Outcome, LogEvent | str]:
    """The end of a run whose iterations were fine: the trainer's word, the plan, or none."""
    last = int(log.columns["iteration"][-1])
    ends = [event for event in events_of_last_process(log) if event.kind in _ENDS]
    stops = [event for event in ends if _ENDS[event.kind] == "stopped"]
    if stops and not reached_the_end(log):  # a trainer that stops at its time limit also says that training is done
        return "stopped", stops[0]
    if ends:
        return "completed", ends[-1]
    if reached_the_end(log):
        return "completed", f"The last planned iteration, {last}, was printed."
    if log.line_count == 0:
        return "", f"There is no log, and its documents do not tell how the run ended after iteration {last}."
    planned = f" of {log.total_iterations}" if log.total_iterations else ""
    return "truncated", f"The log ends after iteration {last}{planned} without saying that training ended."


def fatal_event(log: ParsedLog) -> LogEvent | None:
    """The most telling failure that ended the run; None when training went on, or had ended well, all the same."""
    events = [event for event in events_of_last_process(log) if not _steps_follow(event, log)]
    if any(event.kind == "training_done" for event in events):
        return None
    return root_of([event for event in events if ends_a_run(event, log)])


def is_unread(log: ParsedLog) -> bool:
    """Return whether the log is text of an unknown trainer, which says nothing about how the job went."""
    has_text = any(line.strip() for line in (*log.first_lines, *log.last_lines))
    return log.n == 0 and not log.trainer and has_text and fatal_event(log) is None


def _steps_follow(event: LogEvent, log: ParsedLog) -> bool:
    """Return whether an unknown trainer went on after the event: it was caught."""
    lines = (one.line for one in log.not_understood if one.kind == UNKNOWN_STEP and one.file == event.file)
    return any(line > event.line for line in lines)


def root_of(events: Sequence[LogEvent]) -> LogEvent | None:
    """The cause among the failures of one process: what ended the job from outside when it came first, else by kind."""
    known = [(kind, event) for event in events if (kind := failure_kind(event)) is not None]
    if not known:
        return None
    kind, first = min(known, key=lambda one: (one[1].file, one[1].line))
    if kind in FROM_OUTSIDE:
        return first
    # A kind that is known by name says more than torchrun's report of an exit code, and that more than its headline
    return min(known, key=lambda one: (_ORDER[one[0]], one[1].kind == "process_failed", one[1].line))[1]


def ends_a_run(event: LogEvent, log: ParsedLog) -> bool:
    """Exceptions that iterations follow were caught; one after the last planned iteration came on the way out."""
    if event.kind in _ENDS or failure_kind(event) is None:
        return False
    if event.kind in ("error", "scheduler") and log.n and not is_after_last_iteration(event, log):
        return False
    return event.kind not in _REPORTS - {"process_failed"} or not reached_the_end(log)


def reached_the_end(log: ParsedLog) -> bool:
    """True when the last planned iteration was printed."""
    if log.n == 0 or log.total_iterations is None:
        return False
    return bool(log.columns["iteration"][-1] >= log.total_iterations)


def loss_of(log: ParsedLog) -> FloatArray | None:
    """The column of the training loss, whatever the trainer calls it."""
    return next((log.columns[name] for name in _LOSSES if name in log.columns), None)


def counts_of(log: ParsedLog, name: str) -> FloatArray | None:
    """Return a column of counts, NaN where a damaged line prints an impossible one; None when it is not printed."""
    printed = log.columns.get(name)
    return None if printed is None else np.where((printed >= 0) & (printed <= MAX_WHOLE), printed, np.nan)


def lost_losses(log: ParsedLog) -> npt.NDArray[np.bool_] | None:
    """Rows whose loss is not finite though the step was made; None when the log prints neither loss nor gradient norm.

    Megatron-LM leaves a NaN loss out of the line, so a missing loss counts, too; not that of a line that was cut, nor
    that of a skipped step.
    """
    loss, norm = loss_of(log), log.columns.get("grad_norm")
    values = loss if loss is not None else norm
    if log.n == 0 or values is None:
        return None
    # A document leaves out what was not recorded at a step: only infinity is a lost loss there
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

"""Combine a log, its documents and the metadata into the results of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.domain.contract.fields import STACK_FIELDS
from app.domain.contract.resolve import Contract, resolve
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS
from app.domain.documents.document import Document
from app.domain.documents.slurm import ending_of
from app.domain.logs.arguments import launch_arguments
from app.domain.logs.read import KNOWN_FORMATS
from app.domain.logs.series import log_interval
from app.domain.numbers import plural
from app.domain.performance.figures import Figures
from app.domain.performance.health import (
    counts_of,
    explain_failures,
    fatal_event,
    is_unread,
    reached_the_end,
    read_health,
)
from app.domain.performance.steady_state import (
    MIN_VALUES,
    SHORT_WINDOW,
    left_out,
    profiled_iterations,
    steady_state,
)
from app.domain.performance.timers import read_timers, unfair_because
from app.domain.run import (
    UNREADABLE_DOCUMENT,
    Activity,
    DispatcherAvailability,
    FloatArray,
    LogEvent,
    LogEvidence,
    LogProblem,
    Metadata,
    ParsedLog,
    RunSummary,
    Stated,
    SteadyState,
    Value,
    events_of_last_process,
    evidence_level,
    semantic_class,
)
from app.domain.text import some_of

# --- Find which dispatchers work in a run's container, from failed imports and active use. Active use is proven by a
# log line or inferred from iterations; the evidence says which.

_MISSING = {"deepep_missing": "deepep", "hybridep_missing": "hybridep", "ncclep_missing": "ncclep"}
MAX_EVIDENCE = 3


def availability(
    log: ParsedLog, contract: Mapping[str, Stated], activities: Mapping[str, Activity]
) -> tuple[DispatcherAvailability, ...]:
    """Return one fact per dispatcher that the log shows; active use overrides an earlier failed import."""
    container = _container(contract)
    facts: dict[str, DispatcherAvailability] = {}
    last = events_of_last_process(log)
    for event in (*(event for event in log.events if event not in last), *last):
        if event.kind in _MISSING:
            name = _MISSING[event.kind]
            before = facts[name].evidence if name in facts else ()
            facts[name] = DispatcherAvailability(
                name, False, container, (*before, LogEvidence(event.file, event.line, event.text))[:MAX_EVIDENCE]
            )
    used = activities.get("dispatcher")
    active = used.active if used is not None else None
    if active is not None and isinstance(active.value, str) and log.n:
        facts[active.value] = DispatcherAvailability(active.value, True, container, _use(log, active))
    return tuple(facts.values())


def _container(contract: Mapping[str, Stated]) -> str | None:
    image = contract["container"].value if "container" in contract else None
    return image if isinstance(image, str) else None


def _use(log: ParsedLog, active: Stated) -> tuple[LogEvidence, ...]:
    """Return the first iteration that ran with the dispatcher."""
    files = log.columns.get("log_file")
    file, line = 0 if files is None else int(files[0]), int(log.line_numbers[0])
    inferred = active.source == "derived"
    return (LogEvidence(file, line, f"inferred: {active.detail}" if inferred else active.detail, inferred),)


# --- Adds the series of documents (TensorBoard, golden values) to those of a log, or uses them in place of a log.

_TRAINERS = {"golden values": "Megatron-LM", "bridge configuration": "Megatron-Bridge"}
"""Format of the documents."""


def with_documents(log: ParsedLog, documents: Sequence[Document]) -> ParsedLog:
    """Return `log` with the series that only documents have, by iteration.

    A log without iterations takes those of the first document. Printed columns are never replaced.
    """
    for document in documents:
        if "iteration" in document.columns and len(document.columns["iteration"]):
            log = _beside(log, document) if log.n else _instead(log, document)
        if (ending := ending_of(document)) and log.line_count and not reached_the_end(log):
            log = replace(log, events=(*log.events, _ended_by(ending, log)))
    problems = [
        LogProblem("document", f"{document.kind}: {text}") for document in documents for text in document.problems
    ]
    return replace(log, problems=(*log.problems, *problems)) if problems else log


def _ended_by(text: str, log: ParsedLog) -> LogEvent:
    """Return the end that the scheduler states, at the last line of the last log."""
    file = max(len(log.files) - 1, 0)
    last = max((event.line for event in log.events if event.file == file), default=0)
    line = log.line_count if len(log.files) < 2 else last
    if log.n and len(log.files) < 2:
        line = max(line, int(log.line_numbers[-1]) + 1)
    return LogEvent("scheduler", line, text, file=file)


def _instead(log: ParsedLog, document: Document) -> ParsedLog:
    """Use the document's series as the run's. It has no lines, so their numbers are 0."""
    iterations = document.columns["iteration"]
    total = document.facts.get("train_iters", "")
    return replace(
        log,
        trainer=log.trainer or _TRAINERS.get(document.kind, ""),
        columns=dict(document.columns),
        line_numbers=np.zeros(len(iterations), np.int64),
        segment_starts=(0, *(int(row) + 1 for row in np.flatnonzero(np.diff(iterations) <= 0))),
        total_iterations=log.total_iterations or (int(total) if total.isdigit() else None),
        log_interval=log.log_interval or log_interval(iterations),
    )


def _beside(log: ParsedLog, document: Document) -> ParsedLog:
    new = [name for name in document.columns if name not in log.columns]
    if not new:
        return log
    rows = _places(log.columns["iteration"], document.columns["iteration"])
    columns = dict(log.columns)
    for name in new:
        columns[name] = np.where(rows >= 0, document.columns[name][rows], np.nan)
    return replace(log, columns=columns)


def _places(wanted: FloatArray, iterations: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the row of the document for each iteration of the log, -1 without one."""
    order = np.argsort(iterations, kind="stable")
    at = np.minimum(np.searchsorted(iterations[order], wanted), len(order) - 1)
    return np.where(iterations[order][at] == wanted, order[at], -1)


MAX_PROBLEMS = 10
"""Remarks of the log reader that a run lists; the rest are counted."""

_UNITS = {
    "step_time_ms": "ms",
    "step_time_true_ms": "ms",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "tflops_per_gpu": "TFLOP/s/GPU",
    "peak_memory_bytes": "bytes",
    "energy_j_per_gpu": "J/GPU",
    "power_w_per_gpu": "W/GPU",
    "global_batch_size": "sequences",
    "consumed_samples": "sequences",
    "skipped_iterations": "iterations",
    "nan_iterations": "iterations",
}


def summarise(
    log: ParsedLog,
    metadata: Metadata,
    documents: Sequence[Document] = (),
    project_defaults: Mapping[str, Value] | None = None,
) -> RunSummary:
    """Return all displayed data of a processed run. `error` is set when nothing holds an iteration.

    `documents` add contract fields and series; `project_defaults` (raw values by contract field) fill what no source
    states.
    """
    log = with_documents(log, documents)
    contract = resolve(log, metadata, documents, project_defaults)
    steady = _steady(log, metadata)
    figures = Figures(log, contract.fields, steady)
    health = read_health(log)
    unfair = unfair_because(log)
    error = None if log.n else no_iterations(log)
    warnings = [*metadata.warnings, *contract.warnings]
    if error is None:
        warnings += [*left_out(log), *_window_warnings(log, steady), *([unfair] if unfair else []), *figures.warnings]
    if not is_unread(log):
        warnings += _unknown_warning(contract)
    warnings += _problems(log)
    return RunSummary(
        error=error,
        trainer=log.trainer,
        contract=contract.fields,
        unknown=contract.unknown,
        warnings=tuple(dict.fromkeys(warnings)),
        stack_key=contract.stack_key,
        config_key=contract.config_key,
        provisional=contract.provisional,
        steady_state=steady,
        metrics=figures.metrics,
        health=health,
        evidence_level=evidence_level(steady, health, fair_for_timing=unfair is None),
        semantic_class=semantic_class(contract.fields),
        series=log.columns,
        units={name: unit for name in log.columns if (unit := "ms" if name.startswith("timer_") else _UNITS.get(name))},
        line_numbers=log.line_numbers,
        definition_version=DEFINITION_VERSION,
        definitions=DEFINITIONS,
        failures=explain_failures(log),
        activity=contract.activities,
        availability=availability(log, contract.fields, contract.activities),
        timers=read_timers(log, steady),
        fair_for_timing=unfair is None,
        not_understood=log.not_understood,
        files=log.files,
        slices=log.slices,
    )


def _line_of(file: int, line: int, log: ParsedLog) -> str:
    return f"line {line} of {log.files[file]}" if len(log.files) > 1 else f"line {line}"


def _steady(log: ParsedLog, metadata: Metadata) -> SteadyState | None:
    if log.n == 0:
        return None
    columns, times = log.columns, log.columns["step_time_true_ms"]
    skipped = counts_of(log, "skipped_iterations")
    if skipped is not None and np.any(skipped > 0):
        # A skipped step does no optimizer work. A run that skipped all is measured as it is.
        worked = np.where(skipped > 0, np.nan, times)
        times = worked if np.isfinite(worked).sum() >= MIN_VALUES else times
    profiled = profiled_iterations({**launch_arguments(metadata.extra.get("launch_args")), **log.arguments})
    if profiled is None:
        return steady_state(columns["iteration"], times, log.segment_starts, metadata.window)
    return _unprofiled(log, times, profiled, metadata)


def _unprofiled(log: ParsedLog, times: FloatArray, profiled: tuple[int, int], metadata: Metadata) -> SteadyState | None:
    """Leave profiled iterations out of the steady window, unless nearly all are profiled."""
    first, last = profiled
    iterations = log.columns["iteration"]
    is_profiled = (iterations >= first) & (iterations < last + (log.log_interval or 1))
    others = np.where(is_profiled, np.nan, times)
    if not is_profiled.any():
        return steady_state(iterations, times, log.segment_starts, metadata.window)
    steady = steady_state(iterations, others, log.segment_starts, metadata.window)
    if steady is None:
        counting = steady_state(iterations, times, log.segment_starts, metadata.window)
        note = f"Iterations {first} to {last} were profiled. They count, because fewer than {MIN_VALUES} others exist."
        return None if counting is None else replace(counting, notes=(*counting.notes, note))
    note = f"Iterations {first} to {last} were profiled, which slows them down; they are left out."
    return replace(steady, profiled=profiled, notes=(*steady.notes, note))


def no_iterations(log: ParsedLog) -> str:
    """Return why a log without iteration lines has no measurement: the failure, else its first and last lines."""
    if failures := explain_failures(log):
        where = ", ".join(_line_of(line.file, line.line, log) for line in failures[0].evidence[:1])
        title = f"{failures[0].title} ({where})" if where else failures[0].title
        return f"No iteration line was read. {title}: {failures[0].explanation}"
    if (failure := fatal_event(log)) is not None:
        place = _line_of(failure.file, failure.line, log)
        return f"No iteration line was read. The job failed first, on {place}: {failure.text}"
    if unreadable := next((problem for problem in log.problems if problem.kind == UNREADABLE_DOCUMENT), None):
        return f"Unread: {unreadable.message} This says nothing about the job."
    lines = [line for line in (*log.first_lines, *log.last_lines) if line.strip()]
    if not lines:
        return "Unread: neither a line of a log nor a document has iterations. This says nothing about the job."
    if is_unread(log):
        formats = f"{', '.join(KNOWN_FORMATS[:-1])} and {KNOWN_FORMATS[-1]}"
        return (
            f"Unread: the log format is unknown. Logs of {formats} can be read. This says nothing about the job. "
            "To read the log, describe one of its step lines (`read_as`)."
        )
    return (
        f"No iteration line was read. The log begins with {_quoted(lines[0])} and ends with {_quoted(lines[-1])}. "
        f"Upload the output of the rank that prints iterations, usually the last one."
    )


def _quoted(line: str) -> str:
    text = line.strip()
    return f'"{text[:200]}{"..." if len(text) > 200 else ""}"'


def _window_warnings(log: ParsedLog, steady: SteadyState | None) -> list[str]:
    if steady is None:
        return [f"Fewer than {MIN_VALUES} step times are usable, so there is no steady step time. Use a longer run."]
    warnings = list(steady.notes)
    if steady.reasons:
        warnings.append(f"The window is not steady: {'; '.join(steady.reasons)}. Do not use this run as a baseline.")
    elif steady.short:
        warnings.append(
            f"The window has {steady.n} iterations; under {SHORT_WINDOW} it is uncertain whether warm-up was over. "
            f"Confirm the figures with a longer run."
        )
    if log.log_interval and log.log_interval > 1:
        warnings.append(f"Each line is the mean of {log.log_interval} iterations, so single slow steps are hidden.")
    return warnings


_SHOWN = 6
"""Unknown fields that the warning names: a log without its arguments leaves about 40 unknown."""


def _unknown_warning(contract: Contract) -> list[str]:
    if not contract.provisional:
        return []
    missing = [name for name in contract.unknown if name in STACK_FIELDS]
    listed = some_of([f"`{name}`" for name in missing], _SHOWN)
    verb = plural(len(missing), "is", "are", number=False)
    return [
        f"Comparisons with this run are provisional: {listed} {verb} not stated. "
        f"Add them to the metadata, for example with `--set {missing[0]}=VALUE`."
    ]


def _problems(log: ParsedLog) -> list[str]:
    """Return the reader's remarks as sentences with their lines."""
    sentences = [f"{_place(log, problem)}{problem.message}" for problem in log.problems[:MAX_PROBLEMS]]
    more = len(log.problems) - MAX_PROBLEMS
    return [*sentences, f"{more} more remarks on the log are not listed."] if more > 0 else sentences


def _place(log: ParsedLog, problem: LogProblem) -> str:
    """Return the position of a remark: the line, and the file when there are several."""
    if not problem.line:
        return ""
    return f"{log.files[problem.file]}, line {problem.line}: " if len(log.files) > 1 else f"Line {problem.line}: "

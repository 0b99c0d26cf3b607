"""A log, the documents beside it and the metadata become what a run shows, and what to correct."""

from collections.abc import Mapping, Sequence

from app.domain.availability import availability
from app.domain.contract.fields import STACK_FIELDS
from app.domain.contract.resolve import Contract, resolve
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS
from app.domain.document_series import with_documents
from app.domain.documents import Document
from app.domain.ending import fatal_event, is_unread
from app.domain.evidence import evidence_level, semantic_class
from app.domain.failures.explain import explain_failures
from app.domain.figures.drift import SHORT_WINDOW
from app.domain.figures.headline import Figures
from app.domain.figures.steady_state import MIN_VALUES, steady_state
from app.domain.figures.step_times import left_out
from app.domain.health import read_health
from app.domain.logs import KNOWN_FORMATS
from app.domain.run import Metadata, ParsedLog, Problem, RunSummary, SteadyState, Value
from app.domain.timers import read_timers, unfair_because

MAX_PROBLEMS = 10
"""Remarks of the log's reader that a run lists; the rest are counted."""

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
    """Everything that a processed run shows. `error` is set when neither log nor documents hold an iteration.

    `documents` add contract fields and series; `project_defaults` (raw values by contract field) fill what nobody
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
        units={name: unit for name in log.columns if (unit := _unit(name))},
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


def _unit(column: str) -> str | None:
    return "ms" if column.startswith("timer_") else _UNITS.get(column)


def _steady(log: ParsedLog, metadata: Metadata) -> SteadyState | None:
    if log.n == 0:
        return None
    columns = log.columns
    return steady_state(columns["iteration"], columns["step_time_true_ms"], log.segment_starts, metadata.window)


def no_iterations(log: ParsedLog) -> str:
    """Why a log without iteration lines is no measurement: the failure, explained, else its first and last lines."""
    if failures := explain_failures(log):
        where = ", ".join(_line_of(line.file, line.line, log) for line in failures[0].evidence[:1])
        title = f"{failures[0].title} ({where})" if where else failures[0].title
        return f"No iteration line was read. {title}: {failures[0].explanation}"
    if (failure := fatal_event(log)) is not None:
        place = _line_of(failure.file, failure.line, log)
        return f"No iteration line was read. The job failed first, on {place}: {failure.text}"
    if is_unread(log):
        formats = f"{', '.join(KNOWN_FORMATS[:-1])} and {KNOWN_FORMATS[-1]}"
        return f"Unread: no reader knows this log. Logs of {formats} are read. This says nothing about the job."
    lines = [line for line in (*log.first_lines, *log.last_lines) if line.strip()]
    if not lines:
        return "No iteration line was read: the log holds no text."
    return (
        f"No iteration line was read. The log begins with {_quoted(lines[0])} and ends with {_quoted(lines[-1])}. "
        f"Upload the output of the rank that prints iterations, usually the last one."
    )


def _quoted(line: str) -> str:
    text = line.strip()
    return f'"{text[:200]}{"..." if len(text) > 200 else ""}"'


def _window_warnings(log: ParsedLog, steady: SteadyState | None) -> list[str]:
    if steady is None:
        return [f"Fewer than {MIN_VALUES} step times can be used, so there is no steady step time. Run it longer."]
    warnings = list(steady.notes)
    if steady.reasons:
        warnings.append(f"The window is not steady: {'; '.join(steady.reasons)}. Do not use this run as a baseline.")
    elif steady.short:
        warnings.append(
            f"The window holds {steady.n} iterations; under {SHORT_WINDOW} nobody can tell whether the run was warm. "
            f"Let a longer run confirm what it shows."
        )
    if log.log_interval and log.log_interval > 1:
        warnings.append(f"Each line is the mean of {log.log_interval} iterations, so single slow steps are hidden.")
    return warnings


def _unknown_warning(contract: Contract) -> list[str]:
    if not contract.provisional:
        return []
    missing = [name for name in contract.unknown if name in STACK_FIELDS]
    listed = ", ".join(f"`{name}`" for name in missing)
    return [f"Comparisons with this run are provisional: nobody states {listed}. Add them to the metadata."]


def _problems(log: ParsedLog) -> list[str]:
    """The reader's remarks as sentences, with their lines."""
    told = [f"{_place(log, problem)}{problem.message}" for problem in log.problems[:MAX_PROBLEMS]]
    more = len(log.problems) - MAX_PROBLEMS
    return [*told, f"{more} more remarks on the log are not listed."] if more > 0 else told


def _place(log: ParsedLog, problem: Problem) -> str:
    """Where a remark belongs: the line, and the file when there are several."""
    if not problem.line:
        return ""
    return f"{log.files[problem.file]}, line {problem.line}: " if len(log.files) > 1 else f"Line {problem.line}: "

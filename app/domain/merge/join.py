"""Puts the logs of one run together into one `ParsedLog`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from app.domain.logs.events import ENDS, FAILURES
from app.domain.logs.series import log_interval
from app.domain.merge.crash_loop import crash_loops
from app.domain.merge.order import Part, Roles, assign, in_order
from app.domain.merge.rows import Rows, join_rows
from app.domain.merge.same_job import contradictions, merged_fields
from app.domain.processes import last_start_line
from app.domain.run import (
    UNKNOWN_STEP,
    FloatArray,
    LineExample,
    LogEvent,
    LogPart,
    MemoryReport,
    ParsedLog,
    Problem,
    Value,
)

GENERIC = ("", "Megatron-LM")
"""What a log without a dump is taken for: any other trainer's name says more."""

ROUNDING_MS, CLOCKS = 6.0, 0.01
"""How far a step line of rank 0 may be from the last rank's iteration line."""


def merge_logs(parts: Sequence[LogPart]) -> ParsedLog:
    """One log of all files. Raises ValueError without any file; which one came first changes nothing but indexes."""
    if not parts:
        raise ValueError("a run needs at least one log")
    roles = assign(parts)
    files = in_order([*roles.slices, *roles.beside])
    rows = join_rows(roles.slices, roles.beside)
    rows.columns.update(_tflops_of_steps(rows, roles))
    slices, loops = crash_loops(rows.slices, files)
    stated, changed = merged_fields(files)
    last = roles.slices[-1] if roles.slices else files[-1]
    process_lines = _process_lines(parts, roles, last)
    events = tuple(_events(files, roles))
    told = any(_tells_an_end(event, process_lines) for event in events)
    return ParsedLog(
        trainer=_trainer(files),
        columns=rows.columns,
        line_numbers=rows.line_numbers,
        segment_starts=rows.segment_starts,
        total_iterations=_last(part.log.total_iterations for part in (*roles.beside, *roles.slices)),
        log_interval=log_interval(rows.columns["iteration"]) or _last(part.log.log_interval for part in files),
        stated=stated,
        arguments=_arguments(files),
        memory=tuple(_memory(files)),
        events=events,
        problems=(*loops, *(contradictions(files) if len(parts) > 1 else ()), *changed, *rows.problems,
                  *_problems(files, roles, rows)),
        line_count=sum(part.log.line_count for part in parts),
        unrecognised_lines=sum(part.log.unrecognised_lines for part in parts),
        first_lines=files[0].log.first_lines,
        last_lines=last.log.last_lines,
        truncated=last.log.truncated and not (len(parts) > 1 and told),
        files=tuple(part.name for part in parts),
        slices=slices,
        process_lines=process_lines,
        not_understood=tuple(_examples(files)),
    )  # fmt: skip


def _trainer(files: Sequence[Part]) -> str:
    names = [part.log.trainer for part in files]
    return next((name for name in names if name not in GENERIC), next((name for name in names if name), ""))


def _last(values: Iterable[int | None]) -> int | None:
    return next((value for value in reversed(list(values)) if value is not None), None)


def _arguments(files: Sequence[Part]) -> dict[str, Value]:
    return dict(chain.from_iterable(part.log.arguments.items() for part in files))


def _memory(files: Sequence[Part]) -> Iterator[MemoryReport]:
    """All reports; one that two files hold is kept once, with the place where it was met first."""
    seen: set[MemoryReport] = set()
    for part in files:
        for report in part.log.memory:
            key = replace(report, line=0)
            if key not in seen:
                yield replace(report, file=part.file)
        seen.update(replace(report, line=0) for report in part.log.memory)


def _events(files: Sequence[Part], roles: Roles) -> Iterator[LogEvent]:
    """Events in the order of the run; what a file beside the slices repeats from another file is told once."""
    beside = {part.file for part in roles.beside}
    seen: set[tuple[str, str, int | None]] = {
        (event.kind, event.text, event.rank) for part in roles.slices for event in part.log.events
    }
    for part in files:
        own = []
        for event in part.log.events:
            key = (event.kind, event.text, event.rank)
            if part.file in beside and key in seen:
                continue
            own.append(key)
            yield replace(event, file=part.file)
        seen.update(own)


def _process_lines(parts: Sequence[LogPart], roles: Roles, last: Part) -> tuple[int, ...]:
    """Of each file, the line behind which it tells of the last process: its end when it tells of earlier ones only."""
    lines = []
    beside = {part.file: part for part in roles.beside}
    after = [part for part in roles.beside if _starts_after(part, last)]
    for index, part in enumerate(parts):
        own = last_start_line(part.log)
        if after:
            current = any(one.file == index for one in after)
        elif index in beside:
            stamp = beside[index].last
            current = stamp is None or last.first is None or stamp >= last.first
        else:
            current = index == last.file
        lines.append(own if current else part.log.line_count + 1)
    return tuple(lines)


def _starts_after(part: Part, last: Part) -> bool:
    """A start after the last iteration that printed none itself; not what the running job said at its end."""
    starts = bool(part.log.arguments) or any(event.kind == "training_started" for event in part.log.events)
    return starts and last.last is not None and part.first is not None and part.first > last.last


def _tells_an_end(event: LogEvent, process_lines: Sequence[int]) -> bool:
    return event.kind in ENDS | FAILURES and event.line > process_lines[event.file]


def _problems(files: Sequence[Part], roles: Roles, rows: Rows) -> Iterator[Problem]:
    """Remarks of all files but those of copies, and those that another file made good."""
    counted = {part.file for part in roles.slices}
    for part in files:
        if part.file in roles.copies:
            continue
        for problem in part.log.problems:
            is_answered = problem.kind == "unknown step time" and (part.file, problem.line) in rows.resolved
            needs_no_rows = problem.kind == "no iteration lines" and part.file not in counted
            if not is_answered and not needs_no_rows:
                yield replace(problem, file=part.file)


def _examples(files: Sequence[Part]) -> Iterator[LineExample]:
    found: dict[object, LineExample] = {}
    for part in files:
        for example in part.log.not_understood:
            key = (part.file, example.line) if example.kind == UNKNOWN_STEP else example.kind
            known = found.get(key)
            found[key] = (
                replace(known, count=known.count + example.count) if known else replace(example, file=part.file)
            )
    yield from found.values()


def _tflops_of_steps(rows: Rows, roles: Roles) -> dict[str, FloatArray]:
    """TFLOP/s that only rank 0 of Megatron-Bridge prints, when its steps are those of the iteration lines."""
    for part in roles.beside:
        column = part.log.columns.get("tflops_per_gpu")
        if part.file in roles.copies or column is None or len(column) != len(rows.line_numbers):
            continue
        times, printed = part.log.columns["step_time_ms"], rows.columns["step_time_ms"]
        if bool((np.abs(times - printed) <= ROUNDING_MS + CLOCKS * printed).all()):
            known = rows.columns.get("tflops_per_gpu", np.full(len(column), np.nan))
            return {"tflops_per_gpu": np.where(np.isnan(known), column, known)}
    return {}

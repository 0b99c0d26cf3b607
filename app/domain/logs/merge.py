"""Merges the logs of one run into one `ParsedLog`."""

import calendar
import hashlib
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from app.domain.contract.values import shown
from app.domain.logs.events import ENDS, FAILURES
from app.domain.logs.series import log_interval
from app.domain.run import (
    UNKNOWN_STEP,
    FloatArray,
    IntArray,
    LineExample,
    LogEvent,
    LogPart,
    LogProblem,
    MemoryReport,
    ParsedLog,
    Slice,
    Stated,
    Value,
    last_start_line,
)

# --- Timestamps in the first and last lines of a log and in its events.

_STAMP = re.compile(r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)[T _]([0-2]\d):([0-5]\d):([0-5]\d)(\.\d{1,6})?")
"""Of iteration lines, life-cycle lines, Primus (no dashes), torchrun's reports (`_`) and log shippers (`T`)."""


_PRECISE = re.compile(r":\d\d\.\d{1,6}\] iteration ")


def has_microseconds(log: ParsedLog) -> bool:
    """Return True when the iteration lines have the timestamps of Megatron Core 0.16 and later."""
    return any(_PRECISE.search(text) for text in (*log.first_lines, *log.last_lines))


def first_stamp(log: ParsedLog) -> float | None:
    """Return the first timestamp in seconds since 1970 (node's local time); None without one."""
    return next(_stamps((*log.first_lines, *(event.text for event in log.events), *log.last_lines)), None)


def last_stamp(log: ParsedLog) -> float | None:
    """Return the last timestamp in seconds since 1970 (node's local time); None without one."""
    texts = (*log.first_lines, *(event.text for event in log.events), *log.last_lines)
    return next(_stamps(reversed(texts), last=True), None)


def _stamps(texts: Iterable[str], *, last: bool = False) -> Iterator[float]:
    for text in texts:
        matches = list(_STAMP.finditer(text))
        for match in reversed(matches) if last else matches:
            year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
            if 1 <= month <= 12 and 1 <= day <= 31 and hour <= 23:
                whole = calendar.timegm((year, month, day, hour, minute, second))
                yield whole + float(match[7] or 0)


# --- Assigns each file its role in a run: which files hold the iterations, in which order, and which are copies.

_SAME = ("iteration", "step_time_ms", "lm_loss", "grad_norm")
"""Lines with equal values in these columns are the same line, printed or uploaded twice."""


_STARTS = ("training_started", "checkpoint_loaded")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of the run. `file`: its index in the upload; `first` and `last`: seconds since 1970, None if unknown."""

    file: int
    name: str
    log: ParsedLog
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True)
class Roles:
    """The files by role. `slices` hold the iterations, in the order of the run. `beside` were printed at the same time
    by other ranks, or are copies of slices (their indexes are in `copies`)."""

    slices: tuple[FilePart, ...]
    beside: tuple[FilePart, ...]
    copies: frozenset[int]


def assign(parts: Sequence[LogPart]) -> Roles:
    """Return the role of every file."""
    files = [
        FilePart(index, part.name, part.log, first_stamp(part.log), last_stamp(part.log))
        for index, part in enumerate(parts)
    ]
    counted = [file for file in files if file.log.n and not _only_steps(file.log)]
    with_rows = counted or [file for file in files if file.log.n]
    copies = _copies(with_rows)
    slices = [file for file in with_rows if file.file not in copies]
    slice_files = {file.file for file in slices}
    beside = [file for file in files if file.file not in slice_files]
    ordered = in_order(slices)
    ordered[1:] = [_without_repeated(before, part) for before, part in pairwise(ordered)]
    return Roles(tuple(ordered), tuple(in_order(beside)), frozenset(copies))


def in_order(files: Sequence[FilePart]) -> list[FilePart]:
    """Sort by time when every file has timestamps, else by iterations; of equal first iterations, the longer last."""
    timed = all(file.last is not None for file in files)
    return sorted(files, key=lambda file: ((file.last or 0.0) if timed else 0.0, *_extent(file.log), _identity(file)))


def _only_steps(log: ParsedLog) -> bool:
    """Return True for the log of a rank that prints no iteration lines: its steps have no iteration numbers."""
    return any(problem.kind == "no iteration lines" for problem in log.problems)


def _extent(log: ParsedLog) -> tuple[float, float]:
    if log.n == 0:
        return (float("inf"), 0.0)
    return float(log.columns["iteration"][0]), float(log.columns["iteration"][-1])


def _identity(file: FilePart) -> str:
    """Return a tie-breaker for the sort that does not depend on the order of upload."""
    digest = hashlib.sha256("\n".join((file.name, *file.log.first_lines, *file.log.last_lines)).encode())
    for name in sorted(file.log.columns):
        digest.update(file.log.columns[name].tobytes())
    return digest.hexdigest()


def _copies(files: Sequence[FilePart]) -> set[int]:
    """Return the files whose iteration lines are all in another file. Of equal files, the one with less is a copy."""
    by_size = sorted(
        files, key=lambda file: (file.log.n, len(file.log.arguments), file.log.line_count, _identity(file))
    )
    copies = set()
    for place, small in enumerate(by_size):
        if any(_contains(large.log, small.log) for large in by_size[place + 1 :]):
            copies.add(small.file)
    return copies


def _contains(large: ParsedLog, small: ParsedLog) -> bool:
    if not np.isin(small.columns["iteration"], large.columns["iteration"]).all():
        return False
    names = [name for name in _SAME if name in large.columns and name in small.columns]
    return _rows(small, names) <= _rows(large, names)


def _rows(log: ParsedLog, names: Sequence[str]) -> set[tuple[float, ...]]:
    return set(zip(*(np.nan_to_num(log.columns[name], nan=-1.0).tolist() for name in names), strict=True))


def starts_between(before: FilePart, part: FilePart) -> bool:
    """Return True when either file has a start between the last iteration of `before` and the first of `part`."""
    head, tail = int(part.log.line_numbers[0]), int(before.log.line_numbers[-1])
    return any(event.kind in _STARTS and event.line < head for event in part.log.events) or any(
        event.kind in _STARTS and event.line > tail for event in before.log.events
    )


def _without_repeated(before: FilePart, part: FilePart) -> FilePart:
    """Return `part` without leading lines that `before` ends with, as when a log is split with an overlap."""
    names = [name for name in _SAME if name in before.log.columns and name in part.log.columns]
    old, new = (
        np.column_stack([np.nan_to_num(log.columns[name], nan=-1.0) for name in names])
        for log in (before.log, part.log)
    )
    same = np.flatnonzero((old == new[0]).all(axis=1))
    repeated = len(old) - int(same[-1]) if len(same) and not starts_between(before, part) else 0
    if not repeated or not np.array_equal(old[-repeated:], new[:repeated]):
        return part
    log = part.log
    starts = tuple(start - repeated for start in log.segment_starts if start >= repeated)
    columns = {name: column[repeated:] for name, column in log.columns.items()}
    cut = replace(log, columns=columns, line_numbers=log.line_numbers[repeated:], segment_starts=starts)
    return replace(part, log=cut)


# --- Joins the iteration lines of all slices: later values win, and restarts are marked, but not mere file boundaries.

BoolArray = npt.NDArray[np.bool_]
_ALWAYS = ("iteration", "step_time_ms", "step_time_true_ms")


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns as in ParsedLog, the slices, and the lines (file, line) whose true time the previous file reveals."""

    columns: dict[str, FloatArray]
    line_numbers: IntArray
    segment_starts: tuple[int, ...]
    slices: tuple[Slice, ...]
    problems: tuple[LogProblem, ...]
    resolved: frozenset[tuple[int, int]]


def join_rows(slices: Sequence[FilePart], beside: Sequence[FilePart]) -> Rows:
    """Join the iteration lines of `slices`, given in the order of the run. `beside` may report loaded checkpoints."""
    lengths = [part.log.n for part in slices]
    offsets = [0, *np.cumsum(lengths).tolist()]
    columns = _concatenate(slices, offsets)
    lines = np.concatenate([part.log.line_numbers for part in slices]) if slices else np.empty(0, np.int64)
    first = np.zeros(offsets[-1], bool)
    resolved = set()
    loaded = {event.iteration for part in (*slices, *beside) for event in part.log.events if _is_load(event.kind)}
    for place, part in enumerate(slices):
        first[[offsets[place] + start for start in part.log.segment_starts if start > 0]] = True
        before = slices[place - 1] if place else None
        if before is None or _begins_process(before, part, loaded):
            first[offsets[place]] = True
        elif _undo_first_iteration(columns, first, offsets[place], part):
            resolved.add((part.file, int(part.log.line_numbers[0])))
        elif before.log.n == 1 and has_microseconds(before.log):
            _forget_mean_of_start(columns, first, offsets[place] - 1)
    current = ~_superseded(columns["iteration"], first)
    places: IntArray = np.unique(np.cumsum(current)[first] - current[first])
    n = int(current.sum())
    process_slices = _slices(slices, offsets, columns["iteration"], first, current)
    return Rows(
        columns={name: column[current] for name, column in columns.items()},
        line_numbers=lines[current],
        segment_starts=tuple(int(place) for place in places if place < n),
        slices=process_slices,
        problems=tuple(_dropped(slices, offsets, columns["iteration"], current)),
        resolved=frozenset(resolved),
    )


def _is_load(kind: str) -> bool:
    return kind == "checkpoint_loaded"


def _concatenate(slices: Sequence[FilePart], offsets: Sequence[int]) -> dict[str, FloatArray]:
    names = dict.fromkeys(name for part in slices for name in part.log.columns)
    columns = {name: np.full(offsets[-1], np.nan) for name in names or _ALWAYS}
    for offset, part in zip(offsets, slices, strict=False):
        for name, column in part.log.columns.items():
            columns[name][offset : offset + part.log.n] = column
    columns["log_file"] = np.repeat([float(part.file) for part in slices], np.diff(offsets))
    return columns


def _begins_process(before: FilePart, part: FilePart, loaded: Container[float | None]) -> bool:
    """Return True when a file begins with a new process, False when it continues the file before it."""
    iteration = float(part.log.columns["iteration"][0])
    if iteration <= before.log.columns["iteration"][-1] or iteration - 1 in loaded:
        return True
    return starts_between(before, part)


def _undo_first_iteration(columns: dict[str, FloatArray], first: BoolArray, row: int, part: FilePart) -> bool:
    """Compute the true second step time when the first iteration is the last line of the previous file.

    Megatron Core 0.16 prints a mean that includes the first iteration. The reader of a single file cannot correct it
    without that line (`true_step_times` in `series.py`). Return True when the time is resolved.
    """
    line = int(part.log.line_numbers[0])
    unknown = any(problem.kind == "unknown step time" and problem.line == line for problem in part.log.problems)
    if not unknown or not first[row - 1] or not np.isnan(columns["step_time_true_ms"][row]):
        return False
    iteration, printed = columns["iteration"], columns["step_time_ms"]
    count = iteration[row] - iteration[row - 1] + 1
    rest = count * printed[row] - printed[row - 1]
    if rest > 0:
        columns["step_time_true_ms"][row] = rest / (count - 1)
    return bool(rest > 0)


def _forget_mean_of_start(columns: dict[str, FloatArray], first: BoolArray, row: int) -> None:
    """Drop the true time of a file's only line when its interval shows that it averages over a missing line."""
    iteration = columns["iteration"]
    if first[row] and 1 < iteration[row] <= iteration[row + 1] - iteration[row]:
        columns["step_time_true_ms"][row] = np.nan


def _superseded(iteration: FloatArray, first: BoolArray) -> BoolArray:
    """Return a mask of lines that a later process repeats because training went back."""
    if len(iteration) == 0:
        return np.zeros(0, bool)
    restart = np.where(first, iteration, np.inf)
    lowest_from_here = np.minimum.accumulate(restart[::-1])[::-1]
    return np.append(iteration[:-1] >= lowest_from_here[1:], False)


def _slices(
    parts: Sequence[FilePart], offsets: Sequence[int], iteration: FloatArray, first: BoolArray, current: BoolArray
) -> tuple[Slice, ...]:
    """Return a slice per process start, with the iterations that it printed and that no later process repeats."""
    starts = [int(row) for row in np.flatnonzero(first)]
    places: IntArray = np.cumsum(current) - current
    slices: list[Slice] = []
    begun: set[float] = set()
    for start, stop in pairwise([*starts, len(iteration)]):
        part = parts[int(np.searchsorted(offsets, start, side="right")) - 1]
        begins = float(iteration[start])
        resumed = slices or any(_is_load(e.kind) and e.iteration == begins - 1 for e in part.log.events)
        slices.append(
            Slice(
                file=part.name,
                kind="retry" if begins in begun or (slices and begins == 1) else "resume" if resumed else "start",
                first_iteration=int(begins),
                last_iteration=int(iteration[stop - 1]),
                first_row=int(places[start]),
                iterations_kept=int(current[start:stop].sum()),
            )
        )
        begun.add(begins)
    return tuple(slices)


def _dropped(
    parts: Sequence[FilePart], offsets: Sequence[int], iteration: FloatArray, current: BoolArray
) -> Iterable[LogProblem]:
    """Yield a problem for iterations that training discarded and did not reach again."""
    shown = set(iteration[current].tolist())
    for place, part in enumerate(parts):
        rows = slice(offsets[place], offsets[place + 1])
        lost = [value for value in iteration[rows][~current[rows]].tolist() if value not in shown]
        if lost:
            yield LogProblem(
                "went back",
                f"Iterations {int(lost[0])} to {int(lost[-1])} of {part.name} are not counted: a later start resumed "
                "before them and did not reach them again.",
                file=part.file,
            )


# --- Distinguishes a crash loop from a resume: repeated starts at the same point made no lasting progress.

MIN_STARTS = 3
"""Starts of a crash loop. One or two retries are normal."""

_GOOD_ENDS = frozenset({"training_done", "exit_duration", "exit_signal", "exit_iteration", "checkpoint_saved"})
"""After one of these events, a later start begins further on, or none is needed."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A start from a checkpoint (0: from the beginning). `got_on`: it made lasting progress."""

    checkpoint: int
    got_on: bool
    file: int
    line: int


def crash_loops(
    slices: tuple[Slice, ...], files: Sequence[FilePart]
) -> tuple[tuple[Slice, ...], tuple[LogProblem, ...]]:
    """Mark the slices of crash loops, and return a problem for each loop. `files` are in the order of the run."""
    starts = list(_starts_in_events(files)) or [
        _Start(piece.first_iteration - 1, False, 0, 0) for piece in slices if piece.first_iteration
    ]
    marked, problems = list(slices), []
    for checkpoint, group in groupby(starts, key=lambda start: start.checkpoint):
        tries = list(group)
        failed = [start for start in tries[:-1] if not start.got_on]
        if tries[-1] is starts[-1] and not tries[-1].got_on and not _went_on(slices, checkpoint):
            failed.append(tries[-1])
        if len(failed) < MIN_STARTS:
            continue
        at = f"the checkpoint of iteration {checkpoint}" if checkpoint else "the beginning"
        problems.append(
            LogProblem(
                "crash loop",
                f"The job was started {len(tries)} times from {at}, and {len(failed)} of these starts made no lasting "
                "progress. This is a crash loop, not a resume.",
                line=failed[-1].line,
                file=failed[-1].file,
            )
        )
        marked = [
            replace(piece, crash_loop=True) if piece.first_iteration == checkpoint + 1 else piece for piece in marked
        ]
    return tuple(marked), tuple(problems)


def _starts_in_events(files: Sequence[FilePart]) -> Iterator[_Start]:
    """Yield the starts in the events, each once even when several ranks report it."""
    seen: set[str] = set()
    for part in files:
        checkpoint, open_start = 0, None
        for event in part.log.events:
            if event.kind == "checkpoint_loaded":
                checkpoint = event.iteration or 0
            elif event.kind == "training_started" and event.text not in seen:
                seen.add(event.text)
                if open_start is not None:
                    yield open_start
                open_start = _Start(checkpoint, False, part.file, event.line)
                checkpoint = 0
            elif event.kind in _GOOD_ENDS and open_start is not None:
                open_start = replace(open_start, got_on=True)
        if open_start is not None:
            yield open_start


def _went_on(slices: Sequence[Slice], checkpoint: int) -> bool:
    """Return True when the last slice got further than all earlier ones with the same first iteration."""
    if not slices:
        return False
    earlier = [piece.last_iteration for piece in slices[:-1] if piece.first_iteration == checkpoint + 1]
    return bool(earlier) and slices[-1].last_iteration > max(earlier)


# --- Checks that all files of a run belong to one job.

_ONE_JOB = ("world_size", "train_iters", "seed", "num_layers", "hidden_size")
"""Settings that all slices of a job share. A resume never changes the seed, and hardly ever the others."""


def contradictions(files: Sequence[FilePart]) -> Iterator[LogProblem]:
    """Yield a problem for files that describe different jobs. `files` are in the order of the run."""
    facts = [(part, job_facts(part.log)) for part in files]
    for name in _ONE_JOB:
        values = [(part, fact[name]) for part, fact in facts if fact.get(name) is not None]
        for part, value in values[1:]:
            first_part, first_value = values[0]
            if value != first_value:
                yield LogProblem(
                    "different jobs",
                    f"{first_part.name} and {part.name} look like two different jobs: {name} is {shown(first_value)} "
                    f"in one and {shown(value)} in the other. Upload them as two runs if they are.",
                    file=part.file,
                )
                break
    whole = [(part, span) for part in files if (span := span_of_whole_job(part.log))]
    for (first_part, (_, ended)), (part, (began, _)) in pairwise(sorted(whole, key=itemgetter(1))):
        if began > ended:
            yield LogProblem(
                "different jobs",
                f"{first_part.name} and {part.name} look like two different jobs: {part.name} has all iterations and "
                f"begins after the end of {first_part.name}, which also has all of them. Upload them as two runs.",
                file=part.file,
            )


def span_of_whole_job(log: ParsedLog) -> tuple[float, float] | None:
    """Return the first and last timestamp of a log with the first and the last planned iteration, else None.

    Logs of one job do not have such spans one after the other: its ranks run at the same time, and a retry or resume
    follows a log that ended early.
    """
    if not log.n or log.total_iterations is None:
        return None
    numbers = log.columns["iteration"]
    begins_early = numbers[0] <= (log_interval(numbers) or 1)
    begins, ends = first_stamp(log), last_stamp(log)
    if not begins_early or numbers[-1] < log.total_iterations or begins is None or ends is None:
        return None
    return begins, ends


def job_facts(log: ParsedLog) -> dict[str, Value]:
    """Return what all logs of a job agree on; None for what the log does not show."""
    facts: dict[str, Value] = {name: log.arguments.get(name) for name in _ONE_JOB}
    if facts["train_iters"] is None:
        facts["train_iters"] = log.total_iterations
    if facts["world_size"] is None and "gpus" in log.stated:
        facts["world_size"] = log.stated["gpus"].value
    return facts


def merged_fields(files: Sequence[FilePart]) -> tuple[dict[str, Stated], list[LogProblem]]:
    """Merge the contract fields of all files, and report changes. The last file with a field in its arguments wins."""
    fields: dict[str, tuple[FilePart, Stated]] = {}
    problems = []
    for part in files:
        changed = []
        for name, stated in part.log.stated.items():
            earlier = fields.get(name)
            if earlier is None or stated.source != "log line" or earlier[1].source == "log line":
                if earlier and earlier[1].source == stated.source == "arguments" and earlier[1].value != stated.value:
                    changed.append(f"`{name}` {shown(earlier[1].value)} → {shown(stated.value)}")
                fields[name] = (part, stated)
        if changed:
            problems.append(
                LogProblem(
                    "changed settings",
                    f"{part.name} sets {len(changed)} fields differently from the file before it: "
                    f"{', '.join(changed[:10])}. Its values are used.",
                    file=part.file,
                )
            )
    return {name: replace(stated, file=part.file) for name, (part, stated) in fields.items()}, problems


GENERIC = ("", "Megatron-LM")
"""Trainer names of logs without a dump. Any other name is more specific."""

ROUNDING_MS, CLOCKS = 6.0, 0.01
"""Tolerance between a step line of rank 0 and the last rank's iteration line."""


def merge_logs(parts: Sequence[LogPart]) -> ParsedLog:
    """Merge all files into one log. Their order affects only indexes. Raises ValueError without any file."""
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
    has_end = any(event.kind in ENDS | FAILURES and event.line > process_lines[event.file] for event in events)
    return ParsedLog(
        trainer=_trainer(files),
        columns=rows.columns,
        line_numbers=rows.line_numbers,
        segment_starts=rows.segment_starts,
        total_iterations=_last(part.log.total_iterations for part in (*roles.beside, *roles.slices)),
        log_interval=log_interval(rows.columns["iteration"]) or _last(part.log.log_interval for part in files),
        stated=stated,
        arguments=dict(chain.from_iterable(part.log.arguments.items() for part in files)),
        memory=tuple(_memory(files)),
        events=events,
        problems=(*loops, *(contradictions(files) if len(parts) > 1 else ()), *changed, *rows.problems,
                  *_problems(files, roles, rows)),
        line_count=sum(part.log.line_count for part in parts),
        unrecognised_lines=sum(part.log.unrecognised_lines for part in parts),
        first_lines=files[0].log.first_lines,
        last_lines=last.log.last_lines,
        truncated=last.log.truncated and not (len(parts) > 1 and has_end),
        files=tuple(part.name for part in parts),
        slices=slices,
        process_lines=process_lines,
        not_understood=tuple(_examples(files)),
    )  # fmt: skip


def _trainer(files: Sequence[FilePart]) -> str:
    names = [part.log.trainer for part in files]
    return next((name for name in names if name not in GENERIC), next((name for name in names if name), ""))


def _last(values: Iterable[int | None]) -> int | None:
    return next((value for value in reversed(list(values)) if value is not None), None)


def _memory(files: Sequence[FilePart]) -> Iterator[MemoryReport]:
    """Yield all memory reports. A report in two files appears once, with its first position."""
    seen: set[MemoryReport] = set()
    for part in files:
        for report in part.log.memory:
            key = replace(report, line=0)
            if key not in seen:
                yield replace(report, file=part.file)
        seen.update(replace(report, line=0) for report in part.log.memory)


def _events(files: Sequence[FilePart], roles: Roles) -> Iterator[LogEvent]:
    """Yield the events in the order of the run, without those that a file outside the slices repeats."""
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


def _process_lines(parts: Sequence[LogPart], roles: Roles, last: FilePart) -> tuple[int, ...]:
    """Return for each file the line after which it covers the last process; its end if it covers only earlier ones."""
    lines = []
    beside = {part.file: part for part in roles.beside}
    after = [part for part in roles.beside if _starts_after(part, last)]
    for index, part in enumerate(parts):
        own = last_start_line(part.log)
        if after:
            current = any(later.file == index for later in after)
        elif index in beside:
            stamp = beside[index].last
            current = stamp is None or last.first is None or stamp >= last.first
        else:
            current = index == last.file
        lines.append(own if current else part.log.line_count + 1)
    return tuple(lines)


def _starts_after(part: FilePart, last: FilePart) -> bool:
    """Return True for a start after the last iteration; False for a rank's output at the end of the running job."""
    starts = bool(part.log.arguments) or any(event.kind == "training_started" for event in part.log.events)
    return starts and last.last is not None and part.first is not None and part.first > last.last


def _problems(files: Sequence[FilePart], roles: Roles, rows: Rows) -> Iterator[LogProblem]:
    """Yield the problems of all files except copies, without those that another file resolves."""
    counted = {part.file for part in roles.slices}
    for part in files:
        if part.file in roles.copies:
            continue
        for problem in part.log.problems:
            is_answered = problem.kind == "unknown step time" and (part.file, problem.line) in rows.resolved
            needs_no_rows = problem.kind == "no iteration lines" and part.file not in counted
            if not is_answered and not needs_no_rows:
                yield replace(problem, file=part.file)


def _examples(files: Sequence[FilePart]) -> Iterator[LineExample]:
    examples: dict[object, LineExample] = {}
    for part in files:
        for example in part.log.not_understood:
            key = (part.file, example.line) if example.kind == UNKNOWN_STEP else example.kind
            earlier = examples.get(key)
            examples[key] = (
                replace(earlier, count=earlier.count + example.count) if earlier else replace(example, file=part.file)
            )
    yield from examples.values()


def _tflops_of_steps(rows: Rows, roles: Roles) -> dict[str, FloatArray]:
    """Return TFLOP/s from rank 0 of Megatron-Bridge when its steps match the iteration lines; empty otherwise."""
    for part in roles.beside:
        column = part.log.columns.get("tflops_per_gpu")
        if part.file in roles.copies or column is None or len(column) != len(rows.line_numbers):
            continue
        times, printed = part.log.columns["step_time_ms"], rows.columns["step_time_ms"]
        if bool((np.abs(times - printed) <= ROUNDING_MS + CLOCKS * printed).all()):
            tflops = rows.columns.get("tflops_per_gpu", np.full(len(column), np.nan))
            return {"tflops_per_gpu": np.where(np.isnan(tflops), column, tflops)}
    return {}

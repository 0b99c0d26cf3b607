"""Which process of a job a line of its logs belongs to: the last one, or one that a restart replaced."""

from collections.abc import Iterator

from app.domain.run import LogEvent, ParsedLog


def start_lines(log: ParsedLog) -> dict[int, list[int]]:
    """Lines at which processes start, by file: as the log says so, or the first iteration that they printed."""
    found: dict[int, set[int]] = {}
    for event in log.events:
        if event.kind == "training_started":
            found.setdefault(event.file, set()).add(event.line)
    files = log.columns.get("log_file")
    for row in log.segment_starts or (0,):
        if row < log.n:
            found.setdefault(0 if files is None else int(files[row]), set()).add(int(log.line_numbers[row]))
    return {file: sorted(lines) for file, lines in found.items()}


def last_start_line(log: ParsedLog) -> int:
    """The line of a single file at which its last process starts; 0 when none shows."""
    return max((lines[-1] for lines in start_lines(log).values()), default=0)


def events_of_last_process(log: ParsedLog) -> list[LogEvent]:
    """Events of the process that the log ends with, whichever files tell of it."""
    lines = log.process_lines or (last_start_line(log),)
    return [event for event in log.events if event.line > lines[event.file]]


def events_of_earlier_processes(log: ParsedLog) -> Iterator[list[LogEvent]]:
    """Events of each process that a later one replaced, in the order of the run."""
    starts = start_lines(log)
    last = log.process_lines or (last_start_line(log),)
    groups: dict[tuple[int, int], list[LogEvent]] = {}
    for event in log.events:
        if event.line <= last[event.file]:
            ordinal = sum(line < event.line for line in starts.get(event.file, ()))
            groups.setdefault((event.file, ordinal), []).append(event)
    yield from groups.values()


def last_row_before(event: LogEvent, log: ParsedLog) -> int | None:
    """The row of the last iteration that the event's file printed before it; None when there is none."""
    files = log.columns.get("log_file")
    rows = log.line_numbers < event.line
    if files is not None:
        rows &= files == event.file
    return int(rows.nonzero()[0][-1]) if rows.any() else None


def is_after_last_iteration(event: LogEvent, log: ParsedLog) -> bool:
    """Whether training had stopped when this line was printed, as far as its file shows.

    Of a file without iterations (rank 0's) the start of training is known at best: what came before it did not stop it.
    """
    files = log.columns.get("log_file")
    own = log.line_numbers if files is None else log.line_numbers[files == event.file]
    if len(own):
        return event.line > int(own[-1])
    return log.n == 0 or any(
        other.kind == "training_started" and other.file == event.file and other.line < event.line
        for other in log.events
    )

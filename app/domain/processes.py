"""Which process of a job a line of its logs belongs to: the last one, or one that a restart replaced."""

from app.domain.run import LogEvent, ParsedLog


def last_start_line(log: ParsedLog, file: int | None = None) -> int:
    """The line of one file at which its last process starts: as it says so, or the first iteration it printed.

    `file`: which one, of a log of several files; None when the log is that of one file.
    """
    starts = [event.line for event in log.events if event.kind == "training_started" and file in (None, event.file)]
    if log.n:
        files = log.columns.get("log_file")
        starts += [
            int(log.line_numbers[row])
            for row in log.segment_starts or (0,)
            if file is None or files is None or int(files[row]) == file
        ]
    return max(starts, default=0)


def is_of_last_process(event: LogEvent, log: ParsedLog) -> bool:
    """True when a line tells of the process that the log ends with."""
    start = log.process_lines[event.file] if log.process_lines else last_start_line(log)
    return event.line > start

"""The values that travel through the house: what a log says, and what a run is. All frozen, units in the names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...] | None
"""A contract value. None means "stated as unset" (Python's None in a dump), which is not "unknown"."""

Source = Literal["metadata", "arguments", "log line", "derived", "default"]
"""Where a value came from. `default`: a dump that lists only non-defaults left the field out."""


SPARSE = {"sparse": True}
"""Metadata of a field that JSON omits when it has its default, because few values have it."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A value and its origin. `detail` describes the origin for users: `line 12: moe_token_dispatcher_type = alltoall`.

    `line` is the line that states the value, in the log file with index `file`; 0 when no single log line does.
    `in_use` is false for a knob that has no effect because of another field: its value is None, and `stated_value` is
    what a source states, None when none does. `stated_by` is the user who stated the value after the upload.
    """

    value: Value
    source: Source
    detail: str = ""
    file: int = 0
    line: int = 0
    in_use: bool = field(default=True, metadata=SPARSE)
    stated_value: Value = field(default=None, metadata=SPARSE)
    stated_by: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a log that was skipped or is strange. `line` counts from 1, 0 when it is no single line."""

    kind: str
    message: str
    line: int = 0
    example: str = ""
    file: int = 0


UNKNOWN_STEP = "a step of an unknown trainer"
"""Kind of the line examples that look like steps, in a log of which no reader knows a step."""


@dataclass(frozen=True, slots=True)
class LineExample:
    """Lines of one kind that were seen but not (fully) understood: how many, and the first one to report."""

    kind: str
    count: int
    example: str
    line: int = 0
    file: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """One process start in a run: iterations as printed, inclusive; `first_row` indexes the merged columns.

    `file` is the name of the log file. `iterations_kept` is what a later slice did not repeat. A `retry` begins where
    an earlier slice began, a `resume` at a checkpoint; `crash_loop` when it is one of several starts that all reach no
    further than the one before.
    """

    file: str
    kind: Literal["start", "resume", "retry"]
    first_iteration: int
    last_iteration: int
    first_row: int
    crash_loop: bool = False
    iterations_kept: int = 0


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line that says what happened: `kind` is one of the keys of `logs/events.py`; `line` counts from 1."""

    kind: str
    line: int
    text: str
    rank: int | None = None
    iteration: int | None = None
    file: int = 0


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """One rank's memory line, in bytes (trainers print MiB or GB; see corpus notes in `docs/log-formats.md`)."""

    line: int
    rank: int | None
    iteration: int | None
    max_allocated_bytes: float
    max_reserved_bytes: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    alloc_retries: int | None = None
    file: int = 0


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """All that one log says.

    `columns`: one float64 array a metric, all of the same length n, in the order of the log after restart overlaps
    were resolved (the later value wins) and doubled lines dropped; NaN where nothing was printed. Always holds
    `iteration` and `step_time_ms` (as printed), plus `step_time_true_ms` (NaN where the printed value is an artefact
    that cannot be resolved; equal to the printed value elsewhere). `line_numbers`: int64 (n,), counted from 1.
    `segment_starts`: indexes into the columns at which a process (re)started; the first is 0 when n > 0.
    `stated`: contract fields by canonical name, from arguments, configuration summary or single lines.
    `arguments`: every name of the dumps with its value, for the record and for the FLOPs shape.
    Of a run of several files (`domain/merge`): `files` are their names in the order in which they were given; a column
    `log_file`, and `file` of events, reports and problems, are indexes into it. `process_lines`: of each file, the line
    behind which it tells of the last process; () when the log was not merged.
    """

    trainer: str
    columns: Mapping[str, FloatArray]
    line_numbers: IntArray
    segment_starts: tuple[int, ...] = ()
    total_iterations: int | None = None
    log_interval: int | None = None
    stated: Mapping[str, Stated] = field(default_factory=dict)
    arguments: Mapping[str, Value] = field(default_factory=dict)
    memory: tuple[MemoryReport, ...] = ()
    events: tuple[LogEvent, ...] = ()
    problems: tuple[Problem, ...] = ()
    line_count: int = 0
    unrecognised_lines: int = 0
    first_lines: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    truncated: bool = False
    files: tuple[str, ...] = ()
    slices: tuple[Slice, ...] = ()
    process_lines: tuple[int, ...] = ()
    not_understood: tuple[LineExample, ...] = ()

    @property
    def n(self) -> int:
        """Iteration lines read."""
        return len(self.line_numbers)


@dataclass(frozen=True, slots=True)
class LogPart:
    """One file of a run: its name as uploaded, and what it says."""

    name: str
    log: ParsedLog


@dataclass(frozen=True, slots=True)
class Window:
    """A declared steady window, first and last iteration inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the uploader stated, validated. `fields` are contract fields by name; `extra` is kept, not understood.

    `commit_time`, aware and in UTC, is the place of the run in the history of its stack. `job`: the CI job or test;
    runs of two jobs are never one history.
    """

    name: str = ""
    project: str = "default"
    purpose: Literal["ci", "experiment", "release"] = "ci"
    branch: str = ""
    commit: str = ""
    ci_url: str = ""
    job: str = ""
    commit_time: datetime | None = None
    tags: tuple[str, ...] = ()
    window: Window | None = None
    fields: Mapping[str, Stated] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The steady window of a run and its step time (method: `docs/metrics.md`). Iterations are as printed, inclusive.

    `log_step_time` is the median of ln(ms) over the window and `se` its standard error, both what a verdict needs.
    `reasons` say why `is_steady` is false; `notes` what was decided about restarts, a declared window and a drift, by
    which `se` is widened. `short`: under 15 iterations, unless declared as in a full run (41 to 50 of 50).
    """

    first_iteration: int
    last_iteration: int
    n: int
    method: Literal["declared", "detected"]
    is_steady: bool
    reasons: tuple[str, ...]
    short: bool
    log_step_time: float
    se: float
    step_time_ms: float
    ci_low_ms: float
    ci_high_ms: float
    mean_step_time_ms: float
    spike_threshold_ms: float
    spike_share: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One headline figure with its interval (95 %) and the number of iterations behind it."""

    value: float
    ci_low: float
    ci_high: float
    n: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the log that shows something. `file` indexes the run's files, `line` counts from 1.

    `inferred`: it proves nothing by itself; `text` says what is concluded from it.
    """

    file: int
    line: int
    text: str
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, for a person: `kind` is one of `docs/failures.md`; the root cause of a chain comes first."""

    kind: str
    title: str
    explanation: str
    advice: str
    iteration: int | None = None
    rank: int | None = None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Activity:
    """A field as it was asked for and as it ran. None: nobody says. `agrees` is None when one of the two is unknown."""

    requested: Stated | None
    active: Stated | None
    agrees: bool | None


@dataclass(frozen=True, slots=True)
class DispatcherAvailability:
    """Whether a dispatcher works in the run's container, as its log proves; `container` None when nobody states it."""

    dispatcher: str
    available: bool
    container: str | None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer over the steady window: its median, its share (0-1) of the step, and slowest over fastest rank."""

    name: str
    share_of_step: float
    median_ms: float
    max_over_min: float | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a processed run shows. `error` is set when no figure can be computed at all (the run is `failed`, or
    `unread` when no reader knows its log).

    `definitions`: version of each rule behind the figures (`docs/metrics.md`); `definition_version` is their sum.
    `activity`: fields that can run otherwise than asked for, by name. `fair_for_timing` is false when timers' barriers
    or the like slowed the steps down; a warning says why.
    """

    error: str | None
    trainer: str
    contract: Mapping[str, Stated]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    stack_key: str
    config_key: str
    provisional: bool
    steady_state: SteadyState | None
    metrics: Mapping[str, Metric | None]
    health: Mapping[str, object]
    evidence_level: str
    semantic_class: str
    series: Mapping[str, FloatArray]
    units: Mapping[str, str]
    line_numbers: IntArray
    definition_version: int
    definitions: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    activity: Mapping[str, Activity] = field(default_factory=dict)
    availability: tuple[DispatcherAvailability, ...] = ()
    timers: tuple[Timer, ...] = ()
    fair_for_timing: bool = True
    not_understood: tuple[LineExample, ...] = ()
    files: tuple[str, ...] = ()
    slices: tuple[Slice, ...] = ()

    @property
    def status(self) -> Literal["ready", "failed", "unread"]:
        if self.error is None:
            return "ready"
        return "unread" if self.health.get("outcome") == "unread" else "failed"

    @property
    def step_lines(self) -> tuple[LineExample, ...]:
        """Lines of an unread log that look like steps."""
        return tuple(example for example in self.not_understood if example.kind == UNKNOWN_STEP)


# --- Which process of a job a line of its logs belongs to: the last one, or one that a restart replaced.


def start_lines(log: ParsedLog) -> dict[int, list[int]]:
    """Lines at which processes start, by file: as the log says so, or the first iteration that they printed."""
    starts: dict[int, set[int]] = {}
    for event in log.events:
        if event.kind == "training_started":
            starts.setdefault(event.file, set()).add(event.line)
    files = log.columns.get("log_file")
    for row in log.segment_starts or (0,):
        if row < log.n:
            starts.setdefault(0 if files is None else int(files[row]), set()).add(int(log.line_numbers[row]))
    return {file: sorted(lines) for file, lines in starts.items()}


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


# --- What a run's figures are worth: how much was measured, and whether it may stand for real training.
#
# Numbers of the published tuning workflow: 6 to 12 iterations after warm-up may screen a candidate, a result needs 50
# steps with a window such as 41 to 50.

EvidenceLevel = Literal["smoke", "screen", "matched_ab", "validated"]
SemanticClass = Literal["training_equivalent", "benchmark_only", "unknown"]

_LABELS = {"matched_ab": "matched A/B", "validated": "full length"}

SCREEN_WINDOW = 6
VALIDATED_WINDOW = 10
VALIDATED_STEPS = 50

_FORCED = ("forced-balance", "forced-biased")


def evidence_label(level: str) -> str:
    """Return what pages call a level.

    `validated` is about the length and health of a measurement. Whether a result holds for real training, the step
    "validate" of the workflow says, and nothing else is called by that word.
    """
    return _LABELS.get(level, level.replace("_", " "))


def evidence_level(
    steady: SteadyState | None, health: Mapping[str, object], *, fair_for_timing: bool = True
) -> EvidenceLevel:
    """`validated` only for a healthy, steady, fair run of 50 steps, whose window is declared when it is short.

    `matched_ab` takes two runs, so no single run has it.
    """
    if steady is None or steady.n < SCREEN_WINDOW:
        return "smoke"
    healthy = health["outcome"] == "completed" and health["loss_finite"] is True
    clean = health["skipped_iterations"] in (0, None) and health["nan_iterations"] in (0, None)
    long = steady.last_iteration >= VALIDATED_STEPS and steady.n >= VALIDATED_WINDOW
    warm = steady.is_steady and (not steady.short or steady.method == "declared")
    return "validated" if healthy and clean and long and warm and fair_for_timing else "screen"


def semantic_class(contract: Mapping[str, Stated]) -> SemanticClass:
    """`benchmark_only` when routing is forced, data are made up or NaN checks are off; `unknown` when nobody says."""
    value = {name: stated.value for name, stated in contract.items()}
    if value.get("routing_mode") in _FORCED or value.get("data_mode") == "mock" or value.get("nan_checks") is False:
        return "benchmark_only"
    if "routing_mode" in contract and value.get("data_mode") == "real":
        return "training_equivalent"
    return "unknown"

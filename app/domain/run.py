"""Values shared by all packages: what a log states, and what a run is. All are frozen; names contain units."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...] | None
"""A contract value. None means "stated as unset" (Python's None in a dump), not "unknown"."""

Source = Literal["metadata", "arguments", "log line", "derived", "default"]
"""Origin of a value. `default`: absent from a dump that lists only non-defaults."""


SPARSE = {"sparse": True}
"""Metadata of a field that few values have: JSON omits it when it has its default."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A value and its origin. `detail` describes the origin for users: `line 12: moe_token_dispatcher_type = alltoall`.

    `line` is the line that states the value, in the log file with index `file`; 0 when no single log line does.
    `in_use` is false for a knob that has no effect because of another field: its value is None, and `stated_value` is
    the value of the source, or None. `stated_by` is the user who stated the value after the upload.
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
class LogProblem:
    """Something in a log that was skipped or is unusual. `line` counts from 1; 0 if it is not a single line."""

    kind: str
    message: str
    line: int = 0
    example: str = ""
    file: int = 0


UNREADABLE_DOCUMENT = "unreadable document"
"""Kind of the problem of a run whose only documents could not be read."""

UNKNOWN_STEP = "a step of an unknown trainer"
"""Kind of line examples that look like steps, in a log that no reader supports."""


@dataclass(frozen=True, slots=True)
class LineExample:
    """Lines of one kind that were not (fully) understood: their number, and the first one."""

    kind: str
    count: int
    example: str
    line: int = 0
    file: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """One process start in a run: iterations as printed, inclusive; `first_row` indexes the merged columns.

    `file`: name of the log file. `iterations_kept`: those that no later slice repeated. A `retry` begins where an
    earlier slice began, a `resume` at a checkpoint. `crash_loop`: one of several starts that reach no further than the
    one before.
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
    """A line about an event: `kind` is a key of `logs/events.py`; `line` counts from 1."""

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
    """The content of one log.

    `columns`: one float64 array per metric, all of length n, in log order after resolving restart overlaps (the later
    value wins) and dropping duplicate lines; NaN for missing values. Always contains `iteration` and `step_time_ms` (as
    printed), and `step_time_true_ms` (NaN if the printed value is an unresolvable artefact; otherwise the printed
    value). `line_numbers`: int64 (n,), counted from 1. `segment_starts`: indexes into the columns at which a process
    (re)started; the first is 0 if n > 0.

    `stated`: contract fields by canonical name, from arguments, configuration summary or single lines. `arguments`: all
    names of the dumps with their values, for reference and for the FLOPs shape.

    For a run of several files (`domain/logs/merge.py`): `files` are their names in the given order; a column
    `log_file`, and `file` of events, reports and problems, are indexes into it. `process_lines`: for each file, the
    line after which it describes the last process; () if the log was not merged.
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
    problems: tuple[LogProblem, ...] = ()
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
        """Return the number of iteration lines."""
        return len(self.line_numbers)


@dataclass(frozen=True, slots=True)
class LogPart:
    """One file of a run: its name as uploaded, and its content."""

    name: str
    log: ParsedLog


@dataclass(frozen=True, slots=True)
class Window:
    """A declared steady window, first and last iteration inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """Validated metadata of the upload.

    `fields`: contract fields by name; `extra`: unknown fields, stored only. `commit_time`: aware, in UTC; the history
    position of the run. `job`: the CI job or test; runs of two jobs never share a history. `merge_base`: the commit at
    which the branch of a change left its target, with its time. `read_as`: how to read a log of an unknown trainer
    (`logs/line_template.py`). `format`: that of the files sent as logs; empty: by content.
    """

    name: str = ""
    project: str = "default"
    purpose: Literal["ci", "experiment", "release"] = "ci"
    branch: str = ""
    commit: str = ""
    ci_url: str = ""
    job: str = ""
    commit_time: datetime | None = None
    merge_base: str = ""
    merge_base_time: datetime | None = None
    tags: tuple[str, ...] = ()
    window: Window | None = None
    read_as: str = ""
    format: Literal["", "log", "iterations", "bencher"] = ""
    fields: Mapping[str, Stated] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Unsteadiness(NamedTuple):
    """Why a window is not steady, and by how much: its number of step times, or a spread or change in percent.

    Changes are positive where step times grow. `from_iteration`: where a new level begins.
    """

    kind: Literal["short", "scatter", "drift", "level"]
    amount: float
    from_iteration: int | None = None


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The steady window of a run and its step time (method: `docs/metrics.md`).

    Iterations are as printed, inclusive. `log_step_time`: median of ln(ms) over the window; `se`: its standard error.
    `reasons`: why `is_steady` is false; `unsteadiness`: the first of them as data, which runs read earlier lack.
    `notes`: decisions about restarts, a declared window and a drift, which widens `se`.
    `short`: under 15 iterations, unless declared as in a full run (41 to 50 of 50).
    `profiled`: first and last iteration that a profiler slowed and the window leaves out. None without any, or if they
    count because too few others exist. `spikes`: the slowest iterations above the spike threshold, at most ten, with
    their times in ms, in the order of the log.
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
    profiled: tuple[int, int] | None = None
    spikes: tuple[tuple[int, float], ...] = ()
    unsteadiness: Unsteadiness | None = None

    @property
    def unsteady_because(self) -> str:
        """Return why the window is not steady; empty if it is."""
        return "" if self.is_steady else "; ".join(self.reasons) or "the window is not steady"

    def contains(self, iterations: FloatArray | IntArray) -> npt.NDArray[np.bool_]:
        """Return for each iteration whether it is in the window."""
        inside = (iterations >= self.first_iteration) & (iterations <= self.last_iteration)
        if self.profiled is not None:
            inside &= (iterations < self.profiled[0]) | (iterations > self.profiled[1])
        return np.asarray(inside)


@dataclass(frozen=True, slots=True)
class Metric:
    """One headline figure with its interval (95 %) and the number of iterations behind it."""

    value: float
    ci_low: float
    ci_high: float
    n: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """A line of the log as evidence.

    `file` indexes the run's files, `line` counts from 1. `inferred`: not a proof; `text` states the conclusion.
    """

    file: int
    line: int
    text: str
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure for users: `kind` is one of `docs/failures.md`; the root cause of a chain comes first."""

    kind: str
    title: str
    explanation: str
    advice: str
    iteration: int | None = None
    rank: int | None = None
    evidence: tuple[LogEvidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Activity:
    """A field as requested and as active; None if unknown. `agrees` is None if one of them is unknown."""

    requested: Stated | None
    active: Stated | None
    agrees: bool | None


@dataclass(frozen=True, slots=True)
class DispatcherAvailability:
    """Whether a dispatcher works in the run's container, as its log proves. `container` is None if not stated."""

    dispatcher: str
    available: bool
    container: str | None
    evidence: tuple[LogEvidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer over the steady window: its median, its share (0-1) of the step, and slowest over fastest rank."""

    name: str
    share_of_step: float
    median_ms: float
    max_over_min: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The results of processing a run, except its series.

    `error` is set if no figure can be computed (the run is `failed`, or `unread` if no reader supports its log).
    `definitions`: version of each definition behind the figures (`docs/metrics.md`); `definition_version` is their sum.
    `activity`: fields that may be active with another value than requested, by name. `fair_for_timing` is false if
    timer barriers or similar slowed the steps down; a warning gives the reason.
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
    health: Mapping[str, Any]
    evidence_level: str
    semantic_class: str
    definition_version: int
    definitions: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    activity: Mapping[str, Activity] = field(default_factory=dict)
    availability: tuple[DispatcherAvailability, ...] = ()
    timers: tuple[Timer, ...] = ()
    fair_for_timing: bool = True
    not_understood: tuple[LineExample, ...] = ()
    slices: tuple[Slice, ...] = ()

    @property
    def step_lines(self) -> tuple[LineExample, ...]:
        """Return the lines of an unread log that look like steps."""
        return tuple(example for example in self.not_understood if example.kind == UNKNOWN_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(RunResult):
    """The results with the series. `files`: the names of the log files."""

    series: Mapping[str, FloatArray]
    units: Mapping[str, str]
    line_numbers: IntArray
    files: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["ready", "failed", "unread"]:
        if self.error is None:
            return "ready"
        return "unread" if self.health.get("outcome") == "unread" else "failed"


# --- Assignment of log lines to processes: the last one, or one that a restart replaced.


def start_lines(log: ParsedLog) -> dict[int, list[int]]:
    """Return the lines at which processes start, by file: as stated, or the first printed iteration."""
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
    """Return the line of a single file at which its last process starts; 0 if none is visible."""
    return max((lines[-1] for lines in start_lines(log).values()), default=0)


def events_of_last_process(log: ParsedLog) -> list[LogEvent]:
    """Return events of the last process, from any file."""
    lines = log.process_lines or (last_start_line(log),)
    return [event for event in log.events if _is_after_start(event, lines[event.file])]


def _is_after_start(event: LogEvent, start: int) -> bool:
    """Return whether an event follows the start of a process. Bars draw all iterations and the end in one line."""
    return event.line > start or (event.line == start and event.kind == "training_done")


def events_of_earlier_processes(log: ParsedLog) -> Iterator[list[LogEvent]]:
    """Yield events of each process that a later one replaced, in the order of the run."""
    starts = start_lines(log)
    last = log.process_lines or (last_start_line(log),)
    groups: dict[tuple[int, int], list[LogEvent]] = {}
    for event in log.events:
        if not _is_after_start(event, last[event.file]):
            ordinal = sum(line < event.line for line in starts.get(event.file, ()))
            groups.setdefault((event.file, ordinal), []).append(event)
    yield from groups.values()


def last_row_before(event: LogEvent, log: ParsedLog) -> int | None:
    """Return the row of the last iteration that the event's file printed before it; None without one."""
    files = log.columns.get("log_file")
    rows = log.line_numbers < event.line
    if files is not None:
        rows &= files == event.file
    return int(rows.nonzero()[0][-1]) if rows.any() else None


def is_after_last_iteration(event: LogEvent, log: ParsedLog) -> bool:
    """Return whether training had stopped when this line was printed, as far as its file shows.

    For a file without iterations (such as rank 0's), at best the start of training is known: earlier events did not
    stop it.
    """
    files = log.columns.get("log_file")
    own = log.line_numbers if files is None else log.line_numbers[files == event.file]
    if len(own):
        return event.line > int(own[-1])
    return log.n == 0 or any(
        other.kind == "training_started" and other.file == event.file and other.line < event.line
        for other in log.events
    )


# --- The quality of a run's figures: how much was measured, and whether it is equivalent to training.
#
# Numbers of the published tuning workflow: 6 to 12 iterations after warm-up may screen a candidate, a result needs 50
# steps with a window such as 41 to 50.

EvidenceLevel = Literal["smoke", "screen", "matched_ab", "validated"]
EVIDENCE_LEVELS: tuple[EvidenceLevel, ...] = get_args(EvidenceLevel)
"""Weakest first."""
SemanticClass = Literal["training_equivalent", "benchmark_only", "unknown"]

_LABELS = {"matched_ab": "matched A/B", "validated": "full length"}

SCREEN_WINDOW = 6
VALIDATED_WINDOW = 10
VALIDATED_STEPS = 50
_LEFT_OUT = ("skipped_iterations", "nan_iterations")

FORCED_ROUTING = ("forced-balance", "forced-biased")


def evidence_label(level: str) -> str:
    """Return the displayed name of an evidence level.

    `validated` concerns length and health of a measurement. The workflow step "validate" checks whether a result holds
    for real training, so the word is reserved for it.
    """
    return _LABELS.get(level, level.replace("_", " "))


def evidence_level(
    steady: SteadyState | None, health: Mapping[str, object], *, fair_for_timing: bool = True
) -> EvidenceLevel:
    """Return the evidence level.

    `validated` requires a healthy, steady, fair run of 50 steps, with a declared window if it is short. `matched_ab`
    needs two runs, so no single run has it.
    """
    if steady is None or steady.n < SCREEN_WINDOW:
        return "smoke"
    return "screen" if lacking_for_full_length(steady, health, fair_for_timing=fair_for_timing) else "validated"


def lacking_for_full_length(
    steady: SteadyState, health: Mapping[str, object], *, fair_for_timing: bool = True
) -> tuple[str, ...]:
    """Return what a run lacks to be `validated`, in words."""
    skipped = sum(count for key in _LEFT_OUT if isinstance(count := health.get(key), int))
    outcome, loss_finite = health.get("outcome") or "", health.get("loss_finite")
    lacks = (
        (outcome == "", "no log shows that the job completed"),
        (outcome not in ("", "completed"), "the job did not complete"),
        (loss_finite is None, "no loss is known"),
        (loss_finite is False, "the loss is not finite"),
        (skipped > 0, f"{skipped} iterations were skipped or not finite"),
        (steady.last_iteration < VALIDATED_STEPS, f"{steady.last_iteration} of {VALIDATED_STEPS} steps"),
        (steady.n < VALIDATED_WINDOW, f"{steady.n} of {VALIDATED_WINDOW} steady steps"),
        (not steady.is_steady, steady.unsteady_because),
        (steady.is_steady and steady.short and steady.method != "declared", "the window is short and not declared"),
        (not fair_for_timing, "checkpoints, profiling or other work slow the measured steps"),
    )
    return tuple(text for applies, text in lacks if applies)


def semantic_class(contract: Mapping[str, Stated]) -> SemanticClass:
    """Return the semantic class:

    `benchmark_only` with forced routing, synthetic data or disabled NaN checks; `unknown` if not stated.
    """
    value = {name: stated.value for name, stated in contract.items()}
    if (
        value.get("routing_mode") in FORCED_ROUTING
        or value.get("data_mode") == "mock"
        or value.get("nan_checks") is False
    ):
        return "benchmark_only"
    if "routing_mode" in contract and value.get("data_mode") == "real":
        return "training_equivalent"
    return "unknown"

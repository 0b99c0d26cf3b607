"""Data of the page of one run. A part is computed when a template uses it, so a block costs only itself."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlencode

import numpy as np
from fastapi import Request
from sqlalchemy import or_
from sqlmodel import Session, col
from starlette.responses import HTMLResponse

from app.domain.contract.fields import FIELDS, METRICS
from app.domain.contract.values import GPU_MEMORY_GIB, explained
from app.domain.experiments.outcome import short_result
from app.domain.logs.line_template import read_template
from app.domain.numbers import (
    DASH,
    THIN,
    change_text,
    contract_value,
    figure,
    grouped,
    level_text,
    percent,
    plural,
    significant,
    step_time,
)
from app.domain.performance.failures import failed_allocation, failure_lead
from app.domain.performance.figures import too_much_memory
from app.domain.performance.health import LOSS_NAMES
from app.domain.performance.timers import step_parts
from app.domain.planning.request import REQUIRED, plan_address
from app.domain.report.what_changed import AXIS_TITLES
from app.domain.rules.flags import flags_text
from app.domain.run import Activity, FloatArray, LineExample, Metric, Slice, Stated, SteadyState, Timer
from app.domain.verdict.comparability import COMMIT
from app.domain.verdict.decide import MetricChange
from app.domain.verdict.history_view import Drift, Pin, drift, has_figure
from app.domain.verdict.record import PEAK_MEMORY
from app.domain.verdict.step_time import shows_no_difference
from app.domain.verdict.triage import ACTIVE
from app.domain.verdict.words import provisional_because, sides_text
from app.errors import Unavailable
from app.pipeline.decisions import GoldenProposal, pins, proposals
from app.runs import charts, log_view
from app.runs.charts import Points
from app.runs.forms import AmendForm, DecisionForm, ReadAsForm
from app.runs.queries import get_run, get_series
from app.runs.verdict_view import VerdictView, named_runs, rerun_command, verdict_view
from app.storage.audit import AuditEvent, events
from app.storage.experiments import ExperimentFilter, ExperimentListPage, experiment_sides, find_experiments
from app.storage.log_files import LogFiles
from app.storage.profiles import StoredProfileFile, profiles_of
from app.storage.runs import ENDED_BADLY, RunDetail, RunState, StoredSeries
from app.storage.setbacks import FITTED_RULE, PACKAGE_RULE, WorkingRun, setbacks_of, working_runs
from app.storage.stacks import StackRun, stack_runs
from app.storage.tables import PROCESSED, RunRow
from app.web.charts import STEP_BAR_WIDTH, BarSegment, bar_segments, grouped_series, off_scale_note, series_label
from app.web.forms import ROLES, ContractInput
from app.web.lists import invalid_filter
from app.web.templating import OUTCOMES, render

# --- What part of a run its page shows: the query string of `/runs/{id}`, checked as input.

TABS = {
    "why": "Why",
    "iterations": "Iterations",
    "config": "Config",
    "log": "Log",
    "health": "Health",
    "record": "Record",
}
"""The parts of the page below the answer, each with its label. Only one is loaded."""
_CHOICES = {"scale": ("linear", "log"), "view": ("chart", "table"), "tab": tuple(TABS), "fields": ("differing", "all")}
_TEXTS = ("series", "scale", "view", "amend", "read_as", "tab", "fields", "find", "text")
_MAX_NUMBER = 10**12


@dataclass(frozen=True, slots=True)
class RunView:
    """The state of the page in its address.

    `first` and `last` zoom the chart to iterations; `page` belongs to its table. `line` (from 1) of log file `file`
    (from 0) positions the log viewer, `text` is searched for from there; `iteration` is the chart point of a log line.
    0: not requested. `amend`: the contract field to correct. `fields`: which ones the configuration shows, and `find`:
    the text in their names or values. `tab`: the requested part of the page, see `shown`. `read_as`: the description
    of step lines to try.
    """

    tab: str = ""
    series: str = ""
    scale: str = "linear"
    view: str = "chart"
    first: int = 0
    last: int = 0
    page: int = 1
    iteration: int = 0
    file: int = 0
    line: int = 0
    text: str = ""
    amend: str = ""
    read_as: str = ""
    fields: str = "differing"
    find: str = ""

    @property
    def shown(self) -> str:
        """Return the tab that is shown: the requested one, else the one that the rest of the address is about."""
        if self.tab:
            return self.tab
        if self.line or self.file or self.text:
            return "log"
        if self.amend or self.find or self.fields == "all":
            return "config"
        return "iterations" if self.view == "table" else "why"

    def of_tab(self, tab: str) -> str:
        """Return the query string of a tab, which keeps what the chart above it shows."""
        return self.query(
            tab=tab, view="chart", page=1, iteration=0, file=0, line=0, text="", amend="", fields="differing", find=""
        )

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Read the query string. Raises InvalidQuery naming the first unusable field."""
        given = {f.name: params[f.name].strip() for f in fields(cls) if params.get(f.name, "").strip()}
        values: dict[str, Any] = {}
        for name, text in given.items():
            if name in _TEXTS:
                if text not in _CHOICES.get(name, (text,)):
                    raise invalid_filter(name, f"must be one of {', '.join(_CHOICES[name])}")
                values[name] = text
            elif text.isascii() and text.isdigit() and len(text) <= 13 and int(text) <= _MAX_NUMBER:
                values[name] = int(text)
            else:
                raise invalid_filter(name, f"must be a whole number, not {text[:40]!r}")
        view = cls(**values)
        if view.last and view.first > view.last:
            raise invalid_filter("last", "must not be before first")
        return replace(view, page=max(1, view.page))

    def query(self, **changes: Any) -> str:
        """Return the query string with `changes` applied, without values that equal the default."""
        changed = replace(self, **changes)
        if (untold := replace(changed, tab="")).shown == changed.tab:
            changed = untold
        default = RunView()
        return urlencode(
            {f.name: value for f in fields(self) if (value := getattr(changed, f.name)) != getattr(default, f.name)}
        )


# --- Requested and active values by field: agree, differ, or not proven.

_FAR = 0.2
"""Share of the baseline by which a run of it is far off, so that its mark in the chart is explained."""
_ORDER = {False: 0, True: 1, None: 2}
WORDS = {False: "differs", True: "agrees", None: "not proven"}


@dataclass(frozen=True, slots=True)
class StatedSide:
    """One side of the comparison. `line` of log file `file` says so, 0 when no line does."""

    value: str
    source: str
    detail: str
    file: int
    line: int


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """`word` is agrees, differs or not proven. A side is None when no source states it."""

    field: str
    requested: StatedSide | None
    active: StatedSide | None
    word: str


def activity_rows(activity: Mapping[str, Activity]) -> tuple[ActivityRow, ...]:
    """Return a row for each field; differing fields come first."""
    ordered = sorted(activity.items(), key=lambda item: _ORDER[item[1].agrees])
    return tuple(
        ActivityRow(name, _stated_side(entry.requested), _stated_side(entry.active), WORDS[entry.agrees])
        for name, entry in ordered
    )


def differing(activity: Mapping[str, Activity]) -> tuple[str, ...]:
    """Describe each field that was not active as requested: `dispatcher: requested deepep, active alltoall`."""
    return tuple(
        f"{name}: requested {_value(entry.requested)}, active {_value(entry.active)}"
        for name, entry in activity.items()
        if entry.agrees is False
    )


def _value(stated: Stated | None) -> str:
    return contract_value(stated.value) if stated else "unknown"


def _stated_side(stated: Stated | None) -> StatedSide | None:
    if stated is None:
        return None
    return StatedSide(contract_value(stated.value), stated.source, explained(stated), stated.file, stated.line)


# --- The contract as the run page shows it: grouped, each value with its source, what is unknown among what is known.

OTHER = "Other"


@dataclass(frozen=True, slots=True)
class ContractRow:
    """`value` is None when unknown. `line` of log file `file` states it, 0 for none.

    `source`: who stated it, for the page: a source, or the user who stated it later.
    """

    name: str
    meaning: str
    value: str | None
    unit: str
    source: str
    detail: str
    file: int
    line: int


@dataclass(frozen=True, slots=True)
class ContractGroup:
    name: str
    rows: tuple[ContractRow, ...]


def contract_groups(contract: Mapping[str, Stated], unknown: Sequence[str]) -> tuple[ContractGroup, ...]:
    """Return the fields in groups, in the order of the registry; unregistered fields come last, under `Other`."""
    shown = [name for name in FIELDS if name in contract or name in unknown]
    shown += [name for name in (*contract, *unknown) if name not in FIELDS]
    groups: dict[str, list[ContractRow]] = {}
    for name in dict.fromkeys(shown):
        group = FIELDS[name].group if name in FIELDS else OTHER
        groups.setdefault(group, []).append(_row(name, contract.get(name)))
    return tuple(ContractGroup(name, tuple(rows)) for name, rows in groups.items())


def amend_command(base_url: str, run_id: int, blocking: Sequence[str]) -> str:
    """Return the API call that states `blocking`, the unknown fields that limit comparisons.

    Each value is null, which the API refuses, so that a command pasted without reading never becomes a fact.
    """
    body = json.dumps({"fields": dict.fromkeys(blocking), "author": ""})
    address = f"{base_url}/api/v1/runs/{run_id}/contract"
    return f"curl --fail-with-body -X PATCH -H 'Content-Type: application/json' -d {shlex.quote(body)} {address}"


def _row(name: str, stated: Stated | None) -> ContractRow:
    field = FIELDS.get(name)
    meaning = f"{field.meaning} {ROLES[field.role]}" if field else ""
    unit = field.unit if field else ""
    if stated is None:
        return ContractRow(name, meaning, None, unit, "", "", 0, 0)
    source = stated.detail if stated.stated_by else stated.source
    value = contract_value(stated.value)
    return ContractRow(name, meaning, value, unit, source, explained(stated), stated.file, stated.line)


# --- Health for the run page: how the job ended and which line shows it, loss, skipped steps, memory.


@dataclass(frozen=True, slots=True)
class HealthRow:
    """`text` is None when the run does not state it. `line` of log file `file` shows it, None for none."""

    label: str
    text: str | None
    line: int | None = None
    file: int = 0


def health_rows(health: Mapping[str, Any], peak: Metric | None) -> tuple[HealthRow, ...]:
    """Return the rows in the order of questions: did it end well, did it learn, what did it cost.

    `peak`: the peak memory of the run, for one whose log reports no memory but whose iterations state it.
    """
    outcome = health.get("outcome")
    return (
        HealthRow("Ended", OUTCOMES.get(str(outcome), outcome) or None),
        HealthRow("Evidence", health.get("evidence"), health.get("evidence_line"), health.get("evidence_file") or 0),
        HealthRow("Iterations", _iterations(health)),
        HealthRow("Loss", _loss(health)),
        HealthRow("Skipped", _count(health, "skipped_iterations")),
        HealthRow("NaN", _count(health, "nan_iterations")),
        HealthRow("Gradient norm", _gradient(health)),
        HealthRow("Memory", _memory(health, peak)),
    )


def _iterations(health: Mapping[str, Any]) -> str | None:
    read = health.get("iterations")
    if read is None:
        return None
    if read == health.get("last_iteration") == health.get("total_iterations") and not health.get("restarts"):
        return f"all {read:,}"
    planned = f", the last is {health['last_iteration']:,}" if health.get("last_iteration") is not None else ""
    planned += f" of {health['total_iterations']:,}" if planned and health.get("total_iterations") else ""
    restarts = health.get("restarts") or 0
    return f"{read:,} read{planned}" + (f"; {plural(restarts, 'restart')}" if restarts else "")


def _loss(health: Mapping[str, Any]) -> str | None:
    first, last, finite = health.get("first_loss"), health.get("last_loss"), health.get("loss_finite")
    if finite is None and last is None:
        return None
    words = {True: "finite throughout", False: "not finite in some iterations", None: ""}[finite]
    if first is None or last is None:
        return words or None
    return ", ".join(filter(None, (f"{significant(first)} to {significant(last)}", words)))


def _count(health: Mapping[str, Any], name: str) -> str | None:
    value = health.get(name)
    return None if value is None else plural(value, "iteration")


def _gradient(health: Mapping[str, Any]) -> str | None:
    last, largest = health.get("last_grad_norm"), health.get("largest_grad_norm")
    return None if last is None or largest is None else f"last {significant(last)}, largest {significant(largest)}"


def _memory(health: Mapping[str, Any], peak: Metric | None) -> str | None:
    parts = [
        f"{grouped(health[name], 1)}{THIN}GiB {word}"
        for name, word in (("peak_allocated_gib", "allocated"), ("peak_reserved_gib", "reserved"))
        if health.get(name) is not None
    ]
    if not parts and peak is not None:
        parts.append(f"{figure(peak, 'peak_memory_gib').text} peak")
    if health.get("alloc_retries") is not None:
        parts.append(plural(health["alloc_retries"], "allocation retry", "allocation retries"))
    return ", ".join(parts) or None


# --- Whether a run is the golden baseline of its stack, and the drift that pinning it would accept.


@dataclass(frozen=True, slots=True)
class PinView:
    """`pin` of this run, `other` of another run of its stack, both in force. Drifts are those of this run.

    `since_pin`: against the run pinned now, or last before this one; `since_release`: against the newest earlier
    release. None: no such run, or no figure. `proposals`: those of this run, newest first.
    """

    pin: Pin | None
    other: Pin | None
    since_pin: Drift | None
    since_release: Drift | None
    proposals: tuple[GoldenProposal, ...]

    @property
    def proposed(self) -> GoldenProposal | None:
        """Return the open proposal of this run."""
        return next((proposal for proposal in self.proposals if proposal.state == "open"), None)


def pin_view(session: Session, run: RunDetail) -> PinView:
    all_pins = pins(session, run.project_id, [run.stack_key]).get(run.stack_key, [])
    in_force = [pin for pin in all_pins if pin.in_force]
    others = [pin for pin in all_pins if pin.run_id != run.id]
    wanted = {run.id, *(pin.run_id for pin in others[:1])}
    # The pinned run, this one and the releases: a history may have thousands of others.
    runs = stack_runs(
        session,
        run.project_id,
        run.stack_key,
        or_(col(RunRow.id).in_(wanted), col(RunRow.purpose) == "release"),
        with_metrics=False,
    )
    by_id = {run.id: run for run in runs}
    this = by_id.get(run.id)
    return PinView(
        pin=next((pin for pin in in_force if pin.run_id == run.id), None),
        other=next((pin for pin in in_force if pin.run_id != run.id), None),
        since_pin=drift(this, by_id.get(others[0].run_id)) if others else None,
        since_release=drift(this, _release_before(runs, run.id)),
        proposals=tuple(item for item in proposals(session, run.project_id, run.stack_key) if item.run_id == run.id),
    )


def _release_before(runs: list[StackRun], run_id: int) -> StackRun | None:
    places = [run.id for run in runs]
    before = runs[: places.index(run_id)] if run_id in places else []
    return next((run for run in reversed(before) if run.purpose == "release" and has_figure(run)), None)


# --- The process starts of a run: what each one added, and whether it was a resume, a retry or part of a crash loop.


@dataclass(frozen=True, slots=True)
class SliceRow:
    """`word` is start, resume, retry or crash loop; `line` of log file `file_index` is its first iteration.

    `file_index` is None when the run has no such log.
    """

    number: int
    file: str
    file_index: int | None
    line: int
    first: int
    last: int
    remaining: int
    word: str


def slice_rows(slices: Sequence[Slice], names: Sequence[str], log_lines: FloatArray) -> tuple[SliceRow, ...]:
    """Return the process starts in the order of the run.

    `names`: of the log files; `log_lines`: of each iteration. A single successful start gives no rows.
    """
    if len(slices) < 2 and not any(piece.crash_loop for piece in slices):
        return ()
    return tuple(
        SliceRow(
            number=number,
            file=piece.file,
            file_index=names.index(piece.file) if piece.file in names else None,
            line=int(np.nan_to_num(log_lines[piece.first_row])) or 1 if piece.first_row < len(log_lines) else 1,
            first=piece.first_iteration,
            last=piece.last_iteration,
            remaining=piece.iterations_kept,
            word="crash loop" if piece.crash_loop else piece.kind,
        )
        for number, piece in enumerate(slices, 1)
    )


def starts_sentence(slices: Sequence[Slice]) -> str:
    """Return `Started 4 times: 2 resumes, 1 retry.`, with a warning about crash loops."""
    kinds = Counter(str(piece.kind) for piece in slices)
    again = [
        plural(kinds[kind], kind, several)
        for kind, several in (("resume", "resumes"), ("retry", "retries"))
        if kinds[kind]
    ]
    text = f"Started {plural(len(slices), 'time')}" + (f": {', '.join(again)}." if again else ".")
    if loops := sum(piece.crash_loop for piece in slices):
        text += (
            f" {plural(loops, 'start')} in a crash loop: same start point, no progress. "
            "Check the failure above before restarting."
        )
    return text


# --- The iterations of a run as a table: the same data as the chart, a page at a time.

TABLE_ROWS = 25
_IN_TABLE = ("step_time_ms", "tflops_per_gpu", "lm_loss", "grad_norm")
"""Series that the table has in addition to the charted one."""


@dataclass(frozen=True, slots=True)
class SeriesTableRow:
    """One iteration; `values` as text, in the order of the columns. `printed`: the corrected step time of the log."""

    iteration: int
    role: str
    file: int
    line: int
    values: tuple[str, ...]
    printed: str


@dataclass(frozen=True, slots=True)
class SeriesTable:
    columns: tuple[str, ...]
    items: tuple[SeriesTableRow, ...]
    page: int
    pages: int
    first: int
    last: int
    total: int


def table_of(series: Sequence[Points], page: int) -> SeriesTable:
    """Return page `page` (from 1) of series over the same iterations; past the end the last page."""
    whole = series[0]
    pages = max(1, -(-len(whole.iterations) // TABLE_ROWS))
    start = (min(page, pages) - 1) * TABLE_ROWS
    rows = tuple(
        SeriesTableRow(
            iteration=int(whole.iterations[row]),
            role=whole.roles[row],
            file=int(whole.log_files[row]),
            line=int(whole.log_lines[row]),
            values=tuple(
                significant(float(column.values[row])) if np.isfinite(column.values[row]) else DASH for column in series
            ),
            printed="" if np.isnan(whole.printed_ms[row]) else step_time(float(whole.printed_ms[row])),
        )
        for row in range(*slice(start, start + TABLE_ROWS).indices(len(whole.iterations)))
    )
    return SeriesTable(
        columns=tuple(column.title for column in series),
        items=rows,
        page=start // TABLE_ROWS + 1,
        pages=pages,
        first=start + 1 if rows else 0,
        last=start + len(rows),
        total=len(whole.iterations),
    )


# --- The answer of the run page: speed, steadiness, ending, use.

_ENDINGS = {
    "out_of_memory": "The job ran out of memory",
    "failed": "The job ended in an error",
    "not_finite": "The loss or the gradient became NaN or infinite",
    "stopped": "The job was stopped by a time limit or a signal",
    "truncated": "The log ends before the last planned iteration",
}
_WAITING = {
    "received": "The log is stored and waits for a worker.",
    "processing": "A worker is reading the log.",
}


def answer(run: RunDetail) -> str:
    """Return one to three sentences: speed, ending and use of the run."""
    if run.status in _WAITING:
        return _WAITING[run.status]
    if run.status == "unread":
        return "The format of this log is unknown. The job itself may be fine."
    if run.status == "failed":
        if run.receiving:
            return "No iterations yet."
        return "No figure could be read from this run" + (f": {run.failures[0].title}." if run.failures else ".")
    sentences = [_speed(run), "" if run.receiving else _ending(run), _meaning(run)]
    return " ".join(sentence for sentence in sentences if sentence)


def _speed(run: RunDetail) -> str:
    metric, steady = run.metrics.get("step_time_ms"), run.steady_state
    if metric is None or steady is None:
        return "Too few iterations for a steady step time."
    shown = figure(metric, "step_time_ms")
    width = f" {shown.width}" if shown.width else ""
    where = f"over iterations {steady.first_iteration:,} to {steady.last_iteration:,}"
    return f"{shown.text}{width} per step {where}, {_steadiness(steady)}."


def _steadiness(steady: SteadyState) -> str:
    window = "the declared window" if steady.method == "declared" else "the detected steady window"
    if not steady.is_steady:
        return f"{window}, which is not steady: {'; '.join(steady.reasons) or 'too few iterations'}"
    if steady.short:
        return f"{window} of only {plural(steady.n, 'iteration')}: directional, confirm with a longer run"
    if steady.spike_share > 0:
        return f"{window}; {percent(steady.spike_share * 100)} of its iterations are spikes"
    return window


def _ending(run: RunDetail) -> str:
    ending = _ENDINGS.get(str(run.health.get("outcome")))
    return f"{ending}; figures cover the iterations before." if ending else ""


def _meaning(run: RunDetail) -> str:
    if run.semantic_class == "benchmark_only":
        return "Synthetic routing or data: not comparable with real training."
    return ""


def report(run: RunDetail) -> str:
    """Return the unrecognised log lines as text: a line for each kind, with its first example."""
    head = f"Threewalls definitions {run.definition_version}, trainer {run.trainer or 'unknown'}"
    lines = [f"{example.count} x {example.kind}: {example.example}" for example in run.not_understood]
    return "\n".join([head, *lines])


# --- Detects changes since the page was rendered: the page sends a token of its state when it polls.


@dataclass(frozen=True, slots=True)
class SeenState:
    """What a page has seen:

    `status` decides its shape, `stamp` changes with every reading, `verdict` with every verdict.
    """

    status: str
    phase: str
    stamp: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.status}.{self.phase}.{self.stamp}.{self.verdict}"

    @classmethod
    def parse(cls, text: str) -> "SeenState":
        """Parse the token that a page sends. Any other text means that the page has seen nothing."""
        parts = text[:80].split(".")
        return cls(*parts) if len(parts) == 4 else cls("", "", "", "")


def token_of(run: RunState | RunDetail) -> SeenState:
    phases = (("receiving", run.receiving), ("updating", run.updating), ("judging", run.judged.waiting))
    phase = next((name for name, holds in phases if holds), "settled")
    stamp = f"{run.processed_at.timestamp():.6f}".replace(".", "-") if run.processed_at else "0"
    return SeenState(run.status, phase, stamp, str(run.judged.verdict_id))


def is_settled(token: SeenState) -> bool:
    """Return whether the run no longer changes by itself."""
    return token.phase == "settled" and token.status in PROCESSED


def announcement(before: SeenState, now: SeenState) -> str:
    """Return the announcement for screen readers: changes of state, but not every changed figure."""
    if before.status != now.status:
        return f"The run is {now.status}."
    if before.phase == "receiving" and now.phase != "receiving":
        return "The log is complete."
    if before.verdict != now.verdict:
        return "The run was judged."
    return "The run was read again." if before.phase == "updating" and now.phase in ("judging", "settled") else ""


MOST_EXPERIMENTS = 3
"""Maximum number of experiments that the page of a run lists."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One of the five headline figures; `metric` is None when unknown."""

    name: str
    label: str
    meaning: str
    metric: Metric | None


_LEADS_WITH_CHANGE = ("regression", "improvement", "no_change")
"""Decisions that an unknown field puts in doubt."""
MOST_WORKING = 3
"""Maximum number of similar runs that the page of a failed run lists."""
_ASKED_FIRST = ("model", "gpu", "gpus", "seq_len", "cluster", "container")
"""Fields without which the most important figures and comparisons are missing."""
_NEEDED = {
    "tokens_per_s_per_gpu": ("gbs", "seq_len", "gpus"),
    "tflops_per_gpu": ("model", "gbs", "seq_len", "gpus"),
    "mfu_pct": ("model", "gbs", "seq_len", "gpus", "gpu"),
}
"""Contract fields that a figure is computed from."""
_FEWEST = 4
"""Iterations below which there is no figure."""


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """A contract field that differs from the compared run: its value there, and here."""

    field: str
    axis: str
    before: str
    after: str
    line: int
    file: int


@dataclass(frozen=True, slots=True)
class ExperimentLead:
    """What the page of an experiment's run says in place of a verdict: `side` A or B, its figure, and the result.

    `sides`: the runs that count, by letter. `metrics`: the changes of B against A, empty on the page of a run of A.
    `other_times`, `other_ms`: step times (ms) of the other side and their centre, None before there is a result.
    `level_pct`: of the interval of the changes.
    """

    experiment_id: int
    side: str
    step_time: str
    result: str
    sides: Mapping[str, tuple[str, ...]]
    metrics: Mapping[str, MetricChange | None]
    other_times: tuple[float, ...]
    other_ms: float | None
    level_pct: float | None

    @property
    def other_side(self) -> str:
        return "B" if self.side == "A" else "A"

    @property
    def compare_query(self) -> str:
        """Return the query of the compare page; empty while a side has no run that counts."""
        return f"a={','.join(self.sides['A'])}&b={','.join(self.sides['B'])}" if all(self.sides.values()) else ""


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """GPU memory of `size` GiB when an allocation failed, in parts: kind, label, GiB.

    The last part may be missing memory, which lies beyond the size. `name`: whose size it is, by the log or the vendor.
    """

    size: float
    parts: tuple[tuple[str, str, float], ...]
    name: str = "GPU memory"

    @property
    def label(self) -> str:
        return f"{self.name} {self.size:g} GiB"

    @property
    def segments(self) -> tuple[BarSegment, ...]:
        return bar_segments(self.parts)

    @property
    def size_at(self) -> float:
        """Return the position of the end of the memory on the bar."""
        return STEP_BAR_WIDTH * self.size / max(self.size, sum(size for _, _, size in self.parts))


def memory_bar(health: Mapping[str, Any], size: float | None) -> MemoryBar | None:
    """Return the memory of a run that ran out of it; None for others, and where a part is unknown.

    The figures are those of the error line; if it has none, the peak of the log and the `size` of the GPU in GiB.
    """
    if health.get("outcome") != "out_of_memory":
        return None
    if failed := failed_allocation(health.get("evidence", "")):
        used = failed.total - failed.free
        by_pytorch = min(failed.allocated or 0.0, used)
        idle = min(failed.idle or 0.0, used - by_pytorch)
        of_line = (
            ("memory-allocated", "allocated by PyTorch", by_pytorch),
            ("memory-idle", "reserved, unallocated", idle),
            ("memory-reserved", "other use" if by_pytorch else "in use", used - by_pytorch - idle),
            ("memory-free", "free", failed.free),
            ("memory-missing", f"missing for {failed.requested:.2f} GiB", failed.requested - failed.free),
        )
        return MemoryBar(failed.total, of_line, "capacity by the log")
    allocated = health.get("peak_allocated_gib")
    if allocated is None or size is None or allocated > size:
        return None
    reserved = max(health.get("peak_reserved_gib") or 0.0, allocated)
    parts = (
        ("memory-allocated", "allocated", allocated),
        ("memory-reserved", "reserved", reserved - allocated),
        ("memory-free", "free", size - reserved),
    )
    return MemoryBar(size, parts)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What makes a failed run work: its rule, in words, as flags of Megatron-LM, or as another container if known."""

    rule: str
    title: str
    flags: str
    container: str


class RunPage:
    """The data of the page, each part read when first needed and kept for the request."""

    def __init__(
        self,
        session: Session,
        log_files: LogFiles,
        run_id: int,
        view: RunView,
        *,
        form: AmendForm | None = None,
        decision: DecisionForm | None = None,
        read_as: ReadAsForm | None = None,
    ) -> None:
        self._session = session
        self._log_files = log_files
        self.view = view
        self.form = form or AmendForm()
        self.decision = decision or DecisionForm()
        self.read_as = read_as
        self.run: RunDetail = get_run(session, run_id)
        self.log_problem = ""
        self.text_is_missing = False
        self.first_warning = 0

    @property
    def token(self) -> SeenState:
        return token_of(self.run)

    @property
    def answer(self) -> str:
        return answer(self.run)

    @property
    def lead(self) -> str:
        """Return the first sentence: the verdict with its cause, else the figure, or why there is none."""
        run = self.run
        if run.status in _WAITING or run.status == "unread" or (run.status == "failed" and run.receiving):
            return answer(run)
        if self.ended_badly and run.failures:
            return failure_lead(run.failures[0], run.health.get("last_iteration"))
        if run.status == "failed":
            return "No figure could be read from this run."
        steady = run.steady_state
        if steady is None or run.metrics.get("step_time_ms") is None:
            n = run.health.get("iterations") or 0
            few = f"Only {plural(n, 'iteration')}; {_FEWEST} are needed"
            return f"No step time yet. {few}." if n < _FEWEST else "No steady step time."
        if self.verdict is not None:
            return self.verdict.lead
        return f"{step_time(steady.step_time_ms)} per step, not judged yet."

    @cached_property
    def experiment_lead(self) -> ExperimentLead | None:
        """Return the side of the experiment that the run was made for; None for other runs, and without a figure."""
        steady, side = self.run.steady_state, experiment_sides(self._session, [self.run.id]).get(self.run.id)
        if side is None or steady is None or self.ended_badly or "step_time_ms" not in self.run.metrics:
            return None
        result = side.result
        is_a, change = side.side == "baseline", result.verdict.step_time if result.verdict else None
        sides = {"A": result.baseline, "B": result.candidate}
        others = named_runs(self._session, sides["B" if is_a else "A"])
        return ExperimentLead(
            side.experiment_id,
            side.letter,
            step_time(steady.step_time_ms),
            short_result(result),
            sides,
            metrics={} if is_a else result.judged_metrics,
            other_times=tuple(row.step_time_ms for row in others.values() if row.step_time_ms is not None),
            other_ms=None if change is None else change.candidate_ms if is_a else change.baseline_ms,
            level_pct=None if change is None else change.interval_level_pct,
        )

    @property
    def changes(self) -> Mapping[str, MetricChange | None]:
        """Return the changes that the figures show: of the experiment, else of the verdict."""
        if self.experiment_lead is not None:
            return self.experiment_lead.metrics
        return self.verdict.metrics if self.verdict is not None else {}

    @property
    def interval_level_pct(self) -> float | None:
        """Return the level of the intervals of `changes`."""
        if self.experiment_lead is not None:
            return self.experiment_lead.level_pct
        time = self.verdict.document.measured if self.verdict is not None else None
        return None if time is None else time.interval_level_pct

    @property
    def provisional_because(self) -> str:
        """Return why the change in the lead is provisional; empty if it is not, or if the lead names none."""
        verdict = self.verdict if self.experiment_lead is None else None
        return provisional_because(verdict.document) if verdict and verdict.decision in _LEADS_WITH_CHANGE else ""

    @property
    def mean_of(self) -> int:
        """Return the number of runs whose mean the changes are about; 0 if they are about this run alone."""
        if self.experiment_lead is not None:
            judged = self.experiment_lead.sides["B"]
        else:
            judged = self.verdict.judged if self.verdict is not None else ()
        return 0 if judged == (str(self.run.id),) or not any(self.changes.values()) else len(judged)

    @property
    def means(self) -> Mapping[str, Metric]:
        """Return the figures that the changes are about, if they are means; a run's own figure does not fit them."""
        values = {name: change.candidate for name, change in self.changes.items() if change is not None}
        return {name: Metric(value, value, value, self.mean_of) for name, value in values.items() if self.mean_of}

    @property
    def compare_query(self) -> str:
        """Return the query of the compare page; empty without a run to compare with."""
        if self.experiment_lead is not None:
            return self.experiment_lead.compare_query
        return self.verdict.compare_query if self.verdict is not None else ""

    @property
    def ended_badly(self) -> bool:
        return self.run.status == "failed" or self.run.health.get("outcome") in ENDED_BADLY

    @property
    def tabs(self) -> list[tuple[str, str, str]]:
        """Return name, label and short note of each tab."""
        notes = {"config": plural(len(self.run.contract), "field"), "health": self._health_note}
        if self.differing_fields:
            notes["config"] = self.differs_text
        if self.run.status != "ready":
            notes["health"] = ""
        skipped = set() if self.verdict or self.run.status == "ready" else {"why"}
        skipped |= set() if self.has_series else {"iterations"}
        return [(name, label, notes.get(name, "")) for name, label in TABS.items() if name not in skipped]

    @property
    def tab(self) -> str:
        """Return the tab that is shown: for a failed run the log, which opens at its end, until one is chosen."""
        if self.view.shown == "why" and not self.view.tab and self.ended_badly and self.run.failures:
            return "log"
        names = [name for name, _, _ in self.tabs]
        return self.view.shown if self.view.shown in names else "why" if "why" in names else "log"

    @property
    def _health_note(self) -> str:
        if warnings := len(self.run.warnings):
            return plural(warnings, "warning")
        unproven = sum(entry.agrees is None for entry in self.run.activity.values())
        return f"{unproven} not proven" if unproven else "ok"

    @property
    def stack_label(self) -> str:
        """Return model, GPUs, sequence length, number format and dispatcher, as far as they are known."""
        values = {name: contract_value(stated.value) for name, stated in self.run.contract.items()}
        gpus = " × ".join(values[name] for name in ("gpus", "gpu") if values.get(name))
        length = f"seq {values['seq_len']}" if values.get("seq_len") else ""
        others = (values.get(name) for name in ("precision", "dispatcher"))
        return " · ".join(filter(None, (values.get("model"), gpus, length, *others)))

    @property
    def figures_line(self) -> list[tuple[str, str]]:
        """Return the interval of the judged change, then step time, throughput, use and memory, each with its source.

        The step time is left out if the lead names it, and marked as that of this run if the lead names a mean. The
        table of figures has the change that decides nothing.
        """
        shown = []
        verdict = None if self.experiment_lead is not None else self.verdict
        time = verdict.document.measured if verdict is not None and verdict.metric == "step_time_ms" else None
        if time is not None and time.decision != "no_change" and not shows_no_difference(time):
            change = change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct)
            judged = f"change {change.interval}{THIN}%"
            shown.append((judged, f"{level_text(time.interval_level_pct)} interval of the change. "))
        for headline in self.headlines[1:] if verdict is None or verdict.leads_with_time else self.headlines:
            metric = headline.metric
            if metric is None:
                continue
            text = figure(metric, headline.name)
            value = f"{text.text} MFU" if headline.name == "mfu_pct" else text.text
            if "/" in headline.label:
                value = f"{text.value} {headline.label}"
            if headline.name == "peak_memory_gib":
                size = self._gpu_memory
                value = f"{text.value} of {size} GiB" if size else f"{text.text} peak memory"
                value = self.contradiction or value
            if headline.name == "step_time_ms" and verdict is not None and verdict.reruns:
                value = f"this run {value}"
            interval = f"{headline.label}: {text.interval}, n = {text.n:,}. " if text.width else f"{headline.label}. "
            shown.append((value, interval + text.note))
        return shown

    @property
    def contradiction(self) -> str:
        """Return why the stated GPU cannot be right; empty if it can."""
        memory = self.run.metrics.get("peak_memory_gib")
        return too_much_memory(self.run.contract, None if memory is None else memory.value)

    @property
    def missing_figures(self) -> list[tuple[str, list[str]]]:
        """Return each reason with the figures that are unknown because of it; one for all fields that they need."""
        if self.run.steady_state is None:
            return []
        absent = [headline for headline in self.headlines if headline.metric is None]
        unknown = {
            headline.name: [field for field in _NEEDED.get(headline.name, ()) if field in self.run.unknown]
            for headline in absent
        }
        to_state = f"state {', '.join(dict.fromkeys(field for fields in unknown.values() for field in fields))}"
        missing: dict[str, list[str]] = {}
        for headline in absent:
            because = self.absent if headline.name == "peak_memory_gib" else "see Health"
            missing.setdefault(to_state if unknown[headline.name] else because, []).append(headline.label)
        return list(missing.items())

    @property
    def _gpu_memory(self) -> int | None:
        gpu = self.run.contract.get("gpu")
        return GPU_MEMORY_GIB.get(str(gpu.value)) if gpu else None

    @property
    def memory_bar(self) -> MemoryBar | None:
        return memory_bar(self.run.health, self._gpu_memory)

    @property
    def asked_first(self) -> list[str]:
        """Return the unknown fields that the top of the page requests."""
        return [name for name in _ASKED_FIRST if name in self.run.unknown] if self.run.status == "ready" else []

    @property
    def undo(self) -> str:
        """Return the knob to switch back after a slowdown; empty without evidence for one, and in an experiment."""
        verdict = self.verdict
        is_slower = verdict is not None and verdict.decision == "regression"
        if verdict is None or not is_slower or verdict.cause is None or self.run.purpose == "experiment":
            return ""
        return verdict.cause.field if verdict.cause.axis == "recipe" else ""

    @cached_property
    def working(self) -> tuple[WorkingRun, ...]:
        """Return the newest completed runs of the same model and GPU, for a run that failed."""
        return working_runs(self._session, self.run, MOST_WORKING) if self.ended_badly else ()

    @cached_property
    def remedy(self) -> Remedy | None:
        """Return the change that makes the failed run work, where one is certain."""
        taken = setbacks_of(self._session, self.run).taken if self.ended_badly else {}
        rule = next((rule for rule in (PACKAGE_RULE, FITTED_RULE) if rule in taken and taken[rule].title), None)
        if rule is None:
            return None
        return Remedy(rule, taken[rule].title, flags_text(taken[rule].settings), taken[rule].container)

    @cached_property
    def profile_files(self) -> tuple[StoredProfileFile, ...]:
        profiles = profiles_of(self._session, self.run.id, self.run.contract)
        return tuple(file for profile in profiles for file in profile.files)

    @property
    def is_same_configuration(self) -> bool:
        """Return whether at most the commit differs from the compared run."""
        return all(row.field == COMMIT for row in self.differing_fields)

    @property
    def differs_text(self) -> str:
        """Return `new commit` if nothing else differs from the compared run, else `3 differ`."""
        if self.is_same_configuration:
            return "new commit"
        return plural(len(self.differing_fields), "differs", "differ")

    @cached_property
    def differing_fields(self) -> tuple[ConfigRow, ...]:
        """Return the fields that differ from the compared run: its newest baseline, else the nearest run."""
        differs = self.verdict.differs if self.verdict is not None else None
        if differs is None:
            return ()
        rows = []
        for difference in differs.differences:
            before, after = sides_text(difference)
            stated = self.run.contract.get(difference.field)
            line, file = (stated.line, stated.file) if stated else (0, 0)
            rows.append(ConfigRow(difference.field, AXIS_TITLES[difference.axis], before, after, line, file))
        return tuple(rows)

    @property
    def matching_fields(self) -> tuple[ContractGroup, ...]:
        """Return the contract, or its fields with the searched text in name or value."""
        words = self.view.find.lower().split()
        groups = (
            replace(
                group,
                rows=tuple(
                    row for row in group.rows if all(word in f"{row.name} {row.value}".lower() for word in words)
                ),
            )
            for group in self.contract
        )
        return tuple(group for group in groups if group.rows)

    @property
    def read_as_form(self) -> ReadAsForm:
        """Return the form that describes step lines: as sent, else what is in force, else a draft."""
        typed = self.view.read_as or self.run.read_as or self.run.suggested_read_as
        return self.read_as or ReadAsForm({"read_as": typed})

    @property
    def described(self) -> tuple[tuple[LineExample, Mapping[str, float] | None], ...]:
        """Return the lines that look like steps with the values that the description in the form reads from them."""
        try:
            template = read_template(self.read_as_form.value("read_as"))
        except ValueError:
            return tuple((line, None) for line in self.run.step_lines)
        return tuple((line, template.read(line.example.encode())) for line in self.run.step_lines)

    @property
    def headlines(self) -> list[Headline]:
        return [
            Headline(name, series_label(name), field.meaning, self.run.metrics.get(name))
            for name, field in METRICS.items()
        ]

    @cached_property
    def verdict(self) -> VerdictView | None:
        return verdict_view(self._session, self.run)

    @property
    def judging(self) -> bool:
        return self.run.judged.waiting

    @cached_property
    def pins(self) -> PinView | None:
        """Return the pins of the stack; None for a run that cannot be pinned."""
        return pin_view(self._session, self.run) if self.run.status == "ready" and self.run.stack_key else None

    @property
    def slow_golden(self) -> int | None:
        """Return the active regression of step time that this run, a golden baseline, is part of; else None."""
        if self.verdict is None or self.pins is None or self.pins.pin is None:
            return None
        active = (item for item in self.verdict.regressions if item.shown_state in ACTIVE and not item.over)
        return next((item.id for item in active if item.metric == "step_time_ms"), None)

    @cached_property
    def decided(self) -> tuple[AuditEvent, ...]:
        """Return who quarantined and released the run, newest first."""
        return events(self._session, "run", self.run.id)

    def rerun_command(self, base_url: str) -> str:
        return rerun_command(base_url, self.run)

    @property
    def absent(self) -> str:
        """Return what stands for a value that the run does not state; a run of documents has no log."""
        return "not in log" if self.run.log_files else "not recorded"

    @property
    def health(self) -> tuple[HealthRow, ...]:
        return health_rows(self.run.health, self.run.metrics.get("peak_memory_gib"))

    @property
    def contract(self) -> tuple[ContractGroup, ...]:
        return contract_groups(self.run.contract, self.run.unknown)

    @property
    def plan_address(self) -> str:
        """Return the planner's address with the facts of the run; "" while too few are known."""
        values = {name: stated.value for name, stated in self.run.contract.items()}
        return plan_address(values) if all(values.get(name) for name in ("model", *REQUIRED)) else ""

    @cached_property
    def experiments(self) -> ExperimentListPage:
        """Return the newest experiments that the run belongs to, or is the baseline of."""
        return find_experiments(self._session, ExperimentFilter(run_id=self.run.id), page_size=MOST_EXPERIMENTS)

    @property
    def unknown_stack(self) -> list[str]:
        """Return unknown members of the stack key; while there are any, comparisons are provisional."""
        return [name for name in self.run.unknown if name in FIELDS and FIELDS[name].role == "stack"]

    @property
    def unknown_others(self) -> list[str]:
        return [name for name in self.run.unknown if name not in self.unknown_stack]

    def amend_inputs(self, names: list[str]) -> tuple[ContractInput, ...]:
        return self.form.offered(names, self.run.contract)

    @property
    def corrected(self) -> list[str]:
        """Return known fields that the user requested to correct."""
        typed = (name for name in self.form.stated() if name in self.run.contract)
        asked = (self.view.amend,) if self.view.amend in self.run.contract and self.view.amend in FIELDS else ()
        return list(dict.fromkeys((*asked, *typed)))

    @property
    def taken_back(self) -> set[str]:
        """Return the fields whose correction is in force and can be withdrawn."""
        newest = {change.field: change for change in self.run.amendments}
        return {name for name, change in newest.items() if not change.removed}

    def amend_command(self, base_url: str) -> str:
        return amend_command(base_url, self.run.id, self.unknown_stack)

    @property
    def settled(self) -> bool:
        return is_settled(self.token)

    @property
    def activity(self) -> tuple[ActivityRow, ...]:
        return activity_rows(self.run.activity)

    @property
    def differing(self) -> tuple[str, ...]:
        return differing(self.run.activity)

    @property
    def slices(self) -> tuple[SliceRow, ...]:
        lines = self.series.columns.get("log_line", np.empty(0))
        return slice_rows(self.run.slices, [file.name for file in self.run.log_files], lines)

    @property
    def slices_text(self) -> str:
        return starts_sentence(self.run.slices)

    @property
    def timers(self) -> list[tuple[str, Timer]]:
        return [(charts.timer_name(timer.name), timer) for timer in charts.sorted_timers(self.run.timers)]

    @property
    def step_bar(self) -> tuple[BarSegment, ...]:
        """Return the step by timers; where its parts exceed the step, the bar is as long as they are."""
        steady = self.run.steady_state
        parts = () if steady is None else step_parts(self.run.timers, steady.step_time_ms)
        return bar_segments([(f"timer-{part.kind}", part.label, part.ms) for part in parts])

    @property
    def timers_exceed_ms(self) -> float:
        """Return how many ms the timers exceed the step, because each is the time of its slowest rank."""
        steady = self.run.steady_state
        return 0.0 if steady is None else max(0.0, sum(part.ms for part in self.step_bar) - steady.step_time_ms)

    @property
    def timer_chart(self) -> Mapping[str, Any]:
        return charts.timer_chart(self.run.timers)

    @property
    def not_understood(self) -> int:
        return sum(example.count for example in self.run.not_understood)

    @property
    def report(self) -> str:
        """Return the lines that the reader did not understand, as text for its maintainers."""
        return report(self.run)

    @cached_property
    def series(self) -> StoredSeries:
        return get_series(self._session, self.run.id)

    @property
    def has_series(self) -> bool:
        return bool(self.series_choices)

    @property
    def series_choices(self) -> tuple[str, ...]:
        return charts.series_names(self.series.columns)

    @property
    def series_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return grouped_series(self.series_choices)

    @property
    def shown_series(self) -> str:
        """Return the requested series, else that of the lead: loss, memory or step time; else the first one."""
        if self.view.series:
            return self.view.series
        names = self.series_choices
        return next(
            (name for name in (*self._drawable_leading, "step_time_ms", *names) if name in names), "step_time_ms"
        )

    @property
    def _drawable_leading(self) -> list[str]:
        """Return the series of the lead; a single value, as of most published results, makes no picture."""
        leading = self.verdict.leading_series if self.verdict is not None else ()
        columns = self.series.columns
        return [name for name in leading if name in self.series_choices and np.isfinite(columns[name]).sum() > 1]

    @cached_property
    def points(self) -> charts.Points:
        """Return the zoomed series that is shown. Raises InvalidQuery when the run has none of that name."""
        if self.shown_series not in self.series_choices:
            choices = ", ".join(self.series_choices) or "none: this run has no series yet"
            raise invalid_filter("series", f"must be one of {choices}, not {self.view.series[:60]!r}")
        return self._points_of(self.shown_series)

    def _points_of(self, name: str) -> charts.Points:
        starts = [piece.first_row for piece in self.run.slices]
        whole = charts.points(self.series.columns, self.series.units, name, self.run.steady_state, starts)
        return charts.between(whole, self.view.first, self.view.last)

    @cached_property
    def earlier_run(self) -> int:
        """Return the newest baseline run, whose losses or memory are drawn behind those of this run; 0 for none."""
        if self.shown_series not in (*LOSS_NAMES, PEAK_MEMORY) or self.verdict is None:
            return 0
        return max((int(run) for run in self.verdict.baseline if run in self.verdict.names), default=0)

    @cached_property
    def earlier(self) -> charts.Points | None:
        if not self.earlier_run:
            return None
        series = get_series(self._session, self.earlier_run)
        if self.shown_series not in charts.series_names(series.columns):
            return None
        return charts.points(series.columns, series.units, self.shown_series, self.run.steady_state)

    def check_series(self) -> None:
        """Raise InvalidQuery for an unknown series now; the chart would notice only when it is drawn."""
        if self.view.series and self.run.status == "ready":
            _ = self.points

    @cached_property
    def drawn(self) -> charts.Points:
        return charts.drawable(self.points, self.view.scale == "log")

    @cached_property
    def scale(self) -> charts.Scale:
        bands = [band for band in (self.baseline_band, self.usual_band, self._interval) if band is not None]
        return charts.fitting_scale(self.drawn, self.view.scale == "log", bands, self.earlier)

    @property
    def _interval(self) -> charts.Band | None:
        """Return the interval of the run's own figure, which the chart shows if it is steady."""
        steady = self.run.steady_state
        if self.shown_series != "step_time_ms" or steady is None or not steady.is_steady:
            return None
        ends = (steady.ci_low_ms, steady.ci_high_ms)
        return charts.baseline_band(ends, steady.step_time_ms, self.drawn.unit)

    @cached_property
    def baseline_band(self) -> charts.Band | None:
        """Return the baseline runs, or those of the experiment's other side, drawn behind the step times."""
        if self.shown_series != "step_time_ms":
            return None
        if (lead := self.experiment_lead) is not None:
            label = f"{lead.other_side} of experiment"
            return charts.baseline_band(lead.other_times, lead.other_ms, self.points.unit, label)
        if self.verdict is None:
            return None
        verdict = self.verdict
        return charts.baseline_band(
            verdict.baseline_times, verdict.baseline_ms, self.points.unit, verdict.baseline_label
        )

    @cached_property
    def usual_band(self) -> charts.Band | None:
        """Return the level before the regression that the run continues, with which the lead compares it."""
        ongoing = self.verdict.ongoing if self.verdict is not None and self.experiment_lead is None else None
        if ongoing is None or self.shown_series != "step_time_ms":
            return None
        return charts.baseline_band([ongoing.usual_ms], ongoing.usual_ms, self.points.unit, ongoing.before)

    @property
    def chart(self) -> Mapping[str, Any]:
        return charts.series_chart(
            self.drawn,
            self.scale,
            self.run.steady_state,
            self.view.iteration,
            self.baseline_band,
            earlier=self.earlier,
            usual=self.usual_band,
        )

    @property
    def restarts(self) -> int:
        return len(self.drawn.starts)

    @property
    def chart_notes(self) -> list[str]:
        """Return what a reader of the chart must know but cannot see."""
        notes = []
        if self.verdict is not None and self.verdict.leading_series and not self._drawable_leading:
            about = "loss" if self.verdict.metric == "lm_loss" else "peak memory"
            notes.append(f"The log has no series of {about} to draw.")
        if outside := charts.outside(self.points, self.scale):
            notes.append(off_scale_note(outside))
        if (band := self.baseline_band) is not None:
            far = [value for value in band.values if abs(value - band.value) > _FAR * band.value]
            if far and len(far) < len(band.values) / 2:
                texts = ", ".join(step_time(value * (1000 if self.points.unit == "s" else 1)) for value in far[:3])
                notes.append(f"{len(far)} of {plural(len(band.values), 'baseline run')} far off: {texts}.")
        if len(self.drawn.iterations) < np.isfinite(self.points.values).sum():
            notes.append(f"{len(self.drawn.iterations):,} of {len(self.points.iterations):,} points are drawn.")
        return notes

    @cached_property
    def table(self) -> SeriesTable:
        """Return the data of the chart as a table, with the other series."""
        others = [name for name in _IN_TABLE if name in self.series_choices and name != self.shown_series]
        return table_of([self.points, *map(self._points_of, others)], self.view.page)

    def table_address(self, page: int) -> str:
        return self.view.query(page=page)

    @cached_property
    def log(self) -> log_view.LogPage | None:
        """Return the shown page of the log; None without a log file or when it cannot be read (`log_problem`)."""
        try:
            return self._read_log()
        except Unavailable as error:
            self.log_problem = error.detail
            return None

    def _read_log(self) -> log_view.LogPage | None:
        run, files = self.run, self.run.log_files
        if not files:
            return None
        ended_badly = run.status == "failed" or run.health.get("outcome") in ENDED_BADLY
        seek_ending = ended_badly and not self.view.line and not self.view.file and not self.view.text
        file = (run.health.get("evidence_file") or 0) if seek_ending else self.view.file
        file = min(file, len(files) - 1)
        self.first_warning = log_view.find_text(self._log_files, files[file], "warning", after=0) or 0
        marked = log_view.marks(self.series.columns if run.status == "ready" else {}, run, file)
        line = self.view.line
        if self.view.text:
            match = log_view.find_text(self._log_files, files[file], self.view.text, after=line)
            line, self.text_is_missing = match or line, match is None
        return log_view.log_page(self._log_files, files, marked, file, line, seek_ending=seek_ending)


def render_run(
    request: Request,
    page: RunPage,
    *,
    block: str | None,
    anchor: str | None = None,
    status: int = 200,
    whole: bool = True,
    announce: str = "",
) -> HTMLResponse:
    """Render the page, or one block of it for htmx.

    `anchor`: position of the block in the page, for the address; None leaves the address. `whole`: the change affects
    the shape of the page.
    """
    query = page.view.query()
    address = f"/runs/{page.run.id}{'?' + query if query else ''}"
    return render(
        request,
        "runs/run.html",
        block=block,
        address=None if anchor is None else f"{address}#{anchor}" if anchor else address,
        p=page,
        run=page.run,
        view=page.view,
        status=status,
        whole=whole,
        announce=announce,
    )

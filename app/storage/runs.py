"""Stored runs as values for pages and the API."""

import math
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ARRAY, BigInteger, ColumnElement, Row, Select, and_, any_, bindparam, case, func, select, update
from sqlalchemy.orm import aliased, joinedload
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value
from app.domain.definitions import DEFINITIONS, changes
from app.domain.logs.line_template import draft_template
from app.domain.run import (
    Activity,
    DispatcherAvailability,
    Failure,
    FloatArray,
    LineExample,
    LogEvidence,
    Metric,
    RunResult,
    RunSummary,
    Slice,
    Stated,
    SteadyState,
    Timer,
    Unsteadiness,
    Value,
)
from app.domain.verdict.document import MORE_MEMORY, SLOWER, UNCONFIRMED
from app.errors import DamagedObject, NotFound
from app.storage.json_text import frozen, to_json
from app.storage.log_files import LogFiles
from app.storage.tables import (
    PROCESSED,
    AmendmentRow,
    ExperimentRow,
    ExperimentRunRow,
    ProjectRow,
    RunFileRow,
    RunResultRow,
    RunRow,
    RunValueRow,
    SegmentRow,
    VerdictRow,
    from_row,
    select_any,
)

# --- Conversion between the reading of a run and the JSON columns of its row.


def write(summary: RunSummary) -> dict[str, Any]:
    """Return columns of RunRow and RunResultRow by name."""
    lists = {name: [asdict(entry) for entry in getattr(summary, name)] for name in _LISTS}
    return lists | {"activity": to_json(summary.activity), "fair_for_timing": summary.fair_for_timing}


def read(row: RunResultRow) -> dict[str, Any]:
    """Return values of RunDetail by name."""
    lists: dict[str, Any] = {
        name: tuple(make(entry) for entry in getattr(row, name) or ()) for name, make in _LISTS.items()
    }
    # Non-finite values are stored as null: such a timer is useless.
    lists["timers"] = tuple(t for t in lists["timers"] if t.share_of_step is not None and t.median_ms is not None)
    return lists | {"activity": activities(row.activity)}


def activities(stored: Mapping[str, Any] | None) -> dict[str, Activity]:
    return {name: _activity(entry) for name, entry in (stored or {}).items()}


def stated(entry: Mapping[str, Any], name: str = "") -> Stated:
    """Return a stored value. `name`: its contract field, for entries that version 0.1 wrote."""
    if "line" not in entry:
        return _of_0_1(name, entry)
    return Stated(
        value=frozen(entry["value"]),
        source=entry["source"],
        detail=entry.get("detail", ""),
        file=entry.get("file", 0),
        line=entry["line"],
        in_use=entry.get("in_use", True),
        stated_value=frozen(entry.get("stated_value")),
        stated_by=entry.get("stated_by", ""),
    )


_LINE = re.compile(r"line (\d+)")
_BY = re.compile(r"stated by (.+) on \d{4}-\d\d-\d\d$")
_UNUSED = re.compile(r"(.*?) ?\(stated: (.*)\)$", re.DOTALL)


def _of_0_1(name: str, entry: Mapping[str, Any]) -> Stated:
    """Return a value that version 0.1 stored, with line, author and unused value inside the detail."""
    value, detail, stated_value = frozen(entry["value"]), entry.get("detail", ""), None
    in_use = value is not None or not detail.startswith("not in use: ")
    if value is None and name in FIELDS and (unused := _UNUSED.match(detail)):
        detail, in_use = unused[1], False
        with suppress(ValueError):
            stated_value = read_value(name, unused[2])
    line, by = _LINE.match(detail), _BY.match(detail)
    return Stated(
        value,
        entry["source"],
        detail,
        file=entry.get("file", 0),
        line=int(line[1]) if line else 0,
        in_use=in_use,
        stated_value=stated_value,
        stated_by=by[1] if by else "",
    )


def entries_of(kind: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that `kind` has a field for. Rows of other definitions may have more."""
    return {f.name: stored[f.name] for f in fields(kind) if f.name in stored}


def _with_evidence(kind: type[Any]) -> Callable[[Mapping[str, Any]], Any]:
    def make(stored: Mapping[str, Any]) -> Any:
        evidence = tuple(LogEvidence(**entries_of(LogEvidence, line)) for line in stored.get("evidence", ()))
        return kind(**(entries_of(kind, stored) | {"evidence": evidence}))

    return make


def _plain(kind: type[Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda stored: kind(**entries_of(kind, stored))


def _activity(stored: Mapping[str, Any]) -> Activity:
    requested, active = stored.get("requested"), stored.get("active")
    return Activity(
        requested=stated(requested) if requested else None,
        active=stated(active) if active else None,
        agrees=stored.get("agrees"),
    )


_LISTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "failures": _with_evidence(Failure),
    "availability": _with_evidence(DispatcherAvailability),
    "timers": _plain(Timer),
    "not_understood": _plain(LineExample),
    "slices": _plain(Slice),
}


ENDED_BADLY = ("failed", "out_of_memory", "not_finite")
"""Outcomes of a job that ended in an error. Its run may be `ready` with the iterations before the error."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """An uploaded file.

    `size_bytes`: decompressed. `keys`: its objects in `log_files`. `document`: detected format, empty for a log.
    `sha256`: empty for a file that grew in pieces. `cut`: compression of a truncated file. `removed_at`: when it was
    deleted by age; its objects are deleted later.
    """

    kind: str
    name: str
    position: int
    size_bytes: int
    sha256: str
    keys: tuple[str, ...]
    document: str = ""
    cut: str = ""
    removed_at: datetime | None = None

    @property
    def readable_keys(self) -> tuple[str, ...]:
        """Return `keys`. Raises DamagedObject for a deleted file."""
        if self.removed_at is not None:
            raise DamagedObject(
                f"The raw file {self.name} was deleted on {self.removed_at:%Y-%m-%d}. The figures of its run stay."
            )
        return self.keys


@dataclass(frozen=True, slots=True)
class Amendment:
    """A correction of one contract field. `removed`: the value of the run counts again."""

    field: str
    value: Value
    removed: bool
    old_value: Value
    old_source: str
    author: str
    note: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Judged:
    """A run's place in the queue.

    `verdict_id`: of the current verdict, 0 without one. `waiting`: its stack is being or will be judged.
    """

    verdict_id: int
    waiting: bool


NOT_JUDGED = Judged(0, waiting=False)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A user's exclusion of a run from all baselines and rankings."""

    reason: str
    by: str
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail(RunResult):
    """A run without its series and log lines. Times are aware, in UTC.

    `reception`: whole, receiving, complete or incomplete. `updating`: shown as last read and queued for reading.
    `ordered_at`: history position. `verdict`: the current one, empty without one. `uploaded_by`: user or token, empty
    without log-ins. `commit_url`, `compare_url`: the project's link templates (`domain/text.py`).
    """

    id: int
    name: str
    project: str
    generated: bool
    purpose: str
    branch: str
    commit: str
    ci_url: str
    tags: tuple[str, ...]
    created_at: datetime
    uploaded_by: str
    processed_at: datetime | None
    status: str
    attempts: int
    metadata_stated: Mapping[str, Any]
    files: tuple[RunFile, ...]
    reception: str = "whole"
    heard_at: datetime | None = None
    updating: bool = False
    amendments: tuple[Amendment, ...] = ()
    project_id: int = 0
    ordered_at: datetime | None = None
    verdict: str = ""
    quarantine: Quarantine | None = None
    commit_url: str = ""
    compare_url: str = ""
    notes: str = ""
    job: str = ""
    commit_time: datetime | None = None
    merge_base: str = ""
    judged: Judged = NOT_JUDGED

    @property
    def receiving(self) -> bool:
        """Return whether more of its logs is expected."""
        return self.reception == "receiving"

    @property
    def done(self) -> bool:
        return self.status in PROCESSED

    @property
    def read_as(self) -> str:
        """Return the description of its step lines that is in force: the newest one, else that of the metadata."""
        newest = next((change for change in reversed(self.amendments) if change.field == "read_as"), None)
        if newest is not None and not newest.removed:
            return str(newest.value or "")
        return str(self.metadata_stated.get("read_as") or "")

    @property
    def suggested_read_as(self) -> str:
        """Return a draft that describes the lines of an unread log that look like steps; empty without one."""
        return draft_template(self.step_lines)

    @property
    def log_files(self) -> tuple[RunFile, ...]:
        return tuple(file for file in self.files if file.kind == "log")


@dataclass(frozen=True, slots=True)
class RunState:
    """State that a waiting page polls. `processed_at` changes with every reading."""

    id: int
    status: str
    attempts: int
    created_at: datetime
    processed_at: datetime | None = None
    receiving: bool = False
    updating: bool = False
    judged: Judged = NOT_JUDGED


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """Columns of equal length by name, NaN for missing values, `iteration` first; units by the same names."""

    columns: Mapping[str, FloatArray]
    units: Mapping[str, str]


def detail(
    row: RunRow, project: ProjectRow, files: tuple[RunFile, ...], amendments: tuple[Amendment, ...] = ()
) -> RunDetail:
    assert row.id is not None  # noqa: S101  # a row that was read has its key
    result = row.result
    return from_row(
        RunDetail, row, result, project,
        project=project.slug, files=files, amendments=amendments,
        tags=tuple(row.tags), notes=row.notes or "", updating=is_updating(row.status, row.work),
        quarantine=Quarantine(row.quarantine, row.quarantined_by, row.quarantined_at) if row.quarantine else None,
        warnings=run_warnings(row), unknown=tuple(result.unknown), contract=stored_contract(result.contract),
        steady_state=_steady_state(result.steady_state), metrics=metrics_of(result.metrics), **read(result),
    )  # fmt: skip


def run_warnings(row: RunRow) -> tuple[str, ...]:
    """Return the warnings of the last reading, preceded by the one that concerns all figures."""
    if not row.recompute_error:
        return tuple(row.result.warnings)
    changed = changes(row.result.definitions, DEFINITIONS)
    behind = f"Its figures use earlier definitions ({changed}) and are in no baseline: recomputing them failed."
    return (f"{behind} {row.recompute_error}", *row.result.warnings)


def is_updating(status: str, work: str) -> bool:
    return status in PROCESSED and work != ""


WITH_RESULT = joinedload(col(RunRow.result))  # type: ignore[arg-type]
"""Option for statements that select whole runs; without it, each run's result needs another statement."""


# Built once, because building it takes as much time as running it.
_FILES: Select[Any] = (
    select_any(
        RunFileRow.id, RunFileRow.kind, RunFileRow.name, RunFileRow.position, RunFileRow.size_bytes, RunFileRow.sha256,
        RunFileRow.document, RunFileRow.cut, SegmentRow.object_key, SegmentRow.removed_at,
    )
    .outerjoin(SegmentRow, col(SegmentRow.file_id) == RunFileRow.id)
    .where(col(RunFileRow.run_id) == bindparam("run_id"))
    .order_by(col(RunFileRow.position), col(RunFileRow.id), col(SegmentRow.position))
)  # fmt: skip


def files_of(session: Session, run_id: int) -> tuple[RunFile, ...]:
    """Return the files of a run in order, each with its objects."""
    files: dict[int, list[Row[Any]]] = {}
    for row in session.execute(_FILES, {"run_id": run_id}):
        files.setdefault(row.id, []).append(row)
    return tuple(
        RunFile(
            first.kind, first.name, first.position, first.size_bytes, first.sha256,
            tuple(piece.object_key for piece in (first, *more) if piece.object_key is not None),
            first.document, first.cut, first.removed_at,
        )
        for first, *more in files.values()
    )  # fmt: skip


def amendment(row: AmendmentRow) -> Amendment:
    return Amendment(
        row.field, frozen(row.value), row.removed, frozen(row.old_value), row.old_source, row.author, row.note,
        row.created_at,
    )  # fmt: skip


def metrics_of(stored: Mapping[str, Any]) -> dict[str, Metric | None]:
    return {name: _metric(value) for name, value in (stored or {}).items()}


def _metric(stored: Mapping[str, Any] | None) -> Metric | None:
    """Return None (unknown) for a figure without a finite value; a non-finite end of the interval becomes NaN."""
    if not stored or not math.isfinite(value := _number(stored.get("value"))):
        return None
    n = _number(stored.get("n"))
    return Metric(
        value=value,
        ci_low=_number(stored.get("ci_low")),
        ci_high=_number(stored.get("ci_high")),
        n=int(n) if math.isfinite(n) else 0,
        note=str(stored.get("note") or ""),
    )


_NUMBERS = (int, float)  # `int | float` would be built again for each of the 2,000 numbers of a list


def _number(stored: Any) -> float:
    """Return NaN for values that are not numbers, as rows of other definitions may contain."""
    return stored if isinstance(stored, _NUMBERS) else math.nan


def stored_contract(stored: Mapping[str, Any] | None) -> dict[str, Stated]:
    if not stored:
        return {}
    if all("line" in entry for entry in stored.values()):
        return msgspec.convert(stored, dict[str, Stated])  # a third of the time of reading each entry by itself
    return {name: stated(entry, name) for name, entry in stored.items()}


def stored_contracts(session: Session, run_ids: Sequence[int]) -> dict[int, dict[str, Stated]]:
    rows = session.execute(
        select_any(RunResultRow.run_id, RunResultRow.contract).where(col(RunResultRow.run_id).in_(run_ids))
    )
    return {run_id: stored_contract(contract) for run_id, contract in rows}


def newest_contract(session: Session, stack_key: str) -> dict[str, Stated]:
    """Return the contract of the newest run of a stack; empty without runs."""
    newest = (
        select_any(RunResultRow.contract)
        .join(RunRow, col(RunRow.id) == RunResultRow.run_id)
        .where(col(RunRow.stack_key) == stack_key)
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(1)
    )
    return stored_contract(session.execute(newest).scalar_one_or_none())


def get_run(session: Session, run_id: int, *, lock: bool = False) -> RunRow:
    """Return the row of a run, on request locked for a change. Raises NotFound."""
    run = session.get(RunRow, run_id, with_for_update=True if lock else None)
    if run is None:
        raise NotFound.of(f"Run {run_id}")
    return run


def _steady_state(stored: Mapping[str, Any] | None) -> SteadyState | None:
    if not stored:
        return None
    steady: dict[str, Any] = entries_of(SteadyState, stored)
    steady = {name: math.nan if value is None else value for name, value in steady.items()}
    profiled, unsteadiness = stored.get("profiled"), stored.get("unsteadiness")
    return SteadyState(
        **steady
        | {
            "reasons": tuple(stored.get("reasons", ())),
            "profiled": tuple(profiled) if profiled else None,
            "unsteadiness": Unsteadiness(*unsteadiness) if unsteadiness else None,
            "spikes": tuple((iteration, ms) for iteration, ms in stored.get("spikes", ())),
        }
    )


# --- Runs in lists: only the columns that lists need.


_UNSPECIFIC = ("exception", "import_error", "scheduler")
"""Kinds of failures whose line of the log says more than their title."""


@dataclass(frozen=True, slots=True)
class RunListItem:
    """One row of the list of runs.

    `outcome`: how the job ended (`health.outcome`); empty while unknown. `failure`: the kind of its first failure, with
    `failure_title` and `failure_line`, the line that shows it; empty without one. `verdict`: the current one, empty
    until the run is judged and for a side of an experiment, which has the result; its change is of step time. `badge`,
    `label`: the decision by which lists find it, and its label (`VerdictDocument.badge`).
    `step_decision`: the decision about step time. `memory_pct`: the increase of peak memory that alone makes it worse.
    `quarantine`: the user's reason, else empty. `notes`: the beginning. `experiment_id`, `side`: its experiment
    (`EXPERIMENT_OF_RUN`), `baseline` or `candidate`. `ab`: the verdict compares configurations, so it opens no
    regression. `contrast_pct`, `contrast_decision`: of a run without a baseline, the change against the previous
    container, cluster or stack (`contrast_field`), which is no verdict.
    `is_side`: its result is that of its experiment. `baseline_kind`: what its verdict compares it with. `is_unsteady`:
    its step times drift or vary too much.
    """

    id: int
    name: str
    project: str
    generated: bool
    purpose: str
    branch: str
    commit: str
    commit_time: datetime | None
    created_at: datetime
    status: str
    error: str | None
    outcome: str
    failure: str
    failure_title: str
    failure_line: str
    model: str | None
    gpu: str | None
    gpus: int | None
    dispatcher: str | None
    evidence_level: str
    semantic_class: str
    provisional: bool
    metrics: Mapping[str, Metric | None]
    verdict: str = ""
    badge: str = ""
    label: str = ""
    verdict_delta_pct: float | None = None
    step_decision: str = ""
    memory_pct: float | None = None
    quarantine: str = ""
    notes: str = ""
    experiment_id: int | None = None
    side: str = ""
    ab: bool = False
    contrast_pct: float | None = None
    contrast_field: str = ""
    contrast_decision: str = ""
    is_side: bool = False
    baseline_kind: str = ""
    is_unsteady: bool = False

    @property
    def failure_cause(self) -> str:
        """Return the failure that the log shows, else why the run has no figures."""
        if self.failure in _UNSPECIFIC and self.failure_line:
            return self.failure_line
        return self.failure_title or self.error or "The log shows no cause."


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """The options of the list's select boxes."""

    projects: tuple[str, ...]
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    dispatchers: tuple[str, ...]
    branches: tuple[str, ...]


_Joined = aliased(ExperimentRunRow)
# The experiment that the run's tag names, else the newest where it is a candidate, else where it is the baseline; a
# withdrawn one only if there is no other. Maxima instead of the first row of an order, which SQLite would sort for.
_IS_KEPT = col(ExperimentRow.state) != "withdrawn"
EXPERIMENT_OF_RUN: Any = (
    select(
        func.coalesce(
            func.max(case((and_(_IS_KEPT, col(_Joined.joined_by) == "tag"), col(_Joined.experiment_id)))),
            func.max(case((and_(_IS_KEPT, col(_Joined.side) == "candidate"), col(_Joined.experiment_id)))),
            func.max(case((_IS_KEPT, col(_Joined.experiment_id)))),
            func.max(col(_Joined.experiment_id)),
        )
    )
    .join(ExperimentRow, col(ExperimentRow.id) == _Joined.experiment_id)
    .where(col(_Joined.run_id) == RunRow.id)
    .correlate(RunRow)
).scalar_subquery()
_SIDE = (
    select_any(ExperimentRunRow.side)
    .where(col(ExperimentRunRow.run_id) == RunRow.id, col(ExperimentRunRow.experiment_id) == EXPERIMENT_OF_RUN)
    .correlate(RunRow)
).scalar_subquery()
_FAILURE = col(RunResultRow.failures)
_MEASURED = VerdictRow.document["verdict"]
_CONTRAST = VerdictRow.document["contrast"]["measured"]
_IS_REGRESSION = col(VerdictRow.decision) == "regression"
_LIST_COLUMNS: tuple[Any, ...] = (
    RunRow.id, RunRow.name, RunRow.purpose, RunRow.branch, RunRow.commit, RunRow.commit_time, RunRow.created_at,
    RunRow.status, RunRow.error, RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.dispatcher, RunRow.evidence_level,
    RunRow.semantic_class, RunRow.provisional, RunRow.outcome, RunRow.verdict, RunRow.badge, RunRow.badge_label,
    RunRow.verdict_delta_pct, RunRow.quarantine, func.substr(RunRow.notes, 1, 200).label("notes"), RunResultRow.metrics,
    _FAILURE[(0, "kind")].as_string().label("failure"), _FAILURE[(0, "title")].as_string().label("failure_title"),
    _FAILURE[(0, "evidence", 0, "text")].as_string().label("failure_line"), ProjectRow.slug, ProjectRow.generated,
    EXPERIMENT_OF_RUN.label("experiment_id"), _SIDE.label("side"),
    VerdictRow.comparison, VerdictRow.decision, VerdictRow.delta_pct, VerdictRow.attributed_to,
    VerdictRow.baseline_kind, RunRow.is_steady,
    case((_IS_REGRESSION, _MEASURED["step_time"]["decision"].as_string())).label("time_decision"),
    case((col(VerdictRow.decision) == "no_baseline", _CONTRAST["step_time"]["decision"].as_string())).label("contrast"),
    case(
        (_IS_REGRESSION, _MEASURED["memory"]["delta_pct"].as_float()),
        (col(RunRow.badge_label) == MORE_MEMORY, _CONTRAST["memory"]["delta_pct"].as_float()),
    ).label("memory_pct"),
)  # fmt: skip
"""Columns of the list. Contracts and warnings are left out: 50 runs would read megabytes of JSON."""
_list_row: Any = namedtuple("ListRow", [column.key for column in _LIST_COLUMNS])._make  # type: ignore[attr-defined]
"""A row by names. Reading 36 columns of 100 rows from SQLAlchemy's own rows takes as long as making the items."""


# Built once, because building it takes as much time as running it.
_LISTED: Select[Any] = (
    select_any(*_LIST_COLUMNS)
    .select_from(RunRow)
    .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
    .outerjoin(VerdictRow, and_(col(VerdictRow.run_id) == RunRow.id, col(VerdictRow.current)))
)
# One array instead of 100 parameters: psycopg parses a long statement on each call, and PostgreSQL plans it each time.
_LIST_ROWS: Mapping[str, Select[Any]] = {
    "sqlite": _LISTED.where(col(RunRow.id).in_(bindparam("run_ids", expanding=True))),
    "postgresql": _LISTED.where(col(RunRow.id) == any_(bindparam("run_ids", type_=ARRAY(BigInteger)))),
}


MOST_COUNTED = 10_000
"""Lists count up to this number; an exact count would read every run."""


def count_up_to(session: Session, *conditions: ColumnElement[bool], most: int = MOST_COUNTED) -> int:
    """Return how many runs meet all `conditions`, at most `most` + 1."""
    counted = select_any(RunRow.id).where(*conditions).limit(most + 1).subquery()
    return int(session.execute(select(func.count()).select_from(counted)).scalar_one())


def counted(number: int) -> str:
    """Return what `count_up_to` counted as text: `10,000+` where it stopped."""
    return f"{MOST_COUNTED:,}+" if number > MOST_COUNTED else f"{number:,}"


def filter_values(session: Session, *names: str, project_id: int | None = None) -> dict[str, tuple[str, ...]]:
    """Return the values of these columns that runs of the project, or of any, have: the choices of filters, sorted."""
    chosen = select_any(RunValueRow.field, RunValueRow.value).where(col(RunValueRow.field).in_(names)).distinct()
    if project_id is not None:
        chosen = chosen.where(col(RunValueRow.project_id) == project_id)
    values: dict[str, list[str]] = {name: [] for name in names}
    for name, value in session.execute(chosen.order_by(RunValueRow.value)):
        values[name].append(value)
    return {name: tuple(of_name) for name, of_name in values.items()}


def runs_by_id(session: Session, run_ids: Sequence[int]) -> tuple[RunListItem, ...]:
    """Return these runs in the given order."""
    rows = map(_list_row, session.execute(_LIST_ROWS[session.get_bind().dialect.name], {"run_ids": list(run_ids)}))
    by_id = {row.id: _list_item(row) for row in rows}
    return tuple(by_id[run_id] for run_id in run_ids if run_id in by_id)


def latest_runs(session: Session, limit: int, *conditions: ColumnElement[bool]) -> tuple[RunListItem, ...]:
    """Return the newest runs that meet all `conditions`."""
    newest = select_any(RunRow.id).where(*conditions).order_by(col(RunRow.id).desc()).limit(limit)
    return runs_by_id(session, session.execute(newest).scalars().all())


def step_decisions(session: Session, run_ids: Sequence[int]) -> dict[int, str]:
    """Return the decision about step time of those of the runs whose verdict does not state it.

    A regression may be one of memory or loss; without a baseline, an upgrade may have opened one of step time.
    """
    chosen = select_any(VerdictRow.run_id, _MEASURED["step_time"]["decision"].as_string().label("decision")).where(
        col(VerdictRow.run_id).in_(run_ids), col(VerdictRow.current), _IS_REGRESSION
    )
    by_contrast = select_any(RunRow.id, RunRow.badge).where(
        col(RunRow.id).in_(run_ids), col(RunRow.verdict) == "no_baseline", col(RunRow.badge) != "",
        col(RunRow.badge_label) != MORE_MEMORY,
    )  # fmt: skip
    shown = {row.id: row.badge for row in session.execute(by_contrast)}
    return shown | {row.run_id: row.decision or "" for row in session.execute(chosen)}


def slower_labels(session: Session, run_ids: Sequence[int]) -> dict[int, str]:
    """Return the labels of slower runs that are in no regression (`VerdictDocument.badge`), by run."""
    chosen = select_any(RunRow.id, RunRow.badge_label).where(
        col(RunRow.id).in_(run_ids), col(RunRow.badge_label).in_((SLOWER, UNCONFIRMED))
    )
    return {row.id: row.badge_label for row in session.execute(chosen)}


def _list_item(row: Any) -> RunListItem:
    by_memory = row.badge_label == MORE_MEMORY
    is_side = row.purpose == "experiment" and row.experiment_id is not None
    by_contrast = by_memory or row.badge == "no_baseline"
    contrast_field = row.attributed_to if row.attributed_to in ("container", "cluster") else "stack"
    return RunListItem(
        id=row.id, name=row.name, project=row.slug, generated=row.generated, purpose=row.purpose, branch=row.branch,
        commit=row.commit, commit_time=row.commit_time,
        created_at=row.created_at, status=row.status, error=row.error,
        outcome=row.outcome, failure=row.failure or "", failure_title=row.failure_title or "",
        failure_line=row.failure_line or "", model=row.model, gpu=row.gpu, gpus=row.gpus,
        dispatcher=row.dispatcher, evidence_level=row.evidence_level, semantic_class=row.semantic_class,
        provisional=row.provisional, metrics=metrics_of(row.metrics), verdict="" if is_side else row.verdict,
        badge="" if is_side else row.badge, label="" if is_side else row.badge_label,
        verdict_delta_pct=None if is_side else row.verdict_delta_pct,
        step_decision=row.time_decision or (by_contrast and row.contrast) or row.badge,
        memory_pct=row.memory_pct if by_memory else None,
        quarantine=row.quarantine, notes=row.notes or "",
        experiment_id=row.experiment_id, side=row.side or "",
        ab=row.purpose == "experiment" or row.comparison not in (None, "", "verdict"),
        contrast_field=contrast_field if row.contrast else "",
        contrast_decision=row.contrast or "", contrast_pct=row.delta_pct if row.contrast else None,
        is_side=is_side, baseline_kind=row.baseline_kind or "", is_unsteady=row.is_steady is False,
    )  # fmt: skip


# --- The history position of a run: its commit time, or its upload time without one.
#
# Reruns take the position of the first run of their commit and configuration, so that later runs stay later.


# Built once, because building it takes as much time as running it.
_OF_COMMIT: Select[Any] = (
    select_any(RunRow.id, RunRow.created_at, RunRow.ordered_at, RunRow.commit_time)
    .where(
        col(RunRow.config_key) == bindparam("config_key"),
        col(RunRow.project_id) == bindparam("project_id"),
        col(RunRow.commit) == bindparam("commit"),
    )
    .order_by(col(RunRow.id))
)


def settle_places(session: Session, project_id: int, config_key: str, commit: str) -> datetime | None:
    """Move all runs of one commit and configuration to the history position of the first.

    Return the earliest position that a run left or took, None if nothing moved. The caller holds the lock of the stack
    (`stack_queue.lock`); otherwise two concurrent reruns miss each other.
    """
    rows: Sequence[Row[Any]] = session.execute(
        _OF_COMMIT, {"config_key": config_key, "project_id": project_id, "commit": commit}
    ).all()
    if not rows:
        return None
    place: datetime = rows[0].commit_time or rows[0].created_at
    moved = [row for row in rows if row.ordered_at != place]
    if not moved:
        return None
    statement = update(RunRow).where(col(RunRow.id).in_([row.id for row in moved])).values(ordered_at=place)
    session.execute(statement.execution_options(synchronize_session=False))
    earliest: datetime = min(place, *(row.ordered_at for row in moved))
    return earliest


def lines_of(log_files: LogFiles, files: Sequence[RunFile], first: int, last: int) -> tuple[list[str], int]:
    """Return lines first..last of the joined files, counted from 1, and the total number. Raises Unavailable."""
    lines: list[str] = []
    before = 0
    for file in files:
        keys = file.readable_keys
        count = log_files.line_count(keys)
        if first <= before + count and last > before:
            lines += log_files.lines(keys, max(1, first - before), min(count, last - before))
        before += count
    return lines, before

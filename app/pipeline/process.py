"""Process a run: claim it, read its files, compute its figures, and replace the stored ones."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, get_args

import structlog
from billiard.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Engine, Select, and_, bindparam, case, delete, exists, func, insert, select, update
from sqlmodel import Session, col

from app.domain.contract.statements import CONTAINER_RULE, ProjectDefaults
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS, VERDICT_VERSION, changes
from app.domain.documents.document import Document, DocumentKind
from app.domain.documents.metadata import read_metadata
from app.domain.documents.read import read_document
from app.domain.logs import parse_log
from app.domain.logs.line_template import read_template
from app.domain.logs.merge import merge_logs
from app.domain.numbers import plural, size
from app.domain.performance.summary import summarise, with_documents
from app.domain.run import UNREADABLE_DOCUMENT, LogPart, LogProblem, Metadata, RunSummary, Stated, Value
from app.domain.verdict.record import not_finite_iterations, shape_of, skipped_share
from app.errors import DamagedObject, Unavailable, new_error_id
from app.pipeline import judge, suggest
from app.pipeline.notify import notify_failed
from app.pipeline.work import SHORT_SECONDS, RunClaim, StackChange, delivery_queue, run_queue, stack_queue
from app.queue import JUDGE_STACK, PROCESS_RUN, enqueue
from app.settings import Settings
from app.storage import readings, runs
from app.storage.database import fault_of, read_session, transaction
from app.storage.json_text import frozen, storable, to_json
from app.storage.log_files import LogFiles
from app.storage.readings import StoredReading, has_old_figures, is_outdated
from app.storage.rules import RunInMemory, rules_in_force
from app.storage.runs import RunFile, files_of, settle_places
from app.storage.tables import (
    EVERYTHING,
    RESULT_COLUMNS,
    AmendmentRow,
    AvailabilityRow,
    ProjectDefaultRow,
    ProjectRow,
    ReadingRow,
    RunResultRow,
    RunRow,
    SeriesRow,
    StackWorkRow,
    VerdictRow,
    select_any,
    table_of,
    utc_now,
)
from app.storage.worker_activity import timed

# --- The inputs: files, metadata with later corrections, and defaults of the project.


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The inputs of one run. `documents` are recognised files; `unread` are stored but no reader supports them.

    `stored`: the result of an earlier reading of the files in `read`; None if they must be read. `first`: the run as
    uploaded; None if it was read before.
    """

    project_id: int
    reception: str
    metadata: Metadata
    defaults: ProjectDefaults
    logs: tuple[RunFile, ...]
    documents: tuple[RunFile, ...]
    unread: tuple[RunFile, ...]
    stored: StoredReading | None = None
    first: "Before | None" = None

    @property
    def read(self) -> tuple[RunFile, ...]:
        return (*self.logs, *self.documents)


# Built once, because building it takes as long as running it.
_INPUTS: Select[Any] = (
    select_any(
        RunRow.project_id,
        RunRow.reception,
        RunRow.commit,
        RunRow.ordered_at,
        RunRow.processed_at,
        RunResultRow.metadata_stated,
        ProjectRow.slug,
        select_any(AmendmentRow.id).where(col(AmendmentRow.run_id) == RunRow.id).exists().label("is_amended"),
        select_any(ProjectDefaultRow.name)
        .where(col(ProjectDefaultRow.project_id) == RunRow.project_id)
        .exists()
        .label("has_defaults"),
        select_any(ReadingRow.run_id).where(col(ReadingRow.run_id) == RunRow.id).exists().label("was_read"),
    )
    .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
    .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    .where(col(RunRow.id) == bindparam("run_id"))
)


def read_inputs(session: Session, run_id: int) -> RunInputs:
    run = session.execute(_INPUTS, {"run_id": run_id}).one()
    # An upload by token need not name its project; with the name it would belong to the same stack.
    metadata = replace(read_metadata(run.metadata_stated), project=run.slug)
    if run.is_amended:
        amended = amended_fields(session, run_id)
        read_as = amended.pop(READ_AS, None)
        metadata = replace(
            metadata,
            fields=dict(metadata.fields) | amended,
            read_as=metadata.read_as if read_as is None else str(read_as.value or ""),
        )
    files = files_of(session, run_id)
    inputs = RunInputs(
        project_id=run.project_id,
        reception=run.reception,
        metadata=metadata,
        defaults=project_defaults(session, run.project_id) if run.has_defaults else ProjectDefaults({}, ""),
        logs=tuple(file for file in files if file.kind == "log"),
        documents=tuple(file for file in files if file.document),
        unread=tuple(file for file in files if file.kind != "log" and not file.document),
        first=Before(
            run_id=run_id,
            project_id=run.project_id,
            stack_key="",
            config_key="",
            commit=run.commit,
            ordered_at=run.ordered_at,
            is_growing=run.reception == "receiving",
            was_read=False,
            definitions={},
        )
        if run.processed_at is None
        else None,
    )
    if not run.was_read:
        return inputs
    return replace(inputs, stored=readings.load(session, run_id, inputs.read, metadata.read_as))


READ_AS = "read_as"
"""The amendment that describes the step lines of a log. It is not a contract field."""


def amended_fields(session: Session, run_id: int) -> dict[str, Stated]:
    """Return the active corrections: the newest of each field, unless it removes the correction."""
    rows: Sequence[AmendmentRow] = (
        session.execute(select(AmendmentRow).where(col(AmendmentRow.run_id) == run_id).order_by(col(AmendmentRow.id)))
        .scalars()
        .all()
    )
    newest: Mapping[str, AmendmentRow] = {row.field: row for row in rows}
    return {
        name: Stated(
            frozen(row.value),
            "metadata",
            f"stated by {row.author} on {row.created_at:%Y-%m-%d}",
            stated_by=row.author,
        )
        for name, row in newest.items()
        if not row.removed
    }


def project_defaults(session: Session, project_id: int) -> ProjectDefaults:
    rows = session.execute(select(ProjectDefaultRow).where(col(ProjectDefaultRow.project_id) == project_id)).scalars()
    values = {row.name: frozen(row.value) for row in rows}
    rule = values.pop(CONTAINER_RULE, "")
    return ProjectDefaults(values, str(rule or ""))


# --- Computing the figures, from the files or from the stored result of an earlier reading.


@dataclass(frozen=True, slots=True)
class Computed:
    """The figures of a run. `fresh`: the reading, if the files were read just now. `seconds`: total duration.

    `job`: from the metadata, else from a document. `arguments`: the trainer's own dump.
    """

    inputs: RunInputs
    summary: RunSummary
    job: str
    warnings: tuple[str, ...]
    fresh: StoredReading | None
    seconds: float
    arguments: Mapping[str, Value]


def compute(log_files: LogFiles, inputs: RunInputs) -> Computed:
    began = time.monotonic()
    fresh = None if inputs.stored else read_files(log_files, inputs)
    reading = inputs.stored or fresh
    assert reading is not None  # noqa: S101  # one of the two exists
    warnings = list(reading.warnings)
    warnings += [
        f"{file.name} ({file.kind}) is stored and can be downloaded, but its values are not read: it is not a known "
        "document (docs/documents.md lists them)."
        for file in inputs.unread
    ]
    summary = _summary(reading, inputs)
    if inputs.reception == "receiving":
        summary = _still_receiving(summary)
    if inputs.reception == "incomplete":
        warnings.append(
            "The log stopped arriving, so the run was closed as incomplete. The received part was read. Sending the "
            "rest reopens the run."
        )
    job = inputs.metadata.job or next(
        (document.facts["job"] for document in reading.documents if "job" in document.facts), ""
    )
    return Computed(inputs, summary, job, tuple(warnings), fresh, time.monotonic() - began, reading.log.arguments)


def read_files(log_files: LogFiles, inputs: RunInputs) -> StoredReading:
    """Read logs and documents, without corrections of users and defaults of the project."""
    template = read_template(inputs.metadata.read_as) if inputs.metadata.read_as else None
    parts = [LogPart(file.name, parse_log(log_files.stream(file.readable_keys), template)) for file in inputs.logs]
    warnings: list[str] = []
    documents = list(_documents(log_files, inputs.documents, warnings))
    log = with_documents(merge_logs(parts) if parts else parse_log([]), documents)
    if not log.n and not parts and not documents and warnings:
        log = replace(log, problems=(*log.problems, LogProblem(UNREADABLE_DOCUMENT, warnings[0])))
    warnings += [
        f"{file.name} is {file.cut}, but ends early at {size(file.size_bytes)}. "
        f"{plural(part.log.n, 'iteration')} before the cut could be read. Upload the file again to complete the run."
        for file, part in zip(inputs.logs, parts, strict=True)
        if file.cut
    ]
    stripped = tuple(replace(document, columns={}) for document in documents)  # merged into the log
    return StoredReading(log, stripped, tuple(warnings))


def _documents(log_files: LogFiles, files: Sequence[RunFile], warnings: list[str]) -> Iterator[Document]:
    for file in files:
        try:
            kind = next(name for name in get_args(DocumentKind) if name == file.document)
            document = read_document(kind, log_files.stream(file.readable_keys))
        except ValueError as error:
            warnings.append(f"{file.name} looks like {file.document}, but could not be read: {error}")
            continue
        warnings += [f"{file.name}: {problem}" for problem in document.problems]
        yield replace(document, problems=())


def _summary(reading: StoredReading, inputs: RunInputs) -> RunSummary:
    defaults = inputs.defaults
    log = replace(reading.log, stated=defaults.completed(reading.log.stated))
    documents = [replace(document, stated=defaults.completed(document.stated)) for document in reading.documents]
    metadata = replace(inputs.metadata, fields=defaults.completed(inputs.metadata.fields))
    return summarise(log, metadata, documents, defaults.fields)


def _still_receiving(summary: RunSummary) -> RunSummary:
    """Return the summary for a growing log: it is not truncated, and a lack of iterations is not a failure yet."""
    health = dict(summary.health)
    if health.get("outcome") in ("truncated", "unread"):
        health["outcome"] = "running"
    failures = tuple(failure for failure in summary.failures if failure.kind != "truncated")
    summary = replace(summary, health=health, failures=failures)
    if summary.error is None:
        return summary
    first = "No iteration line was read yet. The log is still growing."
    return replace(summary, error=None, warnings=(first, *summary.warnings))


# --- Consequences for verdicts: summary columns, the position in the history, and the stacks to judge.

_MOST_SHAPE = 300


@dataclass(frozen=True, slots=True)
class Before:
    """The stored state of a run before this reading. Keys are empty if it was never read.

    `is_growing`: more of its log will follow, so verdicts do not use it yet.
    """

    run_id: int
    project_id: int
    stack_key: str
    config_key: str
    commit: str
    ordered_at: datetime
    is_growing: bool
    was_read: bool
    definitions: Mapping[str, int]


def slim_columns(summary: RunSummary) -> dict[str, Any]:
    """Return the columns from which segments and baselines are computed, so that these need no JSON."""
    steady = summary.steady_state
    has_estimate = steady is not None and math.isfinite(steady.log_step_time)
    return {
        "outcome": str(summary.health.get("outcome") or "")[:20],
        "log_step_time": steady.log_step_time if steady and has_estimate else None,
        "step_time_se": steady.se if steady and has_estimate else None,
        "window_length": steady.n if steady else 0,
        "is_steady": steady.is_steady if steady else False,
        "short": steady.short if steady else True,
        "not_finite": not_finite_iterations(summary.health),
        "skipped_share": skipped_share(summary.health),
        "shape": ",".join(text.replace(",", " ") for text in shape_of(summary.contract))[:_MOST_SHAPE],
    }

    # Built once, because building it takes as long as running it.


_BEFORE: Select[Any] = (
    select_any(
        RunRow.project_id, RunRow.stack_key, RunRow.config_key, RunRow.commit, RunRow.ordered_at,
        RunRow.processed_at, RunRow.reception, RunRow.verdict, RunResultRow.definitions,
    )
    .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
    .where(col(RunRow.id) == bindparam("run_id"))
)  # fmt: skip


def read_before(session: Session, run_id: int) -> Before:
    """Return the stored state of a run; call this before its row is written."""
    row = session.execute(_BEFORE, {"run_id": run_id}).one()
    return Before(
        run_id,
        row.project_id,
        row.stack_key,
        row.config_key,
        row.commit,
        row.ordered_at,
        is_growing=row.reception == "receiving" and not row.verdict,
        was_read=row.processed_at is not None,
        definitions=row.definitions,
    )


def request_judging(session: Session, before: Before, stack_key: str) -> list[int]:
    """Lock the stacks that a run leaves and joins, and request their judging. Return the ids to enqueue.

    Call this before the run's row is written. `stack_key`: the run's new stack; may be empty. Verdicts do not use a
    run whose log is growing.
    """
    if before.is_growing:
        return []
    keys = sorted({before.stack_key, stack_key} - {""})
    because, position = _because(before, stack_key), before.ordered_at
    return [stack_queue.request(session, before.project_id, key, judge_from=position, because=because) for key in keys]


def _idle_stack(session: Session, before: Before, stack_key: str) -> StackChange | None:
    """Lock the stack of a run if this transaction can judge it: the run leaves no other stack, and nothing waits."""
    if before.is_growing or {before.stack_key, stack_key} - {"", stack_key} or not stack_key:
        return None
    if not stack_queue.lock_idle(session, before.project_id, stack_key):
        return None
    return StackChange(
        run_id=before.run_id,
        is_new=not before.was_read,
        project_id=before.project_id,
        stack_key=stack_key,
        judge_from=before.ordered_at,
        because=_because(before, stack_key),
    )


def group_reruns(session: Session, before: Before, stack_key: str, config_key: str) -> bool:
    """Group the reruns of a commit after the run's row is written, and request judging from the first moved run on.

    Return whether any run moved.
    """
    if not before.commit or before.is_growing:
        return False
    groups = [(stack_key, config_key)]
    if before.config_key not in ("", config_key):
        groups.append((before.stack_key, before.config_key))
    has_moved = False
    for stack, config in sorted(groups):
        moved = settle_places(session, before.project_id, config, before.commit)
        if moved is not None:
            has_moved = True
            because = f"Run {before.run_id} was moved next to the other runs of its commit."
            stack_queue.request(session, before.project_id, stack, judge_from=moved, because=because)
    return has_moved


def _because(before: Before, stack_key: str) -> str:
    if not before.stack_key:
        return f"Run {before.run_id} was added earlier in the history."
    if changed := changes(before.definitions, DEFINITIONS):
        return f"The definitions changed ({changed})."
    if before.stack_key != stack_key:
        return f"Run {before.run_id} was read again and now belongs to another stack."
    return f"Run {before.run_id} was read again."


log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1
_LISTED_TEXTS = {"model": 200, "gpu": 100, "dispatcher": 30}
"""Contract fields by which lists filter, with the length of their columns."""
_AS_COMPUTED = (
    "unknown", "stack_key", "config_key", "provisional", "health", "evidence_level", "semantic_class",
    "definition_version", "definitions",
)  # fmt: skip
"""Columns that copy fields of the summary under the same name."""


def process_run(engine: Engine, log_files: LogFiles, settings: Settings, run_id: int) -> str | None:
    """Read a run if it waits, judge and rank its stack, and evaluate the rules. Return its status as `read_run` does.

    This is one transaction if the stack has no other request and few runs are affected. Otherwise, or if judging
    fails, the figures are committed first and the stack is judged afterwards (`judge_run`).
    """
    in_force = rules_in_force(settings)
    has_receivers = True

    def at_once(session: Session, change: StackChange, computed: Computed) -> bool:
        nonlocal has_receivers
        judged = judge.judge_at_once(session, settings, change)
        if judged is None:
            return False
        in_memory = RunInMemory(
            computed.inputs.first is not None, computed.inputs.read, computed.arguments, judged.document
        )
        suggest.evaluate_at_once(session, in_force, run_id, in_memory)
        has_receivers = judged.may_notify
        return True

    status, is_done = read_run(engine, log_files, settings, run_id, at_once)
    if not is_done:
        judge.judge_run(engine, settings, run_id)
        suggest.evaluate_rules(engine, settings, run_id)
    if not is_done or has_receivers:
        delivery_queue.enqueue_due(engine)
    return status


AtOnce = Callable[[Session, StackChange, Computed], bool]
"""Judges the stack of a run in the transaction that stores the run. Returns False, with nothing written, to defer."""


@timed("read")
def read_run(
    engine: Engine, log_files: LogFiles, settings: Settings, run_id: int, at_once: AtOnce | None = None
) -> tuple[str | None, bool]:
    """Read one run. Return its new status, and whether `at_once` judged it.

    The status is None if another worker has the run, or it is done or deleted. Any number of workers may call this
    any number of times; the result is stored once.
    """
    with transaction(engine) as session:
        claim = claim_run(session, run_id, settings)
    if claim is None:
        return None, False
    try:
        with run_queue.renewed(engine, claim, settings.lease_seconds):
            with read_session(engine) as session:
                inputs = read_inputs(session, run_id)
            computed = compute(log_files, inputs)
        written = _store(engine, claim, computed, at_once)
        if written.waits and computed.seconds < SHORT_SECONDS:
            enqueue(PROCESS_RUN, run_id)  # it grew during the reading; after a long reading the sweep enqueues it
        for work_id in written.stacks:
            enqueue(JUDGE_STACK, work_id)
        return written.status, written.is_judged
    except Exception as error:
        return _end_without_result(engine, log_files, settings, claim, error), False


def _store(engine: Engine, claim: RunClaim, computed: Computed, at_once: AtOnce | None) -> "WrittenRun":
    try:
        with transaction(engine) as session:
            return _write(session, claim, computed, at_once)
    except Exception as error:
        if at_once is None or fault_of(error) is not None or isinstance(error, SoftTimeLimitExceeded):
            raise
        log.exception("not_judged_at_once", run_id=claim.row_id)
    with transaction(engine) as session:  # the figures are valid even if judging failed
        return _write(session, claim, computed, None)


def claim_run(session: Session, run_id: int, settings: Settings) -> RunClaim | None:
    """Claim a run. If all its attempts were interrupted, park it as failed and return None."""
    claim = run_queue.claim(session, run_id, settings)
    if claim is not None:
        return claim
    reason = (
        f"Reading this run was interrupted {settings.max_attempts} times, so it is not tried again. Its files are "
        "kept. The worker's log shows what happened; too little memory is the usual cause."
    )
    if run_queue.park(session, run_id, run_queue.times(settings), processed_at=utc_now(), **_failed_columns(reason)):
        log.error("run_parked", run_id=run_id, attempts=settings.max_attempts)
        notify_failed(session, run_id)
    return None


def _failed_columns(reason: str) -> dict[str, Any]:
    """Return the columns of a run that cannot be read: it fails, or it keeps figures of older definitions."""
    return {
        "status": case((has_old_figures(), RunRow.status), else_="failed"),
        "error": case((has_old_figures(), RunRow.error), else_=reason),
        "recompute_error": case((has_old_figures(), reason), else_=None),
        "recompute_failed": DEFINITION_VERSION,
    }


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """`status`: None if the claim was lost. `waits`: the run must be read again. `stacks`: other stacks to judge."""

    status: str | None
    waits: bool = False
    stacks: tuple[int, ...] = ()
    is_judged: bool = False


def _write(session: Session, claim: RunClaim, computed: Computed, at_once: AtOnce | None) -> WrittenRun:
    """Store the result.

    The same worker judges the run's own stack: `at_once` in this transaction, or right after it.
    """
    summary = computed.summary
    status = summary.status
    before = computed.inputs.first or read_before(session, claim.row_id)
    change = None if at_once is None else _idle_stack(session, before, summary.stack_key)
    requested = [] if change is not None else request_judging(session, before, summary.stack_key)
    columns = _columns(computed)
    result = {name: columns.pop(name) for name in RESULT_COLUMNS & columns.keys()}
    work = run_queue.finish(session, claim, status=status, **columns)
    if work is None:
        log.warning("result_dropped", run_id=claim.row_id, claim=claim.number)
        return WrittenRun(None)
    session.execute(_RESULT, result | {"of_run": claim.row_id})
    has_moved = group_reruns(session, before, summary.stack_key, summary.config_key)
    if before.was_read:
        for table in (SeriesRow, AvailabilityRow, ReadingRow):
            if table is not ReadingRow or computed.fresh is not None:
                session.execute(delete(table).where(col(table.run_id) == claim.row_id))
    session.execute(_SERIES, list(_series_rows(claim.row_id, summary)))
    session.add_all(_availability_rows(claim.row_id, computed))
    if computed.fresh is not None:
        inputs = computed.inputs
        readings.save(session, claim.row_id, inputs.read, computed.fresh, inputs.metadata.read_as)
    if status == "failed":
        notify_failed(session, claim.row_id)
    is_judged = change is not None and at_once is not None and not has_moved and at_once(session, change, computed)
    if change is not None and not is_judged:
        request_judging(session, before, summary.stack_key)
    log.info(
        "run_processed",
        run_id=claim.row_id,
        status=status,
        iterations=len(summary.line_numbers),
        seconds=round(computed.seconds, 3),
    )
    others = requested if before.stack_key not in ("", summary.stack_key) else []
    return WrittenRun(status, work == "waiting", tuple(others), is_judged)


# Core tables, because these rows are written in bulk without session objects.
_RESULTS = table_of(RunResultRow)
_RESULT = update(_RESULTS).where(_RESULTS.c.run_id == bindparam("of_run"))
_SERIES = insert(table_of(SeriesRow))


def _columns(computed: Computed) -> dict[str, Any]:
    """Return the columns of RunRow and RunResultRow, by name."""
    summary = computed.summary
    contract = {name: stated.value for name, stated in summary.contract.items()}
    gpus = contract.get("gpus")
    columns = {
        "error": summary.error and storable(summary.error),
        "warnings": list(dict.fromkeys((*computed.warnings, *summary.warnings))),
        "trainer": summary.trainer[:50],
        "contract": to_json(summary.contract),
        **{name: getattr(summary, name) for name in _AS_COMPUTED},
        "steady_state": asdict(summary.steady_state) if summary.steady_state else None,
        "metrics": {name: asdict(metric) if metric else None for name, metric in summary.metrics.items()},
        "rules_asked": "",
        "recompute_failed": 0,
        "recompute_error": None,
        "gpus": gpus if isinstance(gpus, int) else None,
        "read_seconds": computed.seconds,
    }
    columns |= runs.write(summary) | slim_columns(summary)
    columns["job"] = computed.job
    columns |= {name: _listed(contract.get(name), length) for name, length in _LISTED_TEXTS.items()}
    columns |= {
        name: metric.value if metric else None
        for name, metric in summary.metrics.items()
        if name in RunRow.model_fields
    }
    return {name: storable(value) for name, value in columns.items()}


def _availability_rows(run_id: int, computed: Computed) -> Iterator[AvailabilityRow]:
    for dispatcher, entry_of in {entry.dispatcher: entry for entry in computed.summary.availability}.items():
        yield AvailabilityRow(
            run_id=run_id,
            dispatcher=dispatcher[:30],
            project_id=computed.inputs.project_id,
            container=(entry_of.container or "")[:500],
            available=entry_of.available,
            evidence=storable([asdict(line) for line in entry_of.evidence]),
        )


def _listed(value: Value, length: int) -> str | None:
    return None if value is None else str(value)[:length]


def _series_rows(run_id: int, summary: RunSummary) -> Iterator[dict[str, Any]]:
    columns = dict(summary.series)
    columns.setdefault("log_line", summary.line_numbers.astype(float))
    for name, values in columns.items():
        unit = summary.units.get(name, "")[:30]
        yield {
            "run_id": run_id,
            "metric": name[: readings.MAX_METRIC_NAME],
            "unit": unit,
            "n": len(values),
            "blob": readings.pack_series(values),
        }


def _end_without_result(
    engine: Engine, log_files: LogFiles, settings: Settings, claim: RunClaim, error: Exception
) -> str | None:
    """Postpone the run or fail it, so that no run stays in processing because of an internal error."""
    if (fault := error if isinstance(error, Unavailable) else fault_of(error)) is not None:
        log.warning("run_postponed", run_id=claim.row_id, error=fault.detail)
        # A recomputation waits while the store is unreachable, but not for files that the store has lost, because the
        # whole stack would wait with it.
        is_damaged = isinstance(error, DamagedObject)
        counts = fault is error and (claim.recomputes or is_damaged) and _answers(log_files)
        if counts and claim.attempt >= settings.max_attempts:
            away = "Its files could not be read again: the log store did not return them."
            return _fail(engine, claim, fault.detail if is_damaged else away)
        return _postpone(engine, claim, seconds=settings.lease_seconds, counts=counts)
    if isinstance(error, SoftTimeLimitExceeded):
        limit = settings.task_soft_limit_seconds
        return _fail(engine, claim, f"Reading this run took longer than {limit} s, the limit. Its files stay stored.")
    error_id = new_error_id()
    log.exception("run_not_processed", run_id=claim.row_id, claim=claim.number, error_id=error_id)
    if claim.attempt < settings.max_attempts:
        return _postpone(engine, claim, seconds=_RETRY_SECONDS, counts=True)
    return _fail(
        engine,
        claim,
        f"Unexpected error (id {error_id}). The worker's log has the details under this id. Reading this run was tried "
        f"{plural(claim.attempt, 'time')}; its files are kept.",
    )


def _answers(log_files: LogFiles) -> bool:
    try:
        log_files.check()
    except Unavailable:
        return False
    return True


def _postpone(engine: Engine, claim: RunClaim, *, seconds: float, counts: bool) -> str | None:
    with transaction(engine) as session:
        again_at = utc_now() + timedelta(seconds=seconds)
        return "received" if run_queue.give_back(session, claim, again_at=again_at, counts=counts) else None


def _fail(engine: Engine, claim: RunClaim, reason: str) -> str | None:
    with transaction(engine) as session:
        if run_queue.finish(session, claim, **_failed_columns(reason)) is None:
            return None
        notify_failed(session, claim.row_id)
        return "failed"


# --- Recomputation after the definitions change: a few runs at a time, so that uploads go first.
#
# Each batch is chosen from the current rows, so that work resumes after a worker was killed. The readings of the files
# are stored, so most runs need no log (`storage/readings.py`). The project with the newest run comes first, and is
# completed before the next, because stacks are judged only when all runs of their project have figures of one version.

BATCH_RUNS = 16
BATCH_SECONDS = 5.0
"""Limits of a batch, because uploads wait for it: number of runs, and the sum of their last reading times (s)."""

MOST_QUEUED = 24
"""With more queued messages than this, no recomputation is enqueued."""

BATCH_STACKS = 16


def request_next_runs(session: Session) -> list[int]:
    """Request that the next outdated runs are read again. Return their ids, to enqueue after the commit."""
    projects = select_any(RunRow.project_id, func.max(RunRow.id).label("newest"))
    newest = projects.group_by(col(RunRow.project_id)).subquery()
    chosen = (
        select_any(RunRow.id, RunRow.read_seconds)
        .join(newest, newest.c.project_id == RunRow.project_id)
        .where(is_outdated(), col(RunRow.work) == "")
        .order_by(newest.c.newest.desc(), col(RunRow.id).desc())
        .limit(BATCH_RUNS)
    )
    rows = session.execute(chosen).all()
    ids = [row.id for row in rows[: _affordable([row.read_seconds for row in rows])]]
    run_queue.request(session, col(RunRow.id).in_(ids), is_outdated(), col(RunRow.work) == "")
    return ids


def request_next_stacks(session: Session) -> list[int]:
    """Request that the next stacks with outdated verdicts are judged again. Return the ids to enqueue."""
    is_requested = exists().where(
        and_(
            col(StackWorkRow.project_id) == RunRow.project_id,
            col(StackWorkRow.stack_key) == RunRow.stack_key,
            col(StackWorkRow.judge_from) == EVERYTHING,
        )
    )
    chosen = (
        select_any(RunRow.project_id, RunRow.stack_key, func.min(VerdictRow.verdict_version).label("version"))
        .join(VerdictRow, col(VerdictRow.run_id) == RunRow.id)
        .where(col(VerdictRow.current), col(VerdictRow.verdict_version) < VERDICT_VERSION, ~is_requested)
        .group_by(col(RunRow.project_id), col(RunRow.stack_key))
        .order_by(func.max(RunRow.ordered_at).desc())
        .limit(BATCH_STACKS)
    )
    # All code locks stacks in this order.
    stacks = sorted(session.execute(chosen).all(), key=lambda row: (row.project_id, row.stack_key))
    return [
        stack_queue.request(
            session,
            row.project_id,
            row.stack_key,
            judge_from=EVERYTHING,
            because=f"The rules of verdicts changed (version {row.version} → {VERDICT_VERSION}).",
        )
        for row in stacks
    ]


def _affordable(seconds: Sequence[float]) -> int:
    """Return how many of the first runs fit into a batch: at least one. `seconds`: their last reading times."""
    return max(1, sum(total <= BATCH_SECONDS for total in accumulate(seconds)))

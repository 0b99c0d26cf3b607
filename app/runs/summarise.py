"""What a worker does with a run: claim it, read its files, compute its figures, write them in place of older ones."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, get_args

import structlog
from sqlalchemy import Engine, delete, insert, select
from sqlmodel import Session, col

from app.domain.documents import Document, DocumentKind, read_document
from app.domain.logs import parse_log
from app.domain.merge import merge_logs
from app.domain.run import LogPart, ParsedLog, RunSummary, Value
from app.domain.summary import summarise
from app.errors import Unavailable
from app.queue import PROCESS_RUN, SoftTimeLimitExceeded, enqueue
from app.runs import claims
from app.runs.claims import Claim
from app.runs.json_text import storable
from app.runs.run_inputs import RunInputs, read_inputs
from app.runs.sizes import size
from app.settings import Settings
from app.storage import findings, series
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.run_records import RunFile
from app.storage.tables import AvailabilityRow, RunRow, SeriesRow, utc_now

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1
_SHORT_SECONDS = 1.0
_LISTED_TEXTS = {"model": 200, "gpu": 100, "dispatcher": 30}
"""Contract fields that lists filter by, and how long a text of theirs a column takes."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A summary, what the files themselves must be warned of, and how long it all took."""

    inputs: RunInputs
    summary: RunSummary
    warnings: tuple[str, ...]
    seconds: float


def summarise_run(engine: Engine, log_files: LogFiles, settings: Settings, run_id: int) -> str | None:
    """Process one run. Returns the status it was left in, or None when it is another's, done, or gone.

    May be called any number of times, by any number of workers: one of them writes the result, once.
    """
    with transaction(engine) as session:
        held = claims.claim(session, run_id, settings)
    if held is None:
        return None
    try:
        with claims.kept(engine, held, settings.lease_seconds):
            with read_session(engine) as session:
                inputs = read_inputs(session, run_id)
            reading = _read(log_files, inputs)
        with transaction(engine) as session:
            status = _write(session, held, reading)
            waits = status and session.execute(select(RunRow.work).where(col(RunRow.id) == run_id)).scalar_one()  # type: ignore[call-overload]
        if waits and reading.seconds < _SHORT_SECONDS:
            enqueue(PROCESS_RUN, run_id)  # it grew meanwhile; one that takes long to read rests, and the sweep rings
        return status
    except Exception as error:
        return _end_without_result(engine, settings, held, error)


def _read(log_files: LogFiles, inputs: RunInputs) -> _Reading:
    began = time.monotonic()
    warnings: list[str] = []
    parts = [LogPart(file.name, parse_log(log_files.stream(file.keys))) for file in inputs.logs]
    documents = list(_documents(log_files, inputs, warnings))
    parsed = merge_logs(parts) if parts else parse_log([])
    summary = _summary(parsed, documents, inputs)
    warnings += [_cut_short(file, part.log.n) for file, part in zip(inputs.logs, parts, strict=True) if file.cut]
    warnings += [
        f"{file.name} ({file.kind}) is kept and can be downloaded, but its values are not read: it is no document "
        "that is known (docs/documents.md lists them)."
        for file in inputs.unread
    ]
    if inputs.reception == "receiving":
        summary = _still_receiving(summary)
    if inputs.reception == "incomplete":
        warnings.append(
            "No more of the log came for a long time, so the run was closed as incomplete. What came was read. "
            "Sending the rest opens it again."
        )
    return _Reading(inputs, summary, tuple(warnings), time.monotonic() - began)


def _documents(log_files: LogFiles, inputs: RunInputs, warnings: list[str]) -> Iterator[Document]:
    for file in inputs.documents:
        try:
            kind = next(known for known in get_args(DocumentKind) if known == file.document)
            document = read_document(kind, log_files.stream(file.keys))
        except ValueError as error:
            warnings.append(f"{file.name} looks like {file.document}, but could not be read: {error}")
            continue
        warnings += [f"{file.name}: {problem}" for problem in document.problems]
        yield replace(document, stated=inputs.defaults.completed(document.stated))


def _summary(parsed: ParsedLog, documents: Sequence[Document], inputs: RunInputs) -> RunSummary:
    defaults = inputs.defaults
    parsed = replace(parsed, stated=defaults.completed(parsed.stated))
    metadata = replace(inputs.metadata, fields=defaults.completed(inputs.metadata.fields))
    return summarise(parsed, metadata, documents, defaults.fields)


def _cut_short(file: RunFile, iterations: int) -> str:
    return (
        f"{file.name} is {file.cut}, but ends early at {size(file.size_bytes)}. The {iterations:,} iterations before "
        "the cut were read. Upload it again to complete the run."
    )


def _still_receiving(summary: RunSummary) -> RunSummary:
    """A log that has no end yet was not cut off, and one without iterations has not failed."""
    health = dict(summary.health)
    if health.get("outcome") == "truncated":
        health["outcome"] = "running"
    failures = tuple(failure for failure in summary.failures if failure.kind != "truncated")
    summary = replace(summary, health=health, failures=failures)
    if summary.error is None:
        return summary
    first = "No iteration line was read yet; more of the log is to come."
    return replace(summary, error=None, warnings=(first, *summary.warnings))


def _write(session: Session, held: Claim, reading: _Reading) -> str | None:
    summary = reading.summary
    status = "failed" if summary.error else "ready"
    if not claims.finish(session, held, status=status, **_columns(reading)):
        log.warning("result_dropped", run_id=held.run_id, claim=held.number)
        return None
    for table in (SeriesRow, AvailabilityRow):
        session.execute(delete(table).where(col(table.run_id) == held.run_id))
    session.execute(insert(SeriesRow), list(_series_rows(held.run_id, summary)))
    session.add_all(_availability_rows(held.run_id, reading))
    log.info(
        "run_processed",
        run_id=held.run_id,
        status=status,
        iterations=len(summary.line_numbers),
        seconds=round(reading.seconds, 3),
    )
    return status


def _columns(reading: _Reading) -> dict[str, Any]:
    summary = reading.summary
    contract = {name: stated.value for name, stated in summary.contract.items()}
    gpus = contract.get("gpus")
    columns = {
        "error": summary.error and storable(summary.error),
        "warnings": [*reading.warnings, *summary.warnings],
        "trainer": summary.trainer[:50],
        "contract": {name: asdict(stated) for name, stated in summary.contract.items()},
        "unknown": summary.unknown,
        "stack_key": summary.stack_key,
        "config_key": summary.config_key,
        "provisional": summary.provisional,
        "steady_state": asdict(summary.steady_state) if summary.steady_state else None,
        "metrics": {name: asdict(metric) if metric else None for name, metric in summary.metrics.items()},
        "health": summary.health,
        "evidence_level": summary.evidence_level,
        "semantic_class": summary.semantic_class,
        "definition_version": summary.definition_version,
        "definitions": summary.definitions,
        "gpus": gpus if isinstance(gpus, int) else None,
        "read_seconds": reading.seconds,
    }
    columns |= findings.write(summary)
    columns |= {name: _listed(contract.get(name), length) for name, length in _LISTED_TEXTS.items()}
    columns |= {name: metric.value if metric else None for name, metric in summary.metrics.items() if _has_column(name)}
    return {name: storable(value) for name, value in columns.items()}


def _availability_rows(run_id: int, reading: _Reading) -> Iterator[AvailabilityRow]:
    for dispatcher, found in {entry.dispatcher: entry for entry in reading.summary.availability}.items():
        yield AvailabilityRow(
            run_id=run_id,
            dispatcher=dispatcher[:30],
            project_id=reading.inputs.project_id,
            container=(found.container or "")[:500],
            available=found.available,
            evidence=storable([asdict(line) for line in found.evidence]),
        )


def _listed(value: Value, length: int) -> str | None:
    return None if value is None else str(value)[:length]


def _has_column(metric: str) -> bool:
    return metric in RunRow.model_fields


def _series_rows(run_id: int, summary: RunSummary) -> Iterator[dict[str, Any]]:
    columns = dict(summary.series)
    columns.setdefault("log_line", summary.line_numbers.astype(float))
    for name, values in columns.items():
        unit = summary.units.get(name, "")[:30]
        yield {"run_id": run_id, "metric": name[:100], "unit": unit, "n": len(values), "blob": series.pack(values)}


def _end_without_result(engine: Engine, settings: Settings, held: Claim, error: Exception) -> str | None:
    """Another attempt, or the end of them: no run stays in processing because of an error of ours."""
    if isinstance(error, Unavailable):
        log.warning("run_postponed", run_id=held.run_id, error=error.detail)
        return _postpone(engine, held, seconds=settings.lease_seconds, counts=False)
    if isinstance(error, SoftTimeLimitExceeded):
        limit = settings.task_soft_limit_seconds
        return _fail(engine, held, f"Reading this run took longer than {limit} s, the limit. Its files are kept.")
    log.exception("run_not_processed", run_id=held.run_id, claim=held.number)
    if held.attempt < settings.max_attempts:
        return _postpone(engine, held, seconds=_RETRY_SECONDS, counts=True)
    return _fail(
        engine,
        held,
        f"Reading this run failed {held.attempt} times inside Threewalls ({type(error).__name__}). Its files are kept, "
        "and the worker's log says where. This is a defect of Threewalls, not of the log.",
    )


def _postpone(engine: Engine, held: Claim, *, seconds: float, counts: bool) -> str | None:
    with transaction(engine) as session:
        again_at = utc_now() + timedelta(seconds=seconds)
        return "received" if claims.give_back(session, held, again_at=again_at, counts=counts) else None


def _fail(engine: Engine, held: Claim, reason: str) -> str | None:
    with transaction(engine) as session:
        return "failed" if claims.finish(session, held, status="failed", error=reason) else None

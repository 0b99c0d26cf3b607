"""What a worker does with a run: claim it, read its logs, compute its figures, write them in place of older ones."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import Engine, delete, select
from sqlmodel import Session, col

from app.domain.logs import parse_log
from app.domain.metadata import read_metadata
from app.domain.run import Metadata, RunSummary, Value
from app.domain.summary import summarise
from app.errors import Unavailable
from app.queue import SoftTimeLimitExceeded
from app.runs import claims
from app.runs.claims import Claim
from app.runs.json_text import storable
from app.runs.log_lines import whole_text
from app.settings import Settings
from app.storage import series
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import RunFileRow, RunRow, SeriesRow, utc_now

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1
_LISTED_TEXTS = {"model": 200, "gpu": 100, "dispatcher": 30}
"""Contract fields that lists filter by, and how long a text of theirs a column takes."""


@dataclass(frozen=True, slots=True)
class _Work:
    metadata: Metadata
    log_keys: tuple[str, ...]
    unread: tuple[str, ...]


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
                work = _read_work(session, run_id)
            summary = summarise(parse_log(whole_text(log_files, work.log_keys)), work.metadata)
        with transaction(engine) as session:
            return _write(session, held, summary, work)
    except Exception as error:
        return _end_without_result(engine, settings, held, error)


def _read_work(session: Session, run_id: int) -> _Work:
    stated = session.execute(select(RunRow.metadata_stated).where(col(RunRow.id) == run_id)).scalar_one()  # type: ignore[call-overload]
    files = session.execute(
        select(RunFileRow).where(col(RunFileRow.run_id) == run_id).order_by(col(RunFileRow.position))
    ).scalars()
    logs, unread = [], []
    for file in files:
        if file.kind == "log":
            logs.append(file.object_key)
        else:
            unread.append(f"{file.name} ({file.kind}) is kept and can be downloaded, but its values are not read.")
    return _Work(read_metadata(stated), tuple(logs), tuple(unread))


def _write(session: Session, held: Claim, summary: RunSummary, work: _Work) -> str | None:
    status = "failed" if summary.error else "ready"
    if not claims.finish(session, held, status=status, **_columns(summary, work)):
        log.warning("result_dropped", run_id=held.run_id, attempt=held.attempt)
        return None
    session.execute(delete(SeriesRow).where(col(SeriesRow.run_id) == held.run_id))
    session.add_all(_series_rows(held.run_id, summary))
    log.info("run_processed", run_id=held.run_id, status=status, iterations=len(summary.line_numbers))
    return status


def _columns(summary: RunSummary, work: _Work) -> dict[str, Any]:
    contract = {name: stated.value for name, stated in summary.contract.items()}
    gpus = contract.get("gpus")
    columns = {
        "error": summary.error and storable(summary.error),
        "warnings": [*summary.warnings, *work.unread],
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
        "gpus": gpus if isinstance(gpus, int) else None,
    }
    columns |= {name: _listed(contract.get(name), length) for name, length in _LISTED_TEXTS.items()}
    columns |= {name: metric.value if metric else None for name, metric in summary.metrics.items() if _has_column(name)}
    return {name: storable(value) for name, value in columns.items()}


def _listed(value: Value, length: int) -> str | None:
    return None if value is None else str(value)[:length]


def _has_column(metric: str) -> bool:
    return metric in RunRow.model_fields


def _series_rows(run_id: int, summary: RunSummary) -> Iterator[SeriesRow]:
    for name, values in summary.series.items():
        unit = summary.units.get(name, "")
        yield SeriesRow(run_id=run_id, metric=name[:100], unit=unit[:30], n=len(values), blob=series.pack(values))
    if "log_line" not in summary.series:
        lines = summary.line_numbers.astype(float)
        yield SeriesRow(run_id=run_id, metric="log_line", n=len(lines), blob=series.pack(lines))


def _end_without_result(engine: Engine, settings: Settings, held: Claim, error: Exception) -> str | None:
    """Another attempt, or the end of them: no run stays in processing because of an error of ours."""
    if isinstance(error, Unavailable):
        log.warning("run_postponed", run_id=held.run_id, error=error.detail)
        return _postpone(engine, held, seconds=settings.lease_seconds, counts=False)
    if isinstance(error, SoftTimeLimitExceeded):
        limit = settings.task_soft_limit_seconds
        return _fail(engine, held, f"Reading this run took longer than {limit} s, the limit. Its files are kept.")
    log.exception("run_not_processed", run_id=held.run_id, attempt=held.attempt)
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

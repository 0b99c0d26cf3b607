"""What a worker does with a run: claim it, read its files, compute its figures, write them in place of older ones."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import Engine, delete, insert, select
from sqlmodel import Session, col

from app.domain.numbers import counted
from app.domain.run import RunSummary, Value
from app.errors import DamagedObject, Unavailable, new_error_id
from app.queue import JUDGE_STACK, PROCESS_RUN, SoftTimeLimitExceeded, enqueue
from app.runs import claims, judging
from app.runs.claims import Claim
from app.runs.compute import Computed, compute
from app.runs.json_text import storable
from app.runs.run_inputs import read_inputs
from app.settings import Settings
from app.storage import findings, readings, series
from app.storage.database import read_session, transaction
from app.storage.faults import fault_of
from app.storage.log_files import LogFiles
from app.storage.news import tell_failed
from app.storage.run_work import SHORT_SECONDS
from app.storage.tables import AvailabilityRow, RunRow, SeriesRow, utc_now

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1
_LISTED_TEXTS = {"model": 200, "gpu": 100, "dispatcher": 30}
"""Contract fields that lists filter by, and how long a text of theirs a column takes."""


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
            computed = compute(log_files, inputs)
        with transaction(engine) as session:
            status, stacks = _write(session, held, computed)
            waits = status and session.execute(select(RunRow.work).where(col(RunRow.id) == run_id)).scalar_one()  # type: ignore[call-overload]
        if waits and computed.seconds < SHORT_SECONDS:
            enqueue(PROCESS_RUN, run_id)  # it grew meanwhile; one that takes long to read rests, and the sweep rings
        for work_id in stacks:
            enqueue(JUDGE_STACK, work_id)
        return status
    except Exception as error:
        return _end_without_result(engine, log_files, settings, held, error)


def _write(session: Session, held: Claim, computed: Computed) -> tuple[str | None, list[int]]:
    """The status that was written, None when the claim was lost; and the stacks to be judged, but for the run's own.

    Its own is judged by the same worker right after (`workers/tasks.py`).
    """
    summary = computed.summary
    status = summary.status
    before, asked = judging.ask_before(session, held.run_id, summary.stack_key)
    if not claims.finish(session, held, status=status, **_columns(computed)):
        log.warning("result_dropped", run_id=held.run_id, claim=held.number)
        return None, []
    judging.take_place(session, before, summary.stack_key, summary.config_key)
    for table in (SeriesRow, AvailabilityRow):
        session.execute(delete(table).where(col(table.run_id) == held.run_id))
    session.execute(insert(SeriesRow), list(_series_rows(held.run_id, summary)))
    session.add_all(_availability_rows(held.run_id, computed))
    if computed.found is not None:
        readings.save(session, held.run_id, computed.inputs.read, computed.found)
    if status == "failed":
        tell_failed(session, held.run_id)
    log.info(
        "run_processed",
        run_id=held.run_id,
        status=status,
        iterations=len(summary.line_numbers),
        seconds=round(computed.seconds, 3),
    )
    return status, asked if before.stack_key not in ("", summary.stack_key) else []


def _columns(computed: Computed) -> dict[str, Any]:
    summary = computed.summary
    contract = {name: stated.value for name, stated in summary.contract.items()}
    gpus = contract.get("gpus")
    columns = {
        "error": summary.error and storable(summary.error),
        "warnings": [*computed.warnings, *summary.warnings],
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
        "rules_asked": "",
        "recompute_failed": 0,
        "recompute_error": None,
        "gpus": gpus if isinstance(gpus, int) else None,
        "read_seconds": computed.seconds,
    }
    columns |= findings.write(summary) | judging.slim_columns(summary)
    columns |= {name: _listed(contract.get(name), length) for name, length in _LISTED_TEXTS.items()}
    columns |= {name: metric.value if metric else None for name, metric in summary.metrics.items() if _has_column(name)}
    return {name: storable(value) for name, value in columns.items()}


def _availability_rows(run_id: int, computed: Computed) -> Iterator[AvailabilityRow]:
    for dispatcher, found in {entry.dispatcher: entry for entry in computed.summary.availability}.items():
        yield AvailabilityRow(
            run_id=run_id,
            dispatcher=dispatcher[:30],
            project_id=computed.inputs.project_id,
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
        yield {
            "run_id": run_id,
            "metric": name[: readings.MAX_METRIC_NAME],
            "unit": unit,
            "n": len(values),
            "blob": series.pack(values),
        }


def _end_without_result(
    engine: Engine, log_files: LogFiles, settings: Settings, held: Claim, error: Exception
) -> str | None:
    """Another attempt, or the end of them: no run stays in processing because of an error of ours."""
    if (fault := error if isinstance(error, Unavailable) else fault_of(error)) is not None:
        log.warning("run_postponed", run_id=held.run_id, error=fault.detail)
        # Figures that are only to be computed again wait for a store that is away, not for one that lost their files:
        # the whole stack would wait with them.
        is_damaged = isinstance(error, DamagedObject)
        counts = fault is error and (held.recomputes or is_damaged) and _answers(log_files)
        if counts and held.attempt >= settings.max_attempts:
            away = "Its files could not be read again: the store of the logs did not give them."
            return _fail(engine, held, fault.detail if is_damaged else away)
        return _postpone(engine, held, seconds=settings.lease_seconds, counts=counts)
    if isinstance(error, SoftTimeLimitExceeded):
        limit = settings.task_soft_limit_seconds
        return _fail(engine, held, f"Reading this run took longer than {limit} s, the limit. Its files are kept.")
    error_id = new_error_id()
    log.exception("run_not_processed", run_id=held.run_id, claim=held.number, error_id=error_id)
    if held.attempt < settings.max_attempts:
        return _postpone(engine, held, seconds=_RETRY_SECONDS, counts=True)
    return _fail(
        engine,
        held,
        f"Unexpected error (id {error_id}). The worker's log has the details under this id. Reading this run was tried "
        f"{counted(held.attempt, 'time')}; its files are kept.",
    )


def _answers(log_files: LogFiles) -> bool:
    try:
        log_files.check()
    except Unavailable:
        return False
    return True


def _postpone(engine: Engine, held: Claim, *, seconds: float, counts: bool) -> str | None:
    with transaction(engine) as session:
        again_at = utc_now() + timedelta(seconds=seconds)
        return "received" if claims.give_back(session, held, again_at=again_at, counts=counts) else None


def _fail(engine: Engine, held: Claim, reason: str) -> str | None:
    with transaction(engine) as session:
        if not claims.finish(session, held, **claims.given_up(reason)):
            return None
        tell_failed(session, held.run_id)
        return "failed"

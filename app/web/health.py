"""`/healthz`, `/readyz` and `/metrics`."""

import math
from collections.abc import Callable
from typing import Any, Literal

import structlog
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from sqlalchemy import Engine, func, select, text
from sqlmodel import col

from app import queue
from app.domain.numbers import absolute
from app.errors import DiskFull, Unavailable
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.backup import last_backup
from app.storage.database import fault_of, read_session
from app.storage.definition_progress import progress
from app.storage.heartbeat import silent_since
from app.storage.log_files import free_bytes, require_room
from app.storage.tables import RunRow, select_any, utc_now
from app.web.access_rule import Open, requires
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings
from app.web.request import STATUSES, Metrics

log = structlog.get_logger(__name__)
router = APIRouter(tags=["health"])


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Part(BaseModel):
    status: Literal["ok", "down"]
    detail: str = Field("", description="What is wrong, and what still works.")


class DiskPart(Part):
    free_bytes: int | None = Field(None, description="Free space of the fullest disk that uploads are written to.")


class Readiness(BaseModel):
    """`degraded`: uploads are stored, and processed when the queue or a worker is back."""

    status: Literal["ok", "degraded", "down"]
    database: Part
    artifact_store: Part
    disk: DiskPart
    queue: Part
    worker: Part


@router.get("/healthz")
@requires(Open.ALWAYS)
async def healthz() -> Alive:  # async, because all threads may be busy
    """Show that the process answers. It does not check other services, because a restart would not help them."""
    return Alive()


@router.get("/readyz", responses={503: {"model": Readiness}})
@requires(Open.ALWAYS)
def readyz(engine: AppEngine, log_files: AppLogFiles, settings: AppSettings, response: Response) -> Readiness:
    """Answer 200 while uploads are possible, 503 if the database or artifact store is down or the disk is full."""
    database = _part("database", lambda: _check_database(engine), "Nothing can be read or uploaded.")
    store = _part("artifact_store", log_files.check, "Uploads and raw logs are unavailable; figures are not affected.")
    disk = _disk(settings)
    broker = _part("queue", queue.waiting, "Uploads are stored and processed when it is back.")
    worker = _part("worker", lambda: _check_worker(engine, settings), "Uploads are stored and processed later.")
    if "down" in (database.status, store.status, disk.status):
        response.status_code = 503
        status: Literal["ok", "degraded", "down"] = "down"
    else:
        status = "degraded" if "down" in (broker.status, worker.status) else "ok"
    return Readiness(status=status, database=database, artifact_store=store, disk=disk, queue=broker, worker=worker)


@router.get("/metrics", response_class=Response)
@requires(Open.METRICS)
def metrics(request: Request, engine: AppEngine) -> Response:
    """Return metrics for Prometheus."""
    numbers: Metrics = request.app.state.metrics
    _count_runs(engine, numbers)
    return Response(generate_latest(numbers.registry), media_type=CONTENT_TYPE_LATEST)


def _part(name: str, check: Callable[[], Any], consequence: str) -> Part:
    try:
        check()
    except Exception as error:  # each library raises its own; any of them means that the part does not work
        log.warning("not_ready", part=name, error=str(error))
        fault = error if isinstance(error, Unavailable) else fault_of(error)
        what = fault.detail if fault else f"The check failed ({type(error).__name__}); see the service's log."
        return Part(status="down", detail=f"{what} {consequence}")
    return Part(status="ok")


def _disk(settings: Settings) -> DiskPart:
    part = _part("disk", lambda: require_room(settings, 0), "Uploads are refused.")
    try:
        return DiskPart(**part.model_dump(), free_bytes=free_bytes(settings))
    except DiskFull:
        return DiskPart(**part.model_dump())


def _check_database(engine: Engine) -> None:
    with read_session(engine) as session:
        # A database that was never migrated fails here, too.
        session.execute(text("SELECT 1 FROM run LIMIT 1"))


def _check_worker(engine: Engine, settings: Settings) -> None:
    with read_session(engine) as session:
        if since := silent_since(session, settings):
            raise Unavailable(f"Nothing has been processed since {absolute(since)}: no worker is active.")


def _count_runs(engine: Engine, numbers: Metrics) -> None:
    with read_session(engine) as session:
        query = select_any(RunRow.status, func.count().label("runs")).group_by(col(RunRow.status))
        by_status = {row.status: row.runs for row in session.execute(query)}
        unfinished = col(RunRow.status).in_(("received", "processing"))
        oldest = session.execute(select(func.min(RunRow.created_at)).where(unfinished)).scalar_one()
        definitions = progress(session)
        # As a text, so that SQLite counts in the index of definitions, and does not read all runs without work.
        resting_runs = select(func.count()).where(col(RunRow.work).concat("") == "", col(RunRow.recompute_failed) > 0)
        given_up = {"run": session.execute(resting_runs).scalar_one(), "stack": stack_queue.parked(session)}
    backed_up_at = last_backup(engine)
    numbers.backup_age_seconds.set((utc_now() - backed_up_at).total_seconds() if backed_up_at else math.nan)
    for kind, count in given_up.items():
        numbers.given_up.labels(kind).set(count)
    for status in STATUSES:
        numbers.runs.labels(status).set(by_status.get(status, 0))
    numbers.oldest_waiting_seconds.set((utc_now() - oldest).total_seconds() if oldest else 0)
    for state in ("current", "waiting", "failed"):
        numbers.definitions.labels(state).set(getattr(definitions, state))

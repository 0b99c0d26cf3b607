"""Is it alive, is it ready, what are its numbers: `/healthz`, `/readyz`, `/metrics`."""

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
    free_bytes: int | None = Field(None, description="Of the fullest disk that uploads are written to.")


class Readiness(BaseModel):
    """`degraded`: uploads are taken and kept, and processed when the queue or a worker returns."""

    status: Literal["ok", "degraded", "down"]
    database: Part
    artifact_store: Part
    disk: DiskPart
    queue: Part
    worker: Part


@router.get("/healthz")
@requires(Open.ALWAYS)
async def healthz() -> Alive:  # without a thread, which all may be busy
    """The process answers. Says nothing of what it needs: restarting it would not help those."""
    return Alive()


@router.get("/readyz", responses={503: {"model": Readiness}})
@requires(Open.ALWAYS)
def readyz(engine: AppEngine, log_files: AppLogFiles, settings: AppSettings, response: Response) -> Readiness:
    """200 while uploads can be taken, 503 when the database or the artifact store is down, or the disk is full."""
    database = _part("database", lambda: _ask(engine), "Nothing can be read or uploaded.")
    store = _part("artifact_store", log_files.check, "Uploads and raw logs are not available; figures are.")
    disk = _disk(settings)
    broker = _part("queue", queue.waiting, "Uploads are kept, and processed when it returns.")
    worker = _part("worker", lambda: _check_worker(engine, settings), "Uploads are kept, and processed when one runs.")
    if "down" in (database.status, store.status, disk.status):
        response.status_code = 503
        status: Literal["ok", "degraded", "down"] = "down"
    else:
        status = "degraded" if "down" in (broker.status, worker.status) else "ok"
    return Readiness(status=status, database=database, artifact_store=store, disk=disk, queue=broker, worker=worker)


@router.get("/metrics", response_class=Response)
@requires(Open.METRICS)
def metrics(request: Request, engine: AppEngine) -> Response:
    """For Prometheus."""
    numbers: Metrics = request.app.state.metrics
    _count_runs(engine, numbers)
    return Response(generate_latest(numbers.registry), media_type=CONTENT_TYPE_LATEST)


def _part(name: str, check: Callable[[], Any], consequence: str) -> Part:
    try:
        check()
    except Exception as error:  # each library has its own; whatever it is, that part does not work
        log.warning("not_ready", part=name, error=str(error))
        fault = error if isinstance(error, Unavailable) else fault_of(error)
        what = fault.detail if fault else f"It failed ({type(error).__name__}); the service's log says why."
        return Part(status="down", detail=f"{what} {consequence}")
    return Part(status="ok")


def _disk(settings: Settings) -> DiskPart:
    part = _part("disk", lambda: require_room(settings, 0), "Uploads are refused.")
    try:
        return DiskPart(**part.model_dump(), free_bytes=free_bytes(settings))
    except DiskFull:
        return DiskPart(**part.model_dump())


def _ask(engine: Engine) -> None:
    with read_session(engine) as session:
        # Also finds a database that was never migrated.
        session.execute(text("SELECT 1 FROM run LIMIT 1"))


def _check_worker(engine: Engine, settings: Settings) -> None:
    with read_session(engine) as session:
        if since := silent_since(session, settings):
            raise Unavailable(f"Nothing has been processed since {absolute(since)}: no worker takes work.")


def _count_runs(engine: Engine, numbers: Metrics) -> None:
    with read_session(engine) as session:
        counted = select_any(RunRow.status, func.count().label("runs")).group_by(col(RunRow.status))
        by_status = {row.status: row.runs for row in session.execute(counted)}
        unfinished = col(RunRow.status).in_(("received", "processing"))
        oldest = session.execute(select(func.min(RunRow.created_at)).where(unfinished)).scalar_one()
        computed = progress(session)
        resting_runs = select(func.count()).where(col(RunRow.work) == "", col(RunRow.recompute_failed) > 0)
        given_up = {"run": session.execute(resting_runs).scalar_one(), "stack": stack_queue.parked(session)}
    for kind, count in given_up.items():
        numbers.given_up.labels(kind).set(count)
    for status in STATUSES:
        numbers.runs.labels(status).set(by_status.get(status, 0))
    numbers.oldest_waiting_seconds.set((utc_now() - oldest).total_seconds() if oldest else 0)
    for state in ("current", "waiting", "failed"):
        numbers.definitions.labels(state).set(getattr(computed, state))

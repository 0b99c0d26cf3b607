"""`/healthz`, `/readyz` and `/metrics`."""

from collections.abc import Callable
from typing import Any, Literal

import structlog
from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from sqlalchemy import Engine, text

from app import queue
from app.domain.numbers import absolute
from app.errors import DiskFull, Unavailable
from app.settings import Settings
from app.storage.database import fault_of, read_session
from app.storage.heartbeat import silent_since
from app.storage.log_files import free_bytes, require_room
from app.web.access_rule import Open, requires
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings, api_router

log = structlog.get_logger(__name__)
router = api_router("health", "")


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
    if database.status == "ok":
        worker = _part("worker", lambda: _check_worker(engine, settings), "Uploads are stored and processed later.")
    else:
        worker = Part(status="down", detail="Unknown, because workers report to the database.")
    if "down" in (database.status, store.status, disk.status):
        response.status_code = 503
        status: Literal["ok", "degraded", "down"] = "down"
    else:
        status = "degraded" if "down" in (broker.status, worker.status) else "ok"
    return Readiness(status=status, database=database, artifact_store=store, disk=disk, queue=broker, worker=worker)


@router.get("/metrics", response_class=Response)
@requires(Open.METRICS)
def metrics(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    """Return metrics for Prometheus."""
    request.app.state.service_metrics.refresh(engine, settings)
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


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

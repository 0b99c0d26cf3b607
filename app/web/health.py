"""`/healthz`, `/readyz` and `/metrics`."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Literal

import structlog
from fastapi import Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field
from sqlalchemy import Engine, func, select, text
from sqlmodel import Session, col

from app import queue
from app.domain.numbers import absolute
from app.errors import DiskFull, Unavailable
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.backup import last_backup
from app.storage.database import fault_of, read_session
from app.storage.log_files import free_bytes, require_room
from app.storage.readings import progress
from app.storage.tables import (
    DeliveryRow,
    ProfileRow,
    ProjectRow,
    RunFileRow,
    RunRow,
    StackRow,
    StackWorkRow,
    not_indexed,
    select_any,
    utc_now,
)
from app.storage.worker_activity import StageTime, last_seen, silent_since, stage_times
from app.web.access_rule import Open, requires
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings, api_router

# --- Metrics of the whole service, read from the database, and of this process.

STATUSES = ("received", "processing", "ready", "failed", "unread")
VERDICTS = ("regression", "improvement", "no_change", "inconclusive", "no_baseline")
FRESH_SECONDS = 10.0
"""Scrapes within this time (s) get the same numbers."""
FRESH_TIMES = 100
"""Counts over all runs are reused for this many times the duration of counting, so that counting takes at most 1 % of
the time."""
MOST_PROJECTS = 100
_QUEUES: Mapping[str, type[Any]] = {
    "run": RunRow,
    "stack": StackWorkRow,
    "profile": ProfileRow,
    "delivery": DeliveryRow,
}


class StageCounters(Collector):
    """Counters of the stages of processing, which workers store in the database."""

    def __init__(self) -> None:
        self.times: Sequence[StageTime] = ()

    def collect(self) -> Iterator[Metric]:
        seconds = CounterMetricFamily(
            "threewalls_processing_seconds", "Processor seconds of all workers by stage.", labels=["stage"]
        )
        calls = CounterMetricFamily("threewalls_processing_calls", "Calls of a stage.", labels=["stage"])
        for entry in self.times:
            seconds.add_metric([entry.stage], entry.seconds)
            calls.add_metric([entry.stage], entry.calls)
        yield from (seconds, calls)


class ServiceMetrics:
    """Gauges of the service. `refresh` reads them at most once per FRESH_SECONDS."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"threewalls_{name}", text, labels, registry=registry)

        ProcessCollector(registry=registry)
        self.stages = StageCounters()
        registry.register(self.stages)
        PlatformCollector(registry=registry)
        self.runs = gauge("runs", "Runs by status.", "status")
        self.verdicts = gauge("verdicts", "Runs by their current verdict.", "verdict")
        self.oldest_waiting_seconds = gauge(
            "oldest_waiting_seconds", "Age of the oldest unprocessed run; 0 when none waits."
        )
        self.queue = gauge("queue_length", "Work that waits or is under way, by kind.", "kind")
        self.deliveries = gauge("deliveries", "Notifications by state: waiting, or given up.", "state")
        self.worker_seen_seconds = gauge("worker_seen_seconds", "Time since a worker was last active.")
        self.given_up = gauge(
            "given_up", "Runs and stacks that workers gave up on until something about them changes.", "kind"
        )
        self.backup_age_seconds = gauge(
            "backup_age_seconds", "Time since the last finished backup; NaN if there was none."
        )
        self.definitions = gauge(
            "definitions_runs",
            "Runs by state of their figures: current definitions, waiting for recomputation, or failed to recompute.",
            "state",
        )
        self.project_bytes = gauge(
            "project_bytes", f"Uploaded bytes of the {MOST_PROJECTS} largest projects.", "project"
        )
        self.database_bytes = gauge("database_bytes", "Size of the database.")
        self.disk_free_bytes = gauge(
            "disk_free_bytes", "Free space of the fullest disk that uploads are written to; NaN if it is not writable."
        )
        self.stack_step_time = gauge(
            "stack_step_time_ms",
            "Step time of the newest run of the most recently active stacks (THREEWALLS_METRICS_STACKS).",
            "project", "stack", "model", "gpu",
        )  # fmt: skip
        self._lock, self._read_at, self._count_at = Lock(), -math.inf, -math.inf

    def refresh(self, engine: Engine, settings: Settings) -> None:
        with self._lock:
            if time.monotonic() - self._read_at < FRESH_SECONDS:
                return
            with read_session(engine) as session:
                if (began := time.monotonic()) >= self._count_at:
                    self._count_runs(session)
                    self._count_at = time.monotonic() + FRESH_TIMES * (time.monotonic() - began)
                self._count_work(session)
                self._measure(session, settings)
                self.stages.times = stage_times(session)
            backed_up_at = last_backup(engine)
            self.backup_age_seconds.set((utc_now() - backed_up_at).total_seconds() if backed_up_at else math.nan)
            self._read_at = time.monotonic()

    def _count_runs(self, session: Session) -> None:
        by_status = _counts(session, RunRow.status)
        for status in STATUSES:
            self.runs.labels(status).set(by_status.get(status, 0))
        by_verdict = _counts(session, RunRow.badge)
        for verdict in VERDICTS:
            self.verdicts.labels(verdict).set(by_verdict.get(verdict, 0))
        definitions = progress(session)
        for state in ("current", "waiting", "failed"):
            self.definitions.labels(state).set(getattr(definitions, state))
        # Makes SQLite use the index of definitions instead of reading all runs without work.
        resting_runs = select(func.count()).where(not_indexed(col(RunRow.work)) == "", col(RunRow.recompute_failed) > 0)
        self.given_up.labels("run").set(session.execute(resting_runs).scalar_one())
        bytes_of = func.sum(RunFileRow.size_bytes).label("bytes")
        used = (
            select_any(ProjectRow.slug, bytes_of)
            .join(RunRow, col(RunRow.project_id) == ProjectRow.id)
            .join(RunFileRow, col(RunFileRow.run_id) == RunRow.id)
            .group_by(col(ProjectRow.slug))
            .order_by(bytes_of.desc())
            .limit(MOST_PROJECTS)
        )
        self.project_bytes.clear()
        for row in session.execute(used):
            self.project_bytes.labels(row.slug).set(row.bytes)

    def _count_work(self, session: Session) -> None:
        unfinished = col(RunRow.status).in_(("received", "processing"))
        oldest = session.execute(select(func.min(RunRow.created_at)).where(unfinished)).scalar_one()
        self.oldest_waiting_seconds.set((utc_now() - oldest).total_seconds() if oldest else 0)
        for kind, row in _QUEUES.items():
            pending = select(func.count()).select_from(row).where(col(row.work).in_(("waiting", "enqueued", "claimed")))
            self.queue.labels(kind).set(session.execute(pending).scalar_one())
        self.given_up.labels("stack").set(stack_queue.parked(session))
        failed = select(func.count()).where(col(DeliveryRow.state) == "failed", ~col(DeliveryRow.settled))
        waiting = select(func.count()).where(col(DeliveryRow.state) == "waiting")
        self.deliveries.labels("given_up").set(session.execute(failed).scalar_one())
        self.deliveries.labels("waiting").set(session.execute(waiting).scalar_one())
        self.worker_seen_seconds.set(max(0.0, (utc_now() - last_seen(session)).total_seconds()))

    def _measure(self, session: Session, settings: Settings) -> None:
        is_sqlite = session.get_bind().dialect.name == "sqlite"
        size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        statement = size if is_sqlite else "SELECT pg_database_size(current_database())"
        self.database_bytes.set(session.execute(text(statement)).scalar_one())
        try:
            self.disk_free_bytes.set(free_bytes(settings))
        except DiskFull:
            self.disk_free_bytes.set(math.nan)
        if settings.metrics_stacks:
            self._show_stacks(session, settings.metrics_stacks)

    def _show_stacks(self, session: Session, most: int) -> None:
        newest = (
            select(col(RunRow.step_time_ms))
            .where(
                col(RunRow.project_id) == StackRow.project_id,
                col(RunRow.stack_key) == StackRow.stack_key,
                col(RunRow.status) == "ready",
            )
            .order_by(col(RunRow.ordered_at).desc())
            .limit(1)
            .scalar_subquery()
            .label("step_time_ms")
        )
        stacks = (
            select_any(ProjectRow.slug, StackRow.stack_key, StackRow.model, StackRow.gpu, newest)
            .join(ProjectRow, col(ProjectRow.id) == StackRow.project_id)
            .where(col(StackRow.runs) > 0)
            .order_by(col(StackRow.last_at).desc())
            .limit(most)
        )
        self.stack_step_time.clear()
        for row in session.execute(stacks):
            if row.step_time_ms is not None:
                labels = (row.slug, row.stack_key[:12], row.model or "", row.gpu or "")
                self.stack_step_time.labels(*labels).set(row.step_time_ms)


def _counts(session: Session, column: Any) -> dict[str, int]:
    query = select_any(column.label("value"), func.count().label("runs")).group_by(column)
    return {row.value: row.runs for row in session.execute(query)}


# --- Routes.

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
    """Report that the process answers. It checks no other services, because a restart would not help them."""
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
    except Exception as error:  # each library has its own exceptions; any of them means that the part does not work
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
        # Also fails if the database was never migrated.
        session.execute(text("SELECT 1 FROM run LIMIT 1"))


def _check_worker(engine: Engine, settings: Settings) -> None:
    with read_session(engine) as session:
        if since := silent_since(session, settings):
            raise Unavailable(f"Nothing has been processed since {absolute(since)}: no worker is active.")

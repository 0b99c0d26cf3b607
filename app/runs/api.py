"""`/api/v1/runs`: upload, list, one run, its series, its lines, its files."""

from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from app.domain.access.principal import Uploader
from app.domain.numbers import absolute
from app.errors import InvalidQuery, InvalidUpload, NotFound
from app.runs import export
from app.runs.api_findings import unknown_fields
from app.runs.api_models import (
    LogLineOut,
    LogOut,
    RunId,
    RunListOut,
    RunOut,
    RunQuery,
    SeriesOut,
    UploadAnswer,
)
from app.runs.filters import RunFilters
from app.runs.ingest import IntoProject, accept_upload
from app.runs.log_lines import lines_of
from app.runs.queries import find_runs, get_run, get_series
from app.runs.same_upload import Accepted
from app.runs.upload_parts import metadata_of, uploaded_files
from app.runs.waiting import settled
from app.settings import Settings
from app.storage.database import read_session
from app.storage.heartbeat import silent_since
from app.storage.log_files import LogFiles
from app.storage.tables import PROCESSED
from app.web.access.acting import upload_project, uploader
from app.web.body_limit import UPLOAD_BYTES
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings, ReadSession, RoomOnDisk
from app.web.forms import sent_form
from app.web.problems import as_content, documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["runs"])

MAX_FILES = 64
MAX_FIELDS = 16
MAX_LOG_LINES = 5000

_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
_UPLOAD_FORM = {
    "type": "object",
    "properties": {
        "log": _FILES | {"description": "One or more logs: plain text, .gz or .zst."},
        "meta": {"type": "string", "description": "JSON object: contract fields, name, project, purpose, branch, ..."},
        "config": _FILES
        | {"description": "A document beside the log: configuration, command, environment, golden values."},
        "events": _FILES | {"description": "TensorBoard event files."},
    },
}


@router.post(
    "/runs",
    status_code=202,
    max_body_size=UPLOAD_BYTES,
    dependencies=[RoomOnDisk],
    response_model=UploadAnswer,
    response_model_exclude_none=True,
    responses=documented(
        400, 409, 413, 422, 503, 507, ok={"model": UploadAnswer, "description": "This upload was there already."}
    ),
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD_FORM}}}},
)
async def upload_run(
    *,
    request: Request,
    engine: AppEngine,
    log_files: AppLogFiles,
    settings: AppSettings,
    response: Response,
    wait: Annotated[float, Query(ge=0, description="Answer when processed, after so many seconds at the latest.")] = 0,
    complete: Annotated[bool | None, Query(description="false: more of the logs is to come, see `/logs`.")] = None,
    expects: Annotated[
        int, Query(ge=0, le=2**53, description="Bytes that are to come: refused at once where the quota has no room.")
    ] = 0,
    strict: Annotated[
        str,
        Query(max_length=10_000, description="Names in `meta`, with commas, that must be fields."),
    ] = "",
    idempotency_key: Annotated[str | None, Header(description="The same key is the same upload.")] = None,
) -> UploadAnswer:
    """Upload a run. The answer comes when it is stored safely; `status` says whether it is processed yet."""
    # Async because of `wait`: a thread for each waiting client would leave none for the others.
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidUpload("Send a form (multipart/form-data) with the log as its field `log`.")
    async with sent_form(
        request, max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=settings.max_metadata_bytes
    ) as form:
        accept = partial(_accept, engine, log_files, settings, idempotency_key=idempotency_key)
        accept = partial(accept, complete=complete, expects=expects, strict=strict.split(","))
        accept = partial(accept, into=partial(upload_project, request, engine), uploader=uploader(request))
        accepted = await run_in_threadpool(accept, form)
    answer = {"id": accepted.run_id, "url": _page(request, accepted.run_id), "created": accepted.created}
    answer |= {"status": accepted.status, "warnings": accepted.warnings}
    if wait > 0:
        answer |= await _once_read(engine, settings, accepted, min(wait, settings.max_wait_seconds))
    response.status_code = 202 if accepted.created else 200
    response.headers["Location"] = f"/api/v1/runs/{accepted.run_id}"
    return UploadAnswer.model_validate(answer)


@router.get("/runs", responses=documented(422))
def list_runs(session: ReadSession, query: Annotated[RunQuery, Query()]) -> RunListOut:
    """Runs, newest first unless sorted otherwise."""
    filters = RunFilters.from_params(query.filters())
    return RunListOut.of(find_runs(session, filters, query.page, query.page_size))


@router.get("/runs/{run_id}", responses=documented(404, 422))
def read_run(request: Request, session: ReadSession, run_id: RunId) -> RunOut:
    """One run: its state, contract, figures and health."""
    return RunOut.of(get_run(session, run_id), _page(request, run_id))


@router.get(
    "/runs/{run_id}/series",
    response_model=SeriesOut,
    responses=documented(404, 406, 422, ok=as_content("text/csv")),
)
def read_series(request: Request, session: ReadSession, run_id: RunId) -> Response:
    """Every per-iteration metric; CSV with `Accept: text/csv`. Parquet is not offered: its library takes 165 MB."""
    accept = request.headers.get("accept", "*/*")
    series = get_series(session, run_id)
    if "text/csv" in accept:
        headers = {"Content-Disposition": f'attachment; filename="run-{run_id}.csv"', "Vary": "Accept"}
        return StreamingResponse(export.csv_rows(series), media_type="text/csv", headers=headers)
    if not any(accepted in accept for accepted in ("application/json", "application/*", "*/*")):
        raise HTTPException(406, "Series come as application/json or text/csv. Parquet is not offered.")
    body = {"columns": export.json_columns(series), "units": dict(series.units)}
    return JSONResponse(body, headers={"Vary": "Accept"})


@router.get(
    "/runs/{run_id}/log",
    response_model=LogOut,
    responses=documented(404, 422, 503, ok=as_content("text/plain")),
)
def read_log(
    *,
    request: Request,
    session: ReadSession,
    log_files: AppLogFiles,
    run_id: RunId,
    first: Annotated[int, Query(alias="from", ge=1, le=2**53, description="First line, from 1.")] = 1,
    last: Annotated[int | None, Query(alias="to", ge=1, le=2**53, description="Last line, inclusive.")] = None,
    file: Annotated[
        int | None, Query(ge=0, description="One of the logs (from 0, as `log_file` of the series); else all as one.")
    ] = None,
) -> Response:
    """Lines of the run's logs, at most 5,000 at once; as plain text with `Accept: text/plain`."""
    logs = get_run(session, run_id).log_files
    if file is not None:
        if file >= len(logs):
            raise NotFound(f"Run {run_id} has no log {file}; it has {len(logs)}, counted from 0.")
        logs = logs[file : file + 1]
    last = first + MAX_LOG_LINES - 1 if last is None else last
    if not first <= last < first + MAX_LOG_LINES:
        raise InvalidQuery(f"Ask for at most {MAX_LOG_LINES:,} lines at once, `to` not before `from`.")
    texts, total = lines_of(log_files, logs, first, last)
    headers = {"Vary": "Accept"}
    if request.headers.get("accept", "").startswith("text/plain"):
        return PlainTextResponse("".join(f"{text}\n" for text in texts), headers=headers)
    lines = [LogLineOut(line=number, text=text) for number, text in enumerate(texts, first)]
    return JSONResponse(LogOut(line_count=total, lines=lines).model_dump(), headers=headers)


@router.get(
    "/runs/{run_id}/files/{position}",
    response_class=Response,
    responses=documented(404, 422, 503, ok=as_content("application/octet-stream", "binary")),
)
def download_file(session: ReadSession, log_files: AppLogFiles, run_id: RunId, position: int) -> Response:
    """An uploaded file, decompressed."""
    run = get_run(session, run_id)
    file = next((file for file in run.files if file.position == position), None)
    if file is None:
        raise NotFound(f"Run {run_id} has no file {position}. Its files are listed in the run itself.")
    log_files.text(file.keys)  # a store that is down is a 503, and not an answer that breaks off
    return StreamingResponse(
        log_files.stream(file.keys),
        media_type="application/octet-stream",
        headers={
            "Content-Length": str(file.size_bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(_plain_name(file.name), safe='')}",
        },
    )


def _accept(
    engine: Engine,
    log_files: LogFiles,
    settings: Settings,
    form: FormData,
    *,
    idempotency_key: str | None,
    complete: bool | None,
    expects: int,
    strict: list[str],
    into: IntoProject,
    uploader: Uploader,
) -> Accepted:
    return accept_upload(
        engine,
        log_files,
        settings,
        files=uploaded_files(form),
        meta=metadata_of(form, settings.max_metadata_bytes),
        idempotency_key=idempotency_key,
        complete=complete,
        expects=expects,
        strict=strict,
        into=into,
        uploader=uploader,
    )


async def _once_read(engine: Engine, settings: Settings, accepted: Accepted, wait: float) -> dict[str, Any]:
    """What the answer says of a run that was read: its state, and which fields to supply; else why it was not."""
    state = await settled(engine, accepted.run_id, wait)

    def explain() -> dict[str, Any]:
        with read_session(engine) as session:
            since = silent_since(session, settings)
        if since is None:
            return {}
        warning = (
            f"Nothing has been processed since {absolute(since)}: no worker takes work. The run is kept, and processed "
            "when one does."
        )
        return {"nothing_processed_since": since, "warnings": [*accepted.warnings, warning]}

    if state.status not in PROCESSED:
        return {"status": state.status} | await run_in_threadpool(explain)
    if not accepted.own:
        return {"status": state.status}

    def read() -> dict[str, Any]:
        with read_session(engine) as session:
            run = get_run(session, accepted.run_id)
        found = {"status": run.status, "verdict": run.verdict or None}
        return found | {"warnings": run.warnings, "unknown_fields": unknown_fields(run.unknown)}

    return await run_in_threadpool(read)


def _page(request: Request, run_id: int) -> str:
    return f"{public_address(request)}/runs/{run_id}"


def _plain_name(name: str) -> str:
    """What is downloaded is decompressed, so its name must not say otherwise."""
    return name.removesuffix(".gz").removesuffix(".zst")

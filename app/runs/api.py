"""`/api/v1/runs`: upload, list, one run, its series, its lines, its files."""

import csv
import io
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Annotated, Any, BinaryIO, Literal, cast
from urllib.parse import quote

import numpy as np
from fastapi import Header, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from app import wakes
from app.access.guards import UPLOAD_BYTES
from app.domain.access.principal import Action
from app.domain.documents.metadata import MAX_TAGS
from app.domain.logs.line_template import MAX_TEMPLATE
from app.domain.numbers import absolute
from app.domain.run import FloatArray
from app.domain.text import coded_names
from app.errors import FieldError, InvalidQuery, InvalidUpload, NotFound
from app.pipeline.append import Piece, append_log, without_compression
from app.pipeline.correction import CORRECTED, MOST_RUNS
from app.pipeline.receive import AcceptedUpload, UploadedFile, accept_upload
from app.pipeline.uploaded_file import Kind
from app.runs.api_models import (
    LogLineOut,
    LogOut,
    RunListOut,
    RunOut,
    SeriesOut,
    Status,
    UploadAnswer,
    unknown_fields,
)
from app.runs.commands import RunDecision, amend_contract, correct, decide, describe_lines
from app.runs.preview import PREVIEW_BYTES, Preview, preview_body
from app.runs.queries import RUN_COLUMNS, RunQuery, complete, find_runs, get_run, get_series, get_state, run_rows
from app.settings import Settings
from app.storage.audit import MAX_NOTE
from app.storage.database import read_session
from app.storage.runs import RunState, StoredSeries, lines_of, runs_by_id
from app.storage.suspect_evidence import with_alternation
from app.storage.tables import PROCESSED
from app.storage.worker_activity import silent_since
from app.web.access_rule import requires
from app.web.dependencies import (
    LARGEST_NUMBER,
    AppEngine,
    AppLogFiles,
    AppSettings,
    ReadSession,
    RoomOnDisk,
    RunId,
    WaitSeconds,
    api_router,
)
from app.web.errors import as_content, documented
from app.web.forms import sent_form
from app.web.identity import Author, author, author_field, optional_body, require_contributor, upload_project, uploader
from app.web.lists import table_answer, table_format
from app.web.templating import public_address

# --- `POST /api/v1/runs/{id}/logs`: append to a run's logs, during the job or after it.

router = api_router("runs")

_IN_MEMORY_BYTES = 1 << 20
_MAX_OFFSET = 2**53
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_PIECE_FORM = {
    "type": "object",
    "properties": {
        "log": {"type": "string", "format": "binary", "description": "The piece: plain text, .gz or .zst."},
        "offset": {"type": "integer", "description": "`offset` of the query, as a field of the form."},
        "name": {"type": "string", "description": "`name` of the query, as a field of the form."},
        "complete": {"type": "boolean", "description": "`complete` of the query, as a field of the form."},
    },
}
_RAW = {"schema": {"type": "string", "format": "binary"}}


class AppendAnswer(BaseModel):
    id: int
    url: str = Field(description="Page of the run.")
    status: Status
    name: str = Field(description="The log file that was appended to.")
    offset: int = Field(description="Bytes stored so far: the offset of the next piece.")
    receiving: bool = Field(description="True while more is expected.")


@router.post(
    "/runs/{run_id}/logs",
    max_body_size=UPLOAD_BYTES,
    dependencies=[RoomOnDisk],
    responses=documented(400, 404, 409, 413, 422, 503, 507),
    openapi_extra={
        "requestBody": {
            "content": {
                "multipart/form-data": {"schema": _PIECE_FORM},
                "text/plain": _RAW,
                "application/octet-stream": _RAW,
                "application/x-www-form-urlencoded": _RAW,  # as sent by curl --data-binary
            }
        }
    },
)
@requires(Action.CONTRIBUTE, of="run", own=Action.UPLOAD)
async def append_to_log(
    *,
    request: Request,
    engine: AppEngine,
    log_files: AppLogFiles,
    settings: AppSettings,
    run_id: RunId,
    offset: Annotated[
        int | None, Query(ge=0, le=_MAX_OFFSET, description="Byte offset of the piece in the decompressed log.")
    ] = None,
    name: Annotated[
        str, Query(max_length=500, description="Name of the log file; optional when there is only one.")
    ] = "",
    complete: Annotated[bool | None, Query(description="true closes the run, false reopens it.")] = None,
    cut: Annotated[
        Literal["gzip", "zstd"] | None, Query(description="Compression of a truncated file that was sent completely.")
    ] = None,
) -> AppendAnswer:
    """Append to a log of the run, or add another log. What is acknowledged is stored; sending it again is harmless.

    A token with only the scope `upload` can append to runs that it created, until an hour after they were closed
    (THREEWALLS_RECEIVING_TIMEOUT_SECONDS). Other runs need the role contributor.
    """
    async with _sent_piece(request) as (file, form):
        piece = Piece(
            file=file,
            name=name or _text(form, "name"),
            offset=offset if offset is not None else _offset(form),
            complete=complete if complete is not None else _flag(form),
            cut=cut or "",
            by=author(),
        )
        into_finished = partial(require_contributor, request, f"change the finished run {run_id}")
        append = partial(append_log, into_finished=into_finished)
        done = await run_in_threadpool(append, engine, log_files, settings, run_id, piece)
    return AppendAnswer.model_validate(
        {"id": run_id, "url": f"{public_address(request)}/runs/{run_id}", "status": done.status}
        | {"name": done.file, "offset": done.size_bytes, "receiving": done.receiving}
    )


@asynccontextmanager
async def _sent_piece(request: Request) -> AsyncIterator[tuple[BinaryIO | None, FormData]]:
    """Yield the piece, sent as the body or as the form's field `log`, with the form's fields. None when it is empty."""
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with sent_form(request, max_files=1, max_fields=8) as form:
            sent = form.get("log")
            if isinstance(sent, str):
                raise InvalidUpload("The form field `log` contains text, not a file. With curl: -F log=@FILE.")
            yield (sent.file if sent is not None and sent.size else None), form
        return
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as body:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > _IN_MEMORY_BYTES:
                await run_in_threadpool(body.write, chunk)
            else:
                body.write(chunk)
        yield (cast("BinaryIO", body) if size else None), FormData()


def _text(form: FormData, name: str) -> str:
    value = form.get(name)
    return value.strip() if isinstance(value, str) else ""


def _offset(form: FormData) -> int:
    text = _text(form, "offset") or "0"
    if not (text.isascii() and text.isdigit() and int(text) <= _MAX_OFFSET):
        raise _refused("offset", "must be a whole number of bytes")
    return int(text)


def _flag(form: FormData) -> bool | None:
    text = _text(form, "complete").lower()
    if text and text not in _FLAGS:
        raise _refused("complete", "must be true or false")
    return _FLAGS.get(text)


def _refused(field: str, message: str) -> InvalidUpload:
    return InvalidUpload(f"{field} {message}. Nothing was saved.", (FieldError(field, message),))


# --- `POST /api/v1/runs/{id}/quarantine`, `/release`, `/pin`, `/unpin`, `/propose`, `/approve`, `/decline`: decisions.


class Decision(BaseModel, extra="forbid"):
    author: Author = author_field("Author of the decision.")
    note: str = Field("", max_length=MAX_NOTE, description="Reason. Required to quarantine and to decline.")


DecisionBody = Annotated[Decision, optional_body(Decision)]

_MEANINGS: Mapping[RunDecision, str] = {
    "quarantine": "Exclude the run from every baseline, segment and ranking. Requires a `note` with the reason.",
    "release": "End the quarantine of the run: it counts again.",
    "pin": "Make the run the golden baseline of its stack, replacing the previous one.",
    "unpin": "End the pin of the run: its stack is judged against its own history again.",
    "propose": "Propose the run as golden baseline of its stack. A token with the `upload` scope may propose its own "
    "runs.",
    "approve": "Pin the proposed run, by another user than its proposer. Other proposals of the stack are superseded.",
    "decline": "Decline the proposal of the run, or withdraw your own. Requires a `note` with the reason.",
}


def _route(action: RunDecision) -> Callable[..., RunOut]:
    @requires(Action.CONTRIBUTE, of="run", own=Action.UPLOAD if action == "propose" else None)
    def decide_run(request: Request, engine: AppEngine, run_id: RunId, decision: DecisionBody) -> RunOut:
        decide(engine, run_id, action, author=decision.author, note=decision.note)
        with read_session(engine) as session:
            return _run_out(request, session, run_id)

    return decide_run


for _action, _meaning in _MEANINGS.items():
    router.add_api_route(
        f"/runs/{{run_id}}/{_action}",
        _route(_action),
        methods=["POST"],
        name=f"{_action}_run",
        description=f"{_meaning} Recorded with author and time; the stack is judged again when its baseline changes.",
        responses=documented(404, 422),
    )


# --- `PATCH /api/v1/runs/{id}` and `PATCH /api/v1/runs`: correct what the upload stated.


class Correction(BaseModel, extra="forbid"):
    """Omitted fields are unchanged. `null` and empty texts clear a field, except name and project."""

    name: str | None = None
    tags: list[str] | None = Field(None, max_length=MAX_TAGS)
    branch: str | None = None
    commit: str | None = None
    commit_time: str | None = Field(None, description="ISO 8601; UTC without a time zone.")
    job: str | None = None
    project: str | None = Field(None, description="Moves the run, which is then read again. Not with a golden run.")
    notes: str | None = Field(None, description="Markdown without HTML.")
    author: Author = author_field("Author of the change.")
    note: str = Field("", max_length=MAX_NOTE, description="Reason.")

    def changes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CORRECTED if name in self.model_fields_set}


class BulkCorrection(Correction):
    runs: list[Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]] = Field(
        min_length=1, max_length=MOST_RUNS, description="Numbers of runs of the same change."
    )


class BulkAnswer(BaseModel):
    changed: int = Field(description="Number of runs that changed; the others already had these values.")


@router.patch("/runs/{run_id}", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE, of="run")
def correct_run(request: Request, engine: AppEngine, run_id: RunId, correction: Correction) -> RunOut:
    """Correct name, tags, branch, commit, commit time, job, project or notes. Recorded; verdicts are recomputed."""
    correct(engine, [run_id], correction.changes(), author=correction.author, note=correction.note)
    with read_session(engine) as session:
        return _run_out(request, session, run_id)


@router.patch("/runs", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE)
def correct_many_runs(engine: AppEngine, correction: BulkCorrection) -> BulkAnswer:
    """Make the same correction to up to 200 runs, all or none."""
    changed = correct(engine, correction.runs, correction.changes(), author=correction.author, note=correction.note)
    return BulkAnswer(changed=changed)


# --- Series as JSON without NaN, and as CSV.

_ROWS_AT_ONCE = 1000

Number = float | int | None


def json_columns(series: StoredSeries) -> dict[str, list[Number]]:
    """Return lists with None for values that were not printed."""
    return {name: _numbers(values) for name, values in series.columns.items()}


def csv_rows(series: StoredSeries) -> Iterator[str]:
    """Yield the header and a row for each iteration; a value that was not printed is an empty cell."""
    columns = list(json_columns(series).values())
    yield _written([list(series.columns)])
    for start in range(0, len(columns[0]) if columns else 0, _ROWS_AT_ONCE):
        yield _written(zip(*(column[start : start + _ROWS_AT_ONCE] for column in columns), strict=True))


def _numbers(values: FloatArray) -> list[Number]:
    finite = np.isfinite(values)
    # Integers stay integers: iteration 7, not 7.0. Beyond 2^53 a float64 is not exact.
    if np.all(~finite | ((values == np.trunc(values)) & (np.abs(values) < 2**53))):
        return [int(value) if is_finite else None for value, is_finite in zip(values, finite, strict=True)]
    return [float(value) if is_finite else None for value, is_finite in zip(values, finite, strict=True)]


def _written(rows: Iterable[Iterable[object]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


# --- The parts of an upload's form: files and metadata. Unknown parts are refused, so that none is lost unnoticed.

META = "meta"
KINDS: tuple[Kind, ...] = ("log", "config", "events")
_KNOWN = (*KINDS, META)
_SHOWN = 50


def uploaded_files(form: FormData) -> list[UploadedFile]:
    """Return the files by kind, in the order in which they were sent. Raises InvalidUpload for an unknown part."""
    _check_names(form)
    return [UploadedFile(kind, sent.filename or kind, sent.file) for kind in KINDS for sent in _sent(form, kind)]


def metadata_of(form: FormData, max_bytes: int) -> bytes | None:
    """Return `meta`, which clients send as text or as a file; None without it."""
    value = form.get(META)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    text = value.file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise InvalidUpload(
            f"The metadata is larger than {max_bytes:,} bytes. Nothing was saved. Shorten `meta`; send "
            "documents as `config`.",
            (FieldError(META, f"must have at most {max_bytes:,} bytes"),),
        )
    return text


def _check_names(form: FormData) -> None:
    allowed = coded_names(_KNOWN)
    unknown = sorted({name[:_SHOWN] for name in form if name not in _KNOWN})
    if unknown:
        sent = coded_names(unknown)
        errors = tuple(FieldError(name, f"is not a part of an upload; parts are {allowed}") for name in unknown)
        missing = " This upload contains no log." if "log" not in form else ""
        detail = f"The form has unknown parts: {sent}.{missing} Parts are {allowed}. Nothing was saved."
        raise InvalidUpload(detail, errors)
    if len(form.getlist(META)) > 1:
        raise InvalidUpload(
            f"`{META}` was sent {len(form.getlist(META))} times. Nothing was saved. Put all into one JSON object.",
            (FieldError(META, f"must be sent once; parts that may be repeated are {', '.join(KINDS)}"),),
        )


def _sent(form: FormData, kind: Kind) -> Iterator[UploadFile]:
    for value in form.getlist(kind):
        if isinstance(value, UploadFile):
            yield value
        else:
            raise InvalidUpload(
                f"The form field `{kind}` contains text, not a file. Nothing was saved. With curl: -F {kind}=@FILE.",
                (FieldError(kind, "must be a file"),),
            )


# --- Wait for a run to be read and judged, without occupying a thread per waiting client.

_POLL_SECONDS = (0.02, 0.5)


async def settled(engine: Engine, run_id: int, seconds: float) -> RunState:
    """Return the state of a run once it has been read and judged, or after `seconds`."""
    pause, end = _POLL_SECONDS[0], time.monotonic() + seconds
    before: int | None = None
    with wakes.Waiting(run_id) as waiting:
        while True:
            state = await run_in_threadpool(_state, engine, run_id)
            before = state.judged.verdict_id if before is None else before
            left = end - time.monotonic()
            if left <= 0 or _is_settled(state, before):
                return state
            await waiting.wait(min(_POLL_SECONDS[1] if waiting.is_woken else pause, left))
            pause = min(pause * 1.2, _POLL_SECONDS[1])


def _is_settled(state: RunState, verdict_before: int) -> bool:
    """Return whether reading and judging are done. A new verdict is enough: its stack may be judged again and again."""
    if state.updating or state.status in ("received", "processing"):
        return False
    return state.receiving or not state.judged.waiting or state.judged.verdict_id != verdict_before


def _state(engine: Engine, run_id: int) -> RunState:
    with read_session(engine) as session:
        return get_state(session, run_id)


MAX_FILES = 64
MAX_UPLOAD_FIELDS = 16
MAX_LOG_LINES = 5000

_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
_UPLOAD_FORM = {
    "type": "object",
    "properties": {
        "log": _FILES | {"description": "One or more logs: plain text, .gz or .zst."},
        "meta": {"type": "string", "description": "JSON object: contract fields, name, project, purpose, branch, ..."},
        "config": _FILES
        | {"description": "A document about the run: configuration, command, environment, golden values."},
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
        400, 409, 413, 422, 503, 507, ok={"model": UploadAnswer, "description": "This upload already existed."}
    ),
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD_FORM}}}},
)
@requires(Action.UPLOAD)
async def upload_run(
    *,
    request: Request,
    engine: AppEngine,
    log_files: AppLogFiles,
    settings: AppSettings,
    response: Response,
    wait: WaitSeconds,
    complete: Annotated[
        bool | None, Query(description="false: further pieces of the logs follow, see `/logs`.")
    ] = None,
    expects: Annotated[
        int, Query(ge=0, le=2**53, description="Expected bytes: refused immediately when they exceed the quota.")
    ] = 0,
    strict: Annotated[
        str,
        Query(max_length=10_000, description="Comma-separated names in `meta` that must be known fields."),
    ] = "",
    idempotency_key: Annotated[
        str | None, Header(description="Two uploads with the same key are the same upload.")
    ] = None,
) -> UploadAnswer:
    """Upload a run. The answer comes when it is stored safely; `status` says whether it is processed yet."""
    # Async because of `wait`: one thread per waiting client would leave none for others.
    accept = partial(accept_upload, engine, log_files, settings, idempotency_key=idempotency_key)
    accept = partial(accept, complete=complete, expects=expects, strict=strict.split(","))
    accepted = await _received(request, engine, settings, accept)
    answer = {"id": accepted.run_id, "url": _page(request, accepted.run_id), "created": accepted.created}
    answer |= {"status": accepted.status, "warnings": accepted.warnings}
    if wait > 0:
        answer |= await _once_read(engine, settings, accepted, wait)
    response.status_code = 202 if accepted.created else 200
    response.headers["Location"] = f"/api/v1/runs/{accepted.run_id}"
    return UploadAnswer.model_validate(answer)


@router.post(
    "/uploads/preview",
    max_body_size=PREVIEW_BYTES,
    responses=documented(413, 422),
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
@requires(Action.UPLOAD)
async def preview_file(request: Request, name: Annotated[str, Query(max_length=300)] = "log") -> Preview:
    """Return what the first 2 MiB of a file show. Nothing is stored. Logs of one job agree in all fields of `job`."""
    return await preview_body(request, name)


class UploadCheck(BaseModel):
    run: int | None = Field(description="The run of an equal upload; null when the upload would create a run.")
    warnings: list[str] = Field(description="Problems known before the run is read.")


@router.post(
    "/uploads/check",
    max_body_size=UPLOAD_BYTES,
    dependencies=[RoomOnDisk],
    responses=documented(400, 409, 413, 422, 503, 507),
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD_FORM}}}},
)
@requires(Action.UPLOAD)
async def check_upload(
    *, request: Request, engine: AppEngine, log_files: AppLogFiles, settings: AppSettings
) -> UploadCheck:
    """Check an upload as `POST /runs` does, with the same errors, and store nothing."""
    accept = partial(accept_upload, engine, log_files, settings, dry_run=True)
    checked = await _received(request, engine, settings, accept)
    return UploadCheck(run=checked.run_id or None, warnings=list(checked.warnings))


@router.get("/runs", response_model=RunListOut, responses=documented(406, 422, ok=as_content("text/csv")))
@requires(Action.READ)
def list_runs(
    request: Request, engine: AppEngine, session: ReadSession, query: Annotated[RunQuery, Query()]
) -> Response | RunListOut:
    """List runs, newest first unless sorted otherwise. CSV and Parquet (`format`) have all runs, not one page."""
    RunQuery.check_names(name for name in request.query_params if name != "format")
    chosen = table_format(request)
    if chosen != "json":
        return table_answer(chosen, RUN_COLUMNS, run_rows(engine, query), "runs")
    return RunListOut.model_validate(find_runs(session, query))


class Completions(BaseModel):
    items: list[str] = Field(description="At most 20: `name:` or `name:value`.")


@router.get("/run-filters", responses=documented(422))
@requires(Action.READ)
def complete_filters(
    session: ReadSession,
    q: Annotated[str, Query(max_length=300, description="The search so far; its last word is completed.")] = "",
) -> Completions:
    """Return what may follow in a search of runs: names of filters and contract fields, then their values."""
    return Completions(items=complete(session, q))


@router.get("/runs/{run_id}", responses=documented(404, 422))
@requires(Action.READ, of="run")
def read_run(request: Request, session: ReadSession, run_id: RunId) -> RunOut:
    """Return one run: its state, contract, figures and health."""
    return _run_out(request, session, run_id)


@router.get(
    "/runs/{run_id}/series",
    response_model=SeriesOut,
    responses=documented(404, 406, 422, ok=as_content("text/csv")),
)
@requires(Action.READ, of="run")
def read_series(request: Request, session: ReadSession, run_id: RunId) -> Response:
    """Return every per-iteration metric; with `format=csv` or `parquet`, or such an `Accept`, as a table."""
    chosen = table_format(request, strict=True)
    series = get_series(session, run_id)
    if chosen == "csv":
        headers = {"Content-Disposition": f'attachment; filename="run-{run_id}.csv"', "Vary": "Accept"}
        return StreamingResponse(csv_rows(series), media_type="text/csv", headers=headers)
    if chosen == "parquet":
        columns = json_columns(series)
        rows = list(zip(*columns.values(), strict=True))
        return table_answer(chosen, dict.fromkeys(columns, "float"), [rows], f"run-{run_id}")
    body = {"columns": json_columns(series), "units": dict(series.units)}
    return JSONResponse(body, headers={"Vary": "Accept"})


@router.get(
    "/runs/{run_id}/log",
    response_model=LogOut,
    responses=documented(404, 422, 503, ok=as_content("text/plain")),
)
@requires(Action.READ, of="run")
def read_log(
    *,
    request: Request,
    session: ReadSession,
    log_files: AppLogFiles,
    run_id: RunId,
    first: Annotated[int, Query(alias="from", ge=1, le=2**53, description="First line, from 1.")] = 1,
    last: Annotated[int | None, Query(alias="to", ge=1, le=2**53, description="Last line, inclusive.")] = None,
    file: Annotated[
        int | None,
        Query(ge=0, description="One of the logs (from 0, as `log_file` of the series). Default: all logs as one."),
    ] = None,
) -> Response:
    """Return lines of the run's logs, at most 5,000 per call; as plain text with `Accept: text/plain`."""
    logs = get_run(session, run_id).log_files
    if file is not None:
        if file >= len(logs):
            raise NotFound(f"Run {run_id} has no log {file}; it has {len(logs)}, counted from 0.")
        logs = logs[file : file + 1]
    last = first + MAX_LOG_LINES - 1 if last is None else last
    if not first <= last < first + MAX_LOG_LINES:
        raise InvalidQuery(f"Request at most {MAX_LOG_LINES:,} lines per call, `to` not before `from`.")
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
@requires(Action.READ, of="run")
def download_file(session: ReadSession, log_files: AppLogFiles, run_id: RunId, position: int) -> Response:
    """Return an uploaded file, decompressed."""
    run = get_run(session, run_id)
    file = next((file for file in run.files if file.position == position), None)
    if file is None:
        raise NotFound(f"Run {run_id} has no file {position}. Its files are listed in the run itself.")
    chunks = log_files.stream(file.readable_keys)
    first = next(chunks, b"")  # a failing store or a damaged object gives a 503, not a truncated response
    return StreamingResponse(
        chain((first,), chunks),
        media_type="application/octet-stream",
        headers={
            "Content-Length": str(file.size_bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(without_compression(file.name), safe='')}",
        },
    )


async def _received(
    request: Request, engine: Engine, settings: Settings, accept: Callable[..., AcceptedUpload]
) -> AcceptedUpload:
    """Pass the form of an upload to `accept`."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidUpload("Send a form (multipart/form-data) with the log as its field `log`.")
    into = partial(upload_project, request, engine)

    def received(form: FormData) -> AcceptedUpload:
        meta = metadata_of(form, settings.max_metadata_bytes)
        return accept(files=uploaded_files(form), meta=meta, into=into, uploader=uploader(request))

    async with sent_form(
        request, max_files=MAX_FILES, max_fields=MAX_UPLOAD_FIELDS, max_part_size=settings.max_metadata_bytes
    ) as form:
        return await run_in_threadpool(received, form)


async def _once_read(engine: Engine, settings: Settings, accepted: AcceptedUpload, wait: float) -> dict[str, Any]:
    """Return the state of an uploaded run and the fields to supply, or why the run could not be read."""
    state = await settled(engine, accepted.run_id, wait)

    def explain() -> dict[str, Any]:
        with read_session(engine) as session:
            since = silent_since(session, settings)
        if since is None:
            return {}
        warning = (
            f"Nothing has been processed since {absolute(since)}: no worker is running. The run is stored and will "
            "be processed."
        )
        return {"nothing_processed_since": since, "warnings": [*accepted.warnings, warning]}

    if state.status not in PROCESSED:
        return {"status": state.status} | await run_in_threadpool(explain)
    if not accepted.own:
        return {"status": state.status}

    def read() -> dict[str, Any]:
        with read_session(engine) as session:
            run = get_run(session, accepted.run_id)
        answer = {"status": run.status, "verdict": run.verdict or None}
        return answer | {"warnings": run.warnings, "unknown_fields": unknown_fields(run.unknown)}

    return await run_in_threadpool(read)


def _run_out(request: Request, session: Session, run_id: int) -> RunOut:
    run = get_run(session, run_id)
    (listed,) = with_alternation(session, runs_by_id(session, [run_id]))
    return RunOut.of(run, listed, _page(request, run_id))


def _page(request: Request, run_id: int) -> str:
    return f"{public_address(request)}/runs/{run_id}"


# --- `PATCH /api/v1/runs/{id}/contract`: users state contract fields of an existing run.

MAX_AMENDED_FIELDS = 300
"""More fields than the contract has."""


class Amend(BaseModel, extra="forbid"):
    fields: dict[str, Any] = Field(
        max_length=MAX_AMENDED_FIELDS,
        description='By contract field: the new value, or {"unset": true} to withdraw an earlier correction.',
    )
    author: Author = author_field("Author of the statement.")
    note: str = Field("", max_length=MAX_NOTE, description="Reason or source.")


@router.patch("/runs/{run_id}/contract", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="run")
async def amend_run(
    *,
    request: Request,
    engine: AppEngine,
    run_id: RunId,
    change: Amend,
    wait: WaitSeconds,
) -> RunOut:
    """Correct or complete the contract. All fields or none; recorded with who, when and the old value, then applied."""

    await run_in_threadpool(
        amend_contract, engine, run_id, fields=change.fields, author=change.author, note=change.note
    )
    return await _read_again(request, engine, run_id, wait)


async def _read_again(request: Request, engine: Engine, run_id: int, seconds: float) -> RunOut:
    """Return the run once it is read and judged again, or after `seconds`."""

    def read() -> RunOut:
        with read_session(engine) as session:
            return _run_out(request, session, run_id)

    await settled(engine, run_id, seconds)
    return await run_in_threadpool(read)


# --- `PUT /api/v1/runs/{id}/read-as`: users describe the step lines of a log that no reader understands.


class ReadAs(BaseModel, extra="forbid"):
    read_as: str = Field(
        max_length=2 * MAX_TEMPLATE,
        description="A step line with placeholders: `step {iteration} | loss {loss} | {step_time_s} s`. `{}` skips "
        "text. Empty withdraws an earlier description.",
    )
    author: Author = author_field("Author of the statement.")
    note: str = Field("", max_length=MAX_NOTE, description="Reason or source.")


@router.put("/runs/{run_id}/read-as", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="run")
async def describe_step_lines(
    *,
    request: Request,
    engine: AppEngine,
    run_id: RunId,
    change: ReadAs,
    wait: WaitSeconds,
) -> RunOut:
    """Describe the step lines of a log in an unknown format. Recorded with who and when, then the log is read again."""

    await run_in_threadpool(
        describe_lines, engine, run_id, read_as=change.read_as, author=change.author, note=change.note
    )
    return await _read_again(request, engine, run_id, wait)

"""`POST /api/v1/runs/{id}/logs`: more of a run's logs, while it goes on or after."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, BinaryIO, Literal, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from app.errors import FieldError, InvalidUpload
from app.runs.api_models import RunId, Status
from app.runs.append import Piece, append_log
from app.web.access.acting import author, require_contributor
from app.web.body_limit import UPLOAD_BYTES
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings, RoomOnDisk
from app.web.forms import sent_form
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["runs"])

_IN_MEMORY_BYTES = 1 << 20
_MAX_OFFSET = 2**53
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_PIECE_FORM = {
    "type": "object",
    "properties": {
        "log": {"type": "string", "format": "binary", "description": "The piece: plain text, .gz or .zst."},
        "offset": {"type": "integer", "description": "As in the query."},
        "name": {"type": "string", "description": "As in the query."},
        "complete": {"type": "boolean", "description": "As in the query."},
    },
}
_RAW = {"schema": {"type": "string", "format": "binary"}}


class AppendAnswer(BaseModel):
    id: int
    url: str = Field(description="Page of the run, for people.")
    status: Status
    name: str = Field(description="The log file that was appended to.")
    offset: int = Field(description="Bytes held of it now: where the next piece begins.")
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
                "application/x-www-form-urlencoded": _RAW,  # as curl calls what it sends by --data-binary
            }
        }
    },
)
async def append_to_log(
    *,
    request: Request,
    engine: AppEngine,
    log_files: AppLogFiles,
    settings: AppSettings,
    run_id: RunId,
    offset: Annotated[
        int | None, Query(ge=0, le=_MAX_OFFSET, description="Byte of the decompressed log at which the piece begins.")
    ] = None,
    name: Annotated[str, Query(max_length=500, description="Of the log file; may be left out when there is one.")] = "",
    complete: Annotated[bool | None, Query(description="true ends the run, false opens it for more.")] = None,
    cut: Annotated[
        Literal["gzip", "zstd"] | None, Query(description="The file was compressed so and ended early: all of it came.")
    ] = None,
) -> AppendAnswer:
    """Append to a log of the run, or add another log. What is acknowledged is stored; sending it again is harmless.

    A token that only uploads does it with runs that it began itself, while they go on and for an hour (as set by
    THREEWALLS_RECEIVING_TIMEOUT_SECONDS) after they were closed. Others, and later, only who may contribute.
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
    """The piece, as the body or as the field `log` of a form, and the form's fields. None when no byte was sent."""
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with sent_form(request, max_files=1, max_fields=8) as form:
            sent = form.get("log")
            if isinstance(sent, str):
                raise InvalidUpload("The form field `log` holds text, not a file. With curl: -F log=@FILE.")
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
    return InvalidUpload(f"{field} {message}. Nothing was kept.", (FieldError(field, message),))

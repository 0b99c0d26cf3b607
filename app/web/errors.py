"""Errors to answers, once: a problem document for machines, a page for people."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from app import errors
from app.errors import FieldError, ThreewallsError
from app.storage.database import fault_of
from app.web.templating import render_error

# --- Problem documents (RFC 9457): what every error looks like to a machine.

MEDIA_TYPE = "application/problem+json"


class ProblemField(BaseModel):
    field: str = Field(description="Path of the field as it was sent, e.g. `meta.window.first`.")
    message: str


class Problem(BaseModel):
    """An error. `title` names the kind, `detail` says what happened, what was kept and what to do next."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[ProblemField] = []
    offset: int | None = Field(
        None, description="Of a log that is appended to: the byte at which the next piece begins."
    )


class ProblemResponse(JSONResponse):
    media_type = MEDIA_TYPE


def problem(
    status: int, title: str, detail: str, errors: tuple[FieldError, ...] = (), offset: int | None = None
) -> ProblemResponse:
    fields = [ProblemField(field=error.field, message=error.message) for error in errors]
    body = Problem(title=title, status=status, detail=detail, errors=fields, offset=offset)
    return ProblemResponse(body.model_dump(mode="json", exclude_none=True), status)


Responses = dict[int | str, dict[str, Any]]


def documented(*statuses: int, ok: dict[str, Any] | None = None) -> Responses:
    """The `responses` of a route in OpenAPI: these statuses answer with a problem document, 200 with `ok` besides."""
    schema = {"$ref": "#/components/schemas/Problem"}
    problems: Responses = {
        status: {"model": Problem, "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses
    }
    if ok is not None:
        problems[200] = ok
    return problems


def as_content(media_type: str, schema_format: str = "", *also: str) -> dict[str, Any]:
    """An `ok` that is also offered as another media type than JSON, or several."""
    schema = {"type": "string"} | ({"format": schema_format} if schema_format else {})
    return {"content": {one: {"schema": schema} for one in (media_type, *also)}}


log = structlog.get_logger(__name__)

STATUS: Mapping[type[ThreewallsError], int] = {
    errors.BrokenForm: 400,
    errors.TooLarge: 413,
    errors.InvalidUpload: 422,
    errors.InvalidChange: 422,
    errors.InvalidQuery: 422,
    errors.NotAllowed: 403,
    errors.NotFound: 404,
    errors.TooMany: 429,
    errors.Conflict: 409,
    errors.Unavailable: 503,
    errors.DiskFull: 507,
}
"""The nearest class of the error's own line decides; an error that is not listed is unexpected, 500."""

_TITLES = {
    404: "There is no such page",
    405: "This address does not take that method",
    408: "The request came too slowly",
    413: "The request is too large",
    422: "The request is not valid",
}
_DETAILS = {
    404: "No page has this address. It may be mistyped, or the run may have been deleted.",
    500: "Unexpected error (id {request_id}). The service's log has the details under this id. Nothing that was "
    "acknowledged is lost.",
}
_MOST_FIELDS = 50
"""Of a request that is wrong in more places the others are not named."""

_MACHINE_PATHS = ("/api/", "/healthz", "/readyz", "/metrics")


def register(app: FastAPI) -> None:
    """Let this module answer for every expected error; `unexpected` is for the others (`request_frame.py`)."""
    app.add_exception_handler(ThreewallsError, _our_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)


def answer(
    request: Request,
    status: int,
    title: str,
    detail: str,
    fields: tuple[FieldError, ...] = (),
    *,
    offset: int | None = None,
) -> Response:
    """The error in the form that the asker reads."""
    if is_machine(request):
        return problem(status, title, detail, fields, offset)
    return render_error(request, status, title, " ".join((detail, *(f"{f.field}: {f.message}." for f in fields))))


def is_machine(request: Request) -> bool:
    # A browser asks for HTML by name; curl and libraries ask for anything.
    return not _is_page(request) or "text/html" not in request.headers.get("accept", "")


async def _our_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ThreewallsError)  # noqa: S101  # registered for nothing else
    return answer_error(request, error)


def answer_error(request: Request, error: ThreewallsError) -> Response:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    offset = error.offset if isinstance(error, errors.OffsetConflict) else None
    response = answer(request, status, error.title, error.detail, error.errors, offset=offset)
    if isinstance(error, errors.TooMany | errors.Unavailable):
        response.headers["Retry-After"] = str(error.retry_after)
    return response


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    found = error.errors()[:_MOST_FIELDS]
    # Whoever reads pages asked for an address; that its number is checked as a field is our matter.
    if _is_page(request) and any(wrong["loc"][0] == "path" for wrong in found):
        return answer(request, 404, _TITLES[404], _DETAILS[404])
    fields = tuple(FieldError(_path(wrong["loc"]), wrong["msg"]) for wrong in found)
    names = ", ".join(field.field for field in fields)
    kept = "" if request.method in ("GET", "HEAD") else " Nothing was kept."
    return answer(request, 422, _TITLES[422], f"Check {names}.{kept}", fields)


def _is_page(request: Request) -> bool:
    return not request.url.path.startswith(_MACHINE_PATHS)


def _path(location: tuple[int | str, ...]) -> str:
    """`("query", "wait")` is `wait` to whoever sent it."""
    return ".".join(str(part) for part in location[1:] or location)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    phrase = HTTPStatus(error.status_code).phrase
    title = _TITLES.get(error.status_code, phrase)
    detail = error.detail if error.detail != phrase else _DETAILS.get(error.status_code, f"{title}.")
    response = answer(request, error.status_code, title, detail)
    response.headers.update(error.headers or {})
    return response


def unexpected(request: Request, error: Exception) -> Response:
    """Answer an error that no handler answered: 503 while the database is away, 507 on a full disk.

    For all others 500 with an id to find the error by, and nothing of its text.
    """
    if (fault := fault_of(error)) is not None:
        log.warning("unavailable", path=request.url.path, error=str(getattr(error, "orig", None) or error))
        response = answer_error(request, fault)
    else:
        log.error("unexpected_error", path=request.url.path, exc_info=error)
        request_id = structlog.contextvars.get_contextvars().get("request_id", "?")
        response = answer(request, 500, "Unexpected error", _DETAILS[500].format(request_id=request_id))
    response.headers["Cache-Control"] = "no-store"
    return response

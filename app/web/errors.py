"""Turn errors into answers: a problem document for programs, a page for browsers."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

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

# --- Problem documents (RFC 9457).

MEDIA_TYPE = "application/problem+json"


class ProblemField(BaseModel):
    field: str = Field(description="Path of the field as sent, for example `meta.window.first`.")
    message: str


class ProblemDocument(BaseModel):
    """An error. `title`: its kind. `detail`: what happened, what was saved and what to do next."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[ProblemField] = []
    offset: int | None = Field(
        None, description="When appending to a log: the byte at which the next piece must begin."
    )


class ProblemResponse(JSONResponse):
    media_type = MEDIA_TYPE


def problem(
    status: int, title: str, detail: str, errors: tuple[FieldError, ...] = (), offset: int | None = None
) -> ProblemResponse:
    fields = [ProblemField(field=error.field, message=error.message) for error in errors]
    body = ProblemDocument(title=title, status=status, detail=detail, errors=fields, offset=offset)
    return ProblemResponse(body.model_dump(mode="json", exclude_none=True), status)


Responses = dict[int | str, dict[str, Any]]


def documented(*statuses: int, ok: dict[str, Any] | None = None) -> Responses:
    """Return the `responses` of a route for OpenAPI: problem documents for these statuses, and `ok` for 200."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    problems: Responses = {
        status: {"model": ProblemDocument, "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses
    }
    if ok is not None:
        problems[200] = ok
    return problems


def as_content(media_type: str, schema_format: str = "", *also: str) -> dict[str, Any]:
    """Return an `ok` for `documented` with JSON and these media types."""
    if media_type == "application/yaml":
        return {"content": {media_type: {"schema": {}}}}
    schema = {"type": "string"} | ({"format": schema_format} if schema_format else {})
    return {"content": {name: {"schema": schema} for name in (media_type, *also)}}


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
"""Statuses by class of error. The nearest listed base class decides; all other errors are 500."""

_TITLES = {
    404: "Page not found",
    405: "Method not allowed",
    408: "The request was too slow",
    413: "The request is too large",
    422: "Invalid request",
}
_DETAILS = {
    404: "No page has this address.",
    500: "The service's log has the details under the id {request_id}. No acknowledged upload is lost.",
}
_PLACES = {
    "runs": "All runs",
    "regressions": "Regressions",
    "history": "Trends",
    "compare": "Compare",
    "experiments": "Experiments",
    "leaderboards": "Leaderboards",
    "references": "Published figures",
    "scaling": "Scaling",
    "availability": "Availability",
    "upgrade": "Upgrade report",
    "plan": "Planner",
    "check": "Launch check",
    "watching": "Watching",
    "upload": "Upload",
    "search": "Search",
    "settings": "Settings",
    "playbook": "Playbook",
    "glossary": "Glossary",
    "help": "Help",
}
"""First segment of an address -> name of the page."""
_WITH_SECRET = ("invite", "s")
"""First segments of addresses that continue with a secret, which no link may repeat."""
_LONGEST_SEARCH = 60
_MOST_FIELDS = 50
"""Maximum invalid fields that an answer lists."""
_MESSAGES = {
    "missing": "is required",
    "extra_forbidden": "is not a field of this call",
    "model_attributes_type": "must be a JSON object",
}
"""Replacements for the validator's messages, by type of error."""
_UNREADABLE_BODY = "There was an error parsing the body"
"""FastAPI's detail for a body that is not text or cannot be parsed."""

_MACHINE_PATHS = ("/api/", "/healthz", "/readyz", "/metrics")


def register(app: FastAPI) -> None:
    """Register the handlers of expected errors. `RequestFrameMiddleware` answers all others with `unexpected`."""
    # Not coroutines, so that they run in a thread, because error pages read the number of open regressions.
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
    """Return an error as a page for browsers, else as a problem document."""
    if is_machine(request):
        return problem(status, title, detail, fields, offset)
    sentences = [f"`{field.field}` {field.message}." for field in fields]
    if not fields or detail not in (f"{title}.", ""):
        sentences.insert(0, detail)
    back: Sequence[tuple[str, str]] = ()
    if status == HTTPStatus.NOT_FOUND:
        back = _suggested_pages(request.url.path)
    elif status == HTTPStatus.UNPROCESSABLE_ENTITY and request.method == "GET" and request.url.query:
        back = (*_with_meant_filters(request, fields), (request.url.path, "Clear the filters"))
    elif status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE) and request.method == "GET":
        query = f"?{request.url.query}" if request.url.query else ""
        back = ((f"/{request.url.path.lstrip('/')}{query}", "Try again"),)
    return render_error(request, status, title, " ".join(sentences), back)


def _with_meant_filters(request: Request, fields: Sequence[FieldError]) -> tuple[tuple[str, str], ...]:
    """Return address and label of the page with the filters that are meant; none if one is invalid otherwise."""
    meant = {field.field: field.meant for field in fields}
    if not meant or not all(meant.values()):
        return ()
    query = urlencode([(meant.get(name, name), value) for name, value in request.query_params.multi_items()])
    return ((f"{request.url.path}?{query}", f"Filter by {', '.join(meant.values())}"),)


def _suggested_pages(path: str) -> tuple[tuple[str, str], ...]:
    """Return addresses and labels of pages to suggest for an unknown path, the likeliest first."""
    first, *rest = path.strip("/").split("/")
    if first in _WITH_SECRET:
        return (("/", "Overview"),)
    close = get_close_matches(first[:_LONGEST_SEARCH].lower(), _PLACES, n=1)
    places = [(f"/{name}", _PLACES[name]) for name in dict.fromkeys([*close, "runs", "regressions"])]
    if close and rest and first not in _PLACES:
        corrected = "/".join(("", close[0], *rest))[:_LONGEST_SEARCH]
        return ((quote(corrected), corrected), *places)
    text = ([first, *rest][-1])[:_LONGEST_SEARCH]
    if text.isdigit() or text in _PLACES:
        return tuple(places)
    search = (f"/search?{urlencode({'q': text})}", f"Search for “{text}”")
    return (*places[: len(close)], search, *places[len(close) :])


def is_machine(request: Request) -> bool:
    # Browsers name text/html in `Accept`; curl and libraries send `*/*`.
    return not _is_page(request) or "text/html" not in request.headers.get("accept", "")


def _our_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ThreewallsError)  # noqa: S101  # registered for nothing else
    return answer_error(request, error)


def answer_error(request: Request, error: ThreewallsError) -> Response:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    offset = error.offset if isinstance(error, errors.OffsetConflict) else None
    response = answer(request, status, error.title, error.detail, error.errors, offset=offset)
    if isinstance(error, errors.TooMany | errors.Unavailable):
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    problems = error.errors()[:_MOST_FIELDS]
    # An invalid path parameter of a page means that the address does not exist.
    if _is_page(request) and any(problem["loc"][0] == "path" for problem in problems):
        return answer(request, 404, _TITLES[404], _DETAILS[404])
    fields = tuple(map(_field_error, problems))
    names = ", ".join(field.field for field in fields)
    ending = "" if request.method in ("GET", "HEAD") else "Nothing was saved."
    # A page names the fields in their own sentences.
    detail = f"Check {names}. {ending}".rstrip() if is_machine(request) else ending
    return answer(request, 422, _TITLES[422], detail, fields)


def _field_error(problem: Mapping[str, Any]) -> FieldError:
    if problem["type"] == "json_invalid":  # its location is a character
        return FieldError("body", f"is not JSON: {problem['ctx']['error']}, at character {problem['loc'][-1] + 1}")
    # Callers know `("query", "wait")` as `wait`.
    name = ".".join(map(str, problem["loc"][1:] or problem["loc"]))
    return FieldError(name, _MESSAGES.get(problem["type"], problem["msg"].removeprefix("Value error, ")))


def _is_page(request: Request) -> bool:
    return not request.url.path.startswith(_MACHINE_PATHS)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    phrase = HTTPStatus(error.status_code).phrase
    title = _TITLES.get(error.status_code, phrase)
    detail = error.detail if error.detail != phrase else _DETAILS.get(error.status_code, f"{title}.")
    if detail == _UNREADABLE_BODY:
        detail = "The body is not UTF-8 text, or is nested too deeply. Nothing was saved. Send a JSON object."
    response = answer(request, error.status_code, title, detail)
    response.headers.update(error.headers or {})
    return response


def unexpected(request: Request, error: Exception) -> Response:
    """Answer an error that no handler expects: 503 while the database is down, 507 if the disk is full, else 500.

    The answer to a 500 has an id that is also in the log, and no text of the error.
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

"""Problem documents (RFC 9457): what every error looks like to a machine."""

from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from app.errors import FieldError

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

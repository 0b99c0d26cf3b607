"""`/api/v1/history/{stack}`: what the page of a stack shows, as JSON and as CSV."""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from app.errors import FieldError, InvalidQuery, NotFound
from app.history.export import csv_rows, history_values
from app.history.page import HistoryPage
from app.history.stacks import get_stack, matching_keys
from app.history.view import HistoryView
from app.web.dependencies import ReadSession
from app.web.problems import as_content, documented

router = APIRouter(prefix="/api/v1", tags=["history"])

StackKey = Annotated[str, Path(max_length=100, description="A stack key, or at least 8 of its first digits.")]


class HistoryQuery(BaseModel):
    """Which runs: of one configuration, and between two runs of the order."""

    config: Annotated[str, Query(description="A config key, or its first digits; else all configurations.")] = ""
    first: Annotated[int, Query(ge=0, description="The number of the run to begin with.")] = 0
    last: Annotated[int, Query(ge=0, description="The number of the run to end with.")] = 0


class HistoryOut(BaseModel):
    """`change_points` newest first, `runs` in commit order. A run that does not count makes no level."""

    stack_key: str
    title: str
    project: str
    generated: bool
    answer: str
    contract: dict[str, Any]
    configurations: list[dict[str, Any]]
    change_points: list[dict[str, Any]]
    golden_runs: list[dict[str, Any]]
    version_changes: list[dict[str, Any]]
    other_containers: list[dict[str, Any]]
    runs: list[dict[str, Any]]


@router.get(
    "/history/{stack}",
    response_model=HistoryOut,
    responses=documented(404, 406, 422, ok=as_content("text/csv")),
)
def read_history(
    request: Request, session: ReadSession, stack: StackKey, query: Annotated[HistoryQuery, Query()]
) -> Response:
    """The history of a stack: runs, levels, change points, golden runs. Its runs as CSV with `Accept: text/csv`."""
    accept = request.headers.get("accept", "*/*")
    given = {name: str(value) for name, value in query.model_dump().items() if value}
    keys = matching_keys(session, stack)
    found = get_stack(session, keys[0]) if len(keys) == 1 else None
    if len(keys) > 1:
        error = FieldError("stack", f"begins the keys of several stacks: {', '.join(keys)}")
        raise InvalidQuery("Give more digits of the stack key.", (error,))
    if found is None:
        raise NotFound("No stack has this key. Give the `stack_key` of a run, or at least 8 of its first digits.")
    page = HistoryPage(session, found, "", HistoryView.from_params(given))
    if "text/csv" in accept:
        name = f"history-{found.stack_key[:12]}.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Vary": "Accept"}
        return StreamingResponse(csv_rows(page), media_type="text/csv", headers=headers)
    if not any(accepted in accept for accepted in ("application/json", "application/*", "*/*")):
        raise HTTPException(406, "A history comes as application/json or text/csv.")
    return JSONResponse(history_values(page), headers={"Vary": "Accept"})

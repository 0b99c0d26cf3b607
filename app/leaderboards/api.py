"""`/api/v1/leaderboards`: the standings of stacks, what they come to across stacks, and who led when."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

from app.domain.report.values import storable
from app.leaderboards.api_models import (
    ChangesQuery,
    LeaderboardOut,
    LeaderboardQuery,
    LeaderChangeOut,
    LeaderChangesOut,
    StandingsOut,
    page_values,
)
from app.leaderboards.export import standings_csv
from app.storage.leader_changes import leader_changes
from app.storage.standings import hardware_and_families, standings_of
from app.web.dependencies import ReadSession
from app.web.problems import as_content, documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["leaderboards"])


@router.get("/leaderboards", response_model=StandingsOut, responses=documented(406, 422, ok=as_content("text/csv")))
def list_standings(request: Request, session: ReadSession, query: Annotated[LeaderboardQuery, Query()]) -> Response:
    """Stacks with their rankings, and counts across all that match. One row a result with `Accept: text/csv`."""
    accept = request.headers.get("accept", "*/*")
    page = standings_of(session, query.hardware, query.family, query.filters, query.page, size=query.page_size)
    if "text/csv" in accept:
        headers = {"Content-Disposition": 'attachment; filename="standings.csv"', "Vary": "Accept"}
        return Response(standings_csv(page.items), media_type="text/csv", headers=headers)
    if not any(accepted in accept for accepted in ("application/json", "application/*", "*/*")):
        raise HTTPException(406, "Standings come as application/json or text/csv.")
    base = public_address(request)
    index = [LeaderboardOut.of(one, base) for one in hardware_and_families(session, query.project)]
    return JSONResponse(storable(page_values(page, query.filters, index)), headers={"Vary": "Accept"})


@router.get("/leaderboards/changes", responses=documented(422))
def list_leader_changes(session: ReadSession, query: Annotated[ChangesQuery, Query()]) -> LeaderChangesOut:
    """The history of leaders: what changed at the head of rankings, newest first."""
    found = leader_changes(
        session,
        hardware_slug=query.hardware,
        family_slug=query.family,
        project=query.project,
        stack_keys=[query.stack] if query.stack else [],
        newest=query.newest,
    )
    return LeaderChangesOut(items=[LeaderChangeOut.of(one) for one in found])

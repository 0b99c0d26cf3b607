"""`/api/v1/leaderboards`: the standings of stacks, what they come to across stacks, gains, and who led when."""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlmodel import Session

from app.domain.report.values import storable
from app.leaderboards.api_gains import GainsOut
from app.leaderboards.api_models import LeaderboardOut, LeaderChangeOut, LeaderChangesOut, StandingsOut, page_values
from app.leaderboards.api_order import ordered
from app.leaderboards.api_query import ChangesQuery, LeaderboardQuery
from app.leaderboards.export import gains_csv, standings_csv
from app.storage.leader_changes import leader_changes
from app.storage.leaderboard_names import check_project, leaderboards_named, stacks_named
from app.storage.standings import HardwareFamily, StandingsPage, hardware_and_families, standings_of
from app.web.dependencies import ReadSession
from app.web.problems import as_content, documented
from app.web.query_checks import only_these
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["leaderboards"])

_FILTERS = [only_these(*LeaderboardQuery.model_fields)]
_ANSWERS = documented(404, 406, 422, ok=as_content("text/csv"))
_JSON = ("application/json", "application/*", "*/*")


@router.get("/leaderboards", response_model=StandingsOut, dependencies=_FILTERS, responses=_ANSWERS)
def list_standings(request: Request, session: ReadSession, query: Annotated[LeaderboardQuery, Query()]) -> Response:
    """Stacks with their rankings, and counts across all that match. One row a result with `Accept: text/csv`."""
    wants_csv = _wants_csv(request)
    page, index = _found(session, query)
    items = ordered(page.items, query.ordered_by)
    if wants_csv:
        return _csv(request, "standings", standings_csv(items), page)
    base = public_address(request)
    values = page_values(page, items, query, [LeaderboardOut.of(one, base) for one in index])
    return JSONResponse(storable(values), headers={"Vary": "Accept"})


@router.get("/leaderboards/gains", response_model=GainsOut, dependencies=_FILTERS, responses=_ANSWERS)
def list_gains(request: Request, session: ReadSession, query: Annotated[LeaderboardQuery, Query()]) -> Response:
    """Gains over alltoall of the same stacks, as the chart draws them: by stack, and in each by its order."""
    wants_csv = _wants_csv(request)
    page, _ = _found(session, query)
    items = ordered(page.items, query.ordered_by)
    if wants_csv:
        return _csv(request, "gains", gains_csv(items), page)
    return JSONResponse(GainsOut.of(page, items).model_dump(mode="json"), headers={"Vary": "Accept"})


@router.get(
    "/leaderboards/changes", dependencies=[only_these(*ChangesQuery.model_fields)], responses=documented(404, 422)
)
def list_leader_changes(session: ReadSession, query: Annotated[ChangesQuery, Query()]) -> LeaderChangesOut:
    """The history of leaders: what changed at the head of rankings, newest first."""
    index = _index(session, query)
    found = leader_changes(
        session,
        hardware_slug=index[0].hardware_slug if query.hardware else "",
        family_slug=index[0].family_slug if query.family else "",
        project=query.project,
        stack_keys=stacks_named(session, query.stack),
        newest=query.newest,
    )
    return LeaderChangesOut(items=[LeaderChangeOut.of(one) for one in found])


def _found(session: Session, query: LeaderboardQuery) -> tuple[StandingsPage, Sequence[HardwareFamily]]:
    index = _index(session, query)
    stacks_named(session, query.stack)
    hardware = index[0].hardware_slug if query.hardware else ""
    family = index[0].family_slug if query.family else ""
    page = standings_of(session, hardware, family, query.filters, query.page, size=query.page_size)
    query.check_precision(page.options)
    return page, index


def _index(session: Session, query: LeaderboardQuery | ChangesQuery) -> Sequence[HardwareFamily]:
    """At least one where hardware or family are named: NotFound says what there is instead."""
    check_project(session, query.project)
    return leaderboards_named(hardware_and_families(session, query.project), query.hardware, query.family)


def _wants_csv(request: Request) -> bool:
    accept = request.headers.get("accept", "*/*")
    if "text/csv" not in accept and not any(accepted in accept for accepted in _JSON):
        raise HTTPException(406, "Standings come as application/json or text/csv.")
    return "text/csv" in accept


def _csv(request: Request, name: str, text: str, page: StandingsPage) -> Response:
    """A table has no room for its pages, so its header tells where the others are, as RFC 8288 does."""
    numbers = {"first": 1, "prev": page.page - 1, "next": page.page + 1, "last": page.pages}
    links = [
        f'<{_address(request, number)}>; rel="{rel}"' for rel, number in numbers.items() if 1 <= number <= page.pages
    ]
    headers = {
        "Content-Disposition": f'attachment; filename="{name}.csv"',
        "Link": ", ".join(links),
        "X-Total-Count": str(page.total),
        "Vary": "Accept",
    }
    return Response(text, media_type="text/csv", headers=headers)


def _address(request: Request, page: int) -> str:
    params = dict(request.query_params) | {"page": str(page)}
    return f"{public_address(request)}{request.url.path}?{urlencode(params)}"

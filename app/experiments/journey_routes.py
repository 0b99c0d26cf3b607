"""The page of the tuning journey that a run is part of; the tree for other tools is in the API."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse

from app.domain.access.roles import Action
from app.experiments.journey_page import JourneyPage
from app.experiments.projects import is_generated
from app.experiments.queries import journey_of
from app.storage.projects import find_project
from app.web.access.state import access_of
from app.web.dependencies import ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)

RunId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/runs/{run_id}/journey")
def show_journey(request: Request, session: ReadSession, run_id: RunId) -> HTMLResponse:
    journey = journey_of(session, run_id)
    page = JourneyPage(journey, run_id)
    return render(
        request,
        "experiments/journey.html",
        p=page,
        generated=is_generated(session, journey.project),
        may_plan=access_of(request).may(Action.CONTRIBUTE, find_project(session, journey.project).id or 0),
        next_step=None if page.empty else request.app.state.next_step(session, journey.current_run_id),
    )

"""Pages of next steps: HTTP in, template out."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse

from app.recommendations.advise import advise
from app.recommendations.next_page import NextPage
from app.recommendations.step_page import StepPage
from app.web.dependencies import ReadSession, Rules
from app.web.templating import render

router = APIRouter(include_in_schema=False)

RunId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/runs/{run_id}/next")
def show_next(request: Request, session: ReadSession, rules: Rules, run_id: RunId) -> HTMLResponse:
    return render(request, "recommendations/next.html", p=NextPage(advise(session, run_id, rules)))


@router.get("/runs/{run_id}/next/{rule}")
def show_step(request: Request, session: ReadSession, rules: Rules, run_id: RunId, rule: str) -> HTMLResponse:
    page = StepPage(advise(session, run_id, rules), rule)
    # What planning it would take, where it has a change for this run (app/main.py puts the parts together).
    offer = request.app.state.plan_offer(session, run_id, rule) if page.found is not None else None
    return render(request, "recommendations/step.html", p=page, offer=offer)

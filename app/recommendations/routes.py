"""Pages of next steps: HTTP in, template out."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.errors import InvalidMetadata
from app.recommendations.advise import advise
from app.recommendations.next_page import NextPage
from app.recommendations.state import state
from app.recommendations.state_form import StateForm, read_state_form
from app.recommendations.step_page import StepPage
from app.web.dependencies import AppEngine, ReadSession, Rules
from app.web.forms import sent_form
from app.web.request_session import reading
from app.web.templating import render

router = APIRouter(include_in_schema=False)

MAX_FIELDS = 300
"""More inputs than there are facts to state."""

FactName = Annotated[str, Query(max_length=100)]
RunId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/runs/{run_id}/next")
def show_next(request: Request, session: ReadSession, rules: Rules, run_id: RunId, fact: FactName = "") -> HTMLResponse:
    """`fact`: what somebody came to state; its input stands first."""
    return render(request, "recommendations/next.html", p=NextPage(advise(session, run_id, rules), fact=fact))


@router.post("/runs/{run_id}/facts")
async def state_facts(request: Request, engine: AppEngine, rules: Rules, run_id: RunId) -> Response:
    """The same statement as the API's. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form = read_state_form(sent)
    refused = await run_in_threadpool(_state, engine, run_id, form)
    if refused is None:
        return RedirectResponse(f"/runs/{run_id}/next#stated", status_code=303)

    def page() -> HTMLResponse:
        with reading(request) as session:
            shown = NextPage(advise(session, run_id, rules), form=refused)
            return render(request, "recommendations/next.html", p=shown, status=422)

    return await run_in_threadpool(page)


def _state(engine: Engine, run_id: int, form: StateForm) -> StateForm | None:
    """None when it was recorded, else the form with what is wrong."""
    try:
        state(engine, run_id, facts=form.facts(), author=form.value("author"), note=form.value("note"))
    except InvalidMetadata as error:
        return form.refused(error)
    return None


@router.get("/runs/{run_id}/next/{rule}")
def show_step(request: Request, session: ReadSession, rules: Rules, run_id: RunId, rule: str) -> HTMLResponse:
    page = StepPage(advise(session, run_id, rules), rule)
    # What planning it would take, where it has a change for this run (app/main.py puts the parts together).
    offer = request.app.state.plan_offer(session, run_id, rule) if page.found is not None else None
    return render(request, "recommendations/step.html", p=page, offer=offer)

"""`/settings/definitions`: how far figures and verdicts follow the current rules, while it runs and after it."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse

from app.definitions.queries import definition_state, try_again
from app.domain.definitions import DEFINITIONS, VERDICT_RULES
from app.queue import RECOMPUTE, enqueue
from app.web.dependencies import AppEngine, ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)

ADDRESS = "/settings/definitions"


@router.get(ADDRESS)
def show_definitions(request: Request, session: ReadSession) -> HTMLResponse:
    return render(
        request,
        "definitions/index.html",
        block="standing",
        state=definition_state(session),
        definitions=DEFINITIONS,
        verdict_rules=VERDICT_RULES,
    )


@router.post(f"{ADDRESS}/retry")
def retry(engine: AppEngine) -> RedirectResponse:
    try_again(engine)
    enqueue(RECOMPUTE)
    return RedirectResponse(ADDRESS, status_code=303)

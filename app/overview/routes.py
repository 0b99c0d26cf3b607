"""The first page."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from app.overview.queries import Overview, overview
from app.web.dependencies import ReadSession
from app.web.numbers import counted
from app.web.outcomes import OUTCOMES
from app.web.templating import render

router = APIRouter(include_in_schema=False)


@router.get("/")
def show_overview(request: Request, session: ReadSession) -> HTMLResponse:
    found = overview(session, datetime.now(UTC))
    return render(request, "overview/index.html", overview=found, answer=answer(found), outcomes=OUTCOMES)


def answer(found: Overview) -> str:
    """What needs attention, in plain words."""
    if not found.total:
        return "Nothing has been uploaded yet."
    parts = []
    if found.waiting:
        parts.append(f"{counted(found.waiting, 'run')} {'is' if found.waiting == 1 else 'are'} being processed.")
    if not found.recent:
        parts.append(f"Nothing was uploaded in the last {found.days} days.")
    else:
        parts.append(_ended(found))
    return " ".join(parts)


def _ended(found: Overview) -> str:
    runs, period = counted(found.recent, "run"), f"the last {found.days} days"
    none, more = found.recent_without_figure, "more " if found.recent_ended_badly else ""
    without = f" {none:,} {more}gave no figure." if none else ""
    if found.recent_ended_badly:
        return f"{found.recent_ended_badly:,} of the {runs} of {period} ended badly.{without}"
    return f"{runs} in {period}, none of them ended badly.{without}"

"""The first page."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from app.overview.queries import Overview, overview
from app.web.dependencies import ReadSession
from app.web.numbers import counted
from app.web.templating import render

router = APIRouter(include_in_schema=False)


@router.get("/")
def show_overview(request: Request, session: ReadSession) -> HTMLResponse:
    found = overview(session, datetime.now(UTC))
    return render(request, "overview/index.html", overview=found, answer=answer(found))


def answer(found: Overview) -> str:
    """What needs attention, in plain words."""
    if not found.total:
        return "Nothing has been uploaded yet."
    parts = []
    if found.waiting:
        parts.append(f"{counted(found.waiting, 'run')} {'is' if found.waiting == 1 else 'are'} being processed.")
    if not found.recent:
        parts.append(f"Nothing was uploaded in the last {found.days} days.")
    elif found.recent_failed:
        parts.append(
            f"{found.recent_failed:,} of the {counted(found.recent, 'run')} of the last {found.days} days failed."
        )
    else:
        parts.append(f"{counted(found.recent, 'run')} in the last {found.days} days, none of them failed.")
    return " ".join(parts)

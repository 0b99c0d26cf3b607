"""The first page."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from app.domain.changes import daily_cost
from app.overview.filters import PERIODS, OverviewFilters
from app.overview.queries import Overview, overview
from app.overview.regressions import NeedsAttention
from app.overview.standing import standing
from app.storage.heartbeat import silent_since
from app.web.access.state import access_of
from app.web.dependencies import AppSettings, ReadSession
from app.web.numbers import counted
from app.web.outcomes import OUTCOMES
from app.web.templating import render

router = APIRouter(include_in_schema=False)


@router.get("/")
def show_overview(request: Request, session: ReadSession, settings: AppSettings) -> HTMLResponse:
    filters = OverviewFilters.from_params(request.query_params)
    found = overview(session, filters, datetime.now(UTC))
    return render(
        request,
        "overview/index.html",
        overview=found,
        filters=filters,
        periods=PERIODS,
        standing=(who := standing(session, access_of(request))),
        answer=answer(found, filters, who.empty),
        arrived=arrived(found, filters),
        outcomes=OUTCOMES,
        silent_since=silent_since(session, settings),
    )


def answer(found: Overview, filters: OverviewFilters, empty: str) -> str:
    """What needs attention, in plain words; `empty` where nothing is there to look at."""
    attention, where = found.attention, filters.where
    if not found.total:
        return f"No run is{where} that you may see." if filters.project else empty
    if not attention.open:
        more = counted(attention.acknowledged, "regression")
        return f"No open regression{where}" + (f"; {more} acknowledged." if attention.acknowledged else ".")
    return _open(attention, where)


def arrived(found: Overview, filters: OverviewFilters) -> str:
    """What came in, and how it ended; empty before the first run."""
    if not found.total:
        return ""
    parts = []
    if found.waiting:
        parts.append(f"{counted(found.waiting, 'run')} {'is' if found.waiting == 1 else 'are'} being processed.")
    period = f"the last {filters.period}{filters.where}"
    parts.append(_ended(found, period) if found.recent else f"Nothing was uploaded in {period}.")
    return " ".join(parts)


def _open(attention: NeedsAttention, where: str) -> str:
    verb = "costs" if attention.open == 1 else "cost"
    regressions = f"{counted(attention.open, 'open regression')}{where}"
    if attention.hours is None:
        return f"{regressions}; what {'it costs' if attention.open == 1 else 'they cost'} is not known yet."
    unknown = f", {attention.without_cost} of them at an unknown cost" if attention.without_cost else ""
    more = f" {counted(attention.acknowledged, 'more is', 'more are')} acknowledged." if attention.acknowledged else ""
    return f"{regressions} {verb} {daily_cost(attention.hours)}{unknown}.{more}"


def _ended(found: Overview, period: str) -> str:
    runs = counted(found.recent, "run")
    none, more = found.recent_without_figure, "more " if found.recent_ended_badly else ""
    without = f" {none:,} {more}gave no figure." if none else ""
    if found.recent_ended_badly:
        return f"{found.recent_ended_badly:,} of the {runs} of {period} ended badly.{without}"
    return f"{runs} in {period}, none of them ended badly.{without}"

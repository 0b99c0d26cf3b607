"""The first page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse

from app.domain.access.principal import Action
from app.domain.numbers import change_text, change_words, days_text, plural
from app.domain.performance.cost import RATE_DAYS
from app.domain.text import some_of
from app.domain.verdict.regression import Regression, common_end
from app.domain.verdict.regression_text import how_often, what
from app.domain.verdict.triage import active_text
from app.overview import trend
from app.overview.queries import (
    PERIODS,
    Overview,
    OverviewQuery,
    overview,
    read_overview_trend,
)
from app.storage.example_runs import example_runs
from app.storage.projects import list_charts, project_named
from app.storage.runs import counted
from app.storage.users import administrators
from app.storage.visible import project_slugs
from app.storage.worker_activity import silent_since
from app.web.access_rule import requires
from app.web.dependencies import AppSettings, ReadSession
from app.web.identity import Access, access_of
from app.web.templating import OUTCOMES, render

# --- The message of the first page without visible runs: the reason, and a contact.


@dataclass(frozen=True, slots=True)
class EmptyOverview:
    """The first page for a reader without visible runs.

    `name`: the logged-in user without a project, else empty. `ask`: who can give a role. `empty`: why there are no
    runs. `uploads_to`: the only project that the reader may upload to, else empty.
    """

    name: str
    ask: str
    empty: str
    uploads_to: str


def empty_overview(session: Session, access: Access) -> EmptyOverview:
    user, of_all = access.user, access.may_anywhere(Action.ADMINISTER)
    if user is None or of_all:
        empty = "Upload the log of a training job to measure it." if of_all else "No project with runs is public."
        return EmptyOverview("", "", empty, "")
    own = project_slugs(session, user.roles)
    if not own:
        ask = some_of(administrators(session), last="or")
        return EmptyOverview(user.name, ask, "You have no role in any project yet.", "")
    uploads = project_slugs(session, [project for project in user.roles if access.may(Action.UPLOAD, project)])
    empty = f"Nothing has been uploaded to {some_of(own)} yet."
    return EmptyOverview("", "", empty, uploads[0] if len(uploads) == 1 else "")


FEW_RUNS = 3
"""The page shows how to upload while there are fewer runs."""

router = APIRouter(include_in_schema=False)


@router.get("/")
@requires(Action.READ)
def show_overview(request: Request, session: ReadSession, settings: AppSettings) -> HTMLResponse:
    filters = OverviewQuery.from_params(request.query_params)
    now = datetime.now(UTC)
    summary = overview(session, filters, now)
    project = project_named(session, filters.project)
    return render(
        request,
        "overview/index.html",
        overview=summary,
        filters=filters,
        periods=PERIODS,
        empty=(who := empty_overview(session, access_of(request))),
        answer=answer(summary, filters, who.empty, now),
        arrived=arrived(summary, filters),
        outcomes=OUTCOMES,
        slower=trend.slower_configurations(session, summary.trend),
        trend_height=trend.HEIGHT + trend.AXIS,
        few_runs=FEW_RUNS,
        what=what,
        silent_since=silent_since(session, settings),
        counted=counted,
        loading=example_runs(session),
        project=project,
        charts=list_charts(session, project.id) if project else (),
    )


@router.get("/overview/trend")
@requires(Action.READ)
def show_trend(request: Request, session: ReadSession, first: int = 0, last: int = 0) -> HTMLResponse:
    """Render the chart, for htmx alone: it loads after the figures, so that drawing does not delay them.

    `first` and `last`: the runs at the ends of the zoom.
    """
    filters = OverviewQuery.from_params(request.query_params)
    read = read_overview_trend(session, filters).zoomed(first, last)
    spec = trend.trend_chart(read, trend.changed_knobs(session, read)) if read.lines else None
    return render(
        request,
        "overview/trend.html",
        block="trend",
        trend=read,
        spec=spec,
        trend_height=trend.HEIGHT + trend.AXIS,
        filters=filters,
    )


@router.get("/overview/loading")
@requires(Action.READ)
def show_loading(request: Request, session: ReadSession) -> HTMLResponse:
    """Render how far the example runs are loaded, for htmx alone."""
    return render(request, "overview/_loading.html", loading=example_runs(session))


def answer(overview: Overview, filters: OverviewQuery, empty: str, now: datetime) -> str:
    """Summarise what needs attention. `empty`: the sentence for a service without visible runs."""
    attention = overview.attention
    if not overview.total:
        unseen = f"No visible runs in {filters.project}. Check the name, or upload the first run."
        return unseen if filters.project else empty
    costly = [item for item in attention.items if item.metric == "step_time_ms" and item.gpu_hours_per_day]
    worst = max((item.worst_delta_pct for item in costly if item.worst_delta_pct is not None), default=None)
    if worst is None:
        newest = overview.trend.newest_at
        is_stale = newest is not None and now - newest > timedelta(days=RATE_DAYS)
        day = days_text(newest, newest) if newest is not None and is_stale else ""
        number, to_close = attention.open + attention.acknowledged, len(attention.to_close)
        if not attention.cost.hours and (named := _slowest(attention.items)):
            return named + (f"; {others} more open." if (others := number - to_close - 1) else ".")
        return active_text(number, attention.cost, day, to_close=to_close)
    up_to = "up to " if len(costly) > 1 or any(item.is_up_to for item in costly) else ""
    until = common_end(attention.items, attention.cost.costly)
    slower = _slower_jobs(costly) if len(costly) == attention.cost.costly else "Jobs are"
    return f"{slower} {up_to}{change_text(worst).text}, {attention.cost.text}{until}."


def _slowest(regressions: Sequence[Regression]) -> str:
    """Return the largest slowdown that costs nothing now, with its last run; empty without one.

    Single slow runs count only if no job was slow in several.
    """
    slower = [item for item in regressions if item.metric == "step_time_ms" and item.worst_delta_pct is not None]
    largest = max(slower, key=lambda item: (not item.is_once, item.worst_delta_pct or 0.0), default=None)
    if largest is None:
        return ""
    size = change_words(largest.worst_delta_pct, largest.metric, up_to=largest.is_up_to)
    last = f" (last ran {largest.idle_since})" if largest.idle_since else ""
    return " ".join(filter(None, (_slower_jobs([largest]), size, how_often(largest)))) + last


def _slower_jobs(regressions: Sequence[Regression]) -> str:
    """Return subject and verb: `Qwen3-30B-A3B on H100 is`, or `4 jobs are` for several models or GPUs."""
    firsts = [job.first for regression in regressions for job in regression.counted_jobs]
    names = {(first.model, first.gpu) for first in firsts}
    if len(names) == 1:
        ((model, gpu),) = names
        return f"{model or 'A model'} on {gpu or 'unknown GPUs'} is"
    return plural(len(firsts), "job is", "jobs are")


def arrived(overview: Overview, filters: OverviewQuery) -> str:
    """Summarise the uploads of the period and how they ended; empty before the first run."""
    if not overview.total:
        return ""
    parts = []
    if overview.waiting:
        verb = plural(overview.waiting, "run is", "runs are", number=False)
        parts.append(f"{counted(overview.waiting)} {verb} being processed.")
    # Failures count by upload time, because a run that failed early may state no commit.
    uploads = f"Uploads of the last {filters.period}{filters.where}"
    parts.append(f"{uploads}: {_ended(overview) if overview.recent else 'none.'}")
    return " ".join(parts)


def _ended(overview: Overview) -> str:
    runs = plural(overview.recent, "run")
    none, more = overview.recent_without_figure, "more " if overview.recent_ended_badly else ""
    without = f" {none:,} {more}could not be read." if none else ""
    if overview.recent_ended_badly:
        return f"{overview.recent_ended_badly:,} of {runs} failed.{without}"
    return f"{runs}{'' if overview.waiting else ', none failed'}.{without}"

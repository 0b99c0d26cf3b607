"""Pages of profiles: HTTP in, template out."""

import csv
import io
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access.guards import UPLOAD_BYTES
from app.domain.access.principal import Action
from app.domain.experiments.journey import continuation
from app.domain.rules.engine import Evaluation
from app.errors import NotFound, NotReady
from app.pipeline.profiles import accept_profile
from app.pipeline.suggest import suggest
from app.profiles.api import MAX_FIELDS, MAX_FILES, MOST_PROFILED, ProfileId, sent_files
from app.profiles.charts import WALLS_HEIGHT, WALLS_TOP, WALLS_WIDTH, walls_png, walls_svg
from app.profiles.queries import (
    confirm,
    get_difference,
    get_profile,
    list_profiles,
    nearest_profiled_run,
    profiled_run,
    remove,
)
from app.profiles.views import DifferencePage, ProfilePage, RunWalls, segments
from app.storage.journeys import journey_of
from app.storage.profiles import document_of, nearest_profiles, profiled_runs
from app.storage.rules import RulesInForce
from app.web.access_rule import requires
from app.web.dependencies import (
    LARGEST_NUMBER,
    AppEngine,
    AppLogFiles,
    AppSettings,
    ReadSession,
    RoomOnDisk,
    Rules,
    RunId,
)
from app.web.forms import Form, answer_form, sent_form
from app.web.identity import signed, uploader
from app.web.pictures import Kind, Picture, Theme, nested_body, picture_response
from app.web.templating import render

router = APIRouter(include_in_schema=False)

MULTIPART = {"multipart/form-data": {"schema": {"type": "object"}}}


class AuthorForm(Form):
    inputs = ("author",)


_MOST_BARS = 10
"""Profiles of the list that are drawn, because each document is read for it."""
_RECORD_RULES = ("profile-required", "profile-iterate")
"""Rules that ask for a profile of a run without one."""


@router.get("/runs/{run_id}/profiles")
@requires(Action.READ, of="run")
def show_profiles(request: Request, session: ReadSession, rules: Rules, run_id: RunId) -> Response:
    """Show the profiles of the run, or how to record one. The page of an only profile also attaches further ones."""
    run = profiled_run(session, run_id)
    profiles = list_profiles(session, run_id)
    if len(profiles) == 1:
        return RedirectResponse(f"/runs/{run_id}/profiles/{profiles[0].id}", 303)
    views = {
        profile.id: document["view"]
        for profile in profiles[:_MOST_BARS]
        if (document := document_of(session, profile.id)) is not None and document["view"] is not None
    }
    bars = {number: (segments(view), float(view["window"]["window_ms"])) for number, view in views.items()}
    evaluation = None if profiles else _evaluation(session, rules, run_id)
    fired = () if evaluation is None else evaluation.fired
    asking = next((item for item in fired if item.rule.id in _RECORD_RULES), None)
    of_wall = None if evaluation is None else evaluation.wall.profile_of
    example = None if profiles else of_wall or nearest_profiled_run(session, run_id)
    return render(
        request, "profiles/list.html", run=run, profiles=profiles, bars=bars, asking=asking, example=example
    )  # fmt: skip


@router.get("/runs/{run_id}/profiled")
@requires(Action.READ, of="run")
def show_on_run(request: Request, session: ReadSession, rules: Rules, run_id: RunId) -> HTMLResponse:
    """Render the three walls, by log and newest usable profile, as a part of the run page."""
    run, profiles = profiled_run(session, run_id), list_profiles(session, run_id)
    try:
        advice = suggest(session, run_id, rules)
    except NotReady:
        advice = None
    counting = next((profile for profile in profiles if profile.counts), None)
    shown = None
    if counting is not None:
        evaluation = None if advice is None else advice.evaluation
        shown = ProfilePage(get_profile(session, counting.id, run_id), evaluation, profiles)
    walls = RunWalls(advice, shown, continuation(journey_of(session, run_id), run_id).run_id)
    return render(request, "profiles/profiled.html", block="profiled", run=run, profiles=profiles, p=walls)


@router.get("/history/{stack}/profiled")
@requires(Action.READ)
def show_on_history(request: Request, session: ReadSession, stack: Annotated[str, Path(max_length=64)]) -> HTMLResponse:
    """Render the shares of profiled steps over the runs of a stack, as a part of its history. Empty without any."""
    runs = profiled_runs(session, stack, most=MOST_PROFILED)
    return render(request, "profiles/history.html", block="profiled_runs", runs=runs)


@router.post(
    "/runs/{run_id}/profiles",
    max_body_size=UPLOAD_BYTES,
    dependencies=[RoomOnDisk],
    openapi_extra={"requestBody": {"content": MULTIPART}},
)
@requires(Action.CONTRIBUTE, of="run")
async def attach_profile(
    *, request: Request, engine: AppEngine, log_files: AppLogFiles, settings: AppSettings, run_id: RunId
) -> Response:
    """Upload a profile like the API, from a form."""
    async with sent_form(request, max_files=MAX_FILES, max_fields=MAX_FIELDS) as form:
        accept = partial(accept_profile, engine, log_files, settings, run_id=run_id, uploader=uploader(request))
        accepted = await run_in_threadpool(lambda: accept(files=sent_files(form)))
    return RedirectResponse(f"/runs/{run_id}/profiles/{accepted.id}", status_code=303)


@router.get("/runs/{run_id}/profiles/{profile_id}")
@requires(Action.READ, of="run")
def show_profile(
    *,
    request: Request,
    session: ReadSession,
    settings: AppSettings,
    rules: Rules,
    run_id: RunId,
    profile_id: ProfileId,
) -> HTMLResponse:
    page = _page(session, rules, run_id, profile_id)
    answer = render(request, "profiles/profile.html", p=page, perfetto=settings.perfetto)
    if settings.perfetto:  # a page that severs its link to the opened window cannot pass it a trace
        answer.headers["Cross-Origin-Opener-Policy"] = "same-origin-allow-popups"
    return answer


@router.get("/runs/{run_id}/profiles/{profile_id}/news")
@requires(Action.READ, of="run")
def show_news(
    *,
    request: Request,
    session: ReadSession,
    settings: AppSettings,
    rules: Rules,
    run_id: RunId,
    profile_id: ProfileId,
    seen: str = "",
) -> Response:
    """Return the state that the page polls until the profile is read. `seen`: the state that it shows."""
    page = _page(session, rules, run_id, profile_id)
    if page.progress == seen:
        return Response(status_code=204, headers={"Vary": "HX-Request", "Cache-Control": "no-cache"})
    return render(request, "profiles/profile.html", block="profile_body", p=page, perfetto=settings.perfetto)


@router.get("/runs/{run_id}/profiles/{profile_id}/walls.{kind}")
@requires(Action.READ, of="run")
def draw_walls(session: ReadSession, rules: Rules, run_id: RunId, profile_id: ProfileId, kind: Kind) -> Response:
    """Return the picture of the three walls as a file."""
    page = _drawable(session, rules, run_id, profile_id)
    headers = {
        "Content-Disposition": f'attachment; filename="run-{run_id}-walls.{kind}"',
        "Cache-Control": "no-cache",
    }
    if kind == "svg":
        return Response(walls_svg(page), media_type="image/svg+xml", headers=headers)
    return Response(walls_png(page), media_type="image/png", headers=headers)


@router.get("/runs/{run_id}/profiles/{profile_id}/picture.{kind}")
@requires(Action.READ, of="run")
def draw_run(
    *,
    request: Request,
    session: ReadSession,
    rules: Rules,
    run_id: RunId,
    profile_id: ProfileId,
    kind: Kind,
    theme: Theme = "light",
) -> Response:
    """Return the three walls of the run as a slide."""
    page = _drawable(session, rules, run_id, profile_id)
    body = nested_body(walls_svg(page, WALLS_TOP), WALLS_WIDTH, WALLS_HEIGHT - WALLS_TOP)
    address = f"/runs/{run_id}/profiles/{profile_id}"
    picture = Picture(f"Three walls of {page.run.name}", page.answer, address, page.run.generated, body)
    return picture_response(request, picture, kind, theme)


def _drawable(session: Session, rules: RulesInForce, run_id: int, profile_id: int) -> ProfilePage:
    page = _page(session, rules, run_id, profile_id)
    if page.document is None or page.document["view"] is None:
        raise NotFound(f"Profile {profile_id} has no picture, because it has not been read.")
    return page


@router.post("/runs/{run_id}/profiles/{profile_id}/confirm")
@requires(Action.CONTRIBUTE, of="run")
async def confirm_profile(request: Request, engine: AppEngine, run_id: RunId, profile_id: ProfileId) -> Response:
    def act(form: AuthorForm) -> str:
        confirm(engine, run_id, profile_id, signed(form.value("author")))
        return f"/runs/{run_id}/profiles/{profile_id}"

    return await answer_form(request, AuthorForm, act, max_fields=8)


@router.post("/runs/{run_id}/profiles/{profile_id}/remove")
@requires(Action.CONTRIBUTE, of="run")
async def remove_profile(request: Request, engine: AppEngine, run_id: RunId, profile_id: ProfileId) -> Response:
    def act(form: AuthorForm) -> str:
        remove(engine, run_id, profile_id, signed(form.value("author")))
        return f"/runs/{run_id}/profiles"

    return await answer_form(request, AuthorForm, act, max_fields=8)


_Side = Annotated[int, Query(ge=1, le=LARGEST_NUMBER)]


@router.get("/compare/profiles")
@requires(Action.READ)
def show_difference(request: Request, session: ReadSession, a: _Side, b: _Side) -> HTMLResponse:
    return render(request, "profiles/difference.html", p=DifferencePage(*get_difference(session, a, b)))


@router.get("/compare/profiled")
@requires(Action.READ)
def show_explanation(
    request: Request, session: ReadSession, run: Annotated[int, Query(ge=1, le=LARGEST_NUMBER)]
) -> HTMLResponse:
    """Explain the longer step as a part of a regression's page. Empty without two profiles."""
    nearest = nearest_profiles(session, run)
    page = None if nearest is None else DifferencePage(*get_difference(session, *nearest))
    return render(request, "profiles/explained.html", block="explained", p=page)


@router.get("/compare/profiles.csv")
@requires(Action.READ)
def export_difference(session: ReadSession, a: _Side, b: _Side) -> Response:
    *_, difference = get_difference(session, a, b)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("row", "kernel", "before_ms", "after_ms", "difference_ms", "calls_ms", "per_call_ms", "state"))
    for row in difference.rows:
        writer.writerow((row.name, "", row.before_ms, row.after_ms, row.difference_ms, "", "", ""))
        for kernel in row.kernels:
            name = f"'{kernel.name}" if kernel.name.startswith(("=", "+", "-", "@")) else kernel.name
            before, after = kernel.work_ms
            work = (before, after, kernel.difference_ms, kernel.calls_ms, kernel.per_call_ms, kernel.state)
            writer.writerow((row.name, name, *work))
    headers = {"Content-Disposition": f'attachment; filename="profiles-{a}-{b}.csv"'}
    return Response(out.getvalue(), media_type="text/csv", headers=headers)


def _page(session: Session, rules: RulesInForce, run_id: int, profile_id: int) -> ProfilePage:
    profile = get_profile(session, profile_id, run_id)
    continued = continuation(journey_of(session, run_id), run_id).run_id
    return ProfilePage(profile, _evaluation(session, rules, run_id), list_profiles(session, run_id), continued)


def _evaluation(session: Session, rules: RulesInForce, run_id: int) -> Evaluation | None:
    try:
        return suggest(session, run_id, rules).evaluation
    except NotReady:
        return None

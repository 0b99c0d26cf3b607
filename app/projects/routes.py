"""Pages of what holds for more than one run: a project's defaults, and which dispatchers a container has."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.contract.fields import FIELDS
from app.errors import InvalidChange, InvalidUpload
from app.projects.defaults import get_defaults, get_project, set_defaults
from app.projects.rules import get_rules, set_rules
from app.projects.rules_form import RulesForm, filled_rules_form, read_rules_form
from app.projects.settings_form import SettingsForm, filled_form, read_settings_form
from app.storage.availability import find_availability
from app.web.availability_table import availability_table, told
from app.web.dependencies import AppEngine, ReadSession
from app.web.forms import sent_form
from app.web.request_session import reading
from app.web.templating import render

MAX_FIELDS = 300
"""More inputs than the contract has fields."""

router = APIRouter(include_in_schema=False)

Saved = Literal["", "defaults", "rules"]
Slug = Annotated[str, Path(min_length=1, max_length=100)]


@router.get("/availability")
def show_availability(request: Request, session: ReadSession) -> HTMLResponse:
    found = find_availability(session)
    return render(request, "projects/availability.html", table=availability_table(found), answer=told(found))


@router.get("/settings/projects/{slug}")
def show_settings(request: Request, session: ReadSession, slug: Slug, saved: Saved = "") -> HTMLResponse:
    return _render_settings(request, session, slug, saved=saved)


@router.post("/settings/projects/{slug}")
async def save_settings(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """The same as the API's PUT. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form = read_settings_form(sent)
    refused = await run_in_threadpool(_save, engine, slug, form)
    if refused is None:
        return RedirectResponse(f"{request.url.path}?saved=defaults", status_code=303)

    def page() -> HTMLResponse:
        with reading(request) as session:
            return _render_settings(request, session, slug, form=refused, status=422)

    return await run_in_threadpool(page)


@router.post("/settings/projects/{slug}/rules")
async def save_rules(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """The same as the API's PUT. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form = read_rules_form(sent)
    refused = await run_in_threadpool(_save_rules, engine, slug, form)
    if refused is None:
        return RedirectResponse(f"{request.url.path.removesuffix('/rules')}?saved=rules", status_code=303)

    def page() -> HTMLResponse:
        with reading(request) as session:
            return _render_settings(request, session, slug, rules_form=refused, status=422)

    return await run_in_threadpool(page)


def _save_rules(engine: Engine, slug: str, form: RulesForm) -> RulesForm | None:
    """None when the rules were set, else the form with what is wrong."""
    try:
        set_rules(
            engine,
            slug,
            baseline_branch=form.value("baseline_branch"),
            commit_url=form.value("commit_url"),
            compare_url=form.value("compare_url"),
            author=form.value("author"),
        )
    except InvalidChange as error:
        return form.refused(error)
    return None


def _save(engine: Engine, slug: str, form: SettingsForm) -> SettingsForm | None:
    """None when the defaults were set, else the form with what is wrong."""
    image, author = form.value("container_image"), form.value("author")
    try:
        set_defaults(engine, slug, fields=form.stated(), container_image=image, author=author)
    except InvalidUpload as error:
        return form.refused(error)
    return None


def _render_settings(
    request: Request,
    session: Session,
    slug: str,
    *,
    form: SettingsForm | None = None,
    rules_form: RulesForm | None = None,
    saved: Saved = "",
    status: int = 200,
) -> HTMLResponse:
    defaults, rules = get_defaults(session, slug), get_rules(session, slug)
    form = form or filled_form(defaults)
    groups: dict[str, list[str]] = {}
    for name, contract_field in FIELDS.items():
        groups.setdefault(contract_field.group, []).append(name)
    return render(
        request,
        "projects/settings.html",
        status=status,
        of_project={"id": get_project(session, slug).id, "slug": slug},
        defaults=defaults,
        rules=rules,
        form=form,
        rules_form=rules_form or filled_rules_form(rules),
        inputs=form.inputs(defaults),
        groups=groups,
        saved=saved,
    )

"""Pages of what holds for more than one run: a project's defaults, and which dispatchers a container has."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.contract.fields import FIELDS
from app.errors import InvalidUpload
from app.projects.availability import find_availability
from app.projects.availability_view import availability_table, told
from app.projects.defaults import Defaults, get_defaults, set_defaults
from app.projects.settings_form import SettingsForm, filled_form, read_settings_form
from app.storage.database import read_session
from app.web.dependencies import AppEngine, ReadSession
from app.web.forms import sent_form
from app.web.templating import render

MAX_FIELDS = 300
"""More inputs than the contract has fields."""

router = APIRouter(include_in_schema=False)

Slug = Annotated[str, Path(min_length=1, max_length=100)]


@router.get("/availability")
def show_availability(request: Request, session: ReadSession) -> HTMLResponse:
    found = find_availability(session)
    return render(request, "projects/availability.html", table=availability_table(found), answer=told(found))


@router.get("/settings/projects/{slug}")
def show_settings(request: Request, session: ReadSession, slug: Slug, saved: bool = False) -> HTMLResponse:
    defaults = get_defaults(session, slug)
    return _render_settings(request, defaults, filled_form(defaults), saved=saved)


@router.post("/settings/projects/{slug}")
async def save_settings(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """The same as the API's PUT. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form = read_settings_form(sent)
    refused = await run_in_threadpool(_save, engine, slug, form)
    if refused is None:
        return RedirectResponse(f"{request.url.path}?saved=true", status_code=303)

    def page() -> HTMLResponse:
        with read_session(engine) as session:
            return _render_settings(request, get_defaults(session, slug), refused, status=422)

    return await run_in_threadpool(page)


def _save(engine: Engine, slug: str, form: SettingsForm) -> SettingsForm | None:
    """None when the defaults were set, else the form with what is wrong."""
    image, author = form.value("container_image"), form.value("author")
    try:
        set_defaults(engine, slug, fields=form.stated(), container_image=image, author=author)
    except InvalidUpload as error:
        return form.refused(error)
    return None


def _render_settings(
    request: Request, defaults: Defaults, form: SettingsForm, *, saved: bool = False, status: int = 200
) -> HTMLResponse:
    groups: dict[str, list[str]] = {}
    for field in FIELDS.values():
        groups.setdefault(field.group, []).append(field.name)
    return render(
        request,
        "projects/settings.html",
        status=status,
        defaults=defaults,
        form=form,
        inputs=form.inputs(defaults),
        groups=groups,
        saved=saved,
    )

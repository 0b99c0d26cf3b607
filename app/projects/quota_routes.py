"""`/settings/projects/{slug}/quota`: what a project may take, and takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self

from fastapi import APIRouter, Path, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.errors import InvalidChange
from app.projects.quota import ProjectQuota, get_quota, set_quota
from app.settings import Settings
from app.storage.database import read_session
from app.web.dependencies import AppEngine, AppSettings
from app.web.forms import sent_form
from app.web.templating import render

MAX_FIELDS = 4
_MOST_DIGITS = 20
_WRONG = -1

router = APIRouter(include_in_schema=False)

Slug = Annotated[str, Path(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True)
class QuotaForm:
    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def number(self, name: str) -> int | None:
        """None when it was left empty; a number that nothing can be when it is none."""
        text = self.value(name).replace(",", "").replace(" ", "")
        if not text:
            return None
        return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else _WRONG

    def refused(self, error: InvalidChange) -> Self:
        return type(self)(self.values, {one.field: one.message for one in error.errors})


def _filled(found: ProjectQuota) -> QuotaForm:
    own = {"quota_bytes": found.quota.own_bytes, "quota_runs_a_day": found.quota.own_runs_a_day}
    return QuotaForm({name: "" if value is None else str(value) for name, value in own.items()})


@router.get("/settings/projects/{slug}/quota")
def show_quota(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> HTMLResponse:
    return _page(request, engine, settings, slug)


@router.post("/settings/projects/{slug}/quota")
async def save_quota(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> Response:
    """The same as the API's PUT. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form = QuotaForm({name: value.strip() for name, value in sent.items() if isinstance(value, str)})
    return await run_in_threadpool(_save, request, engine, settings, slug, form)


def _save(request: Request, engine: Engine, settings: Settings, slug: str, form: QuotaForm) -> Response:
    most_bytes, runs_a_day = form.number("quota_bytes"), form.number("quota_runs_a_day")
    try:
        set_quota(engine, settings, slug, most_bytes=most_bytes, runs_a_day=runs_a_day, author=form.value("author"))
    except InvalidChange as error:
        return _page(request, engine, settings, slug, form=form.refused(error), status=422)
    return RedirectResponse(request.url.path, status_code=303)


def _page(
    request: Request,
    engine: Engine,
    settings: Settings,
    slug: str,
    *,
    form: QuotaForm | None = None,
    status: int = 200,
) -> HTMLResponse:
    with read_session(engine) as session:
        found = get_quota(session, settings, slug)
    return render(
        request,
        "projects/quota.html",
        status=status,
        found=found,
        form=form or _filled(found),
        service=settings,
        of_project={"id": found.project_id, "slug": found.project},
    )

"""Pages of the data of a project: retention, deletions, archive; the confirmation of a deletion; usage."""

from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.errors import Conflict, InvalidChange, ThreewallsError
from app.projects.data import (
    chosen_runs,
    delete_runs,
    get_data,
    preview_deletion,
    set_archived,
    set_retention,
    undo,
)
from app.storage.log_files import fullest_disk
from app.storage.usage import counted_at, database_bytes, usage_of_projects
from app.storage.worker_activity import stage_times
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, AppSettings, ReadSession, Slug
from app.web.forms import Form, answer_form, status_of
from app.web.identity import access_of
from app.web.templating import render

STAGE_DAYS = 30
"""The usage page shows the work of this many days."""

router = APIRouter(include_in_schema=False)

MAX_FIELDS = 8


class RetentionForm(Form):
    inputs = ("logs_days", "failed_days", "runs_days", "author")

    def values_of_days(self) -> dict[str, object]:
        days = {name: self.value(name).replace(",", "") for name in ("logs_days", "failed_days", "runs_days")}
        return {
            name: int(text) if text.isascii() and text.isdigit() and len(text) < 9 else text
            for name, text in days.items()
            if text
        }


class DeletionForm(Form):
    inputs = ("author", "note")
    hidden = ("runs", "stack", "number")
    longest = 20_000


@router.get("/settings/projects/{slug}/storage")
@requires(Action.READ, of="project")
def show_data(request: Request, session: ReadSession, slug: Slug) -> HTMLResponse:
    return _render_data(request, session, slug)


@router.post("/settings/projects/{slug}/storage")
@requires(Action.MANAGE, of="project")
async def save_retention(request: Request, engine: AppEngine, slug: Slug) -> Response:

    def save(form: RetentionForm) -> str:
        set_retention(engine, slug, form.values_of_days(), author=form.value("author"))
        return request.url.path

    def again(session: Session, form: RetentionForm, _: ThreewallsError) -> Response:
        return _render_data(request, session, slug, form=form, status=422)

    return await answer_form(request, RetentionForm, save, again, max_fields=MAX_FIELDS)


@router.get("/settings/projects/{slug}/delete")
@requires(Action.MANAGE, of="project")
def confirm_deletion(request: Request, session: ReadSession, slug: Slug) -> HTMLResponse:
    """Show what a deletion would do: of `runs`, of a `stack`, or of the project."""
    return _render_confirmation(request, session, slug, DeletionForm.read(request.query_params))


@router.post("/settings/projects/{slug}/delete")
@requires(Action.MANAGE, of="project")
async def delete_chosen(request: Request, engine: AppEngine, slug: Slug) -> Response:

    def act(form: DeletionForm) -> str:
        selection = chosen_runs(form.values)
        delete_runs(engine, slug, selection, author=form.value("author"), note=form.value("note"))
        return f"/settings/projects/{quote(slug)}/storage#deletions"

    def again(session: Session, form: DeletionForm, error: ThreewallsError) -> Response:
        return _render_confirmation(request, session, slug, form, status=status_of(error))

    return await answer_form(request, DeletionForm, act, again, max_fields=MAX_FIELDS)


@router.post("/settings/projects/{slug}/undo")
@requires(Action.MANAGE, of="project")
async def undo_chosen(request: Request, engine: AppEngine, slug: Slug) -> Response:

    def act(form: DeletionForm) -> str:
        number = form.value("number")
        undo(engine, slug, int(number) if number.isdigit() and len(number) < 19 else 0, author=form.value("author"))
        return f"/settings/projects/{quote(slug)}/storage#deletions"

    def again(session: Session, form: DeletionForm, error: ThreewallsError) -> Response:
        return _render_data(request, session, slug, problem=form.problem or error.detail, status=status_of(error))

    return await answer_form(request, DeletionForm, act, again, max_fields=MAX_FIELDS, catch=(InvalidChange, Conflict))


@router.post("/settings/projects/{slug}/archive")
@requires(Action.MANAGE, of="project")
async def archive_project(request: Request, engine: AppEngine, slug: Slug) -> Response:
    return await _set_archived(request, engine, slug, archived=True)


@router.post("/settings/projects/{slug}/unarchive")
@requires(Action.MANAGE, of="project")
async def unarchive_project(request: Request, engine: AppEngine, slug: Slug) -> Response:
    return await _set_archived(request, engine, slug, archived=False)


async def _set_archived(request: Request, engine: AppEngine, slug: str, *, archived: bool) -> Response:

    def act(form: DeletionForm) -> str:
        set_archived(engine, slug, archived, author=form.value("author"))
        return f"/settings/projects/{quote(slug)}/storage#archive"

    def again(session: Session, _: DeletionForm, error: ThreewallsError) -> Response:
        return _render_data(request, session, slug, problem=error.detail, status=422)

    return await answer_form(request, DeletionForm, act, again, max_fields=MAX_FIELDS)


def _render_data(
    request: Request,
    session: Session,
    slug: str,
    *,
    form: RetentionForm | None = None,
    problem: str = "",
    status: int = 200,
) -> HTMLResponse:
    data = get_data(session, slug)
    filled = RetentionForm({name: str(days) for name, days in data.retention.to_json().items()})
    return render(
        request,
        "projects/data.html",
        status=status,
        data=data,
        form=form or filled,
        problem=problem,
        of_project={"id": data.project_id, "slug": data.project},
    )


def _render_confirmation(
    request: Request, session: Session, slug: str, form: DeletionForm, status: int = 200
) -> HTMLResponse:
    selection = chosen_runs(form.values)
    expected = preview_deletion(session, slug, selection)
    hidden = {name: form.value(name) for name in ("runs", "stack") if form.value(name)}
    return render(
        request,
        "projects/delete.html",
        status=status,
        selection=selection,
        expected=expected,
        sentence=expected.sentence(selection),
        form=form,
        hidden=hidden,
        back=f"/runs?{urlencode({'project': slug})}",
        of_project={"id": get_data(session, slug).project_id, "slug": slug},
    )


@router.get("/settings/usage")
@requires(Action.READ)
def show_usage(request: Request, session: ReadSession, settings: AppSettings) -> HTMLResponse:
    usages, administers = usage_of_projects(session), access_of(request).may_anywhere(Action.ADMINISTER)
    return render(
        request,
        "projects/usage.html",
        usages=usages,
        total=sum(usage.bytes for usage in usages),
        a_day=sum(usage.a_day or 0 for usage in usages),
        counted_at=counted_at(session),
        # Both change with projects that other users may not see.
        database=database_bytes(session) if administers else 0,
        disk=fullest_disk(settings) if administers else None,
        stages=stage_times(session, days=STAGE_DAYS) if administers else (),
        stage_days=STAGE_DAYS,
    )

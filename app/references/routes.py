"""Pages of published figures: the list, one of them with its forms, and the nearest one to a run or a stack."""

from collections.abc import Callable, Collection
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from app.domain.access.principal import granted
from app.domain.access.roles import Action
from app.domain.contract.fields import FIELDS
from app.errors import EditConflict, InvalidChange, NotFound, ThreewallsError
from app.references import view
from app.references.beside import stacks_beside
from app.references.change import add_reference, change_reference, withdraw_reference
from app.references.export import csv_rows
from app.references.filters import KINDS, ReferenceFilters, page_number
from app.references.forms import ReferenceForm, filled_form, offered_form, read_reference_form
from app.references.list import find_references, page_of, reference_options, told
from app.references.nearest import hold
from app.references.sentences import summary, whose
from app.storage import audit
from app.storage.access_projects import project_slugs
from app.storage.references import Reference, find_reference
from app.web.access.acting import require_everything
from app.web.access.state import access_of
from app.web.dependencies import AppEngine, ReadSession
from app.web.forms import sent_form
from app.web.request_session import reading
from app.web.templating import render

MAX_FIELDS = 300
"""More inputs than the contract has fields."""

router = APIRouter(include_in_schema=False)

ReferenceId = Annotated[str, Path(max_length=200)]
ReferenceNumber = Annotated[int, Path(ge=1, lt=2**31)]


@router.get("/references")
def list_references(request: Request, session: ReadSession) -> HTMLResponse:
    filters, number = ReferenceFilters.from_params(request.query_params), page_number(request.query_params)
    found = find_references(session, filters)
    page = page_of(found, number)
    query = filters.query(number)
    return render(
        request,
        "references/list.html",
        block="reference_table",
        address=f"/references?{query}" if query else "/references",
        page=page,
        rows=[view.point_row(one) for one in page.items],
        answer=told(found),
        filters=filters,
        options=reference_options(session),
        kinds=KINDS,
    )


@router.get("/references.csv")
def export_references(request: Request, session: ReadSession) -> StreamingResponse:
    found = find_references(session, ReferenceFilters.from_params(request.query_params))
    headers = {"Content-Disposition": 'attachment; filename="references.csv"'}
    return StreamingResponse(csv_rows(found), media_type="text/csv", headers=headers)


@router.get("/references/new")
def offer_form(request: Request, session: ReadSession) -> HTMLResponse:
    return _render_new(request, session, offered_form(request.query_params))


@router.post("/references/new")
async def add_by_form(request: Request, engine: AppEngine) -> Response:
    """The same as the API's POST. Async only to read the form; the work is done in a thread."""
    form = await _sent(request)

    def answer() -> Response:
        try:
            if not form.project:
                require_everything(request, Action.CONTRIBUTE)
            number = add_reference(engine, form.said(), form.by(), form.project)
        except InvalidChange as error:
            with reading(request) as session:
                return _render_new(request, session, form.refused(error), status=422)
        return RedirectResponse(f"/references/{number}?saved=add", status_code=303)

    return await run_in_threadpool(answer)


@router.get("/references/nearest")
def show_nearest(
    request: Request,
    session: ReadSession,
    run: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    stack: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """The claim check: by itself to htmx, which puts it on the page of a run or a stack; else a page of its own."""
    held = hold(session, run=run, stack=stack)
    return render(
        request,
        "references/nearest.html",
        block="nearest",
        held=held,
        ours=held.ours,
        whose=whose(held.ours),
        summary=summary(held),
        figures=view.figure_rows(held),
        differences=view.difference_rows(held),
        reference=held.reference and view.point_row(held.reference),
    )


@router.get("/references/{reference_id}")
def show_reference(request: Request, session: ReadSession, reference_id: ReferenceId, saved: str = "") -> HTMLResponse:
    return _render_one(request, session, reference_id, saved=saved)


@router.post("/references/{number}/change")
async def change_by_form(request: Request, engine: AppEngine, number: ReferenceNumber) -> Response:
    """The same as the API's PATCH."""

    def change(form: ReferenceForm) -> None:
        if not form.project:
            require_everything(request, Action.CONTRIBUTE)
        change_reference(engine, number, form.said(), form.by(), form.project)

    return await _decide(request, number, "change", change)


@router.post("/references/{number}/withdraw")
async def withdraw_by_form(request: Request, engine: AppEngine, number: ReferenceNumber) -> Response:
    """The same as the API's DELETE."""
    return await _decide(request, number, "withdraw", lambda form: withdraw_reference(engine, number, form.by()))


async def _sent(request: Request) -> ReferenceForm:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        return read_reference_form(sent)


async def _decide(request: Request, number: int, what: str, do: Callable[[ReferenceForm], None]) -> Response:
    """Async only to read the form; the work is done in a thread."""
    form = await _sent(request)

    def answer() -> Response:
        try:
            do(form)
        except (InvalidChange, EditConflict) as error:
            with reading(request) as session:
                return _render_one(request, session, str(number), refused=(what, form.refused(error)), error=error)
        return RedirectResponse(f"/references/{number}?saved={what}", status_code=303)

    return await run_in_threadpool(answer)


def _render_new(request: Request, session: Session, form: ReferenceForm, status: int = 200) -> HTMLResponse:
    return render(request, "references/new.html", status=status, form=form, **_form_parts(request, session, form))


def _render_one(
    request: Request,
    session: Session,
    reference_id: str,
    *,
    saved: str = "",
    refused: tuple[str, ReferenceForm] | None = None,
    error: ThreewallsError | None = None,
) -> HTMLResponse:
    """`refused`: which form was sent, and it with what is wrong."""
    one = find_reference(session, reference_id)
    if one is None:
        raise NotFound(f"There is no reference point {reference_id[:80]}. The list of them is at /references.")
    what, typed = refused or ("", ReferenceForm())
    form = typed if what == "change" else filled_form(one)
    return render(
        request,
        "references/reference.html",
        status=409 if isinstance(error, EditConflict) else 422 if error else 200,
        one=one,
        point=one.point,
        title=view.title_of(one.point),
        told=view.figures_told(one.point),
        kinds=KINDS,
        rows=view.field_rows(one.point),
        events=audit.events(session, "reference", one.id) if one.entered else (),
        beside=stacks_beside(session, one),
        may_change=_may_change(request, session, one),
        saved=saved,
        sent=what,
        form=form,
        withdrawal=typed if what == "withdraw" else filled_form(one),
        **_form_parts(request, session, form),
    )


def _may_change(request: Request, session: Session, one: Reference) -> bool:
    """As the forms' routes check it: what is offered to all, only whoever may do everything changes."""
    if one.entered is None or not one.counts:
        return False
    where = _where(request)
    return where is None or one.entered.project in project_slugs(session, where)


def _where(request: Request) -> Collection[int] | None:
    """Ids of the projects that the reader may enter figures for; None: any, and for all of them."""
    access = access_of(request)
    return granted(access.principal, Action.CONTRIBUTE, access.public)


def _form_parts(request: Request, session: Session, form: ReferenceForm) -> dict[str, Any]:
    """What the inputs offer."""
    where = _where(request)
    projects = reference_options(session).projects if where is None else project_slugs(session, where)
    groups: dict[str, list[str]] = {}
    for name, contract_field in FIELDS.items():
        groups.setdefault(contract_field.group, []).append(name)
    return {"inputs": form.inputs(), "groups": groups, "projects": projects, "may_offer_to_all": where is None}

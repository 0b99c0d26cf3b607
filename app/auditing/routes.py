"""The page of the audit and its export as CSV. HTTP in, template out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import HTMLResponse, StreamingResponse

from app.auditing.filters import LARGEST_ID, AuditQuery
from app.auditing.told import csv_rows, told
from app.domain.access.roles import Action
from app.storage.audit_log import SUBJECTS, all_events, find_events
from app.storage.people import names_by_id
from app.storage.projects import list_projects, slugs_by_id
from app.web.access.state import access_of
from app.web.dependencies import AppEngine, ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False, prefix="/settings")

_ON_A_PAGE = 50


@router.get("/audit")
def show_audit(
    request: Request,
    session: ReadSession,
    query: Annotated[AuditQuery, Depends()],
    before: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
) -> HTMLResponse:
    page = find_events(session, query.read(), before=before, limit=_ON_A_PAGE)
    slugs, names = slugs_by_id(session), names_by_id(session)
    access = access_of(request)
    return render(
        request,
        "auditing/audit.html",
        events=[told(one, slugs, names) for one in page.events],
        next_before=page.next_before,
        before=before,
        query=query,
        subjects=SUBJECTS,
        projects=[one.slug for one in list_projects(session) if access.may(Action.MANAGE, one.id)],
        of_all=access.may_anywhere(Action.ADMINISTER),
    )


@router.get("/audit.csv")
def export_audit(engine: AppEngine, session: ReadSession, query: Annotated[AuditQuery, Depends()]) -> StreamingResponse:
    """All of it, as filtered."""
    rows = csv_rows(all_events(engine, query.read()), slugs_by_id(session), names_by_id(session))
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return StreamingResponse(rows, media_type="text/csv", headers=headers)

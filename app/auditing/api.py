"""`GET /api/v1/audit`: what was changed, page by page, to its beginning."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from app.auditing.filters import LARGEST_ID, NAMES, AuditQuery
from app.auditing.told import subject_name
from app.storage.audit import AuditEvent
from app.storage.audit_log import find_events
from app.storage.people import names_by_id
from app.storage.projects import slugs_by_id
from app.web.dependencies import ReadSession
from app.web.problems import documented
from app.web.query_checks import only_these

MOST = 500

router = APIRouter(prefix="/api/v1", tags=["access"])


class AuditItem(BaseModel):
    id: int
    at: datetime
    who: str = Field(description="A person, `token NAME`, or Threewalls itself.")
    project: str | None = Field(description="null for what concerns no project, or all.")
    subject: str
    subject_id: str
    name: str = Field(description="Of the subject; empty for one that has a number only.")
    action: str
    before: dict[str, Any] = Field(description="What changed, by name, as it was.")
    after: dict[str, Any]
    note: str

    @classmethod
    def of(cls, one: AuditEvent, slugs: Mapping[int, str], names: Mapping[str, str]) -> Self:
        return cls(
            id=one.id, at=one.at, who=one.who, project=slugs.get(one.project_id or 0), subject=one.subject,
            subject_id=one.subject_id, name=subject_name(one, slugs, names), action=one.action,
            before=dict(one.before), after=dict(one.after), note=one.note,
        )  # fmt: skip


class AuditList(BaseModel):
    items: list[AuditItem] = Field(description="Newest first.")
    next_before: int | None = Field(description="`before` of the page after this one; null at the end.")


@router.get("/audit", responses=documented(422), dependencies=[only_these(*NAMES, "before", "limit")])
def read_audit(
    session: ReadSession,
    query: Annotated[AuditQuery, Depends()],
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST_ID, description="The cursor: `next_before` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
) -> AuditList:
    """Every change of access, state, baseline, quarantine and setting: all of them, or of the projects one manages."""
    page = find_events(session, query.read(), before=before, limit=limit)
    slugs, names = slugs_by_id(session), names_by_id(session)
    items = [AuditItem.of(one, slugs, names) for one in page.events]
    return AuditList(items=items, next_before=page.next_before)

"""The audit log: its page, its export as CSV, and `/api/v1/audit`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.numbers import file_size
from app.storage.audit import SUBJECTS, AuditEvent, AuditFilter, all_events, count_events, find_events
from app.storage.database import read_session
from app.storage.projects import list_projects, slugs_by_id
from app.storage.runs import counted
from app.storage.stacks import names_of_stacks
from app.storage.users import names_by_id
from app.web.access_rule import requires
from app.web.dependencies import LARGEST_NUMBER, ApiValue, AppEngine, ReadSession, api_router
from app.web.errors import as_content, documented
from app.web.identity import access_of
from app.web.lists import CellKind, FilterQuery, OneOf, Passes, only_parameters, table_answer, table_format
from app.web.templating import render

MOST = 500


def _read_time(text: str, *, whole_day: bool = False) -> datetime | None:
    """Return the time of a filter, for a date its end if `whole_day`. Raises ValueError and OverflowError."""
    if not text:
        return None
    time = datetime.fromisoformat(text)
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return time + timedelta(days=1) if whole_day and len(text) == len("2026-01-31") else time


def _time_problem(text: str) -> str:
    try:
        _read_time(text, whole_day=True)
    except (ValueError, OverflowError):
        return "must be a date like 2026-01-31 or a time like 2026-01-31T10:00:00Z"
    return ""


class AuditQuery(FilterQuery):
    """Filters of the audit log. `since` and `until` are dates or times in ISO 8601, by default in UTC."""

    max_text = 100
    not_narrowing = ("by",)
    page_defaults: ClassVar[Mapping[str, str]] = {"by": "users"}

    project: str = Field("", description="Only changes in this project.")
    who: str = Field("", description="Only changes by this user or `token NAME`.")
    subject: Annotated[str, OneOf(SUBJECTS)] = Field("", description="Only changes of this kind of subject.")
    by: Annotated[str, OneOf(("users", "all"))] = Field(
        "all", description="`users`: without changes that the service itself made."
    )
    since: Annotated[str, Passes(_time_problem)] = Field("", description="From this date or time on.")
    until: Annotated[str, Passes(_time_problem)] = Field("", description="Up to this time, or to the end of this day.")
    before: int | None = Field(None, ge=1, le=LARGEST_NUMBER, description="Cursor: `next_before` of the previous page.")
    limit: int = Field(100, ge=1, le=MOST)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(name for name in super().names() if name not in ("before", "limit"))

    def slice(self, **cursor: int) -> str:
        """Return the query string with `before` or `limit` added."""
        return "&".join(filter(None, (self.query(), urlencode(cursor))))

    def read(self) -> AuditFilter:
        since, until = _read_time(self.since), _read_time(self.until, whole_day=True)
        users_only = self.by == "users" and not self.who
        return AuditFilter(self.project, self.who, self.subject, since, until, users_only)


# --- Events as the page shows them, with links to what they changed.

_PAGES = {
    "run": "/runs/{id}",
    "regression": "/regressions/{id}",
    "stack": "/history/{id}",
    "experiment": "/experiments/{id}",
    "project": "/settings/projects/{project}",
    "member": "/settings/projects/{project}/members",
    "group": "/settings/groups",
    "token": "/settings/projects/{project}/tokens",
    "receiver": "/settings/projects/{project}/notifications",
    "share link": "/settings/projects/{project}/share-links",
    "invitation": "/settings/projects/{project}/invitations",
}
_VERBS = {
    "plan": "planned", "quarantine": "quarantined",
    "pin": "pinned a golden run of", "unpin": "unpinned the golden run of",
    "add": "added", "change": "changed", "withdraw": "withdrew", "delete": "deleted",
    "withdrawn": "withdrew", "correct": "corrected", "contract": "stated facts of", "facts": "stated facts of",
    "defaults": "set defaults of", "links": "set links of", "quota": "set the quota of", "role": "set the role of",
    "retention": "set the retention of", "public": "set the readers of", "version": "set the version of",
    "baseline_branch": "set the baseline branch of", "renew_badges": "renewed the badges of", "extend": "extended",
    "undo_delete": "restored", "profile_attached": "attached a profile to", "taken_back": "took back",
    "profile_confirmed": "confirmed a profile of", "profile_removed": "removed a profile of",
    "proposal_made": "proposed a state for", "feed_key_set": "set the feed key of", "joined": "added a stack to",
    "left": "removed a job from", "moved": "moved the first run of", "password set": "set the password of",
    "proposal_withdrawn": "withdrew the proposal for", "proposal_accepted": "accepted the proposal for",
    "proposal_declined": "declined the proposal for", "noted": "wrote a note on", "appended": "appended to",
    "chart_added": "added a chart to", "chart_removed": "removed a chart from", "view_saved": "saved a view of",
    "view_deleted": "deleted a view of",
}  # fmt: skip
"""What an action did to its subject; all other actions are such words already."""
_LABELS = {"runs_each": "runs per side", "bytes": "size", "what": ""}
_OF_RUNS = ("pinned", "proposed")
"""Changes that list runs."""
_HIDDEN = ("name", "deletion")
"""The name of the subject, and the number of a deletion."""
_LONGEST = 120
_KEY_DIGITS = 64
_KEY = re.compile(f"[0-9a-f]{{{_KEY_DIGITS}}}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
_TEXTS = ("who", "project", "subject", "subject_id", "name", "action", "before", "after", "note")
AUDIT_COLUMNS: Mapping[str, CellKind] = {"id": "int", "at": "time", **dict.fromkeys(_TEXTS, "text")}


@dataclass(frozen=True, slots=True)
class AuditedChange:
    """`title`: the new value in full, if `after` shortens the keys in it."""

    name: str
    before: str
    after: str
    title: str


@dataclass(frozen=True, slots=True)
class EventView:
    """`address`: page of the subject, empty if it has none. `label`: name of the subject, or its id."""

    event: AuditEvent
    project: str
    label: str
    address: str
    changes: tuple[AuditedChange, ...]

    @property
    def day(self) -> str:
        return self.event.at.strftime("%Y-%m-%d")

    @property
    def verb(self) -> str:
        """Return the action before its subject: `rejected`, `added a stack to`."""
        return _VERBS.get(self.event.action, self.event.action.replace("_", " "))


def view_of(event: AuditEvent, slugs: Mapping[int, str], names: Mapping[str, str]) -> EventView:
    """Return the view of an event. `slugs`: projects by id. `names`: users and stacks by id as text."""
    project = slugs.get(event.project_id or 0, "")
    page = _PAGES.get(event.subject, "")
    if "{project}" in page and not project:
        page = ""
    address = page.format(id=quote(event.subject_id, safe=""), project=quote(project, safe=""))
    both = {**event.before, **event.after}
    label = subject_name(event, slugs, names) or event.subject_id[:12]
    changes = tuple(
        AuditedChange(
            _LABELS.get(key, key.replace("_", " ")),
            _shown(key, event.before.get(key), names),
            _shown(key, event.after.get(key), names),
            value if isinstance(value := event.after.get(key), str) and _KEY.search(value) else "",
        )
        for key in both
        # The action itself says `rejected`.
        if event.before.get(key) != event.after.get(key) and key not in _HIDDEN and event.after.get(key) != event.action
    )
    return EventView(event, project, label, address, changes)


def subject_name(event: AuditEvent, slugs: Mapping[int, str], names: Mapping[str, str]) -> str:
    """Return the name of the subject; empty if it has only an id."""
    if event.subject == "project":
        return slugs.get(event.project_id or 0, "")
    name = {**event.before, **event.after}.get("name")
    own = names.get(event.subject_id, "") if event.subject in ("account", "member", "stack") else ""
    return own or (name if isinstance(name, str) else "")


def _names(session: Session, events: Sequence[AuditEvent]) -> dict[str, str]:
    """Return the names of users and of the stacks that the events name, by id as text."""
    stacks = {event.subject_id for event in events if event.subject == "stack"}
    for event in events:
        stacks |= {value for side in (event.before, event.after) if isinstance(value := side.get("stack"), str)}
    return {**names_by_id(session), **names_of_stacks(session, stacks)}


def audit_rows(engine: Engine, query: AuditQuery) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all events that match the filters in batches, newest first. `before` and `after` are JSON."""
    for events in all_events(engine, query.read()):
        with read_session(engine) as session:
            slugs, names = slugs_by_id(session), _names(session, events)
        yield [
            (
                event.id, event.at.replace(microsecond=0), event.who, slugs.get(event.project_id or 0), event.subject,
                event.subject_id, subject_name(event, slugs, names), event.action, _json(event.before),
                _json(event.after), event.note,
            )
            for event in events
        ]  # fmt: skip


def _json(values: Mapping[str, Any]) -> str | None:
    return json.dumps(values, ensure_ascii=False, sort_keys=True) if values else None


def _shown(key: str, value: Any, names: Mapping[str, str]) -> str:
    """Return a value as text: a stack by its name, other keys short, cut if it is long, `nothing` for none."""
    if isinstance(value, str) and len(value) == _KEY_DIGITS and value in names:
        return names[value]
    if value is None or value in ("", []):
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key == "bytes" and isinstance(value, int):
        return file_size(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    if key in _OF_RUNS:
        value = ", ".join(f"#{run}" for run in value)
    if isinstance(value, str) and _TIME.fullmatch(value):
        value = f"{value[:10]} {value[11:16]} UTC"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = _KEY.sub(lambda key: key[0][:12], text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


router = APIRouter(include_in_schema=False, prefix="/settings")

_ON_A_PAGE = 50


@router.get("/audit")
@requires(Action.MANAGE)
def show_audit(
    request: Request,
    session: ReadSession,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_NUMBER)] = None,
) -> HTMLResponse:
    query = AuditQuery.from_params(request.query_params)
    page = find_events(session, query.read(), before=before, limit=_ON_A_PAGE)
    number, authors = count_events(session, query.read())
    slugs, names = slugs_by_id(session), _names(session, page.events)
    access = access_of(request)
    return render(
        request,
        "access/audit.html",
        events=[view_of(event, slugs, names) for event in page.events],
        next_before=page.next_before,
        number=counted(number),
        authors=authors,
        before=before,
        query=query,
        subjects=SUBJECTS,
        projects=[project.slug for project in list_projects(session) if access.may(Action.MANAGE, project.id)],
        of_all=access.may_anywhere(Action.ADMINISTER),
    )


@router.get("/audit.csv")
@requires(Action.MANAGE)
def export_audit(request: Request, engine: AppEngine) -> Response:
    """Return all events that match the filters as CSV."""
    query = AuditQuery.from_params(request.query_params)
    return table_answer("csv", AUDIT_COLUMNS, audit_rows(engine, query), "audit")


# --- `GET /api/v1/audit`.

api = api_router("access")


class EventOut(ApiValue):
    """A change of one object. `before` and `after` hold the changed values by name."""

    at: datetime
    who: str = Field(description="A user, `token NAME`, or Threewalls itself.")
    action: str
    before: dict[str, Any]
    after: dict[str, Any]
    note: str


class AuditItem(ApiValue):
    id: int
    at: datetime
    who: str = Field(description="A user, `token NAME`, or Threewalls itself.")
    project: str | None = Field(description="null for changes that do not concern a single project.")
    subject: str
    subject_id: str
    name: str = Field(description="Name of the subject; empty if it has only an id.")
    action: str
    before: dict[str, Any] = Field(description="The changed fields with their previous values.")
    after: dict[str, Any]
    note: str

    @classmethod
    def of(cls, event: AuditEvent, slugs: Mapping[int, str], names: Mapping[str, str]) -> Self:
        slug = slugs.get(event.project_id or 0)
        return cls.from_values(event, project=slug, name=subject_name(event, slugs, names))


class AuditList(BaseModel):
    items: list[AuditItem] = Field(description="Newest first.")
    next_before: int | None = Field(description="Value of `before` for the next page; null on the last page.")


@api.get(
    "/audit",
    dependencies=[only_parameters(*AuditQuery.model_fields, "format")],
    response_model=AuditList,
    responses=documented(406, 422, ok=as_content("text/csv")),
)
@requires(Action.MANAGE)
def read_audit(
    request: Request, engine: AppEngine, session: ReadSession, query: Annotated[AuditQuery, Query()]
) -> Response | AuditList:
    """List changes of access, state, baselines, quarantine and settings in the projects that the caller manages.

    CSV and Parquet (`format`) have all entries, not one page.
    """
    chosen = table_format(request)
    if chosen != "json":
        return table_answer(chosen, AUDIT_COLUMNS, audit_rows(engine, query), "audit")
    page = find_events(session, query.read(), before=query.before, limit=query.limit)
    slugs, names = slugs_by_id(session), _names(session, page.events)
    items = [AuditItem.of(event, slugs, names) for event in page.events]
    return AuditList(items=items, next_before=page.next_before)

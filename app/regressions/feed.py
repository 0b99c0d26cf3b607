"""The Atom feed of a project's regressions (RFC 4287). Its address has a key, because feed readers cannot log in."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from sqlmodel import Session
from starlette.responses import Response

from app.domain.badges import badge_key, opens
from app.domain.text import one_line, short_cause
from app.domain.verdict.regression import Regression
from app.domain.verdict.regression_text import summarize, what
from app.errors import NotFound
from app.regressions.queries import RegressionQuery, find_regressions
from app.storage.database import read_session
from app.storage.projects import find_project
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Open, requires
from app.web.atom import FeedEntry, atom_response
from app.web.dependencies import AppEngine

router = APIRouter(include_in_schema=False)

_ENTRIES = 50
_NAME = "regressions.atom"
"""Makes the feed's key differ from keys of badges, which the same secret signs."""


def feed_url(session: Session, slug: str) -> str:
    """Return the address of the feed, with a key if the project is not public; empty for an unknown project."""
    try:
        project = find_project(session, slug)
    except NotFound:
        return ""
    key = {} if project.public else {"key": badge_key(project.badge_secret, _NAME)}
    return f"/regressions.atom?{urlencode({'project': slug} | key)}"


@router.get("/regressions.atom")
@requires(Open.ANYONE)
def show_feed(
    request: Request,
    engine: AppEngine,
    project: Annotated[str, Query(min_length=1, max_length=100)],
    key: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    if key:
        with seeing(EVERY_PROJECT), read_session(engine) as session:
            row = find_project(session, project)
        if not opens(key, row.badge_secret, _NAME):
            raise NotFound(f"There is no project {one_line(project)}, or the key of this feed was renewed.")
        with seeing(frozenset({row.id or 0})), read_session(engine) as session:
            regressions = _newest(session, project)
    else:
        with read_session(engine) as session:
            row = find_project(session, project)
            regressions = _newest(session, project)
    page = f"/regressions?{urlencode({'project': project})}"
    return atom_response(request, f"Regressions of {project}", page, map(_entry, regressions), since=row.created_at)


def _newest(session: Session, project: str) -> tuple[Regression, ...]:
    query = RegressionQuery(project=project, sort="age", page_size=_ENTRIES)
    return tuple(find_regressions(session, query).items)


def _entry(regression: Regression) -> FeedEntry:
    return FeedEntry(
        path=f"/regressions/{regression.id}",
        title=f"Regression {regression.id}: {what(regression)} ({regression.state_text})",
        published=regression.opened_at,
        updated=regression.changed_at,
        summary=f"{summarize(regression).text} {short_cause(regression.cause)}",
    )

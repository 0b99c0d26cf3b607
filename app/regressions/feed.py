"""The Atom feed of a project's regressions (RFC 4287). An address with a key needs no log-in, as feed readers have
none."""

import hashlib
import re
from typing import Annotated
from urllib.parse import urlencode
from xml.etree import ElementTree

from fastapi import APIRouter, Query, Request
from sqlmodel import Session
from starlette.responses import Response

from app.domain.badges import badge_key, opens
from app.domain.text import one_line
from app.errors import NotFound
from app.regressions import words
from app.regressions.queries import RegressionQuery, find_regressions
from app.regressions.regression import Regression
from app.storage.database import read_session
from app.storage.projects import find_project
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Open, requires
from app.web.dependencies import AppEngine
from app.web.templating import public_address

router = APIRouter(include_in_schema=False)

_ENTRIES = 50
_MAX_AGE_SECONDS = 300
_NOT_IN_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
"""Characters that XML cannot contain, not even escaped, besides the control characters."""
_NAME = "regressions.atom"
"""Separates the key of the feed from those of badges, which the same secret of the project signs."""


def feed_url(session: Session, slug: str) -> str:
    """Return the address of the feed; with the key for a project that is not public."""
    project = find_project(session, slug)
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
            find_project(session, project)
            regressions = _newest(session, project)
    text = _atom(public_address(request), project, regressions)
    headers = {
        "Cache-Control": f"private, max-age={_MAX_AGE_SECONDS}",
        "ETag": f'"{hashlib.sha256(text).hexdigest()[:20]}"',
    }
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(text, headers=headers, media_type="application/atom+xml")


def _newest(session: Session, project: str) -> tuple[Regression, ...]:
    query = RegressionQuery(project=project, sort="age", page_size=_ENTRIES)
    return tuple(find_regressions(session, query).items)


def _atom(base: str, project: str, regressions: tuple[Regression, ...]) -> bytes:
    feed = ElementTree.Element("feed", xmlns="http://www.w3.org/2005/Atom")
    page = f"{base}/regressions?{urlencode({'project': project})}"
    _add(feed, "id", page)
    _add(feed, "title", f"Regressions of {project}")
    ElementTree.SubElement(feed, "link", href=page)
    newest = max((item.changed_at for item in regressions), default=None)
    _add(feed, "updated", newest.isoformat() if newest else "1970-01-01T00:00:00+00:00")
    _add(ElementTree.SubElement(feed, "author"), "name", "Threewalls")
    for item in regressions:
        entry = ElementTree.SubElement(feed, "entry")
        address = f"{base}/regressions/{item.id}"
        _add(entry, "id", address)
        _add(entry, "title", f"#{item.id} {words.what(item)} ({item.shown_state})")
        ElementTree.SubElement(entry, "link", href=address)
        _add(entry, "published", item.opened_at.isoformat())
        _add(entry, "updated", item.changed_at.isoformat())
        _add(entry, "summary", f"{words.answer(item)} {item.cause}")
    return bytes(ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True))


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = _NOT_IN_XML.sub("", one_line(text))

"""Atom feeds (RFC 4287)."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from xml.etree import ElementTree

from fastapi import Request
from starlette.responses import Response

from app.domain.text import one_line
from app.web.templating import public_address

_MAX_AGE_SECONDS = 300
_NOT_IN_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
"""Characters that XML cannot contain even if escaped, in addition to control characters."""


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """An entry of a feed. `path`: its page. `anchor` distinguishes several entries of the same page."""

    path: str
    title: str
    published: datetime
    updated: datetime
    summary: str
    anchor: str = ""


def atom_response(
    request: Request, title: str, path: str, entries: Iterable[FeedEntry], *, since: datetime
) -> Response:
    """Return the feed of a page, or 304 if the reader has it already. `since`: date of a feed without entries."""
    text = _atom(public_address(request), title, path, tuple(entries), since)
    headers = {
        "Cache-Control": f"private, max-age={_MAX_AGE_SECONDS}",
        "ETag": f'"{hashlib.sha256(text).hexdigest()[:20]}"',
    }
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(text, headers=headers, media_type="application/atom+xml")


def _atom(base: str, title: str, path: str, entries: tuple[FeedEntry, ...], since: datetime) -> bytes:
    feed = ElementTree.Element("feed", xmlns="http://www.w3.org/2005/Atom")
    _add(feed, "id", f"{base}{path}")
    _add(feed, "title", title)
    ElementTree.SubElement(feed, "link", href=f"{base}{path}")
    _add(feed, "updated", max((entry.updated for entry in entries), default=since).isoformat())
    _add(ElementTree.SubElement(feed, "author"), "name", "Threewalls")
    for item in entries:
        entry = ElementTree.SubElement(feed, "entry")
        address = f"{base}{item.path}"
        _add(entry, "id", f"{address}#{item.anchor}" if item.anchor else address)
        _add(entry, "title", item.title)
        ElementTree.SubElement(entry, "link", href=address)
        _add(entry, "published", item.published.isoformat())
        _add(entry, "updated", item.updated.isoformat())
        _add(entry, "summary", item.summary)
    return bytes(ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True))


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = _NOT_IN_XML.sub("", one_line(text))

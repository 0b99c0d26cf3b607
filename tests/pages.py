"""Pages as tests read them: without the line breaks and the indentation of the templates."""

import re
from functools import cached_property
from typing import Any

import httpx2
from starlette.testclient import TestClient

SPACE = "[ \t\r\n\f]+"
BLOCKS = (
    "html|head|body|title|meta|link|script|style|main|section|article|header|footer|nav|aside|div|p|ul|ol|li|dl|dt|dd|"
    "table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|form|fieldset|legend|figure|figcaption|details|summary|hr|br|"
    "label|select|option|optgroup|button|input|textarea|pre|blockquote|svg|g|path|line|rect|circle|text|symbol"
)
VERBATIM = re.compile(r"(<(pre|textarea|script|style|blockquote)\b.*?</\2>)", re.DOTALL)
BESIDE_BLOCK = re.compile(rf"(?:{SPACE})?(</?(?:{BLOCKS})\b(?:\"[^\"]*\"|'[^']*'|[^'\">])*>)(?:{SPACE})?")


def bar_segments(page: str) -> str:
    """Return the HTML with the white space that a browser shows: none next to a block, else one space."""
    parts = VERBATIM.split(page)  # text, element, its name, text, ...
    text = [re.sub('" (/?>)', r'"\1', re.sub(SPACE, " ", BESIDE_BLOCK.sub(r"\1", part))) for part in parts[::3]]
    return "".join(part for pair in zip(text, [*parts[1::3], ""], strict=True) for part in pair)


class Page(httpx2.Response):
    """An answer whose `text` is the page as laid out; `content` is what the service sent."""

    @cached_property
    def text(self) -> str:
        return bar_segments(super().text)


class PageClient(TestClient):
    """A client that lays out a page when a test reads its text, which takes 5 ms."""

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = super().send(request, **options)
        if response.headers.get("content-type", "").startswith("text/html"):
            response.__class__ = Page
        return response


def masked(text: str) -> str:
    """Return a page without times and random keys, which differ between two requests."""
    text = re.sub(r"[0-9a-f]{32}(?![0-9a-f])", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?", "TIME", text)
    text = re.sub(r'<td class="nowrap muted".*?</td>', "AGO", text, flags=re.DOTALL)
    return re.sub(r"\b(just now|\d+\s(s|min|h) ago|\d+\s(s|min|h)(?=</time>))", "AGO", text)

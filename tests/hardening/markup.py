"""Everything in a page that can run or lead elsewhere, which an attacker's text must not become."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

MARK = "pwn9"
_ADDRESSES = {"href", "src", "action", "formaction", "poster", "xlink:href", "hx-get", "hx-post", "hx-push-url", "data"}
_FOREIGN = {"iframe", "object", "embed", "base", "applet", "frame", "audio", "video"}
_SAFE = re.compile(r"(https?://|mailto:|[/#?.]|[a-z0-9_-]+([/?#]|$))", re.IGNORECASE)
_EXPRESSIONS = ("expr", "signal", "calculate", "labelExpr", "test", "filter", "update")


class Markup(HTMLParser):
    """`wrong`: forbidden content. `text`: the visible text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []
        self.text = ""
        self._data: list[str] | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.wrong += [f"<{tag} {name}={value}>" for name, value in given.items() if _is_wrong(tag, name, value)]
        if tag in _FOREIGN or not re.fullmatch(r"[a-z][a-z0-9-]*", tag):
            self.wrong.append(f"<{tag}>")
        if tag == "meta" and "http-equiv" in given and not given.get("content", "").isdigit():  # seconds to a reload
            self.wrong.append(f"<meta {given}>")
        if tag == "script":
            self._script(given)

    def _script(self, given: dict[str, str]) -> None:
        if given.get("type") == "application/json":
            self._data = []
        elif not given.get("src", "").startswith(("/assets/", "/static/")):
            self.wrong.append(f"<script {given}>")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script" and self._data is not None:
            self.wrong += data_faults("".join(self._data))
            self._data = None

    def handle_data(self, data: str) -> None:
        if self._data is not None:
            self._data.append(data)
        else:
            self.text += data

    def handle_comment(self, data: str) -> None:
        if MARK in data:
            self.wrong.append(f"<!--{data}-->")


def data_faults(text: str) -> list[str]:
    """Return problems in chart data: an early end of the element, a URL that runs, text as an expression."""
    try:
        document = json.loads(text)
    except ValueError:
        return [f"broken data: {text[:200]}"]
    return [f"{key}: {value}" for key, value in _strings(document) if _runs(key, value)]


def _runs(key: str, value: str) -> bool:
    if key in _EXPRESSIONS:
        return MARK in value
    return key in ("href", "url", "link") and not _is_safe(value)


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _strings(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, key)
    elif isinstance(value, str):
        yield key, value


def _is_wrong(tag: str, name: str, value: str) -> bool:
    if name.startswith("on") or name in {"style", "srcdoc"} or not re.fullmatch(r"[a-z][a-zA-Z0-9:-]*", name):
        return True
    if MARK in name or (tag == "img" and not value.strip()):
        return True
    if tag == "img" and value.startswith("data:image/svg+xml;charset=utf-8,%3Csvg"):  # a QR code; no script runs in it
        return False
    if tag == "image" and value.startswith("data:image/svg+xml;base64,"):  # a drawing within a slide, as an image
        return False
    return name in _ADDRESSES and not _is_safe(value)


def _is_safe(address: str) -> bool:
    plain = re.sub(r"[\x00-\x20]", "", address)
    return not plain or (plain[:2] not in ("//", "/\\") and _SAFE.match(plain) is not None)

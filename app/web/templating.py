"""Render templates: a full page, or one block of it for htmx. Only this module uses `HX-*` headers."""

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import numpy as np
import structlog
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2_fragments import render_block
from markupsafe import Markup, escape
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session
from starlette.requests import Request
from starlette.responses import HTMLResponse

from app.domain import numbers as changes
from app.domain.numbers import (
    DASH,
    absolute,
    ago,
    contract_value,
    figure,
    file_size,
    grouped,
    on_off,
    percent,
    plural,
    short_commit,
    significant,
    step_time,
)
from app.domain.run import evidence_label
from app.domain.text import commit_address, listed_cause, name_end, range_address
from app.domain.verdict.triage import state_text
from app.domain.verdict.words import badge_text, interval_text
from app.settings import RESOURCES
from app.storage.example_runs import example_runs
from app.storage.verdicts import regressions_to_triage
from app.storage.visible import UnstatedProjectsError
from app.web.assets import asset_url
from app.web.charts import vega
from app.web.dependencies import reading, session_of
from app.web.identity import access_of, make_administrator, own_name

_STACKED_COLUMNS = 3
_RUN = re.compile(r"(?<![&\w])#(\d{1,18})\b(?!;)")


def coded(text: str) -> Markup:
    """Return a sentence as HTML, with text in backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick comes from a log
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def marked(text: str, words: Sequence[str]) -> Markup:
    """Return the text as HTML with all occurrences of the words marked, ignoring case."""
    if not words:
        return escape(text)
    parts = re.split(f"({'|'.join(map(re.escape, words))})", text, flags=re.IGNORECASE)
    return Markup("").join(Markup("<mark>{}</mark>").format(part) if k % 2 else part for k, part in enumerate(parts))


def with_runs(text: str) -> Markup:
    """Return the same as `coded`, with `#12` as link to run 12."""
    return Markup(_RUN.sub(r'<a href="/runs/\1">#\1</a>', str(coded(text))))  # noqa: S704  escaped, and only digits added


if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token


@dataclass(frozen=True, slots=True)
class Toast:
    """A short message after a change, in the live region of the page (templates/web/toast.html).

    `undo`: address of the form that reverts the change, with its inputs. Its answer replaces `target`.
    """

    text: str
    undo: str = ""
    inputs: Sequence[tuple[str, str]] = ()
    target: str = ""


log = structlog.get_logger(__name__)


@lru_cache
def _markdown_parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # noqa: PLC0415  few pages show notes

    # HTML is escaped, links have harmless schemes only, and images cannot make a browser call another server.
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
    return let_tables_scroll(parser)


def markdown(text: str) -> Markup:
    """Return Markdown of a user as safe HTML."""
    return Markup(_markdown_parser().render(text))  # noqa: S704  the parser escapes HTML


def let_tables_scroll(parser: "MarkdownIt") -> "MarkdownIt":
    """Render each table in a box that scrolls, also by keyboard, and its numbers without the inline style that the
    policy of the pages forbids. A table of three columns or more stacks its cells on a phone, each with its label."""

    def open_table(_renderer: object, tokens: "Sequence[Token]", at: int, *_: object) -> str:
        number = sum(token.type == "table_open" for token in tokens[: at + 1])
        kind = f"table-scroll{' stacked' if tokens[at].meta.get('stacked') else ''}"
        return f'<div class="{kind}" tabindex="0" role="region" aria-label="Table {number}"><table>\n'

    def label(state: "StateCore") -> None:
        table: Token | None = None
        names: list[str] = []
        column = 0
        for token, inside in itertools.pairwise(state.tokens):
            if token.type == "table_open":
                table, names = token, []
            elif token.type == "tr_open":
                column = 0
            elif token.type in ("th_open", "td_open"):
                if token.attrs.pop("style", "") == "text-align:right":
                    token.attrSet("class", "number")
                if token.type == "th_open":
                    names.append(inside.content.replace("`", ""))
                elif table and column and len(names) >= _STACKED_COLUMNS:
                    table.meta["stacked"] = True
                    token.attrSet("data-label", names[column])
                column += 1

    parser.core.ruler.push("label", label)
    parser.add_render_rule("table_open", open_table)
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


_FILTERS = (
    changes.change_text,
    changes.change_verb,
    changes.change_words,
    changes.gain_change,
    changes.time_saved,
    changes.with_sign,
    changes.gpu_hours,
    changes.level_text,
    changes.levels_text,
    commit_address,
    evidence_label,
    range_address,
    ago,
    absolute,
    badge_text,
    state_text,
    listed_cause,
    name_end,
    coded,
    contract_value,
    plural,
    figure,
    file_size,
    grouped,
    on_off,
    markdown,
    marked,
    percent,
    short_commit,
    significant,
    step_time,
    interval_text,
    vega,
    with_runs,
)


@lru_cache
def environment() -> Environment:
    """Return the template environment. It escapes everything, and undefined names are errors."""
    env = Environment(
        loader=FileSystemLoader(RESOURCES / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.policies["json.dumps_function"] = _json
    env.filters.update({function.__name__: function for function in _FILTERS})
    env.globals.update(
        asset=asset_url, app_version=_app_version(), dash=DASH, own_name=own_name, any_interval=interval_text()
    )
    # Globals, because rendering a single block does not execute the imports of its file.
    for name in ("ui", "figures", "runs"):
        env.globals[name] = env.get_template(f"components/{name}.html").module
    return env


_ENCODER = msgspec.json.Encoder(enc_hook=lambda value: value.item() if isinstance(value, np.generic) else str(value))


def _json(value: object, **_: object) -> str:
    """Return the data of a chart as JSON, ten times as fast as the standard library."""
    return msgspec.json.format(_ENCODER.encode(value), indent=0).decode()


def render(
    request: Request,
    template: str,
    *,
    block: str | None = None,
    address: str | None = None,
    status: int = 200,
    toast: Toast | None = None,
    **context: Any,
) -> HTMLResponse:
    """Render `block` of the template for htmx, and the whole page for other requests.

    In templates, `fragment` is the name of the block. `address`: new address of the browser after htmx has inserted the
    block; None for no change. `toast`: a message that is sent with a block.
    """
    fragment = block if block and wants_fragment(request) else None
    common: dict[str, Any] = {"now": datetime.now(UTC), "path": request.url.path, "base_url": public_address(request)}
    common["to_triage"] = lambda: _to_triage(request, session_of(request))
    common["access"] = access_of(request)
    common["make_administrator"] = lambda: make_administrator(request.app.state.settings)
    context = common | {"fragment": fragment} | context
    headers = {"Vary": "HX-Request", "Cache-Control": "no-cache"}
    if fragment:
        if address is not None and not _is_at(request, address):
            headers["HX-Push-Url"] = address
        html = render_block(environment(), template, fragment, context)
        if toast:
            html += environment().get_template("web/toast.html").render(context | {"toast": toast})
    else:
        html = environment().get_template(template).render(context)
    if fragment and status == 200 and request.method == "GET":
        return _unless_cached(request, html, headers)
    return HTMLResponse(html, status, headers)


def _unless_cached(request: Request, html: str, headers: dict[str, str]) -> HTMLResponse:
    """Return the part of a page, or 304 if the browser has it, such as the data of a chart.

    After a 304 the browser uses the headers that it stored, so a part with another address has another ETag.
    """
    content = f"{headers.get('HX-Push-Url', '')}\n{html}"
    headers["ETag"] = f'W/"{hashlib.sha256(content.encode()).hexdigest()[:32]}"'
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return HTMLResponse(status_code=304, headers=headers)
    return HTMLResponse(html, 200, headers)


def shown_params(request: Request) -> dict[str, str]:
    """Return the query parameters of the page from which htmx sent the request."""
    return dict(parse_qsl(urlsplit(request.headers.get("HX-Current-URL", "")).query))


def address_of_htmx_page(request: Request) -> str | None:
    """Return the address of the page from which htmx sent the request; None for other requests."""
    return request.headers.get("HX-Current-URL", "/") if request.headers.get("HX-Request") == "true" else None


def render_error(
    request: Request, status: int, title: str, detail: str, back: Sequence[tuple[str, str]]
) -> HTMLResponse:
    """Render the page of an error. `back`: addresses and labels of links to other pages.

    Only the errors of a working service (unknown pages, invalid filters) show the badge of the navigation. With other
    errors the database may have failed, or the caller is not identified.
    """
    keeps_badge = status in (404, 422)
    return render(
        request,
        "web/error.html",
        status=status,
        error_status=status,
        title=title,
        detail=detail,
        back=back,
        to_triage=lambda: _to_triage(request, None) if keeps_badge else 0,
    )


def public_address(request: Request) -> str:
    """Return the service's address for links and commands, without a trailing slash."""
    return (_stated_address(request) or str(request.base_url)).rstrip("/")


def is_https(request: Request) -> bool:
    """Return whether browsers use https. Every request needs this, so it is faster than `public_address`."""
    return (_stated_address(request) or f"{request.scope['scheme']}:").startswith("https:")


def _stated_address(request: Request) -> str:
    state = getattr(request.scope.get("app"), "state", None)  # None in tests of single middlewares
    settings = getattr(state, "settings", None)
    return str(settings.public_url) if settings else ""


def _to_triage(request: Request, session: Session | None) -> int | None:
    """Return the number of regressions to triage for the navigation; None if unavailable. `session`: of the page.

    0 while the example runs load: a job counts as slow until its later runs show that it recovered.
    """
    try:
        if session is None:
            with reading(request) as own:
                return _to_triage(request, own)
        return 0 if example_runs(session) else regressions_to_triage(session)
    except UnstatedProjectsError:  # the caller is not identified
        return None
    except SQLAlchemyError as error:
        log.warning("regressions_to_triage_not_read", error=type(error).__name__)
        return None


def wants_fragment(request: Request) -> bool:
    # When the browser goes back in history, htmx replaces the whole body, so it needs the whole page.
    return request.headers.get("HX-Request") == "true" and request.headers.get("HX-History-Restore-Request") != "true"


def _is_at(request: Request, address: str) -> bool:
    """Return whether the browser already shows `address`, so that parts that load later add nothing to its history."""
    current, wanted = urlsplit(request.headers.get("HX-Current-URL", "")), urlsplit(address)
    return (current.path, current.query) == (wanted.path, wanted.query)


def _app_version() -> str:
    try:
        return version("threewalls")
    except PackageNotFoundError:
        return "development"


OUTCOMES = {
    "completed": "completed",
    "truncated": "truncated",
    "failed": "failed",
    "out_of_memory": "out of memory",
    "not_finite": "not finite",
    "stopped": "stopped",
    "running": "running",
    "unread": "unread",
}

"""Templates in, HTML out: a full page, or one block of it to htmx. Only this module reads and writes `HX-*` headers."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import structlog
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2_fragments import render_block
from markupsafe import Markup, escape
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.domain import numbers as changes
from app.domain.numbers import (
    DASH,
    absolute,
    ago,
    contract_value,
    counted,
    figure,
    file_size,
    grouped,
    percent,
    short_commit,
    significant,
    step_time,
)
from app.domain.run import evidence_label
from app.domain.text import commit_address, range_address
from app.settings import RESOURCES
from app.storage.verdicts import open_regressions
from app.web.assets import asset_url
from app.web.dependencies import reading, session_of
from app.web.identity import access_of, acting_as, make_administrator

# --- How figures are written on pages: `app/domain/numbers.py`, and what only HTML has.

_RUN = re.compile(r"(?<![&\w])#(\d{1,18})\b(?!;)")


def coded(text: str) -> Markup:
    """A sentence of the domain as HTML: what stands in backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is one of a log's own
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def with_runs(text: str) -> Markup:
    """The same, and `#12` in it leads to run 12."""
    return Markup(_RUN.sub(r'<a href="/runs/\1">#\1</a>', str(coded(text))))  # noqa: S704  it is escaped; digits are put in


log = structlog.get_logger(__name__)

_FILTERS = (
    changes.change_text,
    changes.daily_cost,
    changes.gpu_hours,
    commit_address,
    evidence_label,
    range_address,
    ago,
    absolute,
    coded,
    contract_value,
    counted,
    figure,
    file_size,
    grouped,
    percent,
    short_commit,
    significant,
    step_time,
    with_runs,
)


@lru_cache
def environment() -> Environment:
    """Everything is escaped, also what does not end in .html; a name that nobody passed is an error, not a blank."""
    env = Environment(
        loader=FileSystemLoader(RESOURCES / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update({function.__name__: function for function in _FILTERS})
    env.globals.update(asset=asset_url, app_version=_app_version(), dash=DASH, acting_as=acting_as.get)
    # As globals, because a block that is rendered alone does not run the imports of its file.
    for name in ("ui", "figures", "runs"):
        env.globals[name] = env.get_template(f"components/{name}.html").module
    return env


def render(
    request: Request,
    template: str,
    *,
    block: str | None = None,
    address: str | None = None,
    status: int = 200,
    **context: Any,
) -> HTMLResponse:
    """`block` of the template to htmx, the whole page to everyone else.

    Templates find the block's name in `fragment`. `address`: what the browser's address bar shows after htmx put the
    block into the page; None leaves it alone.
    """
    fragment = block if block and _wants_fragment(request) else None
    common: dict[str, Any] = {"now": datetime.now(UTC), "path": request.url.path, "base_url": public_address(request)}
    common["open_regressions"] = lambda: _open_regressions(request)
    common["access"] = access_of(request)
    common["make_administrator"] = lambda: make_administrator(request.app.state.settings)
    context = common | {"fragment": fragment} | context
    headers = {"Vary": "HX-Request", "Cache-Control": "no-cache"}
    if fragment:
        if address is not None and not _is_at(request, address):
            headers["HX-Push-Url"] = address
        html = render_block(environment(), template, fragment, context)
    else:
        html = environment().get_template(template).render(context)
    return HTMLResponse(html, status, headers)


def shown_params(request: Request) -> dict[str, str]:
    """The query of the page that htmx asks from: what it shows now."""
    return dict(parse_qsl(urlsplit(request.headers.get("HX-Current-URL", "")).query))


def asked_by_part(request: Request) -> str | None:
    """The address in the browser's bar when htmx asks for a part of its page; None when it does not ask."""
    return request.headers.get("HX-Current-URL", "/") if request.headers.get("HX-Request") == "true" else None


def leave_for(address: str, status: int) -> Response:
    """Tells htmx to leave its page for another one."""
    return Response(status_code=status, headers={"HX-Redirect": address, "Cache-Control": "no-store"})


def render_error(
    request: Request, status: int, title: str, detail: str, back: Sequence[tuple[str, str]] = ()
) -> HTMLResponse:
    """Render the page of an error. `back`: pages to go on from, with what their links say.

    It asks the database nothing: that may be what does not work, and whose page it is may not be known yet.
    """
    return render(
        request,
        "error.html",
        status=status,
        error_status=status,
        title=title,
        detail=detail,
        back=back,
        open_regressions=lambda: 0,  # no badge, rather than one of projects that are not the reader's
    )


def public_address(request: Request) -> str:
    """The service's own address without a trailing slash, for the commands that pages show."""
    return (_stated_address(request) or str(request.base_url)).rstrip("/")


def is_https(request: Request) -> bool:
    """Whether browsers reach the service by https. Each request asks, and the whole address takes long."""
    return (_stated_address(request) or f"{request.scope['scheme']}:").startswith("https:")


def _stated_address(request: Request) -> str:
    state = getattr(request.scope.get("app"), "state", None)  # a check that stands alone has no application
    settings = getattr(state, "settings", None)
    return str(settings.public_url) if settings else ""


def _open_regressions(request: Request) -> int | None:
    """For the navigation; None where they cannot be read, and on pages of errors, which ask the database nothing."""
    try:
        if (session := session_of(request)) is not None:
            return open_regressions(session).count
        with reading(request) as session:
            return open_regressions(session).count
    except SQLAlchemyError as error:
        log.warning("open_regressions_not_read", error=type(error).__name__)
        return None


def _wants_fragment(request: Request) -> bool:
    # A history restore replaces the whole body: a block would leave a page without a frame.
    return request.headers.get("HX-Request") == "true" and request.headers.get("HX-History-Restore-Request") != "true"


def _is_at(request: Request, address: str) -> bool:
    """True when the browser shows `address` already: a part that loads late is no step to go back to."""
    current, wanted = urlsplit(request.headers.get("HX-Current-URL", "")), urlsplit(address)
    return (current.path, current.query) == (wanted.path, wanted.query)


def _app_version() -> str:
    try:
        return version("threewalls")
    except PackageNotFoundError:
        return "development"


# --- How a job can end (`health.outcome`), and the words for it on every page.

OUTCOMES = {
    "completed": "completed",
    "truncated": "truncated",
    "failed": "crashed",
    "out_of_memory": "out of memory",
    "not_finite": "not finite",
    "stopped": "stopped",
    "running": "running",
    "unread": "unread",
}

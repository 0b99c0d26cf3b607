"""Badges: HTTP in, SVG out. An address with a key shows its badge to everybody, one without to those who may."""

import hashlib
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy import Engine, select
from sqlmodel import Session, col
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from app.badges.queries import project_of_key, step_time_badge, verdict_badge
from app.domain.badges.picture import Badge, svg
from app.errors import InvalidChange, NotFound
from app.storage.badge_secrets import renew_badge_secret
from app.storage.database import read_session, transaction
from app.storage.tables import RunRow
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access.acting import author
from app.web.dependencies import AppEngine
from app.web.forms import AUTHOR, sent_form

router = APIRouter(include_in_schema=False)

MAX_AGE_SECONDS = 120
"""A badge is fetched by the proxies of forges, which ask again after this."""

StackKey = Annotated[str, Path(max_length=100)]
Key = Annotated[str, Query(max_length=100)]


@router.get("/badges/{stack}/verdict.svg")
def show_verdict(request: Request, engine: AppEngine, stack: StackKey, key: Key = "") -> Response:
    return _show(request, engine, stack, key, verdict_badge)


@router.get("/badges/{stack}/step-time.svg")
def show_step_time(request: Request, engine: AppEngine, stack: StackKey, key: Key = "") -> Response:
    return _show(request, engine, stack, key, step_time_badge)


@router.post("/badges/{stack}/renew")
async def renew(request: Request, engine: AppEngine, stack: StackKey) -> Response:
    """New addresses for the badges of the whole project; those that stand elsewhere show nothing from then on."""
    async with sent_form(request, max_files=0, max_fields=2) as sent:
        who = author(str(sent.get(AUTHOR, ""))).strip()

    def answer() -> Response:
        with transaction(engine) as session:
            project = session.execute(
                select(RunRow.project_id).where(col(RunRow.stack_key) == stack).limit(1)  # type: ignore[call-overload]
            ).scalar()
            if project is None:
                raise NotFound("No stack has this key. The list of stacks is at /history.")
            if not who:
                raise InvalidChange("Say who does it: your name stands beside the change. Nothing was changed.")
            renew_badge_secret(session, project, who)
        return RedirectResponse(f"/history/{stack}#badges", status_code=303)

    return await run_in_threadpool(answer)


def _show(
    request: Request, engine: Engine, stack: str, key: str, find: Callable[[Session, str], Badge | None]
) -> Response:
    opened = _opened(engine, stack, key) if key else None
    if opened is not None:
        with seeing(frozenset({opened})), read_session(engine) as session:
            badge = find(session, stack)
    else:
        with read_session(engine) as session:
            badge = find(session, stack)
    # The same for what is not there and for what the caller may not see.
    picture = svg(badge or Badge("threewalls", "no such badge"))
    headers = {
        "Cache-Control": f"{'public' if opened is not None else 'private'}, max-age={MAX_AGE_SECONDS}",
        "ETag": f'"{hashlib.sha256(picture.encode()).hexdigest()[:20]}"',
        "Cross-Origin-Resource-Policy": "cross-origin",  # it is made for the pages of others
    }
    if badge is not None and headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture, 404 if badge is None else 200, headers, "image/svg+xml")


def _opened(engine: Engine, stack: str, key: str) -> int | None:
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        return project_of_key(session, stack, key)

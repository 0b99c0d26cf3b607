"""Badges: HTTP in, SVG out. A URL with a key needs no log-in."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import ColumnElement, Engine, and_
from sqlmodel import Session, col
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from app.domain.access.principal import Action
from app.domain.badges import Badge, opens, svg
from app.domain.numbers import signed, step_time
from app.domain.verdict.policy import ANY_BRANCH
from app.domain.verdict.words import decision_word
from app.errors import InvalidChange, NotFound
from app.history.charts import history_picture
from app.history.queries import get_stack
from app.storage.database import read_session, transaction
from app.storage.projects import renew_badge_secret
from app.storage.runs import runs_by_id
from app.storage.stacks import is_stack
from app.storage.tables import ProjectRow, RunRow, select_any
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Open, requires
from app.web.dependencies import AppEngine, StackKey
from app.web.forms import AUTHOR, sent_form
from app.web.identity import author
from app.web.pictures import Theme, picture_svg
from app.web.templating import public_address

# --- The content of a stack's badges: its newest verdict, and the newest step time of an eligible run.

_MOVED = ("regression", "improvement")


def project_of_key(session: Session, stack_key: str, key: str) -> int | None:
    """Return the project whose badge key this is; None if it is wrong. Called before the caller is identified."""
    secrets = (
        select_any(ProjectRow.id, ProjectRow.badge_secret)
        .join(RunRow, col(RunRow.project_id) == ProjectRow.id)
        .where(col(RunRow.stack_key) == stack_key)
        .distinct()
    )
    return next((row.id for row in session.execute(secrets) if opens(key, row.badge_secret, stack_key)), None)


def verdict_badge(session: Session, stack_key: str) -> Badge | None:
    """Return the badge; None if the caller can see no such stack."""
    row = _newest(session, stack_key, col(RunRow.verdict) != "")
    if row is None:
        return Badge("threewalls", "not judged") if is_stack(session, stack_key) else None
    change = ""
    if row.verdict in _MOVED:
        (item,) = runs_by_id(session, [row.id])
        by_memory = item.memory_pct is not None
        name, delta_pct = ("peak memory", item.memory_pct) if by_memory else ("step time", row.verdict_delta_pct)
        change = "" if delta_pct is None else f": {name} {signed(delta_pct)}"
    return Badge("threewalls", decision_word(row.verdict) + change, row.verdict)


def step_time_badge(session: Session, stack_key: str) -> Badge | None:
    """Return the badge; None when the caller can see no such stack."""
    counts = and_(col(RunRow.step_time_ms).is_not(None), col(RunRow.is_steady).is_(True), col(RunRow.short).is_(False))
    row = _newest(session, stack_key, counts)
    if row is None:
        return Badge("step time", "unknown") if is_stack(session, stack_key) else None
    return Badge("step time", step_time(row.step_time_ms))


def _newest(session: Session, stack_key: str, condition: ColumnElement[bool]) -> Any:
    """Return the newest eligible CI run of the baseline branch, else the newest other run except experiments."""
    own = (col(ProjectRow.baseline_branch) == ANY_BRANCH) | (col(RunRow.branch) == col(ProjectRow.baseline_branch))
    newest = (
        select_any(RunRow.id, RunRow.verdict, RunRow.verdict_delta_pct, RunRow.step_time_ms)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.stack_key) == stack_key, col(RunRow.quarantine) == "", condition)
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(1)
    )
    of_branch = session.execute(newest.where(col(RunRow.purpose) == "ci", own)).one_or_none()
    return of_branch or session.execute(newest.where(col(RunRow.purpose) != "experiment")).one_or_none()


router = APIRouter(include_in_schema=False)

MAX_AGE_SECONDS = 120
"""Seconds after which forges fetch a badge again."""

Key = Annotated[str, Query(max_length=100)]


@router.get("/badges/{stack}/verdict.svg")
@requires(Open.ANYONE)
def show_verdict(request: Request, engine: AppEngine, stack: StackKey, key: Key = "") -> Response:
    return _show(request, engine, stack, key, verdict_badge)


@router.get("/badges/{stack}/step-time.svg")
@requires(Open.ANYONE)
def show_step_time(request: Request, engine: AppEngine, stack: StackKey, key: Key = "") -> Response:
    return _show(request, engine, stack, key, step_time_badge)


@router.get("/badges/{stack}/history.svg")
@requires(Open.ANYONE)
def show_history(
    request: Request, engine: AppEngine, stack: StackKey, key: Key = "", theme: Theme = "light"
) -> Response:
    """Return the step times of the newest runs as a picture."""

    def draw(session: Session) -> str | None:
        drawn_stack = get_stack(session, stack)
        if drawn_stack is None:
            return None
        picture = history_picture(session, drawn_stack)
        return picture_svg(picture, public_address(request), datetime.now(UTC), dark=theme == "dark")

    return _answer(request, engine, stack, key, draw)


@router.post("/badges/{stack}/renew")
@requires(Action.MANAGE, of="stack")
async def renew(request: Request, engine: AppEngine, stack: StackKey) -> Response:
    """Replace the badge URLs of the project; existing links stop working."""
    async with sent_form(request, max_files=0, max_fields=2) as sent:
        who = author(str(sent.get(AUTHOR, ""))).strip()

    def answer() -> Response:
        with transaction(engine) as session:
            project = session.execute(
                select_any(RunRow.project_id).where(col(RunRow.stack_key) == stack).limit(1)
            ).scalar()
            if project is None:
                raise NotFound("No stack has this key. The list of stacks is at /history.")
            if not who:
                raise InvalidChange("Enter your name; it is recorded with the change. Nothing was changed.")
            renew_badge_secret(session, project, who)
        return RedirectResponse(f"/history/{stack}#badges", status_code=303)

    return await run_in_threadpool(answer)


def _show(
    request: Request, engine: Engine, stack: str, key: str, find: Callable[[Session, str], Badge | None]
) -> Response:
    def drawn(session: Session) -> str | None:
        badge = find(session, stack)
        return svg(badge) if badge else None

    return _answer(request, engine, stack, key, drawn)


def _answer(request: Request, engine: Engine, stack: str, key: str, draw: Callable[[Session], str | None]) -> Response:
    """Return the drawing if the caller or the key may see it. `draw` returns None for an unknown stack."""
    opened = None
    if key:
        with seeing(EVERY_PROJECT), read_session(engine) as session:
            opened = project_of_key(session, stack, key)
    if opened is not None:
        with seeing(frozenset({opened})), read_session(engine) as session:
            drawn = draw(session)
    else:
        with read_session(engine) as session:
            drawn = draw(session)
    # Missing and invisible badges get the same answer.
    picture = drawn or svg(Badge("threewalls", "no such badge"))
    headers = {
        "Cache-Control": f"{'public' if opened is not None else 'private'}, max-age={MAX_AGE_SECONDS}",
        "ETag": f'"{hashlib.sha256(picture.encode()).hexdigest()[:20]}"',
        "Cross-Origin-Resource-Policy": "cross-origin",  # embedded in pages of other sites
    }
    if drawn is not None and headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture, 404 if drawn is None else 200, headers, "image/svg+xml")

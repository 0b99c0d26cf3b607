"""The page of what a user watches, the buttons that change it, and the user's Atom feed."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.access.principal import Action, granted
from app.domain.verdict.regression_text import what
from app.errors import NotFound
from app.storage.database import read_session, transaction
from app.storage.tables import utc_now
from app.storage.users import logged_in_user
from app.storage.visible import EVERY_PROJECT, seeing
from app.storage.watches import (
    NO_USER,
    Kind,
    list_watches,
    offered_regressions,
    offered_stacks,
    set_feed_key,
    user_of_feed,
)
from app.watching.api import StackKey, set_watch
from app.watching.queries import WatchedChange, changes_of
from app.web.access_rule import Open, requires
from app.web.atom import FeedEntry, atom_response
from app.web.dependencies import AppEngine, ReadSession, RegressionId, reading
from app.web.forms import Form, answer_form
from app.web.identity import access_of
from app.web.templating import public_address, render

router = APIRouter(include_in_schema=False)

_KEY_BYTES = 32
_MAX_FIELDS = 3
_OFFERED = 4
"""Regressions and stacks that a page without watches offers, of each kind."""


class WatchForm(Form):
    inputs = ("watch",)
    longest = 10


@router.get("/watching")
@requires(Action.READ)
def show_watching(request: Request, session: ReadSession) -> HTMLResponse:
    return _page(request, session)


@router.post("/watching/stacks/{stack}")
@requires(Action.READ, of="stack")
async def watch_stack(request: Request, engine: AppEngine, stack: StackKey) -> Response:
    return await _set(request, engine, "stack", stack, f"/history/{stack}")


@router.post("/watching/regressions/{regression_id}")
@requires(Action.READ, of="regression")
async def watch_regression(request: Request, engine: AppEngine, regression_id: RegressionId) -> Response:
    return await _set(request, engine, "regression", str(regression_id), f"/regressions/{regression_id}")


async def _set(request: Request, engine: AppEngine, kind: Kind, target: str, page: str) -> Response:
    def act(form: WatchForm) -> str:
        set_watch(request, engine, kind, target, wanted=form.value("watch") != "no")
        return "/watching" if form.value("watch") == "no" else page

    return await answer_form(request, WatchForm, act, max_fields=_MAX_FIELDS)


@router.post("/watching/feed")
@requires(Open.LOGGED_IN)
def renew_feed(request: Request, engine: AppEngine) -> Response:
    """Create the address of the user's feed; an older one stops working. Only this answer shows it."""
    user = access_of(request).user
    if user is None:
        return RedirectResponse("/watching", 303)
    key = secrets.token_urlsafe(_KEY_BYTES)
    with transaction(engine) as session:
        set_feed_key(session, user.user_id, key, by=user.name)
    with reading(request) as session:
        return _page(request, session, feed=f"{public_address(request)}/watching.atom?key={key}")


def _page(request: Request, session: Session, *, feed: str = "") -> HTMLResponse:
    user_id = access_of(request).watcher
    watches = list_watches(session, user_id) if user_id is not None else []
    offers = not watches and user_id is not None
    response = render(
        request, "watching/index.html", watches=watches, changes=changes_of(session, watches), feed=feed,
        can_watch=user_id is not None, what=what, regressions=offered_regressions(session, _OFFERED) if offers else (),
        stacks=offered_stacks(session, _OFFERED) if offers else (),
    )  # fmt: skip
    if feed:
        response.headers["Cache-Control"] = "no-store"
    return response


@router.get("/watching.atom")
@requires(Open.ANYONE)
def show_feed(request: Request, engine: AppEngine, key: Annotated[str, Query(max_length=100)] = "") -> Response:
    """Return the changes of what a user watches, in the projects that they may still read."""
    access = access_of(request)
    if access.is_open:
        return _feed(request, engine, NO_USER)
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        user_id = user_of_feed(session, key) if key else None
        user = logged_in_user(session, user_id) if user_id is not None else None
    if user is None:
        raise NotFound("No feed has this key, or it was renewed. Create an address at /watching.")
    with seeing(granted(user, Action.READ, access.public)):
        return _feed(request, engine, user.user_id)


def _feed(request: Request, engine: AppEngine, user_id: int) -> Response:
    with read_session(engine) as session:
        watches = list_watches(session, user_id)
        changes = changes_of(session, watches)
    today = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
    since = max((item.watched_at for item in watches), default=today)
    return atom_response(request, "Watched in Threewalls", "/watching", map(_entry, changes), since=since)


def _entry(change: WatchedChange) -> FeedEntry:
    return FeedEntry(
        path=change.path, title=change.title, published=change.at, updated=change.at,
        summary=f"{change.who} {change.detail}".strip(), anchor=change.at.isoformat(),
    )  # fmt: skip

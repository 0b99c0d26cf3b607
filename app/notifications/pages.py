"""`/settings/projects/{slug}/notifications`: who is told of a project's news, and what became of each message."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Path, Query, Request
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.notifications.events import EVENTS, USUAL
from app.domain.notifications.messages import ATTEMPTS
from app.errors import InvalidChange, TooManyMessages
from app.notifications.commands import (
    Wish,
    add_receiver,
    change_receiver,
    delete_receiver,
    dismiss,
    new_secret_of,
    project_of,
    replay,
    replay_all,
    send_trial,
    set_enabled,
)
from app.notifications.queries import STATES, Receiver, State, deliveries_of, one_receiver, receivers_of
from app.web.dependencies import AppEngine, AppSettings, ReadSession, reading
from app.web.forms import sent_form
from app.web.templating import public_address, render

# --- The form of a receiver: what stands, what was typed, what is wrong with it.

_INPUTS = ("name", "kind", "target", "stacks", "author")


@dataclass(frozen=True, slots=True)
class ReceiverForm:
    values: Mapping[str, str] = field(default_factory=dict)
    events: tuple[str, ...] = USUAL
    errors: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: InvalidChange) -> Self:
        return type(self)(self.values, self.events, {one.field: one.message for one in error.errors})

    def wish(self, address: str) -> Wish:
        stacks = tuple(part for part in self.value("stacks").replace(",", " ").split() if part)
        return Wish(
            self.value("name"), self.value("kind"), self.value("target"), self.events, stacks, self.value("author"),
            address,
        )  # fmt: skip


def read_receiver_form(sent: FormData) -> ReceiverForm:
    values = {name: value.strip() for name in _INPUTS if isinstance(value := sent.get(name), str)}
    ticked = {value for value in sent.getlist("events") if isinstance(value, str)}
    return ReceiverForm(values, tuple(event for event in EVENTS if event in ticked))


def filled_receiver_form(one: Receiver) -> ReceiverForm:
    """As it stands. Its address is not shown: what is typed there replaces it."""
    values = {"name": one.name, "kind": one.kind, "stacks": ", ".join(stack[:16] for stack in one.wants.stacks)}
    if one.kind == "email":
        values["target"] = one.target
    return ReceiverForm(values, one.wants.events)


router = APIRouter(include_in_schema=False, prefix="/settings/projects/{slug}/notifications")

Slug = Annotated[str, Path(min_length=1, max_length=100)]
Number = Annotated[int, Path(ge=1, lt=2**31)]
Done = Literal["", "saved", "paused", "resumed", "deleted", "tested", "replayed", "dismissed"]
PAGE_SIZE = 25
_MAX_FIELDS = 40
_NOBODY = "somebody"
"""Who pressed a button where nobody is logged in and the browser remembers no name."""


@router.get("")
def show_notifications(
    *,
    request: Request,
    session: ReadSession,
    slug: Slug,
    done: Done = "",
    state: State | Literal[""] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> HTMLResponse:
    return _list(request, session, slug, done=done, state=state, page=page)


@router.post("")
async def add(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> Response:
    async with sent_form(request, max_files=0, max_fields=_MAX_FIELDS) as sent:
        form = read_receiver_form(sent)

    def act() -> Response:
        try:
            number, secret = add_receiver(engine, settings, slug, form.wish(public_address(request)))
        except InvalidChange as error:
            with reading(request) as session:
                return _list(request, session, slug, form=form.refused(error), status=422)
        with reading(request) as session:
            return _one(request, session, slug, number, secret=secret, added=True)

    return await run_in_threadpool(act)


@router.get("/{receiver_id}")
def show_receiver(
    *,
    request: Request,
    session: ReadSession,
    slug: Slug,
    receiver_id: Number,
    done: Done = "",
    state: State | Literal[""] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> HTMLResponse:
    return _one(request, session, slug, receiver_id, done=done, state=state, page=page)


@router.post("/{receiver_id}")
async def change(
    request: Request, engine: AppEngine, settings: AppSettings, slug: Slug, receiver_id: Number
) -> Response:
    async with sent_form(request, max_files=0, max_fields=_MAX_FIELDS) as sent:
        form = read_receiver_form(sent)

    def act() -> Response:
        try:
            change_receiver(engine, settings, slug, receiver_id, form.wish(public_address(request)))
        except InvalidChange as error:
            with reading(request) as session:
                return _one(request, session, slug, receiver_id, form=form.refused(error), status=422)
        return _back(slug, receiver_id, "saved")

    return await run_in_threadpool(act)


@router.post("/{receiver_id}/pause")
async def pause(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    def change(author: str) -> None:
        set_enabled(engine, slug, receiver_id, author, enabled=False)

    return await _do(request, slug, receiver_id, done="paused", change=change)


@router.post("/{receiver_id}/resume")
async def resume(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    def change(author: str) -> None:
        set_enabled(engine, slug, receiver_id, author, enabled=True)

    return await _do(request, slug, receiver_id, done="resumed", change=change)


@router.post("/{receiver_id}/test")
async def test(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(
        request,
        slug,
        receiver_id,
        done="tested",
        change=lambda author: send_trial(engine, slug, receiver_id, author),
    )


@router.post("/{receiver_id}/replay")
async def send_all_again(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(
        request,
        slug,
        receiver_id,
        done="replayed",
        change=lambda author: replay_all(engine, slug, receiver_id, author),
    )


@router.post("/{receiver_id}/dismiss")
async def dismiss_given_up(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(
        request,
        slug,
        receiver_id,
        done="dismissed",
        change=lambda author: dismiss(engine, slug, receiver_id, author),
    )


@router.post("/{receiver_id}/delete")
async def delete(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(
        request,
        slug,
        receiver_id,
        done="deleted",
        change=lambda author: delete_receiver(engine, slug, receiver_id, author),
    )


@router.post("/{receiver_id}/secret")
async def renew(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    author = await _author(request)

    def act() -> Response:
        try:
            secret = new_secret_of(engine, slug, receiver_id, author)
        except InvalidChange as error:
            return _refused(request, slug, receiver_id, error)
        with reading(request) as session:
            return _one(request, session, slug, receiver_id, secret=secret)

    return await run_in_threadpool(act)


@router.post("/deliveries/{delivery_id}/replay")
async def send_again(request: Request, engine: AppEngine, slug: Slug, delivery_id: Number) -> Response:
    author = await _author(request)

    def act() -> Response:
        try:
            replay(engine, slug, delivery_id, author)
        except (InvalidChange, TooManyMessages) as error:
            with reading(request) as session:
                return _told(_list(request, session, slug, problem=error.detail, status=_status(error)), error)
        return RedirectResponse(f"{_address(slug)}?done=replayed#log", 303)

    return await run_in_threadpool(act)


async def _do(
    request: Request, slug: str, receiver_id: int, *, done: Done, change: Callable[[str], object]
) -> Response:
    author = await _author(request)

    def act() -> Response:
        try:
            change(author)
        except (InvalidChange, TooManyMessages) as error:
            return _refused(request, slug, receiver_id, error)
        if done == "deleted":
            return RedirectResponse(f"{_address(slug)}?done=deleted", 303)
        return _back(slug, receiver_id, done)

    return await run_in_threadpool(act)


async def _author(request: Request) -> str:
    async with sent_form(request, max_files=0, max_fields=4) as sent:
        stated = sent.get("author")
    return stated if isinstance(stated, str) and stated.strip() else _NOBODY


def _refused(request: Request, slug: str, receiver_id: int, error: InvalidChange | TooManyMessages) -> HTMLResponse:
    with reading(request) as session:
        page = _one(request, session, slug, receiver_id, problem=error.detail, status=_status(error))
    return _told(page, error)


def _status(error: InvalidChange | TooManyMessages) -> int:
    return 429 if isinstance(error, TooManyMessages) else 422


def _told(page: HTMLResponse, error: InvalidChange | TooManyMessages) -> HTMLResponse:
    if isinstance(error, TooManyMessages):
        page.headers["Retry-After"] = str(error.retry_after)
    return page


def _address(slug: str) -> str:
    return f"/settings/projects/{slug}/notifications"


def _back(slug: str, receiver_id: int, done: Done) -> Response:
    return RedirectResponse(f"{_address(slug)}/{receiver_id}?done={done}", 303)


def _list(
    request: Request, session: Session, slug: str, *, form: ReceiverForm | None = None, state: str = "", page: int = 1,
    status: int = 200, **more: Any,
) -> HTMLResponse:  # fmt: skip
    context: dict[str, Any] = {"done": "", "problem": ""} | more
    return render(
        request,
        "notifications/list.html",
        block="delivery_log",
        status=status,
        receivers=receivers_of(session, slug),
        form=form or ReceiverForm(),
        log=deliveries_of(session, slug, state=state, page=page, page_size=PAGE_SIZE),
        here=_address(slug),
        state=state,
        **_common(session, slug),
        **context,
    )


def _one(
    request: Request, session: Session, slug: str, receiver_id: int, *, form: ReceiverForm | None = None,
    state: str = "", page: int = 1, status: int = 200, **more: Any,
) -> HTMLResponse:  # fmt: skip
    one = one_receiver(session, slug, receiver_id)
    context: dict[str, Any] = {"done": "", "problem": "", "secret": "", "added": False} | more
    answer = render(
        request,
        "notifications/receiver.html",
        block="delivery_log",
        status=status,
        one=one,
        form=form or filled_receiver_form(one),
        log=deliveries_of(session, slug, receiver_id=receiver_id, state=state, page=page, page_size=PAGE_SIZE),
        here=f"{_address(slug)}/{receiver_id}",
        state=state,
        **_common(session, slug),
        **context,
    )
    if context["secret"]:
        answer.headers["Cache-Control"] = "no-store"
    return answer


def _common(session: Session, slug: str) -> dict[str, Any]:
    """What both pages need beside their own."""
    project = {"id": project_of(session, slug).id, "slug": slug}
    return {"slug": slug, "of_project": project, "events": EVENTS, "states": STATES, "attempts": ATTEMPTS}

"""`/settings/projects/{slug}/notifications`: receivers of a project and the log of deliveries."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.notifications.events import EVENTS, USUAL
from app.domain.notifications.messages import ATTEMPTS
from app.errors import InvalidChange, ThreewallsError, TooManyMessages
from app.notifications.api import Number
from app.notifications.commands import (
    ReceiverSpec,
    add_receiver,
    change_receiver,
    delete_receiver,
    dismiss,
    new_secret_of,
    replay,
    replay_all,
    send_trial,
    set_enabled,
)
from app.notifications.queries import STATES, Receiver, State, deliveries_of, get_receiver, receivers_of
from app.storage.projects import find_project
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, AppSettings, ReadSession, Slug, reading
from app.web.forms import Form, answer_form
from app.web.templating import public_address, render


class ReceiverForm(Form):
    inputs = ("name", "kind", "target", "stacks", "author")
    several = ("events",)

    @property
    def events(self) -> tuple[str, ...]:
        ticked = self.chosen.get("events", USUAL)
        return tuple(event for event in EVENTS if event in ticked)

    def spec(self, address: str) -> ReceiverSpec:
        stacks = tuple(part for part in self.value("stacks").replace(",", " ").split() if part)
        return ReceiverSpec(
            self.value("name"), self.value("kind"), self.value("target"), self.events, stacks, self.value("author"),
            address,
        )  # fmt: skip


def filled_receiver_form(receiver: Receiver) -> ReceiverForm:
    """Return the form for a receiver. It does not show addresses, which may contain secrets; typing replaces them."""
    stacks = ", ".join(stack[:16] for stack in receiver.subscription.stacks)
    values = {"name": receiver.name, "kind": receiver.kind, "stacks": stacks}
    if receiver.kind == "email":
        values["target"] = receiver.target
    return ReceiverForm(values, chosen={"events": tuple(receiver.subscription.events)})


router = APIRouter(include_in_schema=False, prefix="/settings/projects/{slug}/notifications")

Done = Literal["", "saved", "paused", "resumed", "deleted", "tested", "replayed", "dismissed"]
PAGE_SIZE = 25
_MAX_FIELDS = 40
_UNKNOWN = "unknown user"
"""The author of a change without log-ins when the browser remembers no name."""


@router.get("")
@requires(Action.CONTRIBUTE, of="project")
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
@requires(Action.MANAGE, of="project", log_ins=True)
async def add(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> Response:
    def act(form: ReceiverForm) -> Response:
        number, secret = add_receiver(engine, settings, slug, form.spec(public_address(request)))
        with reading(request) as session:
            return _receiver_page(request, session, slug, number, secret=secret, added=True)

    def again(session: Session, form: ReceiverForm, _: ThreewallsError) -> Response:
        return _list(request, session, slug, form=form, status=422)

    return await answer_form(request, ReceiverForm, act, again, max_fields=_MAX_FIELDS)


@router.get("/{receiver_id}")
@requires(Action.CONTRIBUTE, of="project")
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
    return _receiver_page(request, session, slug, receiver_id, done=done, state=state, page=page)


@router.post("/{receiver_id}")
@requires(Action.MANAGE, of="project", log_ins=True)
async def change(
    request: Request, engine: AppEngine, settings: AppSettings, slug: Slug, receiver_id: Number
) -> Response:
    def act(form: ReceiverForm) -> str:
        change_receiver(engine, settings, slug, receiver_id, form.spec(public_address(request)))
        return f"{_address(slug)}/{receiver_id}?done=saved"

    def again(session: Session, form: ReceiverForm, _: ThreewallsError) -> Response:
        return _receiver_page(request, session, slug, receiver_id, form=form, status=422)

    return await answer_form(request, ReceiverForm, act, again, max_fields=_MAX_FIELDS)


@router.post("/{receiver_id}/pause")
@requires(Action.MANAGE, of="project", log_ins=True)
async def pause(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(
        request, slug, receiver_id, "paused", partial(set_enabled, engine, slug, receiver_id, enabled=False)
    )


@router.post("/{receiver_id}/resume")
@requires(Action.MANAGE, of="project", log_ins=True)
async def resume(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(
        request, slug, receiver_id, "resumed", partial(set_enabled, engine, slug, receiver_id, enabled=True)
    )


@router.post("/{receiver_id}/test")
@requires(Action.MANAGE, of="project", log_ins=True)
async def test(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(request, slug, receiver_id, "tested", partial(send_trial, engine, slug, receiver_id))


@router.post("/{receiver_id}/replay")
@requires(Action.MANAGE, of="project", log_ins=True)
async def send_all_again(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(request, slug, receiver_id, "replayed", partial(replay_all, engine, slug, receiver_id))


@router.post("/{receiver_id}/dismiss")
@requires(Action.MANAGE, of="project", log_ins=True)
async def dismiss_given_up(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(request, slug, receiver_id, "dismissed", partial(dismiss, engine, slug, receiver_id))


@router.post("/{receiver_id}/delete")
@requires(Action.MANAGE, of="project", log_ins=True)
async def delete(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    return await _do(request, slug, receiver_id, "deleted", partial(delete_receiver, engine, slug, receiver_id))


@router.post("/{receiver_id}/secret")
@requires(Action.MANAGE, of="project", log_ins=True)
async def renew(request: Request, engine: AppEngine, slug: Slug, receiver_id: Number) -> Response:
    def act(form: _ButtonForm) -> Response:
        secret = new_secret_of(engine, slug, receiver_id, form.author)
        with reading(request) as session:
            return _receiver_page(request, session, slug, receiver_id, secret=secret)

    return await answer_form(request, _ButtonForm, act, _refused(request, slug, receiver_id), max_fields=4)


@router.post("/deliveries/{delivery_id}/replay")
@requires(Action.MANAGE, of="project", log_ins=True)
async def send_again(request: Request, engine: AppEngine, slug: Slug, delivery_id: Number) -> Response:
    def act(form: _ButtonForm) -> str:
        replay(engine, slug, delivery_id, form.author)
        return f"{_address(slug)}?done=replayed#log"

    catch = (InvalidChange, TooManyMessages)
    return await answer_form(request, _ButtonForm, act, _refused(request, slug), max_fields=4, catch=catch)


async def _do(request: Request, slug: str, receiver_id: int, done: Done, change: Callable[[str], object]) -> Response:
    def act(form: _ButtonForm) -> str:
        change(form.author)
        return f"{_address(slug)}?done=deleted" if done == "deleted" else f"{_address(slug)}/{receiver_id}?done={done}"

    again, catch = _refused(request, slug, receiver_id), (InvalidChange, TooManyMessages)
    return await answer_form(request, _ButtonForm, act, again, max_fields=4, catch=catch)


class _ButtonForm(Form):
    inputs = ("author",)

    @property
    def author(self) -> str:
        return self.value("author") or _UNKNOWN


def _refused(
    request: Request, slug: str, receiver_id: int | None = None
) -> Callable[[Session, _ButtonForm, ThreewallsError], Response]:
    def again(session: Session, _: _ButtonForm, error: ThreewallsError) -> Response:
        status = 429 if isinstance(error, TooManyMessages) else 422
        if receiver_id is None:
            page = _list(request, session, slug, problem=error.detail, status=status)
        else:
            page = _receiver_page(request, session, slug, receiver_id, problem=error.detail, status=status)
        if isinstance(error, TooManyMessages):
            page.headers["Retry-After"] = str(error.retry_after)
        return page

    return again


def _address(slug: str) -> str:
    return f"/settings/projects/{quote(slug)}/notifications"


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


def _receiver_page(
    request: Request, session: Session, slug: str, receiver_id: int, *, form: ReceiverForm | None = None,
    state: str = "", page: int = 1, status: int = 200, **more: Any,
) -> HTMLResponse:  # fmt: skip
    receiver = get_receiver(session, slug, receiver_id)
    context: dict[str, Any] = {"done": "", "problem": "", "secret": "", "added": False} | more
    answer = render(
        request,
        "notifications/receiver.html",
        block="delivery_log",
        status=status,
        receiver=receiver,
        form=form or filled_receiver_form(receiver),
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
    """Return the context that both pages need."""
    project = {"id": find_project(session, slug).id, "slug": slug}
    return {"slug": slug, "of_project": project, "events": EVENTS, "states": STATES, "attempts": ATTEMPTS}

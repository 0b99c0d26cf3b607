"""`/api/v1/projects/{slug}/receivers` and `/deliveries`: receivers of notifications and their deliveries."""

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import quote

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import Engine

from app.domain.access.principal import Action
from app.domain.notifications.events import EVENTS, USUAL
from app.domain.notifications.targets import MAX_TARGET
from app.notifications.commands import (
    MAX_NAME,
    MOST_STACKS,
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
from app.notifications.queries import (
    PAGE_SIZE,
    Receiver,
    State,
    deliveries_of,
    get_receiver,
    receivers_of,
)
from app.storage.database import read_session
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, AppEngine, AppSettings, ListOut, ReadSession, Slug, api_router
from app.web.errors import documented
from app.web.identity import Author, AuthorBody, author, author_field
from app.web.templating import public_address

Number = Annotated[int, Path(ge=1, lt=2**31)]
Kind = Literal["webhook", "slack", "teams", "email"]

_TARGET = "Address to post to, or mailboxes separated by commas. Only the host of an address is shown again."
_EVENTS = f"Subscribed events: one or more of {', '.join(EVENTS)}."
_STACKS = "Keys of stacks, or their prefixes; empty for all stacks of the project."


class ReceiverIn(BaseModel, extra="forbid"):
    name: str = Field(min_length=1, max_length=MAX_NAME)
    kind: Kind
    target: str = Field(min_length=1, max_length=MAX_TARGET, description=_TARGET)
    events: list[str] = Field(list(USUAL), max_length=len(EVENTS), description=_EVENTS)
    stacks: list[str] = Field([], max_length=MOST_STACKS, description=_STACKS)
    author: Author = author_field("Author of the change.")


class ReceiverChangeIn(BaseModel, extra="forbid"):
    """Omitted fields are unchanged."""

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    target: str | None = Field(None, min_length=1, max_length=MAX_TARGET, description=_TARGET)
    events: list[str] | None = Field(None, max_length=len(EVENTS), description=_EVENTS)
    stacks: list[str] | None = Field(None, max_length=MOST_STACKS, description=_STACKS)
    enabled: bool | None = Field(None, description="false pauses it and cancels its waiting deliveries.")
    author: Author = author_field("Author of the change.")


class ReceiverOut(ApiValue):
    id: int
    name: str
    kind: Kind
    target: str = Field(description="Mailboxes, or only the host of the address, which may contain a secret.")
    events: list[str]
    stacks: list[str]
    enabled: bool
    created_by: str
    created_at: datetime
    waiting: int = Field(description="Deliveries that did not arrive yet.")
    failed: int = Field(description="Failed deliveries that were neither sent again nor dismissed.")
    delivered_at: datetime | None = Field(description="When the last delivery arrived.")

    @classmethod
    def of(cls, receiver: Receiver) -> Self:
        return cls.from_values(receiver, receiver.subscription)


class NewReceiverOut(ReceiverOut):
    secret: str = Field(description="Secret that signs the messages of a webhook. It is shown only once.")


class SecretOut(BaseModel):
    secret: str = Field(description="The new secret. It is shown only once.")


class ReceiverList(BaseModel):
    items: list[ReceiverOut]


class DeliveryOut(ApiValue):
    id: int
    receiver: int = Field(validation_alias="receiver_id")
    event: str
    title: str
    state: State = Field(description="`waiting` for its next attempt, `delivered`, or `failed` after the last attempt.")
    attempts: int
    answer_status: int | None = Field(description="HTTP status of the last answer.")
    error: str = Field(description="Why the last attempt failed.")
    replay_of: int | None = Field(description="The delivery that it repeats.")
    created_at: datetime
    tried_at: datetime | None
    delivered_at: datetime | None
    again_at: datetime | None = Field(description="Time of the next attempt.")
    message_id: str = Field(description="Globally unique and equal for all attempts: `webhook-id`, `Message-ID`.")
    behind: int | None = Field(description="The delivery of the same run or regression that it waits for.")
    settled: bool = Field(description="It failed and was sent again or dismissed.")


class DeliveryList(ListOut[DeliveryOut]):
    pass


class CreatedDelivery(BaseModel):
    delivery: int = Field(description="Id of the new delivery.")


class CreatedDeliveries(BaseModel):
    deliveries: list[int] = Field(description="Ids of the new deliveries, oldest first.")


class Dismissed(BaseModel):
    dismissed: int = Field(description="Number of dismissed deliveries.")


class DeliveryQuery(BaseModel, extra="forbid"):
    receiver: int | None = Field(None, ge=1, lt=2**31, description="Only deliveries to this receiver.")
    state: State | None = None
    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(PAGE_SIZE, ge=1, le=500)


router = api_router("notifications", "/api/v1/projects/{slug}")


@router.get("/receivers", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def list_receivers(session: ReadSession, slug: Slug) -> ReceiverList:
    """List the receivers of the project's notifications."""
    return ReceiverList(items=[ReceiverOut.of(receiver) for receiver in receivers_of(session, slug)])


@router.post("/receivers", status_code=201, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def create_receiver(
    *,
    request: Request,
    response: Response,
    engine: AppEngine,
    settings: AppSettings,
    slug: Slug,
    receiver: ReceiverIn,
) -> NewReceiverOut:
    """Add a receiver. Only this answer shows the secret of a webhook."""
    spec = ReceiverSpec(
        receiver.name, receiver.kind, receiver.target, tuple(receiver.events), tuple(receiver.stacks),
        receiver.author, public_address(request),
    )  # fmt: skip
    number, secret = add_receiver(engine, settings, slug, spec)
    response.headers["Location"] = f"/api/v1/projects/{quote(slug)}/receivers/{number}"
    response.headers["Cache-Control"] = "no-store"
    added = _read(engine, slug, number)
    return NewReceiverOut.from_values(added, added.subscription, secret=secret)


@router.get("/receivers/{receiver_id}", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def read_receiver(session: ReadSession, slug: Slug, receiver_id: Number) -> ReceiverOut:
    """Return a receiver."""
    return ReceiverOut.of(get_receiver(session, slug, receiver_id))


@router.patch("/receivers/{receiver_id}", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def update_receiver(
    *,
    request: Request,
    engine: AppEngine,
    settings: AppSettings,
    slug: Slug,
    receiver_id: Number,
    change: ReceiverChangeIn,
) -> ReceiverOut:
    """Change, pause or resume a receiver."""
    before = _read(engine, slug, receiver_id)
    if {"name", "target", "events", "stacks"} & change.model_fields_set:
        spec = ReceiverSpec(
            change.name or before.name,
            before.kind,
            change.target or "",
            before.subscription.events if change.events is None else tuple(change.events),
            before.subscription.stacks if change.stacks is None else tuple(change.stacks),
            change.author,
            public_address(request),
        )
        change_receiver(engine, settings, slug, receiver_id, spec)
    if change.enabled is not None:
        set_enabled(engine, slug, receiver_id, change.author, enabled=change.enabled)
    return ReceiverOut.of(_read(engine, slug, receiver_id))


@router.delete("/receivers/{receiver_id}", status_code=204, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def remove_receiver(
    engine: AppEngine,
    slug: Slug,
    receiver_id: Number,
    stated: Annotated[
        str,
        Query(
            alias="author", max_length=100, description="Author of the change; required on a service without log-ins."
        ),
    ] = "",
) -> None:
    """Delete a receiver and its deliveries."""
    delete_receiver(engine, slug, receiver_id, author(stated))


@router.post("/receivers/{receiver_id}/test", status_code=202, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def test_receiver(engine: AppEngine, slug: Slug, receiver_id: Number, by: AuthorBody) -> CreatedDelivery:
    """Send a test message."""
    return CreatedDelivery(delivery=send_trial(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/secret", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def renew_secret(response: Response, engine: AppEngine, slug: Slug, receiver_id: Number, by: AuthorBody) -> SecretOut:
    """Create a new secret for a webhook. The current secret stops working immediately."""
    response.headers["Cache-Control"] = "no-store"
    return SecretOut(secret=new_secret_of(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/replay", status_code=202, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def replay_given_up(engine: AppEngine, slug: Slug, receiver_id: Number, by: AuthorBody) -> CreatedDeliveries:
    """Send failed deliveries again that were not dismissed, oldest first, at most 500."""
    return CreatedDeliveries(deliveries=replay_all(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/dismiss", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def dismiss_given_up(engine: AppEngine, slug: Slug, receiver_id: Number, by: AuthorBody) -> Dismissed:
    """Dismiss failed deliveries. They stay in the log."""
    return Dismissed(dismissed=dismiss(engine, slug, receiver_id, by.author))


@router.get("/deliveries", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def list_deliveries(session: ReadSession, slug: Slug, query: Annotated[DeliveryQuery, Query()]) -> DeliveryList:
    """List deliveries, newest first."""
    page = deliveries_of(
        session, slug, receiver_id=query.receiver, state=query.state or "", page=query.page, page_size=query.page_size
    )
    return DeliveryList.model_validate(page)


@router.post("/deliveries/{delivery_id}/replay", status_code=202, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def replay_delivery(engine: AppEngine, slug: Slug, delivery_id: Number, by: AuthorBody) -> CreatedDelivery:
    """Send a message again as a new delivery, or now if it is still waiting."""
    return CreatedDelivery(delivery=replay(engine, slug, delivery_id, by.author))


def _read(engine: Engine, slug: str, receiver_id: int) -> Receiver:
    with read_session(engine) as session:
        return get_receiver(session, slug, receiver_id)

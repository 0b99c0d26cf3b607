"""`/api/v1/projects/{slug}/receivers` and `/deliveries`: who is told of a project's news, and what became of it."""

from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine

from app.domain.access.principal import Action
from app.domain.notifications.events import EVENTS, USUAL
from app.domain.notifications.targets import MAX_TARGET
from app.notifications.commands import (
    MAX_NAME,
    MOST_STACKS,
    Wish,
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
    Delivery,
    DeliveryPage,
    Receiver,
    State,
    deliveries_of,
    one_receiver,
    receivers_of,
)
from app.storage.audit import MAX_AUTHOR
from app.storage.database import read_session
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, AppSettings, ReadSession
from app.web.errors import documented
from app.web.identity import Author, author, author_field
from app.web.templating import public_address

# --- What the API says of receivers and deliveries. A secret is in the answer that made it, and in no other.

Slug = Annotated[str, Path(min_length=1, max_length=100, description="Name of the project, as in `meta.project`.")]
Number = Annotated[int, Path(ge=1, lt=2**31)]
Kind = Literal["webhook", "slack", "teams", "email"]

_TARGET = "Address that is posted to, or mailboxes with commas between them. It is not shown again, but for its host."
_EVENTS = f"What it is told: some of {', '.join(EVENTS)}."
_STACKS = "Keys of stacks, or their beginnings; none: all of the project."


class ReceiverIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=MAX_NAME)
    kind: Kind
    target: str = Field(min_length=1, max_length=MAX_TARGET, description=_TARGET)
    events: list[str] = Field(list(USUAL), max_length=len(EVENTS), description=_EVENTS)
    stacks: list[str] = Field([], max_length=MOST_STACKS, description=_STACKS)
    author: Author = author_field("Who adds it.", MAX_AUTHOR)


class ReceiverChangeIn(BaseModel):
    """What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    target: str | None = Field(None, min_length=1, max_length=MAX_TARGET, description=_TARGET)
    events: list[str] | None = Field(None, max_length=len(EVENTS), description=_EVENTS)
    stacks: list[str] | None = Field(None, max_length=MOST_STACKS, description=_STACKS)
    enabled: bool | None = Field(None, description="false: paused. What waits for it then is not sent.")
    author: Author = author_field("Who changes it.", MAX_AUTHOR)


class By(BaseModel):
    model_config = ConfigDict(extra="forbid")

    author: Author = author_field("Who does it.", MAX_AUTHOR)


class ReceiverOut(BaseModel):
    id: int
    name: str
    kind: Kind
    target: str = Field(description="Mailboxes, or the host of the address: the whole of it is as good as a password.")
    events: list[str]
    stacks: list[str]
    enabled: bool
    created_by: str
    created_at: datetime
    waiting: int = Field(description="Deliveries that are still to arrive.")
    failed: int = Field(description="Deliveries that were given up, and neither sent again nor dismissed.")
    delivered_at: datetime | None = Field(description="When the newest one arrived.")

    @classmethod
    def of(cls, one: Receiver) -> Self:
        return cls(
            id=one.id, name=one.name, kind=one.kind, target=one.target, events=list(one.wants.events),
            stacks=list(one.wants.stacks), enabled=one.enabled, created_by=one.created_by, created_at=one.created_at,
            waiting=one.waiting, failed=one.failed, delivered_at=one.delivered_at,
        )  # fmt: skip


class NewReceiverOut(ReceiverOut):
    secret: str = Field(description="Of a webhook: what its messages are signed with, told now and never again.")


class SecretOut(BaseModel):
    secret: str = Field(description="Signs from now on; told now and never again.")


class ReceiverList(BaseModel):
    items: list[ReceiverOut]


class DeliveryOut(BaseModel):
    id: int
    receiver: int
    event: str
    title: str
    state: State = Field(description="waiting: to be sent, or sent again; delivered; failed: given up.")
    attempts: int
    answer_status: int | None = Field(description="HTTP status of the newest answer.")
    error: str = Field(description="Why the newest attempt failed.")
    replay_of: int | None = Field(description="The delivery that it repeats.")
    created_at: datetime
    tried_at: datetime | None
    delivered_at: datetime | None
    again_at: datetime | None = Field(description="When it is tried again.")
    message_id: str = Field(
        description="The same at every attempt, and no other service's: `webhook-id`, `Message-ID`."
    )
    behind: int | None = Field(description="The delivery of the same run or regression that it waits for.")
    settled: bool = Field(description="It was given up, and sent again or dismissed.")

    @classmethod
    def of(cls, one: Delivery) -> Self:
        return cls(
            id=one.id, receiver=one.receiver_id, event=one.event, title=one.title, state=one.state,
            attempts=one.attempts, answer_status=one.answer_status, error=one.error, replay_of=one.replay_of,
            created_at=one.created_at, tried_at=one.tried_at, delivered_at=one.delivered_at, again_at=one.again_at,
            message_id=one.message_id, behind=one.behind, settled=one.settled,
        )  # fmt: skip


class DeliveryList(BaseModel):
    items: list[DeliveryOut]
    total: int
    page: int
    page_size: int

    @classmethod
    def of(cls, page: DeliveryPage) -> Self:
        items = [DeliveryOut.of(one) for one in page.items]
        return cls(items=items, total=page.total, page=page.page, page_size=page.page_size)


class DeliveryMade(BaseModel):
    delivery: int = Field(description="Its number in the list of deliveries.")


class DeliveriesMade(BaseModel):
    deliveries: list[int] = Field(description="Their numbers in the list of deliveries, oldest first.")


class Dismissed(BaseModel):
    dismissed: int = Field(description="How many there were.")


class DeliveryQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    receiver: int | None = Field(None, ge=1, lt=2**31, description="Only those to this one.")
    state: State | None = None
    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(PAGE_SIZE, ge=1, le=500)


router = APIRouter(prefix="/api/v1/projects/{slug}", tags=["notifications"])


@router.get("/receivers", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def list_receivers(session: ReadSession, slug: Slug) -> ReceiverList:
    """Who is told of the project's news, and of which."""
    return ReceiverList(items=[ReceiverOut.of(one) for one in receivers_of(session, slug)])


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
    """Add one. The answer holds the secret of a webhook, this once."""
    wish = Wish(
        receiver.name, receiver.kind, receiver.target, tuple(receiver.events), tuple(receiver.stacks),
        receiver.author, public_address(request),
    )  # fmt: skip
    number, secret = add_receiver(engine, settings, slug, wish)
    response.headers["Location"] = f"/api/v1/projects/{slug}/receivers/{number}"
    response.headers["Cache-Control"] = "no-store"
    return NewReceiverOut(**ReceiverOut.of(_read(engine, slug, number)).model_dump(), secret=secret)


@router.get("/receivers/{receiver_id}", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def read_receiver(session: ReadSession, slug: Slug, receiver_id: Number) -> ReceiverOut:
    """One of them."""
    return ReceiverOut.of(one_receiver(session, slug, receiver_id))


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
    """Change it, pause it or have it go on."""
    before = _read(engine, slug, receiver_id)
    if {"name", "target", "events", "stacks"} & change.model_fields_set:
        wish = Wish(
            change.name or before.name,
            before.kind,
            change.target or "",
            before.wants.events if change.events is None else tuple(change.events),
            before.wants.stacks if change.stacks is None else tuple(change.stacks),
            change.author,
            public_address(request),
        )
        change_receiver(engine, settings, slug, receiver_id, wish)
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
        str, Query(alias="author", max_length=100, description="Who does it; needed where nobody is logged in.")
    ] = "",
) -> None:
    """Delete it with its log."""
    delete_receiver(engine, slug, receiver_id, author(stated))


@router.post("/receivers/{receiver_id}/test", status_code=202, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def test_receiver(engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> DeliveryMade:
    """Send a test message."""
    return DeliveryMade(delivery=send_trial(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/secret", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def renew_secret(response: Response, engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> SecretOut:
    """A new secret for a webhook. The old one ends at once."""
    response.headers["Cache-Control"] = "no-store"
    return SecretOut(secret=new_secret_of(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/replay", status_code=202, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def replay_given_up(engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> DeliveriesMade:
    """Send again what was given up and not dismissed, in its order; the oldest 500."""
    return DeliveriesMade(deliveries=replay_all(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/dismiss", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def dismiss_given_up(engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> Dismissed:
    """What was given up needs nobody any more. It stays in the log."""
    return Dismissed(dismissed=dismiss(engine, slug, receiver_id, by.author))


@router.get("/deliveries", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def list_deliveries(session: ReadSession, slug: Slug, query: Annotated[DeliveryQuery, Query()]) -> DeliveryList:
    """What was sent, is being sent and was given up, newest first."""
    found = deliveries_of(
        session, slug, receiver_id=query.receiver, state=query.state or "", page=query.page, page_size=query.page_size
    )
    return DeliveryList.of(found)


@router.post("/deliveries/{delivery_id}/replay", status_code=202, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def replay_delivery(engine: AppEngine, slug: Slug, delivery_id: Number, by: By) -> DeliveryMade:
    """Send it again, as a delivery of its own. What still waits is itself tried now."""
    return DeliveryMade(delivery=replay(engine, slug, delivery_id, by.author))


def _read(engine: Engine, slug: str, receiver_id: int) -> Receiver:
    with read_session(engine) as session:
        return one_receiver(session, slug, receiver_id)

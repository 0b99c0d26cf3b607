"""What the API says of receivers and deliveries. A secret is in the answer that made it, and in no other."""

from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from app.domain.notices.events import EVENTS, USUAL
from app.domain.notices.targets import MAX_TARGET
from app.notifications.queries import PAGE_SIZE, Delivery, DeliveryPage, Receiver, State
from app.notifications.receivers import MAX_NAME, MOST_STACKS
from app.storage.audit import MAX_AUTHOR
from app.web.access.acting import Author, author_field

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

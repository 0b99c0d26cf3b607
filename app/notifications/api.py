"""`/api/v1/projects/{slug}/receivers` and `/deliveries`: who is told of a project's news, and what became of it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Engine

from app.notifications.api_models import (
    By,
    DeliveriesMade,
    DeliveryList,
    DeliveryMade,
    DeliveryQuery,
    Dismissed,
    NewReceiverOut,
    Number,
    ReceiverChangeIn,
    ReceiverIn,
    ReceiverList,
    ReceiverOut,
    SecretOut,
    Slug,
)
from app.notifications.queries import Receiver, deliveries_of, one_receiver, receivers_of
from app.notifications.receivers import (
    Wish,
    add_receiver,
    change_receiver,
    delete_receiver,
    new_secret_of,
    set_enabled,
)
from app.notifications.sending import dismiss, replay, replay_all, send_trial
from app.storage.database import read_session
from app.web.access.acting import author
from app.web.dependencies import AppEngine, AppSettings, ReadSession
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1/projects/{slug}", tags=["notifications"])


@router.get("/receivers", responses=documented(404, 422))
def list_receivers(session: ReadSession, slug: Slug) -> ReceiverList:
    """Who is told of the project's news, and of which."""
    return ReceiverList(items=[ReceiverOut.of(one) for one in receivers_of(session, slug)])


@router.post("/receivers", status_code=201, responses=documented(404, 422))
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
def read_receiver(session: ReadSession, slug: Slug, receiver_id: Number) -> ReceiverOut:
    """One of them."""
    return ReceiverOut.of(one_receiver(session, slug, receiver_id))


@router.patch("/receivers/{receiver_id}", responses=documented(404, 422))
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
def test_receiver(engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> DeliveryMade:
    """Send a test message."""
    return DeliveryMade(delivery=send_trial(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/secret", responses=documented(404, 422))
def renew_secret(response: Response, engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> SecretOut:
    """A new secret for a webhook. The old one ends at once."""
    response.headers["Cache-Control"] = "no-store"
    return SecretOut(secret=new_secret_of(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/replay", status_code=202, responses=documented(404, 422))
def replay_given_up(engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> DeliveriesMade:
    """Send again what was given up and not dismissed, in its order; the oldest 500."""
    return DeliveriesMade(deliveries=replay_all(engine, slug, receiver_id, by.author))


@router.post("/receivers/{receiver_id}/dismiss", responses=documented(404, 422))
def dismiss_given_up(engine: AppEngine, slug: Slug, receiver_id: Number, by: By) -> Dismissed:
    """What was given up needs nobody any more. It stays in the log."""
    return Dismissed(dismissed=dismiss(engine, slug, receiver_id, by.author))


@router.get("/deliveries", responses=documented(404, 422))
def list_deliveries(session: ReadSession, slug: Slug, query: Annotated[DeliveryQuery, Query()]) -> DeliveryList:
    """What was sent, is being sent and was given up, newest first."""
    found = deliveries_of(
        session, slug, receiver_id=query.receiver, state=query.state or "", page=query.page, page_size=query.page_size
    )
    return DeliveryList.of(found)


@router.post("/deliveries/{delivery_id}/replay", status_code=202, responses=documented(404, 422))
def replay_delivery(engine: AppEngine, slug: Slug, delivery_id: Number, by: By) -> DeliveryMade:
    """Send it again, as a delivery of its own. What still waits is itself tried now."""
    return DeliveryMade(delivery=replay(engine, slug, delivery_id, by.author))


def _read(engine: Engine, slug: str, receiver_id: int) -> Receiver:
    with read_session(engine) as session:
        return one_receiver(session, slug, receiver_id)

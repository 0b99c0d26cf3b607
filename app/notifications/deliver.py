"""What a worker does with a message: claim it, send it, write down what became of it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.notices import messages
from app.domain.notices.events import Notice
from app.domain.notices.networks import read_networks
from app.domain.notices.retries import wait_after
from app.domain.notices.signature import headers
from app.domain.notices.targets import EMAIL, SLACK, TEAMS, read_mailboxes, read_web
from app.notifications.mailing import send_mail
from app.notifications.outgoing import NotReachedError, RefusedError, post
from app.settings import Settings
from app.storage import delivery_work
from app.storage.database import transaction
from app.storage.delivery_work import HeldDelivery
from app.storage.tables import utc_now

log = structlog.get_logger(__name__)

_GONE = 410


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one. `final`: trying again would change nothing. `status`: the answer's, None without one."""

    arrived: bool
    error: str = ""
    status: int | None = None
    final: bool = False
    retry_after: int | None = None


def deliver(engine: Engine, settings: Settings, delivery_id: int) -> bool | None:
    """Whether it arrived; None when it is another's, done or not due. May be called any number of times."""
    with transaction(engine) as session:
        held = delivery_work.claim(session, delivery_id)
    if held is None:
        return None
    try:
        attempt = _attempt(settings, held)
    except Exception as error:  # a defect of ours is one failed attempt, and is seen in the log of deliveries
        log.exception("delivery_broken", delivery_id=delivery_id)
        attempt = Attempt(False, f"Threewalls could not send it ({type(error).__name__}).")
    with transaction(engine) as session:
        if not _write(session, held, attempt):
            log.warning("delivery_outcome_dropped", delivery_id=delivery_id, attempt=held.attempt)
    log.info("delivery_tried", delivery_id=delivery_id, arrived=attempt.arrived, status=attempt.status)
    return attempt.arrived


def _write(session: Session, held: HeldDelivery, attempt: Attempt) -> bool:
    """False when the claim was lost meanwhile."""
    if attempt.arrived:
        return delivery_work.delivered(session, held, status=attempt.status, note=attempt.error)
    wait = None if attempt.final else wait_after(held.attempt, attempt.retry_after)
    if wait is None:
        return delivery_work.given_up(session, held, status=attempt.status, error=attempt.error)
    again_at = utc_now() + wait
    return delivery_work.postponed(session, held, again_at=again_at, status=attempt.status, error=attempt.error)


def _attempt(settings: Settings, held: HeldDelivery) -> Attempt:
    notice = Notice.read(held.payload)
    name = f"delivery-{held.id}"
    address = settings.public_url or str(held.rules.get("address", ""))
    link = f"{address.rstrip('/')}{notice.path}" if address else ""
    try:
        if held.kind == EMAIL:
            return _mailed(settings, held, notice, name, link)
        return _posted(settings, held, notice, name, link)
    except RefusedError as error:
        return Attempt(False, str(error), final=True)
    except NotReachedError as error:
        return Attempt(False, str(error))


def _posted(settings: Settings, held: HeldDelivery, notice: Notice, name: str, link: str) -> Attempt:
    signed: Mapping[str, str] = {}
    if held.kind == SLACK:
        body = messages.slack_body(notice, link)
    elif held.kind == TEAMS:
        body = messages.teams_body(notice, link)
    else:
        replayed = f"delivery-{held.replay_of}" if held.replay_of else None
        body = messages.webhook_body(notice, name, link, replayed)
        signed = headers(held.secret, name, int(time.time()), body)
    sent = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"Threewalls/{version('threewalls')}"}
    allowed = read_networks(settings.allow_private_targets)
    answer = post(read_web(held.target), body, sent | dict(signed), allowed)
    if 200 <= answer.status < 300:
        return Attempt(True, status=answer.status)
    error = f"It answered {answer.status}."
    if 300 <= answer.status < 400:
        error = f"It answered {answer.status}, a redirect, and none is followed. Enter the address that it leads to."
    return Attempt(False, error, answer.status, final=answer.status == _GONE, retry_after=answer.retry_after)


def _mailed(settings: Settings, held: HeldDelivery, notice: Notice, name: str, link: str) -> Attempt:
    domain = settings.smtp_from.rpartition("@")[2].strip("<> ") or "localhost"
    to = read_mailboxes(held.target)
    refused = send_mail(settings, messages.mail(notice, name, link, sender=settings.smtp_from, to=to, domain=domain))
    told = f"The mail server refused {', '.join(refused)}." if refused else ""
    return Attempt(True, told)

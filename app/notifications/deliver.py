"""What a worker does with a message: claim it, send it, write down what became of it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.notices import messages
from app.domain.notices.events import Notice, UnreadableNotice
from app.domain.notices.networks import read_networks
from app.domain.notices.retries import wait_after
from app.domain.notices.signature import headers
from app.domain.notices.targets import EMAIL, SLACK, TEAMS, read_mailboxes, read_web
from app.errors import new_error_id
from app.notifications.mailing import send_mail
from app.notifications.outgoing import NotReachedError, RefusedError, post
from app.settings import Settings
from app.storage import allowance, delivery_work
from app.storage.database import transaction
from app.storage.delivery_work import HeldDelivery
from app.storage.tables import utc_now

log = structlog.get_logger(__name__)

_GONE = 410
MAILS_AN_HOUR = 600
"""Of a project, each mailbox counted: nobody asked its owner, so nobody may flood it."""
_HOUR = timedelta(hours=1)


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
        attempt = _attempt(engine, settings, held)
    except Exception:  # one failed attempt, which the list of deliveries shows
        error_id = new_error_id()
        log.exception("delivery_broken", delivery_id=delivery_id, error_id=error_id)
        attempt = Attempt(False, f"Unexpected error (id {error_id}). The worker's log has the details under this id.")
    with transaction(engine) as session:
        if not _write(session, held, attempt):
            log.warning("delivery_outcome_dropped", delivery_id=delivery_id, attempt=held.attempt)
    log.info("delivery_tried", delivery_id=delivery_id, arrived=attempt.arrived, status=attempt.status)
    return attempt.arrived


def _write(session: Session, held: HeldDelivery, attempt: Attempt) -> bool:
    """False when the claim was lost meanwhile."""
    if attempt.arrived:
        return delivery_work.delivered(session, held, status=attempt.status, note=attempt.error)
    wait = None if attempt.final else wait_after(held.attempt, utc_now() - held.created_at, attempt.retry_after)
    if wait is None:
        return delivery_work.given_up(session, held, status=attempt.status, error=attempt.error)
    again_at = utc_now() + wait
    return delivery_work.postponed(session, held, again_at=again_at, status=attempt.status, error=attempt.error)


def _attempt(engine: Engine, settings: Settings, held: HeldDelivery) -> Attempt:
    try:
        notice = Notice.read(held.payload)
        address = settings.public_url or str(held.rules.get("address", ""))
        link = f"{address.rstrip('/')}{notice.path}" if address else ""
        if held.kind == EMAIL:
            return _mailed(engine, settings, held, notice, link)
        return _posted(settings, held, notice, link)
    except (RefusedError, UnreadableNotice) as error:
        return Attempt(False, str(error), final=True)
    except NotReachedError as error:
        return Attempt(False, str(error))


def _posted(settings: Settings, held: HeldDelivery, notice: Notice, link: str) -> Attempt:
    signed: Mapping[str, str] = {}
    if held.kind == SLACK:
        body = messages.slack_body(notice, link)
    elif held.kind == TEAMS:
        body = messages.teams_body(notice, link)
    else:
        body = messages.webhook_body(notice, held.message_id, link, held.replay_of)
        signed = headers(held.secret, held.message_id, int(time.time()), body)
    sent = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"Threewalls/{version('threewalls')}"}
    allowed = read_networks(settings.allow_private_targets)
    answer = post(read_web(held.target), body, sent | dict(signed), allowed)
    if 200 <= answer.status < 300:
        return Attempt(True, status=answer.status)
    error = f"It answered {answer.status}."
    if 300 <= answer.status < 400:
        error = f"It answered {answer.status}, a redirect, and none is followed. Enter the address that it leads to."
    return Attempt(False, error, answer.status, final=answer.status == _GONE, retry_after=answer.retry_after)


def _mailed(engine: Engine, settings: Settings, held: HeldDelivery, notice: Notice, link: str) -> Attempt:
    sender, to = settings.smtp_from, read_mailboxes(held.target)
    domain = sender.rpartition("@")[2].strip("<> ") or "localhost"
    with transaction(engine) as session:
        wait = allowance.use(session, held.project_id, "mails", len(to), most=MAILS_AN_HOUR, within=_HOUR)
    if wait:
        told = (
            f"The project has sent the {MAILS_AN_HOUR} mails that it may send an hour. It goes out when that is over."
        )
        return Attempt(False, told, retry_after=wait)
    refused = send_mail(settings, messages.mail(notice, held.message_id, link, sender=sender, to=to, domain=domain))
    told = f"The mail server refused {', '.join(refused)}." if refused else ""
    return Attempt(True, told)

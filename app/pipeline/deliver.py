"""Send notifications: claim a delivery, send it, record the outcome."""

import http.client
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from email.message import EmailMessage
from importlib.metadata import version

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.notifications import messages
from app.domain.notifications.events import Notification, UnreadableNotification
from app.domain.notifications.messages import headers, wait_after
from app.domain.notifications.targets import (
    EMAIL,
    SLACK,
    TEAMS,
    Network,
    WebTarget,
    read_mailboxes,
    read_networks,
    read_web,
    refused_because,
)
from app.errors import new_error_id
from app.pipeline.work import DeliveryClaim, delivery_queue
from app.settings import Settings
from app.storage import projects
from app.storage.database import transaction
from app.storage.tables import utc_now
from app.storage.worker_activity import timed

# --- HTTP requests to addresses that users enter, restricted to the public internet (SSRF guard).
#
# A name is resolved once, and the connection goes to the checked address, so that a second DNS answer cannot differ.
# TLS is verified against the name. Redirects are not followed, only the status of the answer is stored, and the whole
# request takes at most SECONDS. Apprise would send through `requests`, which resolves the name a second time.

CONNECT_SECONDS = 5.0
SECONDS = 10.0
MOST_ADDRESSES = 4


class NotReachedError(Exception):
    """Raised when no answer arrived; the message gives the reason."""


class RefusedError(Exception):
    """Raised when the address is not allowed; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """The answer of a receiver. `retry_after`: its Retry-After header in seconds."""

    status: int
    retry_after: int | None


def post(
    target: WebTarget, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network], seconds: float = SECONDS
) -> ReceiverAnswer:
    """Send a POST request within `seconds`. Raises RefusedError and NotReachedError."""
    connection = _Connection(target, allowed, seconds)
    try:
        connection.connect()
        connection.putrequest("POST", target.path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": target.authority, "Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        if connection.is_late.is_set():  # the answer may be truncated, which the status does not show
            raise TimeoutError
        return ReceiverAnswer(answer.status, _seconds(answer.getheader("Retry-After")))
    except TimeoutError:
        raise NotReachedError(f"It did not answer within {seconds:g} s.") from None
    except ssl.SSLCertVerificationError as error:
        raise NotReachedError(f"Its certificate is not valid for {target.host}: {error.verify_message}.") from None
    except ssl.SSLError as error:
        raise NotReachedError(f"No encrypted connection could be made: {error.reason or 'it was closed'}.") from None
    except (OSError, http.client.HTTPException) as error:
        late = connection.is_late.is_set()
        why = f"It did not answer within {seconds:g} s." if late else f"No answer was received: {_why(error)}."
        raise NotReachedError(why) from None
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection to a checked address, closed at the deadline even if the other end sends slowly."""

    def __init__(self, target: WebTarget, allowed: Sequence[Network], seconds: float) -> None:
        super().__init__(target.host, target.port)
        self._target, self._allowed = target, allowed
        self.is_late = threading.Event()
        self._watch = threading.Timer(seconds, self._cut_off)
        self._watch.daemon = True

    def connect(self) -> None:
        raw = self._connected(checked_addresses(self._target, self._allowed))
        self.sock = raw
        self._watch.start()
        if self._target.scheme == "https":
            # The TLS handshake comes after this, so that the deadline also covers it.
            context, name = ssl.create_default_context(), self._target.host
            self.sock = context.wrap_socket(raw, server_hostname=name, do_handshake_on_connect=False)
            self.sock.do_handshake()

    def close(self) -> None:
        self._watch.cancel()
        super().close()

    def _connected(self, addresses: Sequence[str]) -> socket.socket:
        """Connect to the first address that accepts. Raises OSError."""
        failed = OSError("no address")
        for address in addresses:
            try:
                return socket.create_connection((address, self._target.port), timeout=CONNECT_SECONDS)
            except OSError as error:
                failed = error
        raise failed

    def _cut_off(self) -> None:
        self.is_late.set()
        with suppress(OSError, TypeError):
            # Closes the socket without a TLS shutdown, which would interfere with the reading thread.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def checked_addresses(target: WebTarget, allowed: Sequence[Network]) -> tuple[str, ...]:
    """Return the addresses of a name. Raises RefusedError if any is forbidden, because the name may be an attack."""
    try:
        entries = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NotReachedError(f"No address was found for the name {target.host}.") from None
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
    for address in addresses:
        if why := refused_because(address, target.port, allowed):
            raise RefusedError(f"Not sent: {why}.")
    return addresses[:MOST_ADDRESSES]


def _seconds(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else None


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "no service listens there"
    if isinstance(error, ConnectionResetError | http.client.RemoteDisconnected):
        return "the connection was closed"
    if isinstance(error, http.client.HTTPException):
        return "the answer is not HTTP"
    return (getattr(error, "strerror", None) or "the connection failed").lower()


# --- Mail through the server from the settings. An administrator chose it, so its address may be private.


def send_mail(settings: Settings, message: EmailMessage) -> tuple[str, ...]:
    """Send a mail and return the mailboxes that the server refused. Raises NotReachedError."""
    if not settings.smtp_host:
        raise NotReachedError("No mail server is configured: set THREEWALLS_SMTP_HOST.")
    try:
        with _server(settings) as server:
            if settings.smtp_security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if settings.smtp_user:
                server.login(settings.smtp_user, settings.smtp_password)
            return tuple(server.send_message(message))
    except smtplib.SMTPRecipientsRefused:
        raise NotReachedError("The mail server refused every mailbox.") from None
    except smtplib.SMTPResponseException as error:
        # Only the code, because the text may repeat what was sent, including the password.
        raise NotReachedError(f"The mail server answered {error.smtp_code} ({type(error).__name__}).") from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotReachedError(f"The mail server did not accept the message ({type(error).__name__}).") from None


def _server(settings: Settings) -> smtplib.SMTP:
    host, port = settings.smtp_host, settings.smtp_port
    if settings.smtp_security == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=ssl.create_default_context())
    return smtplib.SMTP(host, port, timeout=SECONDS)


log = structlog.get_logger(__name__)

_GONE = 410
MAILS_AN_HOUR = 600
"""Limit per project, counted per mailbox. Others entered these addresses, so their owners must not be flooded."""
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """The outcome of one attempt. `final`: a retry would fail, too. `status`: HTTP status; None without an answer."""

    arrived: bool
    error: str = ""
    status: int | None = None
    final: bool = False
    retry_after: int | None = None


@timed("deliver")
def deliver(engine: Engine, settings: Settings, delivery_id: int) -> bool | None:
    """Send a delivery. Return whether it arrived; None if another worker has it, or it is done or not due."""
    with transaction(engine) as session:
        claim = delivery_queue.claim(session, delivery_id)
    if claim is None:
        return None
    try:
        attempt = _attempt(engine, settings, claim)
    except Exception:  # counts as a failed attempt, which the list of deliveries shows
        error_id = new_error_id()
        log.exception("delivery_broken", delivery_id=delivery_id, error_id=error_id)
        attempt = DeliveryAttempt(
            False, f"Unexpected error (id {error_id}). The worker's log has the details under this id."
        )
    with transaction(engine) as session:
        if not _write(session, claim, attempt):
            log.warning("delivery_outcome_dropped", delivery_id=delivery_id, attempt=claim.attempt)
    log.info("delivery_tried", delivery_id=delivery_id, arrived=attempt.arrived, status=attempt.status)
    return attempt.arrived


def _write(session: Session, claim: DeliveryClaim, attempt: DeliveryAttempt) -> bool:
    """Record the outcome. Return False if the claim was lost."""
    if attempt.arrived:
        return delivery_queue.delivered(session, claim, status=attempt.status, note=attempt.error)
    wait = None if attempt.final else wait_after(claim.attempt, utc_now() - claim.created_at, attempt.retry_after)
    if wait is None:
        return delivery_queue.given_up(session, claim, status=attempt.status, error=attempt.error)
    again_at = utc_now() + wait
    return delivery_queue.postponed(session, claim, again_at=again_at, status=attempt.status, error=attempt.error)


def _attempt(engine: Engine, settings: Settings, claim: DeliveryClaim) -> DeliveryAttempt:
    try:
        notification = Notification.read(claim.payload)
        address = settings.public_url or str(claim.rules.get("address", ""))
        link = f"{address.rstrip('/')}{notification.path}" if address else ""
        if claim.kind == EMAIL:
            return _mailed(engine, settings, claim, notification, link)
        return _posted(settings, claim, notification, link)
    except (RefusedError, UnreadableNotification) as error:
        return DeliveryAttempt(False, str(error), final=True)
    except NotReachedError as error:
        return DeliveryAttempt(False, str(error))


def _posted(settings: Settings, claim: DeliveryClaim, notification: Notification, link: str) -> DeliveryAttempt:
    signed: Mapping[str, str] = {}
    if claim.kind == SLACK:
        body = messages.slack_body(notification, link)
    elif claim.kind == TEAMS:
        body = messages.teams_body(notification, link)
    else:
        body = messages.webhook_body(notification, claim.message_id, link, claim.replay_of)
        signed = headers(claim.secret, claim.message_id, int(time.time()), body)
    sent = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"Threewalls/{version('threewalls')}"}
    allowed = read_networks(settings.allow_private_targets)
    answer = post(read_web(claim.target), body, sent | dict(signed), allowed)
    if 200 <= answer.status < 300:
        return DeliveryAttempt(True, status=answer.status)
    error = f"It answered {answer.status}."
    if 300 <= answer.status < 400:
        error = f"It answered {answer.status}, a redirect. Redirects are not followed: enter the target address."
    return DeliveryAttempt(False, error, answer.status, final=answer.status == _GONE, retry_after=answer.retry_after)


def _mailed(
    engine: Engine, settings: Settings, claim: DeliveryClaim, notification: Notification, link: str
) -> DeliveryAttempt:
    sender, to = settings.smtp_from, read_mailboxes(claim.target)
    domain = sender.rpartition("@")[2].strip("<> ") or "localhost"
    with transaction(engine) as session:
        wait = projects.use(session, claim.project_id, "mails", len(to), most=MAILS_AN_HOUR, within=_HOUR)
    if wait:
        note = (
            f"The project reached its limit of {MAILS_AN_HOUR} mails per hour. This mail is sent when the hour is over."
        )
        return DeliveryAttempt(False, note, retry_after=wait)
    refused = send_mail(
        settings, messages.mail(notification, claim.message_id, link, sender=sender, to=to, domain=domain)
    )
    note = f"The mail server refused {', '.join(refused)}." if refused else ""
    return DeliveryAttempt(True, note)

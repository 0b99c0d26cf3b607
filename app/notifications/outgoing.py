"""One request to an address that a person typed: to a checked address of the public internet, or not at all.

A name is looked up once, and the connection goes to the very address that was checked, so that a name server cannot
answer twice differently. TLS is checked against the name. No redirect is followed, nothing of the answer is kept but
its status, and the whole takes at most SECONDS.
"""

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.domain.notices.networks import Network, refused_because
from app.domain.notices.targets import WebTarget

CONNECT_SECONDS = 5.0
SECONDS = 10.0
MOST_ADDRESSES = 4


class NotReachedError(Exception):
    """No answer came. The message says why."""


class RefusedError(Exception):
    """The service does not call there. The message says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`retry_after`: seconds that the receiver asked to be left alone for."""

    status: int
    retry_after: int | None


def post(
    target: WebTarget, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network], seconds: float = SECONDS
) -> Answer:
    """Raises RefusedError and NotReachedError."""
    connection = _Connection(target, allowed, seconds)
    try:
        connection.connect()
        connection.putrequest("POST", target.path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": target.authority, "Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        if connection.is_late.is_set():  # what was cut off looks as if it had come to its end
            raise TimeoutError
        return Answer(answer.status, _seconds(answer.getheader("Retry-After")))
    except TimeoutError:
        raise NotReachedError(f"It did not answer within {seconds:g} s.") from None
    except ssl.SSLCertVerificationError as error:
        raise NotReachedError(f"Its certificate is not valid for {target.host}: {error.verify_message}.") from None
    except ssl.SSLError as error:
        raise NotReachedError(f"No encrypted connection could be made: {error.reason or 'it was cut off'}.") from None
    except (OSError, http.client.HTTPException) as error:
        late = connection.is_late.is_set()
        why = f"It did not answer within {seconds:g} s." if late else f"No answer came: {_why(error)}."
        raise NotReachedError(why) from None
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """To a checked address; cut off when the time is over, however slowly its other end speaks."""

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
            # The handshake comes after, so that it can be cut off, too.
            context, name = ssl.create_default_context(), self._target.host
            self.sock = context.wrap_socket(raw, server_hostname=name, do_handshake_on_connect=False)
            self.sock.do_handshake()

    def close(self) -> None:
        self._watch.cancel()
        super().close()

    def _connected(self, addresses: Sequence[str]) -> socket.socket:
        """To the first of them that takes the connection. Raises OSError."""
        failed = OSError("there is no address")
        for address in addresses:
            try:
                return socket.create_connection((address, self._target.port), timeout=CONNECT_SECONDS)
            except OSError as error:
                failed = error
        raise failed

    def _cut_off(self) -> None:
        self.is_late.set()
        with suppress(OSError, TypeError):
            # Not TLS's own end, which would change what the other thread reads from.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def checked_addresses(target: WebTarget, allowed: Sequence[Network]) -> tuple[str, ...]:
    """The addresses of a name. One that may not be called spoils all of them: then somebody plays with the name."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NotReachedError(f"No address was found for the name {target.host}.") from None
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if why := refused_because(address, target.port, allowed):
            raise RefusedError(f"Not sent: {why}.")
    return addresses[:MOST_ADDRESSES]


def _seconds(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else None


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, ConnectionResetError | http.client.RemoteDisconnected):
        return "the connection was cut off"
    if isinstance(error, http.client.HTTPException):
        return "what came is no HTTP"
    return (getattr(error, "strerror", None) or "the connection failed").lower()

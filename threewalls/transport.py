"""HTTP requests with the standard library alone.

The client is also one file for machines where nothing can be installed, with Python 3.9 or newer.
"""

from __future__ import annotations

import http.client
import json as jsonlib
import os
import random
import selectors
import ssl
import uuid
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from email.message import Message
from email.utils import parsedate_to_datetime
from http.cookies import CookieError, SimpleCookie
from typing import Any, BinaryIO
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
_BLOCK_BYTES = 1 << 18
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Certificates of the system, for a Python that was built without their path."""
PORTS = {"http": 80, "https": 443}

File = tuple[str, tuple[Any, ...]]
"""Name of a form field, then file name (None for a plain value), content (text or an open file) and media type."""


class TransportError(Exception):
    """No answer: the address is wrong, or the connection failed."""


class TimedOut(TransportError):  # noqa: N818  named for what happened
    """No answer in time."""


class UnreadableAnswer(TransportError):  # noqa: N818
    """The answer is not HTTP, or its compression is damaged."""


class Response:
    """An answer. `is_authorized`: whether the request had a token."""

    def __init__(self, status: int, reason: str, headers: Message, content: bytes, *, is_authorized: bool) -> None:
        self.status_code, self.reason_phrase, self.headers = status, reason, headers
        self.content, self.is_authorized = content, is_authorized

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def is_redirect(self) -> bool:
        return self.status_code in (301, 302, 303, 307, 308) and "Location" in self.headers

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        return jsonlib.loads(self.content)


class HttpClient:
    """Sends requests, with the proxies and certificates of the environment. It follows no redirects.

    Raises OSError for unreadable certificates and ValueError for invalid proxies.
    """

    def __init__(self, base_url: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.base_url, self.headers = base_url.rstrip("/"), dict(headers or {})
        self.cookies: dict[str, str] = {}
        self._context = _certificates() if base_url.startswith("https") or os.environ.get("SSL_CERT_FILE") else None
        self._proxies = {scheme: _read_proxy(url) for scheme, url in getproxies().items() if scheme in (*PORTS, "all")}
        self._connection: http.client.HTTPConnection | None = None
        self._address = ("", "", 0)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        json: Any = None,
        data: Mapping[str, str] | None = None,
        files: Sequence[File] = (),
        seconds: float = READ_SECONDS,
    ) -> Response:
        """Make one attempt. `seconds` is the longest pause of the server. Raises TransportError."""
        url = path if "://" in path else self.base_url + path
        if params:
            url += ("&" if "?" in url else "?") + urlencode(params, doseq=True, quote_via=quote)
        sent = {"Accept": "*/*", "Accept-Encoding": "gzip", **self.headers, **(headers or {})}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        body: bytes | Iterable[bytes] | None = content
        if json is not None:
            body, sent["Content-Type"] = jsonlib.dumps(json).encode(), "application/json"
        elif data is not None:
            body, sent["Content-Type"] = urlencode(data).encode(), "application/x-www-form-urlencoded"
        elif files:
            form = _Form(files)
            body, sent["Content-Type"], sent["Content-Length"] = form, form.media_type, str(form.length)
        try:
            parts = urlsplit(url)
            return self._exchange(method, parts, sent, body, seconds)
        except TimeoutError as error:
            raise TimedOut(str(error) or "timed out") from error
        except (http.client.HTTPException, zlib.error) as error:
            kind = TransportError if isinstance(error, http.client.RemoteDisconnected) else UnreadableAnswer
            raise kind(str(error) or type(error).__name__) from error
        except (OSError, ValueError) as error:  # ValueError: an address that cannot be written in a request
            raise TransportError(str(error) or type(error).__name__) from error

    def _exchange(
        self, method: str, url: SplitResult, headers: Mapping[str, str], body: Any, seconds: float
    ) -> Response:
        connection, target = self._connected(url, seconds)
        done = False
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # the server may answer before it has read everything
                connection.request(method, target, body=body, headers=dict(headers))
            with connection.getresponse() as answer:
                content = answer.read()
                done = not answer.will_close
            if answer.headers.get("Content-Encoding", "").strip().lower() == "gzip":
                content = zlib.decompress(content, wbits=31)
        finally:
            if not done:
                self.close()
        for line in answer.headers.get_all("Set-Cookie", []):
            with suppress(CookieError):
                self.cookies.update({name: morsel.value for name, morsel in SimpleCookie(line).items()})
        return Response(answer.status, answer.reason, answer.headers, content, is_authorized="Authorization" in headers)

    def _connected(self, url: SplitResult, seconds: float) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection and the target of the request line. An open connection is reused."""
        host, port = url.hostname or "", url.port or PORTS.get(url.scheme, 0)
        if not host or not port:
            raise ValueError(f"{url.geturl()!r} is not an address")
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        proxy = self._proxies.get(url.scheme, self._proxies.get("all"))
        if proxy_bypass(f"{host}:{port}"):
            proxy = None
        if proxy is not None and url.scheme == "http":
            target = f"http://{url.netloc}{target}"
        if self._address != (url.scheme, host, port) or self._connection is None or _is_stale(self._connection):
            self.close()
            self._connection, self._address = self._open(url.scheme, host, port, proxy), (url.scheme, host, port)
        if self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)
        return self._connection, target

    def _open(self, scheme: str, host: str, port: int, proxy: SplitResult | None) -> http.client.HTTPConnection:
        first, first_port = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or PORTS["http"])
        if scheme == "https":
            self._context = self._context or _certificates()
            secure = http.client.HTTPSConnection(first, first_port, timeout=CONNECT_SECONDS, context=self._context)
            if proxy is not None:
                secure.set_tunnel(host, port, headers=_proxy_authorization(proxy))
            connection: http.client.HTTPConnection = secure
        else:
            connection = http.client.HTTPConnection(first, first_port, timeout=CONNECT_SECONDS)
            if proxy is not None:
                self.headers.update(_proxy_authorization(proxy))
        connection.blocksize = _BLOCK_BYTES
        connection.connect()
        return connection


def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates: of SSL_CERT_FILE and SSL_CERT_DIR, else of the system."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None and not context.cert_store_stats()["x509_ca"]:
        for bundle in filter(os.path.exists, _BUNDLES):
            context.load_verify_locations(bundle)
            break
    return context


def _read_proxy(url: str) -> SplitResult:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"The proxy {parts.scheme}:// is not an http:// address")
    return parts


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}


def _is_stale(connection: http.client.HTTPConnection) -> bool:
    """Return whether the server closed the connection: then it is readable, although no request is under way."""
    if connection.sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


class _Form:
    """A multipart form, read from its files while it is sent."""

    def __init__(self, files: Sequence[File]) -> None:
        boundary = uuid.uuid4().hex
        self.media_type = f"multipart/form-data; boundary={boundary}"
        self._parts: list[tuple[bytes, Any]] = []
        self._end = f"--{boundary}--\r\n".encode()
        self.length = len(self._end)
        for field, (name, content, *media_type) in files:
            stated = f'--{boundary}\r\nContent-Disposition: form-data; name="{_escaped(field)}"'
            if name is not None:
                stated += f'; filename="{_escaped(name)}"\r\nContent-Type: {media_type[0]}'
            head = f"{stated}\r\n\r\n".encode()
            body = content.encode() if isinstance(content, str) else content
            self._parts.append((head, body))
            self.length += len(head) + len(b"\r\n") + (len(body) if isinstance(body, bytes) else _size(body))

    def __iter__(self) -> Iterator[bytes]:
        for head, body in self._parts:
            yield head
            if isinstance(body, bytes):
                yield body
            else:
                body.seek(0)
                while block := body.read(_BLOCK_BYTES):
                    yield block
            yield b"\r\n"
        yield self._end


def _size(file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _escaped(name: str) -> str:
    """Escape a name as browsers do."""
    return name.replace("\\", "\\\\").translate({code: f"%{code:02X}" for code in (*range(0x20), 0x22, 0x7F)})


# --- Pauses between attempts: exponential with jitter, or what `Retry-After` requests.

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 300.0
"""A service that requests a longer pause counts as unreachable."""
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which a request that is safe to repeat is sent again."""


def pauses(retries: int, random: Any = random.random) -> Iterator[float]:
    """Yield the seconds before each further attempt. `random` returns numbers from 0 to 1, so that many jobs do not
    retry at the same time."""
    for attempt in range(retries):
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2**attempt)
        yield longest / 2 + longest / 2 * random()


def retry_after_seconds(retry_after: str | None, now: datetime) -> float | None:
    """Return the seconds that a `Retry-After` header (number or date) requests, None if it is absent or invalid."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError):  # TypeError: Python 3.9 for an empty text
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or timezone.utc) - now).total_seconds())

"""The identity provider: where it is (discovery), its keys, and who somebody is by the code that it sent them with."""

import hmac
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote

import httpx2
import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import is_secure_transport
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from fastapi import APIRouter, Request
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col
from starlette.responses import RedirectResponse, Response

from app.access import login
from app.access.pages import came_from, local_path, logged_in, login_page
from app.domain.text import one_line
from app.errors import NotFound, Unavailable
from app.settings import Settings
from app.storage import audit, users
from app.storage.database import transaction
from app.storage.tables import UserRow
from app.web.access_rule import Open, requires
from app.web.dependencies import AppEngine, AppSettings
from app.web.identity import access_of
from app.web.templating import public_address

if TYPE_CHECKING:  # its packages are imported where a provider is set
    pass


# --- A log-in that is under way: what the browser must bring back, kept in a cookie that only that log-in sees.

_NAME = "threewalls_oidc"
_PATH = "/login/oidc"
_SECONDS = 600
_BYTES = 32
_MOST_CHARACTERS = 1_500


@dataclass(frozen=True, slots=True)
class Attempt:
    """`state` ties the answer to this browser, `nonce` the ID token, `verifier` the code (PKCE). `wanted`: a path."""

    state: str
    nonce: str
    verifier: str
    wanted: str

    @classmethod
    def new(cls, wanted: str) -> Self:
        short = wanted if len(wanted) <= _MOST_CHARACTERS else "/"
        state, nonce, verifier = (secrets.token_urlsafe(_BYTES) for _ in range(3))
        return cls(state, nonce, verifier, short)

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """None when this browser has begun none, or too long ago."""
        parts = request.cookies.get(_cookie_name(request), "").split(".", 3)
        if len(parts) != 4 or not all(parts):
            return None
        state, nonce, verifier, wanted = parts
        return cls(state, nonce, verifier, unquote(wanted))

    def is_answered_by(self, state: str) -> bool:
        return hmac.compare_digest(self.state.encode(), state.encode(errors="replace"))

    def keep(self, request: Request, response: Response) -> None:
        held = ".".join((self.state, self.nonce, self.verifier, quote(self.wanted, safe="")))
        response.set_cookie(
            _cookie_name(request), held, max_age=_SECONDS, path=_PATH, httponly=True, samesite="lax",
            secure=_is_secure(request),
        )  # fmt: skip


def forget_attempt(request: Request, response: Response) -> None:
    """It can be answered once."""
    response.delete_cookie(
        _cookie_name(request), path=_PATH, httponly=True, samesite="lax", secure=_is_secure(request)
    )  # fmt: skip


def _is_secure(request: Request) -> bool:
    return public_address(request).startswith("https:")


def _cookie_name(request: Request) -> str:
    """Over https by a name that no page without it can set."""
    return f"__Secure-{_NAME}" if _is_secure(request) else _NAME


# --- The account of somebody whom the identity provider knows: found by issuer and subject, else made, of no project.

_MOST_ALIKE = 1_000


class WrongIdentity(Exception):  # noqa: N818  read as a sentence: "raise WrongIdentity"
    """What the provider sent does not prove who somebody is. The text is for the log."""


@dataclass(frozen=True, slots=True)
class Identity:
    """`issuer` and `subject` together are the person, for good; names and addresses may change and be reused."""

    issuer: str
    subject: str
    name: str
    email: str


def account_of(session: Session, identity: Identity) -> UserRow:
    """Never another account of the same name or e-mail address: those prove nothing here."""
    known = _find(session, identity)
    if known is not None:
        return known
    try:
        with session.begin_nested():
            made = users.create_user(
                session, _free_name(session, identity), by=audit.SERVICE, email=identity.email,
                issuer=identity.issuer, subject=identity.subject,
            )  # fmt: skip
    except IntegrityError:  # the same person, in another tab, in the same moment
        known = _find(session, identity)
        if known is None:
            raise
        return known
    return users.get_user(session, made.id)


def _find(session: Session, identity: Identity) -> UserRow | None:
    chosen = select(UserRow).where(
        col(UserRow.issuer) == identity.issuer, col(UserRow.subject) == identity.subject
    )  # fmt: skip
    found: UserRow | None = session.execute(chosen.order_by(col(UserRow.id)).limit(1)).scalar_one_or_none()
    return found


def _free_name(session: Session, identity: Identity) -> str:
    """As the provider says, as far as it may be a name here; with a number where somebody has it already."""
    name = users.plain_name(identity.name)[: users.MAX_NAME - 15]
    for number in range(1, _MOST_ALIKE):
        wanted = name if number == 1 else f"{name} {number}"
        if not users.is_taken(session, wanted):
            return wanted
    return f"{name[:50]} {secrets.token_hex(8)}"


ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Of ID tokens: signatures by a key that only the provider has. Never `none`, nor one made with the client's secret."""

_TIMEOUT_SECONDS = 10
_PATIENCE_SECONDS = 1.0
_AWAY_SECONDS = 5.0
"""For so long a provider that did not answer is not asked again."""
_REMEMBERED_SECONDS = 3_600
_KEYS_AGAIN_SECONDS = 30
"""A token by an unknown key has them read again, but not more often than this: keys are changed now and then."""
_LEEWAY_SECONDS = 30
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_MOST_SUBJECT = 300


class Provider:
    """One an application. Asks the network only when somebody logs in."""

    def __init__(self, settings: Settings) -> None:
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._secret = settings.oidc_secret
        self._scope = settings.oidc_scopes
        self._lock = threading.Lock()
        self._away_until = 0.0
        self._read_at: dict[str, float] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}

    def authorization_address(
        self, *, redirect_uri: str, state: str, nonce: str, verifier: str, again: bool = False
    ) -> str:
        """Where the browser goes to log in; `again`: also who is logged in there. Raises Unavailable."""
        more = {"prompt": "login"} if again else {}
        with self._client(redirect_uri) as client:
            address, _ = client.create_authorization_url(
                self._metadata()["authorization_endpoint"],
                state=state,
                nonce=nonce,
                code_verifier=verifier,
                **more,
            )
        return str(address)

    def identity(self, *, code: str, redirect_uri: str, nonce: str, verifier: str) -> Identity:
        """Who the code was given to. Raises WrongIdentity, Unavailable."""
        address = self._metadata()["token_endpoint"]
        try:
            with self._client(redirect_uri) as client:
                answer = client.fetch_token(
                    address, grant_type="authorization_code", code=code, code_verifier=verifier,
                    redirect_uri=redirect_uri,
                )  # fmt: skip
        except AuthlibBaseError as error:
            raise WrongIdentity(f"the token endpoint refused the code: {error.error}") from error
        except (httpx2.HTTPError, ValueError) as error:
            raise _away(error) from error
        if not isinstance(raw := answer.get("id_token"), str):
            raise WrongIdentity("the token endpoint sent no ID token")
        return self._checked(raw, nonce, answer.get("access_token"))

    def _checked(self, raw: str, nonce: str, access_token: object) -> Identity:
        try:
            token = self._decoded(raw)
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "sub": {"essential": True},
                    "exp": {"essential": True},
                },
                params={"nonce": nonce, "client_id": self._client_id, "access_token": access_token},
            )
            claims.validate(leeway=_LEEWAY_SECONDS)
        except (JoseError, ValueError) as error:
            raise WrongIdentity(f"the ID token is refused: {error}") from error
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _MOST_SUBJECT:
            raise WrongIdentity("the ID token names nobody")
        email = _text(claims, "email") if claims.get("email_verified") is not False else ""
        name = _text(claims, "preferred_username") or _text(claims, "name") or email or subject
        return Identity(self.issuer, subject, one_line(name), email)

    def _decoded(self, raw: str) -> jwt.Token:
        """Its signature is of one of the provider's keys. Raises JoseError, ValueError, Unavailable."""
        jwks_uri = self._metadata()["jwks_uri"]
        try:
            return jwt.decode(raw, self._keys(jwks_uri), algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            if time.monotonic() - self._read_at[jwks_uri] < _KEYS_AGAIN_SECONDS:
                raise
            self._forget(jwks_uri)
            return jwt.decode(raw, self._keys(jwks_uri), algorithms=ALGORITHMS)

    def _metadata(self) -> Mapping[str, Any]:
        found = self._document(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.issuer:
            raise Unavailable(
                f"The identity provider calls itself {str(found.get('issuer'))[:200]!r} and not "
                f"{self.issuer!r}, as THREEWALLS_OIDC_ISSUER says. An administrator must correct it."
            )
        for name in _ENDPOINTS:
            if not isinstance(found.get(name), str) or not is_secure_transport(found[name]):
                raise Unavailable(f"The identity provider states no {name} over https. Nobody was logged in.")
        return found

    def _keys(self, jwks_uri: str) -> KeySet:
        return KeySet.import_key_set(dict(self._document(jwks_uri)))  # type: ignore[arg-type]

    def _document(self, address: str) -> Mapping[str, Any]:
        """Raises Unavailable. Nobody waits long for a provider that is away, since anybody may ask to log in."""
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            raise _away(TimeoutError("it has not answered yet"))
        try:
            if address in self._documents and time.monotonic() - self._read_at[address] < _REMEMBERED_SECONDS:
                return self._documents[address]
            if time.monotonic() < self._away_until:
                raise _away(TimeoutError("it did not answer a moment ago"))
            found = self._read(address)
            self._documents[address], self._read_at[address] = found, time.monotonic()
            return found
        finally:
            self._lock.release()

    def _read(self, address: str) -> Mapping[str, Any]:
        try:
            answer = httpx2.get(address, timeout=_TIMEOUT_SECONDS, follow_redirects=False)
            answer.raise_for_status()
            found = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            if isinstance(error, httpx2.TransportError):
                self._away_until = time.monotonic() + _AWAY_SECONDS
            raise _away(error) from error
        if not isinstance(found, dict):
            raise _away(ValueError("no JSON object"))
        return found

    def _forget(self, address: str) -> None:
        with self._lock:
            self._documents.pop(address, None)

    def _client(self, redirect_uri: str) -> OAuth2Client:
        return OAuth2Client(
            self._client_id, self._secret or None, scope=self._scope, redirect_uri=redirect_uri,
            token_endpoint_auth_method=self._auth_method(), code_challenge_method="S256", timeout=_TIMEOUT_SECONDS,
            follow_redirects=False,
        )  # fmt: skip

    def _auth_method(self) -> str:
        """As the provider can, the better one first; without a secret PKCE alone proves that it is us."""
        if not self._secret:
            return "none"
        can = self._metadata().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return "client_secret_basic" if "client_secret_basic" in can else "client_secret_post"


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return one_line(value) if isinstance(value, str) else ""


def _away(error: Exception) -> Unavailable:
    return Unavailable(
        f"The identity provider did not answer as it should ({type(error).__name__}). Nobody was logged in. Try again; "
        "who has a password here logs in by it."
    )


# --- `/login/oidc`: to the identity provider, and back from it. HTTP in, redirect out.

log = structlog.get_logger(__name__)

_CALLBACK = "/login/oidc/callback"
_AGAIN = "The log-in by the identity provider did not come to an end: it took too long, or began elsewhere. Try again."
_REFUSED = "The identity provider did not log you in."
_WRONG = "What the identity provider sent does not prove who you are. Nobody was logged in. Try again."
_DISABLED = "Your account is disabled here. An administrator can enable it."

router = APIRouter(include_in_schema=False)


@router.get("/login/oidc")
@requires(Open.ANYONE)
def go_to_provider(request: Request, next: str = "/", again: str = "") -> Response:  # noqa: A002  the word that addresses have
    """Send the browser to the provider. With `again` also a logged-in user, who must authenticate there anew."""
    access = access_of(request)
    if access.is_open or (access.person and not again):
        return RedirectResponse("/" if access.is_open else local_path(next), 303)
    attempt = Attempt.new(local_path(next))
    address = _provider(request).authorization_address(
        redirect_uri=_redirect_uri(request), state=attempt.state, nonce=attempt.nonce, verifier=attempt.verifier,
        again=bool(again),
    )  # fmt: skip
    response = RedirectResponse(address, 303, {"Cache-Control": "no-store"})
    attempt.keep(request, response)
    return response


@router.get(_CALLBACK)
@requires(Open.ANYONE)
def come_back(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    """With `state` and either `code` or `error`, as the provider puts them into the address."""
    provider, attempt = _provider(request), Attempt.of(request)
    state, code, error = (request.query_params.get(name, "") for name in ("state", "code", "error"))
    if attempt is None or not attempt.is_answered_by(state):
        return _refused(request, "/", _AGAIN, "no such attempt")
    if error or not code:
        return _refused(request, attempt.wanted, _REFUSED, error or "no code")
    try:
        identity = provider.identity(
            code=code, redirect_uri=_redirect_uri(request), nonce=attempt.nonce, verifier=attempt.verifier
        )
    except WrongIdentity as wrong:
        return _refused(request, attempt.wanted, _WRONG, str(wrong))
    with transaction(engine) as session:
        row = account_of(session, identity)
        secret = "" if row.disabled_at else login.begin(session, row, settings.session_idle, came_from(request))
    if not secret:
        return _refused(request, attempt.wanted, _DISABLED, "the account is disabled")
    response = logged_in(request, secret, attempt.wanted)
    forget_attempt(request, response)
    return response


def _provider(request: Request) -> "Provider":
    """Raises NotFound where there is none."""
    provider: Provider | None = request.app.state.oidc
    if provider is None:
        raise NotFound("This service has no identity provider. Log in by name and password at /login.")
    return provider


def _redirect_uri(request: Request) -> str:
    return f"{public_address(request)}{_CALLBACK}"


def _refused(request: Request, wanted: str, told: str, why: str) -> Response:
    log.warning("oidc_login_refused", why=why[:200], address=came_from(request).address)
    response = login_page(request, wanted, problem=told, status=422)
    forget_attempt(request, response)
    return response

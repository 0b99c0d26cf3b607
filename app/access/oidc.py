"""`/login/oidc`: log in by the identity provider (`identity_provider.py`)."""

import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote

import structlog
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.access import login
from app.access.pages import came_from, local_path, logged_in, login_page
from app.errors import NotFound, Unavailable
from app.storage import users
from app.storage.database import transaction
from app.web.access_rule import Open, requires
from app.web.dependencies import AppEngine, AppSettings
from app.web.identity import access_of
from app.web.templating import is_https, public_address

if TYPE_CHECKING:  # it imports authlib, which takes a tenth of a second and which only services with a provider need
    from app.access.identity_provider import Provider

log = structlog.get_logger(__name__)

_CALLBACK = "/login/oidc/callback"
_EXPIRED = "The log-in at the identity provider took too long, or began in another browser. Try again."
_REFUSED = "The identity provider did not log you in."
_WRONG = "The identity provider's answer does not prove who you are. You were not logged in. Try again."
_DOMAIN = (
    "Your e-mail address at the identity provider is missing, unconfirmed or of a domain that may not log in here."
)
_DISABLED = "Your user is disabled here. An administrator can enable it."

router = APIRouter(include_in_schema=False)


@router.get("/login/oidc")
@requires(Open.ANYONE)
def go_to_provider(request: Request, next: str = "/", again: str = "") -> Response:  # noqa: A002  the parameter's name
    """Send the browser to the provider. `again`: also a logged-in user, who must enter their password there."""
    access = access_of(request)
    if access.is_open or (access.user and not again):
        return RedirectResponse("/" if access.is_open else local_path(next), 303)
    attempt = LogInAttempt.new(local_path(next))
    address = _provider(request).authorization_address(
        redirect_uri=_redirect_uri(request), state=attempt.state, nonce=attempt.nonce, verifier=attempt.verifier,
        again=bool(again),
    )  # fmt: skip
    response = RedirectResponse(address, 303, {"Cache-Control": "no-store"})
    attempt.set_cookie(request, response)
    return response


@router.get(_CALLBACK)
@requires(Open.ANYONE)
def come_back(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    """Finish the log-in. The provider adds `state` and either `code` or `error` to the address."""
    provider, attempt = _provider(request), LogInAttempt.of(request)
    state, code, error = (request.query_params.get(name, "") for name in ("state", "code", "error"))
    if attempt is None or not attempt.matches(state):
        return _refused(request, "/", _EXPIRED, "no such attempt")
    if error or not code:
        return _refused(request, attempt.wanted, _REFUSED, error or "no code")
    try:
        identity = provider.identity(
            code=code, redirect_uri=_redirect_uri(request), nonce=attempt.nonce, verifier=attempt.verifier
        )
    except login.WrongIdentityError as wrong:
        return _refused(request, attempt.wanted, _WRONG, str(wrong))
    if not identity.is_of(settings.oidc_email_domains):
        return _refused(request, attempt.wanted, _DOMAIN, "the domain may not log in")
    with transaction(engine) as session:
        row = login.user_of_identity(session, identity)
        if identity.groups is not None:
            users.follow_provider(session, row, identity.groups)
        secret = "" if row.disabled_at else login.begin(session, row, settings.session_idle, came_from(request))
    if not secret:
        return _refused(request, attempt.wanted, _DISABLED, "the user is disabled")
    response = logged_in(request, secret, attempt.wanted)
    _delete_cookie(request, response)
    return response


@router.get("/logout/oidc")
@requires(Open.ANYONE)
def log_out_at_provider(request: Request) -> Response:
    """Send a browser that logged out here to the provider's log-out, which returns to the log-in page."""
    if access_of(request).user:
        return RedirectResponse("/", 303)
    try:
        address = _provider(request).log_out_address(f"{public_address(request)}/login")
    except Unavailable as problem:
        return _refused(request, "/", problem.detail, "the provider did not answer")
    return RedirectResponse(address or "/login", 303, {"Cache-Control": "no-store"})


def _provider(request: Request) -> "Provider":
    """Return the identity provider. Raises NotFound when none is set."""
    provider: Provider | None = request.app.state.oidc
    if provider is None:
        raise NotFound("This service has no identity provider. Log in with a name and password at /login.")
    return provider


def _redirect_uri(request: Request) -> str:
    return f"{public_address(request)}{_CALLBACK}"


def _refused(request: Request, wanted: str, problem: str, why: str) -> Response:
    """Return the log-in page with the problem. `why`: for the log."""
    log.warning("oidc_login_refused", why=why[:200], address=came_from(request).address)
    response = login_page(request, wanted, problem=problem, status=422)
    _delete_cookie(request, response)
    return response


# --- The log-in attempt of a browser, stored in a cookie that is sent to `/login/oidc` only.

_NAME = "threewalls_oidc"
_PATH = "/login/oidc"
_SECONDS = 600
_BYTES = 32
_MOST_CHARACTERS = 1_500


@dataclass(frozen=True, slots=True)
class LogInAttempt:
    """`state` ties the answer to this browser, `nonce` the ID token, `verifier` the code (PKCE). `wanted`: a path."""

    state: str
    nonce: str
    verifier: str
    wanted: str

    @classmethod
    def new(cls, wanted: str) -> Self:
        state, nonce, verifier = (secrets.token_urlsafe(_BYTES) for _ in range(3))
        return cls(state, nonce, verifier, wanted if len(wanted) <= _MOST_CHARACTERS else "/")

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """Return the attempt of this browser; None when it began none, or too long ago."""
        parts = request.cookies.get(_cookie_name(request), "").split(".", 3)
        if len(parts) != 4 or not all(parts):
            return None
        state, nonce, verifier, wanted = parts
        return cls(state, nonce, verifier, unquote(wanted))

    def matches(self, state: str) -> bool:
        return hmac.compare_digest(self.state.encode(), state.encode(errors="replace"))

    def set_cookie(self, request: Request, response: Response) -> None:
        value = ".".join((self.state, self.nonce, self.verifier, quote(self.wanted, safe="")))
        response.set_cookie(
            _cookie_name(request), value, max_age=_SECONDS, path=_PATH, httponly=True, samesite="lax",
            secure=is_https(request),
        )  # fmt: skip


def _delete_cookie(request: Request, response: Response) -> None:
    """End the attempt: the provider's answer is accepted once."""
    response.delete_cookie(_cookie_name(request), path=_PATH, httponly=True, samesite="lax", secure=is_https(request))


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie; over https one that pages served without https cannot set."""
    return f"__Secure-{_NAME}" if is_https(request) else _NAME

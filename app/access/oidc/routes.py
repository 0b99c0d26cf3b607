"""`/login/oidc`: to the identity provider, and back from it. HTTP in, redirect out."""

from typing import TYPE_CHECKING

import structlog
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.access import login
from app.access.oidc.account import WrongIdentity, account_of
from app.access.oidc.attempt import Attempt, forget_attempt
from app.access.routes import came_from, local_path, logged_in, login_page
from app.errors import NotFound
from app.storage.database import transaction
from app.web.access.state import access_of
from app.web.dependencies import AppEngine, AppSettings
from app.web.templating import public_address

if TYPE_CHECKING:  # its packages are imported where a provider is set
    from app.access.oidc.provider import Provider

log = structlog.get_logger(__name__)

_CALLBACK = "/login/oidc/callback"
_AGAIN = "The log-in by the identity provider did not come to an end: it took too long, or began elsewhere. Try again."
_REFUSED = "The identity provider did not log you in."
_WRONG = "What the identity provider sent does not prove who you are. Nobody was logged in. Try again."
_DISABLED = "Your account is disabled here. An administrator can enable it."

router = APIRouter(include_in_schema=False)


@router.get("/login/oidc")
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

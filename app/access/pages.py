"""Pages for users' own log-in: log in and out, password, confirmation, second factor, sessions; and `whoami`."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session, col
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access import login
from app.access.credentials import forget_session, set_session
from app.access.guards import CREDENTIALS_BYTES
from app.access.limits import Guesses, address_of, in_words, too_often
from app.access.login import PasswordForm, change_own_password, with_password
from app.domain.access import passwords
from app.domain.access.passwords import is_secret, new_secret, setup_address, step_of_code
from app.domain.access.principal import GRANTED, Everyone, LoggedInUser, Scope, TokenHolder
from app.errors import FieldError, InvalidChange, NotFound, TooMany
from app.settings import Settings
from app.storage import audit, users
from app.storage.database import read_session, transaction
from app.storage.tables import TokenRow, select_any, utc_now
from app.storage.visible import project_slugs, seeing
from app.web.access_rule import Open, requires
from app.web.dependencies import ApiValue, AppEngine, AppSettings, api_router
from app.web.errors import documented
from app.web.forms import sent_form
from app.web.identity import access_of
from app.web.templating import render

MAX_FIELDS = 5
PASSWORD_PAGE = "/account/password"  # noqa: S105  an address
SECOND_FACTOR_PAGE = "/account/second-factor"
_ENDED = "This initial password expired after 72 hours. Ask an administrator for a new one."
_MOST_CHARACTERS = 1_000
_NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(include_in_schema=False)


@router.get("/login")
@requires(Open.ANYONE)
def show_login(request: Request, next: str = "/", left: str = "") -> Response:  # noqa: A002  the parameter's name
    access = access_of(request)
    if access.is_open or access.user:
        return RedirectResponse("/" if access.is_open else local_path(next), 303)
    return login_page(request, next, left=left == "provider")


@router.post("/login", max_body_size=CREDENTIALS_BYTES)
@requires(Open.ANYONE)
async def log_in(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        name, password, code, wanted = (
            str(sent.get(field, ""))[:_MOST_CHARACTERS] for field in ("name", "password", "code", "next")
        )
    guesses: Guesses = request.app.state.guesses
    came = came_from(request)
    if seconds := await run_in_threadpool(guesses.begin, name, came.address):
        return await run_in_threadpool(login_page, request, wanted, name, wait=seconds)
    try:
        secret = await with_password(login.log_in, engine, settings, login.LogInCredentials(name, password, code), came)
    except login.FirstPasswordEndedError:
        return await run_in_threadpool(login_page, request, wanted, name, problem=_ENDED, status=422)
    if secret is None:
        return await run_in_threadpool(login_page, request, wanted, name, refused=True)
    await run_in_threadpool(guesses.right, name, came.address)
    return logged_in(request, secret, wanted)


@router.post("/logout")
@requires(Open.ANYONE)
def log_out(request: Request, engine: AppEngine) -> Response:
    access = access_of(request)
    by_provider = False
    if access.user:
        login.log_out(engine, access.session_id, access.user.user_id, access.user.name)
        with read_session(engine) as session:
            by_provider = bool(users.get_user(session, access.user.user_id).issuer) and bool(request.app.state.oidc)
    # Otherwise the browser's back button would show the user's pages.
    response = RedirectResponse(
        "/login?left=provider" if by_provider else "/login", 303, _NO_STORE | {"Clear-Site-Data": '"cache"'}
    )
    forget_session(request, response)
    return response


@router.get(PASSWORD_PAGE)
@requires(Open.LOGGED_IN)
def show_password(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002  as at the log-in
    return _password_page(request, PasswordForm(), next)


@router.post(PASSWORD_PAGE, max_body_size=CREDENTIALS_BYTES)
@requires(Open.LOGGED_IN)
async def change_password(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form, wanted = PasswordForm.read(sent), str(sent.get("next", ""))[:_MOST_CHARACTERS]
    return await with_password(_change_password, request, engine, settings, form, wanted)


def _change_password(request: Request, engine: Engine, settings: Settings, form: PasswordForm, wanted: str) -> Response:
    user = _user(request)
    guesses: Guesses = request.app.state.guesses
    if seconds := guesses.begin(user.name, came_from(request).address):
        return too_often(request, "Too many wrong passwords.", seconds)
    try:
        secret = change_own_password(engine, settings, user.user_id, form, came_from(request))
    except InvalidChange as error:
        refused = form.refused(error)
        if not refused.error("old"):
            guesses.right(user.name, came_from(request).address)
        return _password_page(request, refused, wanted, 422)
    guesses.right(user.name, came_from(request).address)
    return logged_in(request, secret, wanted)


def logged_in(request: Request, secret: str, wanted: str) -> Response:
    response = RedirectResponse(local_path(wanted), 303, _NO_STORE)
    set_session(request, response, secret)
    return response


def local_path(wanted: str) -> str:
    """Return where to go after the log-in: `wanted` if it is a path of this service, else the start page."""
    if not wanted.isprintable() or "\\" in wanted or wanted[:1] != "/" or wanted[:2] == "//":
        return "/"
    return "/" if urlsplit(wanted).path in ("/login", "/logout") else wanted


def came_from(request: Request) -> login.From:
    return login.From(address_of(request), request.headers.get("user-agent", ""))


def login_page(
    request: Request,
    wanted: str,
    name: str = "",
    *,
    refused: bool = False,
    wait: int = 0,
    problem: str = "",
    left: bool = False,
    status: int = 200,
) -> HTMLResponse:
    """Render the log-in page.

    `wait`: seconds until the next attempt. `problem`: why the identity provider failed. `left`: a user of the provider
    has just logged out.
    """
    response = render(
        request,
        "access/login.html",
        status=429 if wait else 422 if refused else status,
        wanted=local_path(wanted),
        name=name,
        refused=refused,
        wait=in_words(wait),
        problem=problem,
        left=left,
        provider=request.app.state.settings.oidc_name if request.app.state.oidc else "",
    )
    if wait:
        response.headers["Retry-After"] = str(wait)
    return response


def _password_page(request: Request, form: PasswordForm, wanted: str, status: int = 200) -> HTMLResponse:
    return render(request, "access/password.html", status=status, form=form, wanted=local_path(wanted))


# --- `/settings/account` and `/api/v1/account/sessions`: the user's own profile and sessions.

SESSION_KEY = r"[0-9a-f]{16}"

pages = APIRouter(include_in_schema=False, prefix="/settings/account")
api = api_router("access", "/api/v1/account/sessions")

Key = Annotated[str, Path(pattern=SESSION_KEY, max_length=16, description="Key of the session, as listed.")]


class SessionOut(ApiValue):
    key: str
    current: bool = Field(description="The session of this request.")
    agent: str = Field(description="User agent of the browser.")
    address: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime = Field(description="When the session ends if it is not used before.")


class SessionList(BaseModel):
    items: list[SessionOut] = Field(description="Most recently used first.")


_BROWSERS = {"Edg/": "Edge", "OPR/": "Opera", "Firefox/": "Firefox", "Chrome/": "Chrome", "Safari/": "Safari"}
_SYSTEMS = {
    "Windows": "Windows", "Android": "Android", "iPhone": "iOS", "iPad": "iOS", "Mac OS": "macOS", "Linux": "Linux",
}  # fmt: skip
"""Parts of a user agent and what they mean. The first that occurs counts: Edge also claims to be Chrome and Safari."""


def browser_name(agent: str) -> str:
    """Return `Firefox on Linux`, or the user agent itself if the browser is unknown."""
    browser = next((name for part, name in _BROWSERS.items() if part in agent), None)
    system = next((name for part, name in _SYSTEMS.items() if part in agent), None)
    return f"{browser} on {system}" if browser and system else agent or "unknown client"


@pages.get("")
@requires(Open.LOGGED_IN)
def show_account(request: Request, engine: AppEngine) -> HTMLResponse:
    user = _user(request)
    with read_session(engine) as session:
        row = users.to_user(users.get_user(session, user.user_id))
        slugs = {slug: user.roles[project] for project in user.roles for slug in project_slugs(session, (project,))}
    return render(
        request, "access/account.html", user=row, roles=sorted(slugs.items()), sessions=_sessions(request, engine),
        password_page=PASSWORD_PAGE, second_factor_page=SECOND_FACTOR_PAGE, browser_name=browser_name,
    )  # fmt: skip


@pages.post("/sessions/others/end")
@requires(Open.LOGGED_IN)
def end_others(request: Request, engine: AppEngine) -> Response:
    """End all sessions of the user except the current one."""
    access, user = access_of(request), _user(request)
    with transaction(engine) as session:
        users.end_sessions_of(session, user.user_id, but=access.session_id)
        _record(session, user, "all others")
    return RedirectResponse("/settings/account", 303)


@pages.post("/sessions/{key}/end")
@requires(Open.LOGGED_IN)
def end_chosen_session(request: Request, engine: AppEngine, key: Key) -> Response:
    own = _end(request, engine, key)
    response = RedirectResponse("/login" if own else "/settings/account", 303)
    if own:
        forget_session(request, response)
    return response


@api.get("", responses=documented(401))
@requires(Open.LOGGED_IN)
def list_sessions(request: Request, engine: AppEngine) -> SessionList:
    """List the caller's sessions."""
    return SessionList(items=_sessions(request, engine))


@api.delete("/{key}", status_code=204, responses=documented(401, 404, 422))
@requires(Open.LOGGED_IN)
def end_session(request: Request, engine: AppEngine, key: Key) -> None:
    """End a session."""
    _end(request, engine, key)


def _sessions(request: Request, engine: Engine) -> Sequence[SessionOut]:
    access, user = access_of(request), _user(request)
    with read_session(engine) as session:
        return [
            SessionOut.from_values(row, key=_key(row.id), current=row.id == access.session_id)
            for row in users.sessions_of(session, user.user_id)
        ]


def _end(request: Request, engine: Engine, key: str) -> bool:
    """End a session of the caller. Return whether it is the current one. Raises NotFound."""
    access, user = access_of(request), _user(request)
    with transaction(engine) as session:
        row_id = next((row.id for row in users.sessions_of(session, user.user_id) if _key(row.id) == key), None)
        if row_id is None:
            raise NotFound("This session does not exist. It may have expired.")
        users.end_session(session, row_id)
        _record(session, user, key)
    return row_id == access.session_id


def _record(session: Session, user: LoggedInUser, which: str) -> None:
    audit.record(
        session, who=user.name, subject="account", subject_id=user.user_id, action="session ended",
        after={"session": which},
    )  # fmt: skip


def _key(session_id: str) -> str:
    """Return a name for the session that cannot be used to log in."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:16]


def _user(request: Request) -> LoggedInUser:
    user = access_of(request).user
    assert user is not None  # noqa: S101  the rule of the route
    return user


# --- `/account/confirm`: confirm the password before creating tokens, roles or users.

confirm_router = APIRouter(include_in_schema=False, prefix="/account/confirm")


@confirm_router.get("")
@requires(Open.LOGGED_IN)
def show_confirm(request: Request, engine: AppEngine, next: str = "/") -> HTMLResponse:  # noqa: A002  as at the log-in
    return _confirm_page(request, engine, next)


@confirm_router.post("")
@requires(Open.LOGGED_IN)
async def confirm(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        password, wanted = (str(sent.get(name, ""))[:_MOST_CHARACTERS] for name in ("password", "next"))
    return await with_password(_confirm, request, engine, settings, password, wanted)


def _confirm(request: Request, engine: Engine, settings: Settings, password: str, wanted: str) -> Response:
    try:
        check_own_password(request, engine, settings, password)
    except InvalidChange as error:
        return _confirm_page(request, engine, wanted, error.errors[0].message)
    with transaction(engine) as session:
        users.confirm(session, access_of(request).session_id)
    return RedirectResponse(local_path(wanted), 303, {"Cache-Control": "no-store"})


def check_own_password(request: Request, engine: Engine, settings: Settings, password: str) -> LoggedInUser:
    """Return the user if this is their password. Raises InvalidChange, TooMany. Call it by `with_password`."""
    user = _user(request)
    guesses: Guesses = request.app.state.guesses
    address = came_from(request).address
    if seconds := guesses.begin(user.name, address):
        raise TooMany("Too many wrong passwords. Nothing was changed.", seconds)
    with read_session(engine) as session:
        password_hash = users.get_user(session, user.user_id).password_hash
    if not passwords.is_right(password, password_hash, settings.password_memory_mib):
        raise InvalidChange("Nothing was changed.", (FieldError("password", "is not your password"),))
    guesses.right(user.name, address)
    return user


def _confirm_page(request: Request, engine: Engine, wanted: str, error: str = "") -> HTMLResponse:
    with read_session(engine) as session:
        comes_by = users.get_user(session, _user(request).user_id).issuer
    return render(
        request,
        "access/confirm.html",
        status=422 if error else 200,
        wanted=local_path(wanted),
        error=error,
        comes_by=comes_by,
    )


# --- `/account/second-factor`: users add and remove the codes of an authenticator app.

_INPUTS = ("secret", "code", "password")

second_factor_router = APIRouter(include_in_schema=False, prefix=SECOND_FACTOR_PAGE)


@second_factor_router.get("")
@requires(Open.LOGGED_IN)
def show_second_factor(request: Request, engine: AppEngine) -> HTMLResponse:
    return _second_factor_page(request, engine)


@second_factor_router.post("")
@requires(Open.LOGGED_IN)
async def add_second_factor(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    return await with_password(_add, request, engine, settings, await _sent(request))


@second_factor_router.post("/remove")
@requires(Open.LOGGED_IN)
async def remove_second_factor(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    return await with_password(_remove, request, engine, settings, await _sent(request))


async def _sent(request: Request) -> Mapping[str, str]:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        return {name: str(sent.get(name, ""))[:_MOST_CHARACTERS] for name in _INPUTS}


def _add(request: Request, engine: Engine, settings: Settings, sent: Mapping[str, str]) -> Response:
    secret = sent["secret"]
    if not is_secret(secret):
        return _second_factor_page(request, engine)
    try:
        user = check_own_password(request, engine, settings, sent["password"])
        with transaction(engine) as session:
            row = users.get_user(session, user.user_id)
            if row.issuer or row.totp_secret:
                raise InvalidChange("Nothing was changed.", (FieldError("code", "is already required"),))
            if (step := step_of_code(secret, sent["code"], utc_now())) is None:
                raise InvalidChange(
                    "Nothing was changed.", (FieldError("code", "is not the code that the app shows now"),)
                )
            users.set_second_factor(session, row, secret, step)
            users.end_sessions_of(session, user.user_id, but=access_of(request).session_id)
    except InvalidChange as error:
        return _second_factor_page(request, engine, error, secret)
    return RedirectResponse("/settings/account", 303)


def _remove(request: Request, engine: Engine, settings: Settings, sent: Mapping[str, str]) -> Response:
    try:
        user = check_own_password(request, engine, settings, sent["password"])
        with transaction(engine) as session:
            row = users.get_user(session, user.user_id)
            if row.totp_secret and step_of_code(row.totp_secret, sent["code"], utc_now(), after=row.totp_step) is None:
                raise InvalidChange(
                    "Nothing was changed.", (FieldError("code", "is not the code that the app shows now"),)
                )
            users.set_second_factor(session, row, "")
    except InvalidChange as error:
        return _second_factor_page(request, engine, error)
    return RedirectResponse("/settings/account", 303)


def _second_factor_page(
    request: Request, engine: Engine, refused: InvalidChange | None = None, secret: str = ""
) -> HTMLResponse:
    """Render the page. `secret`: already in the user's app when the form is shown again with an error."""
    import segno  # noqa: PLC0415  only this page draws a QR code

    user = _user(request)
    with read_session(engine) as session:
        row = users.get_user(session, user.user_id)
    secret = secret or new_secret()
    response = render(
        request,
        "access/second_factor.html",
        status=422 if refused else 200,
        comes_by=row.issuer,
        is_on=bool(row.totp_secret),
        required=request.app.state.settings.totp_for_administrators and user.administrator,
        errors={wrong.field: wrong.message for wrong in refused.errors} if refused else {},
        secret=secret,
        picture=segno.make(setup_address(secret, user.name)).svg_data_uri(scale=4, light="white"),
    )
    response.headers["Cache-Control"] = "no-store"
    return response


# --- `GET /api/v1/whoami`: lets a client check its token before a job depends on it.

whoami_router = api_router("access")


class WhoAmI(BaseModel):
    kind: Literal["everyone", "person", "token", "nobody"] = Field(
        description="`everyone`: the service has no log-ins. `person`: a user. `nobody`: a caller without credentials."
    )
    name: str = Field("", description="Name of the user or the token.")
    project: str | None = Field(None, description="Project of the token.")
    scopes: list[str] = Field([], description="Scopes of the token with those that they include: upload, read, triage.")
    expires_at: datetime | None = Field(None, description="When the token expires; null for never.")
    version: str = Field(description="Version of the service.")


@whoami_router.get("/whoami", responses=documented(401))
@requires(Open.ANYONE)
def whoami(request: Request, engine: AppEngine) -> WhoAmI:
    """Return who the caller is, and the scopes of a token. An invalid token gets 401."""
    service = version("threewalls")
    match access_of(request).principal:
        case Everyone():
            return WhoAmI(kind="everyone", version=service)
        case LoggedInUser(name=name):
            return WhoAmI(kind="person", name=name, version=service)
        case TokenHolder() as holder:
            scopes = [scope.value for scope in Scope if any(GRANTED[scope] <= GRANTED[own] for own in holder.scopes)]
            return WhoAmI(
                kind="token", name=holder.name, project=holder.project, scopes=scopes,
                expires_at=_expires_at(engine, holder), version=service,
            )  # fmt: skip
    return WhoAmI(kind="nobody", version=service)


def _expires_at(engine: Engine, holder: TokenHolder) -> datetime | None:
    # Tokens that may not read may still see their own expiry.
    with seeing(frozenset({holder.project_id})), read_session(engine) as session:
        query = select_any(TokenRow.expires_at).where(col(TokenRow.id) == holder.token_id)
        expires_at: datetime | None = session.execute(query).scalar_one_or_none()
    return expires_at

"""Pages of one's own log-in: in, out, another password. HTTP in, template out."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access import login
from app.access.own_password import PasswordForm, change_own_password
from app.access.password_threads import with_password
from app.errors import InvalidChange
from app.settings import Settings
from app.web.access.cookie import forget_session, set_session
from app.web.access.state import access_of
from app.web.body_limit import CREDENTIALS_BYTES
from app.web.dependencies import AppEngine, AppSettings
from app.web.forms import sent_form
from app.web.limits.guesses import Guesses
from app.web.limits.places import address_of
from app.web.limits.requests import in_words, too_often
from app.web.templating import render

MAX_FIELDS = 5
PASSWORD_PAGE = "/account/password"  # noqa: S105  an address
SECOND_FACTOR_PAGE = "/account/second-factor"
_ENDED = (
    "This first password was set more than 72 hours ago, so it opens nothing any more. An administrator sets a new one."
)
_MOST_CHARACTERS = 1_000
_NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(include_in_schema=False)


@router.get("/login")
def show_login(request: Request, next: str = "/") -> Response:  # noqa: A002  the word that addresses have
    access = access_of(request)
    if access.is_open or access.person:
        return RedirectResponse("/" if access.is_open else local_path(next), 303)
    return login_page(request, next)


@router.post("/login", max_body_size=CREDENTIALS_BYTES)
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
        secret = await with_password(login.log_in, engine, settings, login.Credentials(name, password, code), came)
    except login.FirstPasswordEndedError:
        return await run_in_threadpool(login_page, request, wanted, name, problem=_ENDED, status=422)
    if secret is None:
        return await run_in_threadpool(login_page, request, wanted, name, refused=True)
    await run_in_threadpool(guesses.right, name, came.address)
    return logged_in(request, secret, wanted)


@router.post("/logout")
def log_out(request: Request, engine: AppEngine) -> Response:
    access = access_of(request)
    if access.person:
        login.log_out(engine, access.session_id, access.person.user_id, access.person.name)
    # Else the way back shows pages of whoever was logged in.
    response = RedirectResponse("/login", 303, _NO_STORE | {"Clear-Site-Data": '"cache"'})
    forget_session(request, response)
    return response


@router.get(PASSWORD_PAGE)
def show_password(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002  as at the log-in
    return _password_page(request, PasswordForm(), next)


@router.post(PASSWORD_PAGE, max_body_size=CREDENTIALS_BYTES)
async def change_password(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form, wanted = PasswordForm.read(sent), str(sent.get("next", ""))[:_MOST_CHARACTERS]
    return await with_password(_change_password, request, engine, settings, form, wanted)


def _change_password(request: Request, engine: Engine, settings: Settings, form: PasswordForm, wanted: str) -> Response:
    person = access_of(request).person
    assert person is not None  # noqa: S101  the rule of the route
    guesses: Guesses = request.app.state.guesses
    if seconds := guesses.begin(person.name, came_from(request).address):
        return too_often(request, "These were too many wrong passwords.", seconds)
    try:
        secret = change_own_password(engine, settings, person.user_id, form, came_from(request))
    except InvalidChange as error:
        refused = form.refused(error)
        if not refused.error("old"):
            guesses.right(person.name, came_from(request).address)
        return _password_page(request, refused, wanted, 422)
    guesses.right(person.name, came_from(request).address)
    return logged_in(request, secret, wanted)


def logged_in(request: Request, secret: str, wanted: str) -> Response:
    response = RedirectResponse(local_path(wanted), 303, _NO_STORE)
    set_session(request, response, secret)
    return response


def local_path(wanted: str) -> str:
    """Where to go after the log-in: a path of this service, whatever the address says."""
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
    status: int = 200,
) -> HTMLResponse:
    """`wait`: seconds until another attempt is looked at. `problem`: why another way to log in failed."""
    response = render(
        request,
        "access/login.html",
        status=429 if wait else 422 if refused else status,
        wanted=local_path(wanted),
        name=name,
        refused=refused,
        wait=in_words(wait),
        problem=problem,
        provider=request.app.state.settings.oidc_name if request.app.state.oidc else "",
    )
    if wait:
        response.headers["Retry-After"] = str(wait)
    return response


def _password_page(request: Request, form: PasswordForm, wanted: str, status: int = 200) -> HTMLResponse:
    return render(request, "access/password.html", status=status, form=form, wanted=local_path(wanted))

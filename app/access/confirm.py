"""`/account/confirm`: the password once more, before what gives access is made: tokens, roles, accounts."""

from fastapi import APIRouter, Request
from sqlalchemy import Engine
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access.password_threads import with_password
from app.access.routes import MAX_FIELDS, came_from, local_path
from app.domain.access import passwords
from app.domain.access.principal import Person
from app.errors import FieldError, InvalidChange, TooMany
from app.settings import Settings
from app.storage import sessions, users
from app.storage.database import read_session, transaction
from app.web.access.state import access_of
from app.web.dependencies import AppEngine, AppSettings
from app.web.forms import sent_form
from app.web.limits.guesses import Guesses
from app.web.templating import render

_MOST_CHARACTERS = 1_000

router = APIRouter(include_in_schema=False, prefix="/account/confirm")


@router.get("")
def show_confirm(request: Request, engine: AppEngine, next: str = "/") -> HTMLResponse:  # noqa: A002  as at the log-in
    return _page(request, engine, next)


@router.post("")
async def confirm(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        password, wanted = (str(sent.get(name, ""))[:_MOST_CHARACTERS] for name in ("password", "next"))
    return await with_password(_confirm, request, engine, settings, password, wanted)


def _confirm(request: Request, engine: Engine, settings: Settings, password: str, wanted: str) -> Response:
    try:
        check_own_password(request, engine, settings, password)
    except InvalidChange as error:
        return _page(request, engine, wanted, error.errors[0].message)
    with transaction(engine) as session:
        sessions.confirm(session, access_of(request).session_id)
    return RedirectResponse(local_path(wanted), 303, {"Cache-Control": "no-store"})


def check_own_password(request: Request, engine: Engine, settings: Settings, password: str) -> Person:
    """Return who is logged in, when this is their password. Raises InvalidChange, TooMany.

    It takes a tenth of a second of a processor: call it by `with_password`.
    """
    person = access_of(request).person
    assert person is not None  # noqa: S101  the rule of the route
    guesses: Guesses = request.app.state.guesses
    address = came_from(request).address
    if seconds := guesses.begin(person.name, address):
        raise TooMany("These were too many wrong passwords. Nothing was changed.", seconds)
    with read_session(engine) as session:
        password_hash = users.get_user(session, person.user_id).password_hash
    if not passwords.is_right(password, password_hash, settings.password_memory_mib):
        raise InvalidChange("Nothing was changed.", (FieldError("password", "is not your password"),))
    guesses.right(person.name, address)
    return person


def _page(request: Request, engine: Engine, wanted: str, error: str = "") -> HTMLResponse:
    person = access_of(request).person
    assert person is not None  # noqa: S101  the rule of the route
    with read_session(engine) as session:
        comes_by = users.get_user(session, person.user_id).issuer
    return render(
        request,
        "access/confirm.html",
        status=422 if error else 200,
        wanted=local_path(wanted),
        error=error,
        comes_by=comes_by,
    )

"""`/account/second-factor`: codes of an authenticator app beside the password, added and removed by their owner."""

from collections.abc import Mapping

import segno
from fastapi import APIRouter, Request
from sqlalchemy import Engine
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access.confirm import check_own_password
from app.access.password_threads import with_password
from app.access.routes import MAX_FIELDS, SECOND_FACTOR_PAGE
from app.domain.access.second_factor import is_secret, new_secret, setup_address, step_of_code
from app.errors import FieldError, InvalidChange
from app.settings import Settings
from app.storage import sessions, users
from app.storage.database import read_session, transaction
from app.storage.tables import utc_now
from app.web.access.state import access_of
from app.web.dependencies import AppEngine, AppSettings
from app.web.forms import sent_form
from app.web.templating import render

_INPUTS = ("secret", "code", "password")
_MOST_CHARACTERS = 1_000

router = APIRouter(include_in_schema=False, prefix=SECOND_FACTOR_PAGE)


@router.get("")
def show_second_factor(request: Request, engine: AppEngine) -> HTMLResponse:
    return _page(request, engine)


@router.post("")
async def add_second_factor(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    return await with_password(_add, request, engine, settings, await _sent(request))


@router.post("/remove")
async def remove_second_factor(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    return await with_password(_remove, request, engine, settings, await _sent(request))


async def _sent(request: Request) -> Mapping[str, str]:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        return {name: str(sent.get(name, ""))[:_MOST_CHARACTERS] for name in _INPUTS}


def _add(request: Request, engine: Engine, settings: Settings, sent: Mapping[str, str]) -> Response:
    secret = sent["secret"]
    if not is_secret(secret):
        return _page(request, engine)
    try:
        person = check_own_password(request, engine, settings, sent["password"])
        with transaction(engine) as session:
            row = users.get_user(session, person.user_id)
            if row.issuer or row.totp_secret:
                raise InvalidChange("Nothing was changed.", (FieldError("code", "is asked for already"),))
            if (step := step_of_code(secret, sent["code"], utc_now())) is None:
                raise InvalidChange("Nothing was changed.", (FieldError("code", "is not what the app shows now"),))
            users.set_second_factor(session, row, secret, step)
            sessions.end_sessions_of(session, person.user_id, but=access_of(request).session_id)
    except InvalidChange as error:
        return _page(request, engine, error, secret)
    return RedirectResponse("/settings/account", 303)


def _remove(request: Request, engine: Engine, settings: Settings, sent: Mapping[str, str]) -> Response:
    try:
        person = check_own_password(request, engine, settings, sent["password"])
        with transaction(engine) as session:
            row = users.get_user(session, person.user_id)
            if row.totp_secret and step_of_code(row.totp_secret, sent["code"], utc_now(), after=row.totp_step) is None:
                raise InvalidChange("Nothing was changed.", (FieldError("code", "is not what the app shows now"),))
            users.set_second_factor(session, row, "")
    except InvalidChange as error:
        return _page(request, engine, error)
    return RedirectResponse("/settings/account", 303)


def _page(request: Request, engine: Engine, refused: InvalidChange | None = None, secret: str = "") -> HTMLResponse:
    """`secret`: the one that the app has by now, when a form with it is refused."""
    person = access_of(request).person
    assert person is not None  # noqa: S101  the rule of the route
    with read_session(engine) as session:
        row = users.get_user(session, person.user_id)
    secret = secret or new_secret()
    response = render(
        request,
        "access/second_factor.html",
        status=422 if refused else 200,
        comes_by=row.issuer,
        is_on=bool(row.totp_secret),
        required=request.app.state.settings.totp_for_administrators and person.administrator,
        errors={wrong.field: wrong.message for wrong in refused.errors} if refused else {},
        secret=secret,
        picture=segno.make(setup_address(secret, person.name)).svg_data_uri(scale=4, light="white"),
    )
    response.headers["Cache-Control"] = "no-store"
    return response

"""The page of people, for administrators. HTTP in, template out."""

from fastapi import APIRouter, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.errors import Conflict, InvalidChange, ThreewallsError
from app.members import people
from app.members.api import UserId
from app.members.form import Form
from app.members.routes import read_form
from app.members.signed import signed
from app.storage.database import read_session
from app.storage.members import roles_by_user
from app.storage.people import list_users
from app.storage.tokens import made_in_force
from app.storage.users import User
from app.web.access.state import access_of
from app.web.dependencies import AppEngine
from app.web.templating import render

_STANDINGS: dict[str, dict[str, bool]] = {
    "disable": {"disabled": True},
    "enable": {"disabled": False},
    "make administrator": {"administrator": True},
    "no administrator": {"administrator": False},
}
_RESET = "reset password"

router = APIRouter(include_in_schema=False, prefix="/settings/users")


@router.get("")
def show_people(request: Request, engine: AppEngine) -> HTMLResponse:
    return _page(request, engine, Form())


@router.post("")
async def add_person(request: Request, engine: AppEngine) -> HTMLResponse:
    """The page that follows shows the first password, once; no cache keeps it."""
    form = await read_form(request)
    return await run_in_threadpool(_add, request, engine, form)


@router.post("/{user_id}")
async def change_person(request: Request, engine: AppEngine, user_id: UserId) -> Response:
    """`do`: what is to be done, as its button says."""
    form = await read_form(request)
    return await run_in_threadpool(_change, request, engine, user_id, form)


def _add(request: Request, engine: Engine, form: Form) -> HTMLResponse:
    try:
        user, password = people.add_person(
            engine, name=form.value("name"), email=form.value("email").strip(),
            administrator=form.value("administrator") == "yes", by=signed(form.value("author")),
        )  # fmt: skip
    except (InvalidChange, Conflict) as error:
        return _page(request, engine, form.refused(error), 422)
    return _page(request, engine, Form(), made=(user, password))


def _change(request: Request, engine: Engine, user_id: int, form: Form) -> Response:
    wanted, by = form.value("do"), signed(form.value("author"))
    try:
        if wanted == _RESET:
            return _page(request, engine, Form(), made=people.reset_password(engine, user_id, by=by))
        if (standing := _STANDINGS.get(wanted)) is None:
            raise InvalidChange("This is nothing that can be done with an account. Nothing was changed.")
        revoke = wanted == "disable" and form.value("revoke") == "yes"
        people.change_person(engine, user_id, by=by, revoke=revoke, **standing)
    except (InvalidChange, Conflict) as error:
        return _page(request, engine, Form(), 422, refused=error)
    person = access_of(request).person
    # Whoever gives it up, or disables the own account, may not see this page any longer.
    own = person is not None and person.user_id == user_id and wanted in ("disable", "no administrator")
    return RedirectResponse("/" if own else "/settings/users", 303)


def _page(
    request: Request,
    engine: Engine,
    form: Form,
    status: int = 200,
    *,
    made: tuple[User, str] | None = None,
    refused: ThreewallsError | None = None,
) -> HTMLResponse:
    with read_session(engine) as session:
        found, roles, tokens = list_users(session), roles_by_user(session), made_in_force(session)
    response = render(
        request,
        "members/people.html",
        status=status,
        people=found,
        roles=roles,
        tokens=tokens,
        form=form,
        made=made,
        refused=refused,
    )
    if made:
        response.headers["Cache-Control"] = "no-store"
    return response

"""Answers to callers without permission: 401 or the log-in page, 403 that names what is missing, 404."""

from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from sqlalchemy import Engine
from sqlmodel import Session
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.domain.access.principal import ADMINISTRATOR, Action, Anonymous, LoggedInUser, Principal, least_role, missing
from app.domain.text import some_of
from app.storage.access_changes import project_slugs
from app.storage.database import read_session
from app.storage.users import administrators, maintainers
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Owner
from app.web.errors import answer, is_machine
from app.web.templating import asked_by_part, render_error

# --- The sentence for a user: their role, the role that is needed, and who can grant it.

_DOES = {
    Action.READ: "read {}",
    Action.UPLOAD: "upload to {}",
    Action.CONTRIBUTE: "work in {}",
    Action.MANAGE: "manage {}",
}
_PAGES: dict[Owner, tuple[str, str]] = {
    "run": ("/runs/{}", "Back to the run"),
    "regression": ("/regressions/{}", "Back to the regression"),
    "experiment": ("/experiments/{}", "Back to the experiment"),
    "reference": ("/references/{}", "Back to the reference point"),
}


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """`back`: address and label of pages that the user may see."""

    detail: str
    back: tuple[tuple[str, str], ...] = ()


def refusal(
    engine: Engine, user: LoggedInUser, action: Action, project: int, about: tuple[Owner, str] = ("", "")
) -> RefusedRequest:
    """Return the answer for a user who may read the project but not do this.

    `project`: its id; 0 for none, or for what belongs to all projects. `about`: what the address names.
    """
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        if action is Action.ADMINISTER:
            names = some_of(administrators(session), last="or")
            return RefusedRequest(f"Only an {ADMINISTRATOR} may do this: {names}.")
        if not project:
            return RefusedRequest(_anywhere(session, user, action))
        (slug,) = project_slugs(session, (project,))
        role = user.roles.get(project)
        gives = _gives(session, project if role else 0)
    needs = f"This needs the role {least_role(action)}; you are {role or 'not a member'}."
    owner, value = about
    back = [(f"/runs?project={quote(slug, safe='')}", f"Runs of {slug}")]
    if owner in _PAGES:
        address, label = _PAGES[owner]
        back.insert(0, (address.format(quote(value, safe="")), label))
    return RefusedRequest(f"You may not {_DOES[action].format(slug)}. {needs} {gives}", tuple(back))


def _anywhere(session: Session, user: LoggedInUser, action: Action) -> str:
    """Return the sentence for an action that needs a role in any project."""
    roles = [f"{role} in {slug}" for project, role in user.roles.items() for slug in project_slugs(session, (project,))]
    are = f"you are {some_of(sorted(roles))}" if roles else "you are not a member of any project yet"
    only = next(iter(user.roles)) if len(user.roles) == 1 else 0
    return f"This needs the role {least_role(action)} in a project, and {are}. {_gives(session, only)}"


def _gives(session: Session, project: int) -> str:
    """Return who can grant roles: the maintainers, or the administrators if the project has none."""
    if names := maintainers(session, project) if project else []:
        return f"A maintainer can grant it: ask {some_of(names, last='or')}."
    return f"An administrator can grant it: ask {some_of(administrators(session), last='or')}."


_NEEDS_LOG_IN = "This needs a log-in."
_BEARER = 'Bearer realm="threewalls"'


def not_logged_in(request: Request, why: str = "") -> Response:
    """Return 401, or a redirect to the log-in page for a browser that requests a page."""
    if not why:
        if (page := asked_by_part(request)) is not None:
            return Response(status_code=401, headers={"HX-Redirect": login_address(page), "Cache-Control": "no-store"})
        if not is_machine(request) and request.method in ("GET", "HEAD"):
            return RedirectResponse(login_address(str(request.url)), 303, {"Cache-Control": "no-store"})
    detail = why or (
        f"{_NEEDS_LOG_IN} Send a token of the project as `Authorization: Bearer tw_...`, or log in at /login."
        if is_machine(request)
        else f"{_NEEDS_LOG_IN} Log in at /login, then try again. Nothing was saved."
    )
    response = answer(request, 401, "Not logged in", detail)
    response.headers["WWW-Authenticate"] = _BEARER if not why else f'{_BEARER}, error="invalid_token"'
    return response


def forbidden(request: Request, principal: Principal, action: Action, own: Action | None = None) -> Response:
    """Return 403. `own`: the action that suffices for runs that the token itself uploaded."""
    if isinstance(principal, Anonymous):
        return not_logged_in(request)
    return answer(request, 403, "Not allowed", missing(principal, action, own) + _nothing_saved(request))


def forbidden_user(request: Request, refusal: RefusedRequest) -> Response:
    detail = refusal.detail + _nothing_saved(request)
    if is_machine(request):
        return answer(request, 403, "Not allowed", detail)
    return render_error(request, 403, "Not allowed", detail, refusal.back)


def refused(request: Request, title: str, detail: str, command: str = "") -> Response:
    """Return 403. `command`: what to do, as a sentence that ends with a command to copy."""
    return answer(request, 403, title, f"{detail}{_nothing_saved(request)} {command}".rstrip())


def not_there(request: Request, owner: str, value: str) -> Response:
    """Return the same 404 for what does not exist and for what the caller may not see."""
    return answer(
        request,
        404,
        "Not found",
        f"There is no {owner} {value[:100]}, or you have no access to it.{_nothing_saved(request)}",
    )


def login_address(wanted: str) -> str:
    """Return the address of the log-in page that leads back to `wanted`."""
    return leading_back("/login", wanted)


def leading_back(first: str, wanted: str) -> str:
    parts = urlsplit(wanted)
    return f"{first}?{urlencode({'next': parts.path + (f'?{parts.query}' if parts.query else '')})}"


def _nothing_saved(request: Request) -> str:
    return "" if request.method in ("GET", "HEAD") else " Nothing was saved."

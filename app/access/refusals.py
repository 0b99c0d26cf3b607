"""What somebody hears who may not: 401 for machines and a way to log in for people, 403 with what is missing, 404."""

from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from sqlalchemy import Engine
from sqlmodel import Session
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.access.rules import Owner
from app.domain.access.principal import ADMINISTRATOR, Action, Anonymous, Person, Principal, least_role, missing
from app.domain.text import some_of
from app.storage.access_changes import project_slugs
from app.storage.database import read_session
from app.storage.users import administrators, maintainers
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.errors import answer, is_machine
from app.web.templating import asked_by_part, leave_for, render_error

# --- Who may not: what one is there, what it needs, and who gives that, by name.

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
    "reference": ("/references/{}", "Back to the published figure"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """`back`: pages that the person may see, with what their links say."""

    detail: str
    back: tuple[tuple[str, str], ...] = ()


def refusal(
    engine: Engine, person: Person, action: Action, project: int, about: tuple[Owner, str] = ("", "")
) -> Refusal:
    """For a person who may read the project (its id, 0: none, or what is for all), but not do this, `about` a thing."""
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        if action is Action.ADMINISTER:
            names = some_of(administrators(session), last="or")
            return Refusal(f"Only an {ADMINISTRATOR} may do this: {names}.")
        if not project:
            return Refusal(_anywhere(session, person, action))
        (slug,) = project_slugs(session, (project,))
        role = person.roles.get(project)
        gives = _gives(session, project if role else 0)
    needs = f"This needs the role {least_role(action)}, and you are {role or 'no member'} there."
    owner, value = about
    back = [(f"/runs?project={quote(slug, safe='')}", f"Runs of {slug}")]
    if owner in _PAGES:
        address, label = _PAGES[owner]
        back.insert(0, (address.format(quote(value, safe="")), label))
    return Refusal(f"You may not {_DOES[action].format(slug)}. {needs} {gives}", tuple(back))


def _anywhere(session: Session, person: Person, action: Action) -> str:
    """Of what one may do as soon as one may in some project."""
    roles = [
        f"{role} in {slug}" for project, role in person.roles.items() for slug in project_slugs(session, (project,))
    ]
    are = f"you are {some_of(sorted(roles))}" if roles else "you belong to no project yet"
    only = next(iter(person.roles)) if len(person.roles) == 1 else 0
    return f"This needs the role {least_role(action)} in a project, and {are}. {_gives(session, only)}"


def _gives(session: Session, project: int) -> str:
    """Who gives roles there; in no project, or one that nobody maintains, administrators do."""
    if names := maintainers(session, project) if project else []:
        return f"Its maintainers give it: ask {some_of(names, last='or')}."
    return f"An administrator gives it: ask {some_of(administrators(session), last='or')}."


_NOBODY = "This needs a log-in."
_BEARER = 'Bearer realm="threewalls"'


def not_logged_in(request: Request, why: str = "") -> Response:
    """401, or the log-in page to a browser that wants to see a page."""
    if not why:
        if (page := asked_by_part(request)) is not None:
            return leave_for(login_address(page), 401)
        if not is_machine(request) and request.method in ("GET", "HEAD"):
            return RedirectResponse(login_address(str(request.url)), 303, {"Cache-Control": "no-store"})
    detail = why or (
        f"{_NOBODY} Send a token of the project as `Authorization: Bearer tw_...`, or log in at /login."
        if is_machine(request)
        else f"{_NOBODY} Log in at /login, then do it again. Nothing was kept."
    )
    response = answer(request, 401, "Not logged in", detail)
    response.headers["WWW-Authenticate"] = _BEARER if not why else f'{_BEARER}, error="invalid_token"'
    return response


def forbidden(request: Request, principal: Principal, action: Action, own: Action | None = None) -> Response:
    """`own`: what would be enough for a token about a run that it brought itself."""
    if isinstance(principal, Anonymous):
        return not_logged_in(request)
    return answer(request, 403, "Not allowed", missing(principal, action, own) + _kept(request))


def forbidden_person(request: Request, told: Refusal) -> Response:
    detail = told.detail + _kept(request)
    if is_machine(request):
        return answer(request, 403, "Not allowed", detail)
    return render_error(request, 403, "Not allowed", detail, told.back)


def refused(request: Request, title: str, detail: str, command: str = "") -> Response:
    """`command`: what to do about it, as a sentence that ends with a line to copy."""
    return answer(request, 403, title, f"{detail}{_kept(request)} {command}".rstrip())


def not_there(request: Request, owner: str, value: str) -> Response:
    """The same for what does not exist and what is not the caller's business."""
    return answer(
        request, 404, "Not found", f"There is no {owner} {value[:100]} here that you may see.{_kept(request)}"
    )


def login_address(wanted: str) -> str:
    """Where to log in and come back from to the page that was wanted."""
    return leading_back("/login", wanted)


def leading_back(first: str, wanted: str) -> str:
    parts = urlsplit(wanted)
    return f"{first}?{urlencode({'next': parts.path + (f'?{parts.query}' if parts.query else '')})}"


def _kept(request: Request) -> str:
    return "" if request.method in ("GET", "HEAD") else " Nothing was kept."

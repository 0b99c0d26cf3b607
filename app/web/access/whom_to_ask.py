"""Who may not: what one is there, what it needs, and who gives that, by name."""

from dataclasses import dataclass
from urllib.parse import quote

from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access.principal import Person
from app.domain.access.roles import ADMINISTRATOR, Action, least_role
from app.domain.text import some_of
from app.storage.access_projects import project_slugs
from app.storage.database import read_session
from app.storage.members import maintainers
from app.storage.people import administrators
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access.rules import Owner

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

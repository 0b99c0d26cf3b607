"""Who acts, for what is written down: the one that is logged in, else the name that a form or body states."""

from sqlalchemy import Engine
from starlette.requests import HTTPConnection

from app.domain.access.principal import NONE, Everyone, Person, TokenHolder, granted
from app.domain.access.roles import Action
from app.domain.metadata import DEFAULT_PROJECT
from app.errors import FieldError, InvalidMetadata, NotAllowed
from app.storage.access_projects import project_slugs
from app.storage.database import read_session
from app.web.access.state import access_of


def author(request: HTTPConnection, stated: str = "") -> str:
    """The name that stands beside a change. Whoever is logged in acts in their own name, whatever they state."""
    return access_of(request).name or stated


def require_project(request: HTTPConnection, action: Action, project_id: int | None) -> None:
    """For what names its project in the body: raises NotAllowed unless the caller may do it there.

    None stands for what belongs to no project and concerns all. The check of the address does not see a body.
    """
    access = access_of(request)
    where = granted(access.principal, action, access.public)
    if where is not None and (project_id is None or project_id not in where):
        raise NotAllowed("Only an administrator may do this for all projects. Name a project." if project_id is None
                         else "You may not do this in that project, or there is none of that name.")  # fmt: skip


def upload_project(request: HTTPConnection, engine: Engine, stated: str | None) -> str:
    """The project that an upload goes to, by its slug, of what its metadata state. Raises NotAllowed, InvalidMetadata.

    A token uploads into its own project only, and need not name it. A project begins with its first upload only where
    there are no log-ins, or by an administrator.
    """
    access = access_of(request)
    match access.principal:
        case TokenHolder(project=own):
            if stated is not None and stated != own:
                raise NotAllowed(
                    f"This token uploads into the project {own} only, and the metadata name another. Nothing was kept. "
                    "Leave `project` out of the metadata, or use a token of that project."
                )
            return own
        case Everyone() | Person(administrator=True):
            return stated or DEFAULT_PROJECT
    with read_session(engine) as session:
        slugs = project_slugs(session, granted(access.principal, Action.UPLOAD, access.public) or NONE)
    if stated is None and len(slugs) == 1:
        return slugs[0]
    if stated is None:
        raise InvalidMetadata(
            "Name the project that this upload is for. Nothing was kept.",
            (FieldError("meta.project", f"must be one of {', '.join(slugs)}"),),
        )
    if stated not in slugs:
        raise NotAllowed(
            f"You may not upload into a project {stated}. Nothing was kept. You may into {', '.join(slugs) or 'none'}; "
            "an administrator makes projects and their maintainers give roles."
        )
    return stated

"""Who acts, for what is written down: the one that is logged in, else the name that a form or body states."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from sqlalchemy import Engine
from starlette.requests import HTTPConnection

from app.domain.access.principal import NONE, Everyone, Person, TokenHolder, Uploader, granted, may, missing
from app.domain.access.roles import Action
from app.domain.metadata import DEFAULT_PROJECT
from app.errors import FieldError, InvalidMetadata, NotAllowed
from app.storage.access_projects import project_slugs
from app.storage.audit import MAX_AUTHOR
from app.storage.database import read_session
from app.web.access.state import access_of, acting_as


def author(stated: str = "") -> str:
    """The name that stands beside a change. Whoever is logged in acts in their own name, whatever they state.

    Forms get it by `sent_form` (web/forms.py), bodies of the API by `Author`.
    """
    return acting_as.get() or stated


def _said(stated: str) -> str:
    if not (name := author(stated)):
        raise ValueError("must say who does it, because nobody is logged in")
    return name


Author = Annotated[str, AfterValidator(_said)]


def author_field(description: str, max_length: int = MAX_AUTHOR) -> Any:
    """The default of an `author: Author` in the body of a call."""
    told = f"{description} Needed where nobody is logged in; who is, acts in the own name."
    return Field("", max_length=max_length, validate_default=True, description=told)


def require_everything(request: HTTPConnection, action: Action) -> None:
    """For what belongs to no project and concerns all. Raises NotAllowed but for administrators."""
    access = access_of(request)
    if granted(access.principal, action, access.public) is not None:
        raise NotAllowed("Only an administrator may do this for all projects. Nothing was kept. Name a project.")


def uploader(request: HTTPConnection) -> Uploader:
    access = access_of(request)
    shown = access.principal
    return Uploader(access.name, shown.token_id if isinstance(shown, TokenHolder) else None)


def require_contributor(request: HTTPConnection, what: str, project_id: int) -> None:
    """For what an upload does only by the way. Raises NotAllowed for a token without that scope."""
    access = access_of(request)
    if not may(access.principal, Action.CONTRIBUTE, project_id):
        raise NotAllowed(
            f"You may upload, but not {what}. {missing(access.principal, Action.CONTRIBUTE)} Nothing was kept. "
            "Upload it as a run of its own, or begin runs of which more is to come with `complete=false`."
        )


def upload_project(request: HTTPConnection, engine: Engine, stated: str | None) -> str:
    """The project that an upload goes to, by its slug, of what its metadata state. Raises NotAllowed, InvalidMetadata.

    A token uploads into its own project only, and need not name it. A project begins with its first upload only where
    there are no log-ins, or by an administrator.
    """
    access = access_of(request)
    match access.principal:
        case TokenHolder(project=own):
            if stated is not None and stated.lower() != own.lower():
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
    if stated.lower() not in {slug.lower() for slug in slugs}:
        raise NotAllowed(
            f"You may not upload into a project {stated}. Nothing was kept. You may into {', '.join(slugs) or 'none'}; "
            "an administrator makes projects and their maintainers give roles."
        )
    return stated

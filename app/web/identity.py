"""Who acts, for what is written down: the one that is logged in, else the name that a form or body states."""

import ipaddress
import shlex
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from sqlalchemy import Engine
from starlette.requests import HTTPConnection
from starlette.types import Scope

from app.domain.access.principal import (
    NONE,
    Action,
    Anonymous,
    Everyone,
    Person,
    Principal,
    ProjectIds,
    TokenHolder,
    Uploader,
    granted,
    may,
    missing,
)
from app.domain.documents.metadata import DEFAULT_PROJECT
from app.domain.text import one_line
from app.errors import FieldError, InvalidMetadata, NotAllowed
from app.settings import Settings
from app.storage.access_changes import project_slugs
from app.storage.audit import MAX_AUTHOR
from app.storage.database import read_session
from app.storage.users import MAX_NAME

# --- What the check found out about a request, for whoever handles it.

_KEY = "access"
_NOBODY = Anonymous()

acting_as: ContextVar[str] = ContextVar("acting_as", default="")
"""Whose name stands beside what is changed, for what knows no request; empty when the caller must say it."""


@dataclass(frozen=True, slots=True)
class Access:
    """`session_id`: of the browser that is logged in, as it is kept. `public`: projects that everybody may read.

    `confirmed`: that browser has proved lately who uses it.
    """

    principal: Principal = _NOBODY
    public: ProjectIds = NONE
    session_id: str = ""
    confirmed: bool = False

    @property
    def is_open(self) -> bool:
        """The service has no log-ins."""
        return isinstance(self.principal, Everyone)

    @property
    def person(self) -> Person | None:
        return self.principal if isinstance(self.principal, Person) else None

    @property
    def name(self) -> str:
        """Of the one that is logged in, as it stands beside what is changed; empty when nobody is."""
        match self.principal:
            case Person(name=name):
                return name
            case TokenHolder(name=name):
                return f"token {name}"[:MAX_AUTHOR]  # so that none passes for a person of its name
        return ""

    def may(self, action: str, project_id: int) -> bool:
        """For templates and handlers: whether the caller may do it in that project."""
        return may(self.principal, Action(action), project_id, self.public)

    def may_anywhere(self, action: str) -> bool:
        return granted(self.principal, Action(action), self.public) != NONE


def put(scope: Scope, access: Access) -> None:
    scope.setdefault("state", {})[_KEY] = access


def access_of(request: HTTPConnection) -> Access:
    """Who asks; nobody where no check was made."""
    found = getattr(request.state, _KEY, None)
    return found if isinstance(found, Access) else Access()


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


# --- A service without log-ins answers only at names of this machine, and only until it has an administrator.
#
# The name is checked because any website may point its own name at 127.0.0.1 (DNS rebinding): its page would then be
# of the same origin as ours, and no other check could tell.

LOOPBACK_NAMES = ("localhost",)

_OF_PROXIES = ("forwarded", "via", "x-real-ip", "x-forwarded", "cf-connecting-ip", "true-client-ip")
"""Beginnings of the headers by which a proxy says that it asks for somebody else."""


NEEDS_LOG_INS = (
    "Accounts, roles, tokens, receivers of notifications and public projects need log-ins, and this service has none: "
    "everybody and every program on this machine may do everything else here."
)


def is_loopback(host: str) -> bool:
    """Whether this name or address of a listener or Host header means this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def may_answer(host_header: str, names: Collection[str]) -> bool:
    """Whether a request to this Host may be answered without a log-in; `names` besides those of this machine."""
    name = host_header.rpartition(":")[0] if not host_header.endswith("]") and ":" in host_header else host_header
    return is_loopback(name) or name.lower() in names


def is_passed_on(header_names: Iterable[str], http_version: str) -> bool:
    """Whether a proxy passed the request on: then the Host is the proxy's word for us, and the caller is a stranger.

    nginx says nothing of itself unless it is told to, but asks by HTTP/1.0 (before its version 1.29.7), which browsers
    and clients of today do not.
    """
    return http_version == "1.0" or any(name.lower().startswith(_OF_PROXIES) for name in header_names)


def how_to_have_log_ins(settings: Settings) -> str:
    return f"Make the first administrator from a shell of this machine: {make_administrator(settings)}"


def make_administrator(settings: Settings) -> str:
    """The command that makes one of this very service: without its folder it would make that of another one."""
    command = f"threewalls admin create NAME --data {shlex.quote(str(settings.data_dir.resolve()))}"
    return f'THREEWALLS_DATABASE_URL="..." {command}' if settings.database_url else command


# --- In whose name access is changed: whoever is logged in, else the name that was stated, else nobody's.

UNKNOWN = "nobody logged in"


def signed(stated: str = "") -> str:
    return author(one_line(stated)[:MAX_NAME]) or UNKNOWN

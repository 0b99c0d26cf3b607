"""The caller of a request: permissions, and the name that is recorded with changes."""

import ipaddress
import shlex
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Body
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from sqlalchemy import Engine
from starlette.requests import HTTPConnection
from starlette.types import Scope

from app.domain.access.principal import (
    NONE,
    Action,
    Anonymous,
    Everyone,
    LoggedInUser,
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
from app.storage.audit import MAX_AUTHOR
from app.storage.database import read_session
from app.storage.users import MAX_NAME
from app.storage.visible import project_slugs
from app.storage.watches import NO_USER

_KEY = "access"
_ANONYMOUS = Anonymous()

request_author: ContextVar[str] = ContextVar("author", default="")
"""The name recorded with changes of this request. Empty without log-ins, where callers state a name themselves."""

REMEMBERED = "threewalls_name"
"""Cookie with the name that a user last entered on a service without log-ins (static/app.js)."""
remembered: ContextVar[str] = ContextVar("remembered", default="")
"""The name in that cookie. It only prefills forms."""


def own_name() -> str:
    """Return the name for forms: of the logged-in user, else the remembered name; empty if unknown."""
    return request_author.get() or remembered.get()


def remembered_name(request: HTTPConnection) -> str:
    return one_line(unquote(request.cookies.get(REMEMBERED, "")[: 12 * MAX_AUTHOR]))[:MAX_AUTHOR]


@dataclass(frozen=True, slots=True)
class Access:
    """The result of the access check.

    `public`: projects that every caller may read. `session_id`: of the user's stored session. `confirmed`: whether the
    user confirmed the password recently.
    """

    principal: Principal = _ANONYMOUS
    public: ProjectIds = NONE
    session_id: str = ""
    confirmed: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether the service has no log-ins."""
        return isinstance(self.principal, Everyone)

    @property
    def user(self) -> LoggedInUser | None:
        return self.principal if isinstance(self.principal, LoggedInUser) else None

    @property
    def watcher(self) -> int | None:
        """Return the user id that owns the caller's watches; None for callers who cannot watch."""
        return self.user.user_id if self.user else NO_USER if self.is_open else None

    @property
    def name(self) -> str:
        """Return the name recorded with the caller's changes; empty for anonymous callers."""
        match self.principal:
            case LoggedInUser(name=name):
                return name
            case TokenHolder(name=name):
                return f"token {name}"[:MAX_AUTHOR]  # the prefix tells it from a user with the same name
        return ""

    def may(self, action: str, project_id: int) -> bool:
        """Return whether the caller may perform the action in that project."""
        return may(self.principal, Action(action), project_id, self.public)

    def may_anywhere(self, action: str) -> bool:
        return granted(self.principal, Action(action), self.public) != NONE


def put(scope: Scope, access: Access) -> None:
    scope.setdefault("state", {})[_KEY] = access


def access_of(request: HTTPConnection) -> Access:
    """Return the result of the access check; without a check, that of an anonymous caller."""
    access = getattr(request.state, _KEY, None)
    return access if isinstance(access, Access) else Access()


def author(stated: str = "") -> str:
    """Return the name recorded with a change: the caller's own, or `stated` on a service without log-ins.

    `sent_form` (web/forms.py) applies it to forms, `Author` to bodies of API calls.
    """
    return request_author.get() or stated


def _required_author(stated: str) -> str:
    if not (name := author(stated)):
        raise ValueError("is required on a service without log-ins: the name of the user who makes the change")
    return name


Author = Annotated[str, AfterValidator(_required_author)]


def author_field(description: str, max_length: int = MAX_AUTHOR) -> Any:
    """Return the default of an `author: Author` in the body of a call."""
    text = (
        f"{description} Required on a service without log-ins; ignored for users and tokens, who act under their own "
        "name."
    )
    return Field("", max_length=max_length, validate_default=True, description=text)


class AuthorIn(BaseModel, extra="forbid"):
    author: Author = author_field("Author of the change.")


def optional_body(model: type[BaseModel]) -> Any:
    """Return the default of a body whose fields all have defaults, so that users and tokens need not send one."""

    def without_body() -> BaseModel:
        try:
            return model()
        except ValidationError as error:
            problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
            raise RequestValidationError(problems) from error

    return Body(default_factory=without_body)


AuthorBody = Annotated[AuthorIn, optional_body(AuthorIn)]
"""The body of an action without other fields."""


def require_everything(request: HTTPConnection, action: Action) -> None:
    """Raise NotAllowed unless the caller may perform the action in all projects."""
    access = access_of(request)
    if granted(access.principal, action, access.public) is not None:
        raise NotAllowed("Only an administrator may do this for all projects. Nothing was saved. Name a project.")


def uploader(request: HTTPConnection) -> Uploader:
    access = access_of(request)
    principal = access.principal
    return Uploader(access.name, principal.token_id if isinstance(principal, TokenHolder) else None)


def require_contributor(request: HTTPConnection, what: str, project_id: int) -> None:
    """Raise NotAllowed unless the caller may contribute to the project. `what`: the effect of the upload, as a verb."""
    access = access_of(request)
    if not may(access.principal, Action.CONTRIBUTE, project_id):
        raise NotAllowed(
            f"You may upload, but not {what}. {missing(access.principal, Action.CONTRIBUTE)} Nothing was saved. "
            "Upload it as a separate run, or start runs that you want to append to with `complete=false`."
        )


def upload_project(request: HTTPConnection, engine: Engine, stated: str | None) -> str:
    """Return the slug of the project for an upload. Raises NotAllowed, InvalidMetadata.

    `stated`: the project in the metadata. A token can upload only to its own project and need not name it. An upload
    creates a missing project only on a service without log-ins or for an administrator.
    """
    access = access_of(request)
    match access.principal:
        case TokenHolder(project=own):
            if stated is not None and stated.lower() != own.lower():
                raise NotAllowed(
                    f"This token can upload only to the project {own}, but the metadata names another. Nothing was "
                    "saved. Leave `project` out of the metadata, or use a token of that project."
                )
            return own
        case Everyone() | LoggedInUser(administrator=True):
            return stated or DEFAULT_PROJECT
    with read_session(engine) as session:
        slugs = project_slugs(session, granted(access.principal, Action.UPLOAD, access.public) or NONE)
    if stated is None and len(slugs) == 1:
        return slugs[0]
    if stated is None:
        raise InvalidMetadata(
            "Name the project of this upload. Nothing was saved.",
            (FieldError("meta.project", f"must be one of {', '.join(slugs)}"),),
        )
    if stated.lower() not in {slug.lower() for slug in slugs}:
        raise NotAllowed(
            f"You cannot upload to {stated}. Nothing was saved. Your projects: {', '.join(slugs) or 'none'}. "
            "Administrators create projects, and their maintainers grant roles."
        )
    return stated


# --- A service without log-ins answers only under host names of its own machine.
#
# The name is checked because any website can point its own host name at 127.0.0.1 (DNS rebinding). Its pages would then
# have the same origin as ours, which no other check detects.

LOOPBACK_NAMES = ("localhost",)

_PROXY_HEADERS = ("forwarded", "via", "x-real-ip", "x-forwarded", "cf-connecting-ip", "true-client-ip")
"""Prefixes of the names of headers that proxies add."""

NEEDS_LOG_INS = (
    "Users, roles, tokens, notification receivers and public projects need log-ins, and this service has none. All "
    "users and programs on this machine may do everything else."
)


def is_loopback(host: str) -> bool:
    """Return whether this name or address refers to this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def may_answer(host_header: str, names: Collection[str]) -> bool:
    """Return whether to answer a request with this Host header without a log-in. `names`: accepted host names, in
    addition to those of this machine."""
    name = host_header.rpartition(":")[0] if not host_header.endswith("]") and ":" in host_header else host_header
    return is_loopback(name) or name.lower() in names


def is_forwarded_by_proxy(header_names: Iterable[str], http_version: str) -> bool:
    """Return whether a proxy forwarded the request. The proxy then chose the Host header, and the caller may be remote.

    nginx adds no headers by default. Versions before 1.29.7 are recognised by HTTP/1.0, which browsers do not use.
    """
    return http_version == "1.0" or any(name.lower().startswith(_PROXY_HEADERS) for name in header_names)


def how_to_have_log_ins(settings: Settings) -> str:
    return f"To enable log-ins, create an administrator in a shell on this machine: {make_administrator(settings)}"


def make_administrator(settings: Settings) -> str:
    """Return the command that creates an administrator of this service; it names the data folder."""
    command = f"threewalls admin create NAME --data {shlex.quote(str(settings.data_dir.resolve()))}"
    return f'THREEWALLS_DATABASE_URL="..." {command}' if settings.database_url else command


UNKNOWN = "nobody logged in"
"""Name recorded with changes of access by callers who are not logged in and state no name."""


def signed(stated: str = "") -> str:
    """Return the name recorded with a change of access."""
    return author(one_line(stated)[:MAX_NAME]) or UNKNOWN

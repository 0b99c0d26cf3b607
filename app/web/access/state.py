"""What the check found out about a request, for whoever handles it."""

from contextvars import ContextVar
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.types import Scope

from app.domain.access.principal import (
    NONE,
    Anonymous,
    Everyone,
    Person,
    Principal,
    ProjectIds,
    TokenHolder,
    granted,
    may,
)
from app.domain.access.roles import Action
from app.storage.audit import MAX_AUTHOR

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

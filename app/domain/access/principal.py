"""Actions, roles and scopes, and the decision in which projects a caller may do what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Action(StrEnum):
    """READ: see runs and everything derived from them. UPLOAD: send runs and pieces of their logs.

    CONTRIBUTE: state contract fields, triage, quarantine, pin, plan experiments, enter reference points. MANAGE: change
    settings, members, tokens and receivers of the project. ADMINISTER: change what concerns every project.
    """

    READ = "read"
    UPLOAD = "upload"
    CONTRIBUTE = "contribute"
    MANAGE = "manage"
    ADMINISTER = "administer"


class Role(StrEnum):
    """The role of a user in a project. Administrators need none: administration is a property of the user."""

    VIEWER = "viewer"
    CONTRIBUTOR = "contributor"
    MAINTAINER = "maintainer"


class Scope(StrEnum):
    """What a token may do, from least to most: each scope includes the ones before it."""

    UPLOAD = "upload"
    READ = "read"
    TRIAGE = "triage"


ADMINISTRATOR = "administrator"

_CONTRIBUTOR = frozenset({Action.READ, Action.UPLOAD, Action.CONTRIBUTE})

ALLOWED: Mapping[Role, frozenset[Action]] = {
    Role.VIEWER: frozenset({Action.READ}),
    Role.CONTRIBUTOR: _CONTRIBUTOR,
    Role.MAINTAINER: _CONTRIBUTOR | {Action.MANAGE},
}

GRANTED: Mapping[Scope, frozenset[Action]] = {
    Scope.UPLOAD: frozenset({Action.UPLOAD}),
    Scope.READ: frozenset({Action.UPLOAD, Action.READ}),
    Scope.TRIAGE: frozenset({Action.UPLOAD, Action.READ, Action.CONTRIBUTE}),
}
"""A CI job that only uploads gets a token that reads nothing but the reports of its own runs."""


def least_role(action: Action) -> str:
    return next((role.value for role in Role if action in ALLOWED[role]), ADMINISTRATOR)


def scope_for(action: Action) -> Scope | None:
    """Return the least scope that allows the action; None where no token may do it."""
    return next((scope for scope in Scope if action in GRANTED[scope]), None)


ProjectIds = frozenset[int]
NONE: ProjectIds = frozenset()


@dataclass(frozen=True, slots=True)
class Everyone:
    """Any caller of a service without log-ins, which listens on a loopback address and has no administrator."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """A caller without credentials."""


@dataclass(frozen=True, slots=True)
class SharedPage(Anonymous):
    """An anonymous caller with a share link, on a page that the link covers."""

    project_id: int


@dataclass(frozen=True)
class LoggedInUser:
    """A user who is logged in.

    `roles`: by project id. `second_factor`: the user has a second factor here, or logs in by an identity provider.
    """

    user_id: int
    name: str
    administrator: bool = False
    roles: Mapping[int, Role] = field(default_factory=dict)
    must_change_password: bool = False
    second_factor: bool = False

    @cached_property
    def projects(self) -> Mapping[Action, ProjectIds]:
        """Project ids by action. Cached, because each request of a user with many roles calls this several times."""
        return {
            action: frozenset(project for project, role in self.roles.items() if action in ALLOWED[role])
            for action in Action
        }


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """A program that sent a token. `project`: slug of the token's project."""

    token_id: int
    name: str
    project_id: int
    project: str
    scopes: frozenset[Scope]


Principal = Everyone | Anonymous | LoggedInUser | TokenHolder


@dataclass(frozen=True, slots=True)
class Uploader:
    """Who uploads a run. `name` is empty without log-ins; `token_id` is None for users."""

    name: str = ""
    token_id: int | None = None


NOBODY = Uploader()


def granted(principal: Principal, action: Action, public: ProjectIds) -> ProjectIds | None:
    """Return the ids of the projects in which the principal may do it; None means everywhere, without limit.

    `public`: the projects that every caller may read.
    """
    match principal:
        case Everyone() | LoggedInUser(administrator=True):
            return None
        case LoggedInUser():
            own = principal.projects[action]
        case TokenHolder(project_id=project, scopes=scopes):
            own = frozenset({project}) if any(action in GRANTED[scope] for scope in scopes) else NONE
        case SharedPage(project_id=project):
            own = frozenset({project}) if action is Action.READ else NONE
        case Anonymous():
            own = NONE
    return own | public if action is Action.READ else own


def may(principal: Principal, action: Action, project_id: int, public: ProjectIds = NONE) -> bool:
    where = granted(principal, action, public)
    return where is None or project_id in where


def may_with_own(principal: Principal, action: Action, token_id: int | None) -> bool:
    """Return whether the principal is the token `token_id` and may do the action. Used for runs that it uploaded."""
    if not isinstance(principal, TokenHolder) or principal.token_id != token_id:
        return False
    return may(principal, action, principal.project_id)


def knows_of(principal: Principal, project_id: int, public: ProjectIds) -> bool:
    """Return whether the principal may learn that the project and its contents exist."""
    own = isinstance(principal, TokenHolder) and principal.project_id == project_id
    return own or may(principal, Action.READ, project_id, public)


def missing(principal: Principal, action: Action, own: Action | None = None) -> str:
    """Return which permission is missing, as a sentence. `own`: the action that suffices for a token's own runs."""
    if isinstance(principal, TokenHolder):
        has = f"The token {principal.name} has the scope {' and '.join(sorted(principal.scopes)) or 'none'}"
        scope = scope_for(action)
        if own is not None and may(principal, own, principal.project_id):
            return f"The token {principal.name} did not upload this run. {has}; for runs of others this needs {scope}."
        return f"{has}; this needs {scope}." if scope else f"{has}; tokens cannot do this. Log in as a user."
    role = least_role(action)
    if action is Action.ADMINISTER:
        return f"Only an {role} may do this."
    return f"This needs the role {role} in the project. A maintainer of the project can grant it."

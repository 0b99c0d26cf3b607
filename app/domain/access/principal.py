"""Who asks, and in which projects they may do what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

# --- What there is to be allowed, and who is: the roles of people in a project and the scopes of its tokens.


class Action(StrEnum):
    """READ: see runs and all that is made of them. UPLOAD: bring runs and pieces of their logs.

    CONTRIBUTE: state contract fields, triage, quarantine, pin, plan experiments, enter reference points. MANAGE: the
    settings, members, tokens and receivers of the project. ADMINISTER: what concerns every project.
    """

    READ = "read"
    UPLOAD = "upload"
    CONTRIBUTE = "contribute"
    MANAGE = "manage"
    ADMINISTER = "administer"


class Role(StrEnum):
    """What a person is in a project. An administrator needs none: that is a property of the person."""

    VIEWER = "viewer"
    CONTRIBUTOR = "contributor"
    MAINTAINER = "maintainer"


class Scope(StrEnum):
    """What a token may be made for."""

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

OPENS: Mapping[Scope, Action] = {
    Scope.UPLOAD: Action.UPLOAD,
    Scope.READ: Action.READ,
    Scope.TRIAGE: Action.CONTRIBUTE,
}
"""One action a scope: a CI job that only uploads gets a token that reads nothing."""


def least_role(action: Action) -> str:
    """The least that a person must be for it."""
    return next((role.value for role in Role if action in ALLOWED[role]), ADMINISTRATOR)


def scope_for(action: Action) -> Scope | None:
    """The scope that a token needs for it; None for what no token may."""
    return next((scope for scope, opened in OPENS.items() if opened is action), None)


ProjectIds = frozenset[int]
NONE: ProjectIds = frozenset()


@dataclass(frozen=True, slots=True)
class Everyone:
    """Whoever reaches a service without log-ins: one that listens on a loopback address and has no administrator."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Nobody who said who they are."""


@dataclass(frozen=True)
class Person:
    """Somebody who is logged in. `roles` by project id. `second_factor`: asked for one here, or by their provider."""

    user_id: int
    name: str
    administrator: bool = False
    roles: Mapping[int, Role] = field(default_factory=dict)
    must_change_password: bool = False
    second_factor: bool = False

    @cached_property
    def projects(self) -> Mapping[Action, ProjectIds]:
        """Where the roles allow each action: every request of somebody with many roles asks five times."""
        return {
            action: frozenset(project for project, role in self.roles.items() if action in ALLOWED[role])
            for action in Action
        }


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """A job that showed a token of a project, `project` by its slug."""

    token_id: int
    name: str
    project_id: int
    project: str
    scopes: frozenset[Scope]


Principal = Everyone | Anonymous | Person | TokenHolder


@dataclass(frozen=True, slots=True)
class Uploader:
    """Who brings a run: by name, empty where nobody logs in, and with which token, where it is one."""

    name: str = ""
    token_id: int | None = None


NOBODY = Uploader()


def granted(principal: Principal, action: Action, public: ProjectIds) -> ProjectIds | None:
    """Where the principal may do it: ids of projects, None for all of them and what concerns all.

    `public`: the projects that whoever reaches the service may read.
    """
    match principal:
        case Everyone() | Person(administrator=True):
            return None
        case Person():
            own = principal.projects[action]
        case TokenHolder(project_id=project, scopes=scopes):
            own = frozenset({project}) if any(OPENS[scope] is action for scope in scopes) else NONE
        case Anonymous():
            own = NONE
    return own | public if action is Action.READ else own


def may(principal: Principal, action: Action, project_id: int, public: ProjectIds = NONE) -> bool:
    where = granted(principal, action, public)
    return where is None or project_id in where


def may_with_own(principal: Principal, action: Action, token_id: int | None) -> bool:
    """Whether it is a token that may do it, and the one that brought what it is about."""
    if not isinstance(principal, TokenHolder) or principal.token_id != token_id:
        return False
    return may(principal, action, principal.project_id)


def knows_of(principal: Principal, project_id: int, public: ProjectIds) -> bool:
    """True when it is no secret to the principal that there is such a project, with what is in it."""
    own = isinstance(principal, TokenHolder) and principal.project_id == project_id
    return own or may(principal, Action.READ, project_id, public)


def missing(principal: Principal, action: Action, own: Action | None = None) -> str:
    """What the principal needs for it and has not, in a sentence or two. `own`: what would do about its own run."""
    if isinstance(principal, TokenHolder):
        has = f"The token {principal.name} has the scope {' and '.join(sorted(principal.scopes)) or 'of nothing'}"
        scope = scope_for(action)
        if own is not None and may(principal, own, principal.project_id):
            return f"This run was not begun with the token {principal.name}. {has}; of other runs this needs {scope}."
        return f"{has}; this needs {scope}." if scope else f"{has}; no token may do this, a person must."
    role = least_role(action)
    if action is Action.ADMINISTER:
        return f"Only an {role} may do this."
    return f"This needs the role {role} in the project. Its maintainers give it."

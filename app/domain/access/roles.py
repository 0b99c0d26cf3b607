"""What there is to be allowed, and who is: the roles of people in a project and the scopes of its tokens."""

from collections.abc import Mapping
from enum import StrEnum


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

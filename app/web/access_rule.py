"""The access rule of a route: declared with `@requires` at its handler, enforced by `access/check.py` before it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeVar

from app.domain.access.principal import Action

Owner = Literal["", "run", "regression", "project", "stack", "reference", "experiment"]

Handler = TypeVar("Handler")

_RULE = "access_rule"


class Open(StrEnum):
    """Routes that need no role."""

    ALWAYS = "always"
    """No check and no database access: static files, health."""
    ANYONE = "anyone"
    """Every caller, with or without a log-in. Shows only what the caller may see."""
    LOGGED_IN = "logged in"
    """Every user, for their own profile."""
    METRICS = "metrics"
    """Callers with THREEWALLS_METRICS_TOKEN, and administrators."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The rule of who may use a route; `requires` explains the fields."""

    needs: Action | Open
    owner: Owner = ""
    own: Action | None = None
    log_ins: bool = False
    confirm: bool = False


def requires(
    needs: Action | Open, of: Owner = "", *, own: Action | None = None, log_ins: bool = False, confirm: bool = False
) -> Callable[[Handler], Handler]:
    """Declare who may use the route of a handler. The service does not start with a route that declares no rule.

    `of`: what the path names (`access/owners.py`); the caller needs the permission in its project. Without it the route
    covers every project in which the caller has the permission: lists show only those, and what a body names is looked
    up only there (`storage/visible.py`).

    `own`: the action that suffices for runs that the token itself uploaded. `log_ins`: refused without log-ins, because
    the result would outlive that mode or reaches other machines. `confirm`: users must have confirmed their password
    recently, because the route grants access.
    """
    rule = AccessRule(needs, of, own, log_ins, confirm)

    def declare(handler: Handler) -> Handler:
        setattr(handler, _RULE, rule)
        return handler

    return declare


def declared_rule(handler: object) -> AccessRule | None:
    """Return the rule that the handler declares; None when it declares none."""
    rule = getattr(handler, _RULE, None)
    return rule if isinstance(rule, AccessRule) else None

"""Access rules of routes: `@requires` declares a rule at its handler, and `access/check.py` enforces it."""

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
    """Every caller, with or without a log-in. The route shows only data that the caller may see."""
    LOGGED_IN = "logged in"
    """Every user, for their own profile."""
    METRICS = "metrics"
    """Callers with THREEWALLS_METRICS_TOKEN, and administrators."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The access rule of a route. `requires` explains the fields."""

    needs: Action | Open
    owner: Owner = ""
    own: Action | None = None
    log_ins: bool = False
    confirm: bool = False


def requires(
    needs: Action | Open, of: Owner = "", *, own: Action | None = None, log_ins: bool = False, confirm: bool = False
) -> Callable[[Handler], Handler]:
    """Declare who may use the route of a handler. The service does not start if a route declares no rule.

    `of`: the kind of object that the path names (`access/owners.py`); the caller needs the permission in its project.
    Without `of`, the route covers all projects in which the caller has the permission: lists show only those, and
    objects that a body names are looked up only there (`storage/visible.py`).

    `own`: the action that suffices for runs that the token itself uploaded. `log_ins`: refused on a service without
    log-ins, because the result would outlast that mode or reach other machines. `confirm`: users must have confirmed
    their password recently, because the route grants access.
    """
    rule = AccessRule(needs, of, own, log_ins, confirm)

    def declare(handler: Handler) -> Handler:
        setattr(handler, _RULE, rule)
        return handler

    return declare


def declared_rule(handler: object) -> AccessRule | None:
    """Return the rule that the handler declares; None without one."""
    rule = getattr(handler, _RULE, None)
    return rule if isinstance(rule, AccessRule) else None

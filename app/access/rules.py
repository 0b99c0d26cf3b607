"""The access rule of each route, in one table. The service does not start with a route that has no rule.

A rule names the action, the path parameter that determines the project (`owners.py`), and the action that suffices for
runs that the token itself uploaded. Without an owner the route covers every project in which the caller may do the
action: lists show only those, and what a body names is looked up only there (`storage/visible.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from app.access.credentials import HOST_NAME, NAME
from app.domain.access.principal import Action, scope_for
from app.web.errors import MEDIA_TYPE

Owner = Literal["", "run", "regression", "project", "stack", "reference", "experiment"]


class Open(StrEnum):
    """Routes that need no role."""

    ALWAYS = "always"
    """No check and no database access: static files, health."""
    ANYONE = "anyone"
    """Every caller, with or without a log-in. Shows only what the caller may see."""
    LOGGED_IN = "logged in"
    """Every user, for their own account."""
    METRICS = "metrics"
    """Callers with THREEWALLS_METRICS_TOKEN, and administrators."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`own`: the action that suffices for runs that the token itself uploaded.

    `confirm`: users must have confirmed their password recently, because the route grants access. `log_ins`: refused
    without log-ins, because the result would outlive that mode or reaches other machines.
    """

    needs: Action | Open
    owner: Owner = ""
    own: Action | None = None
    log_ins: bool = False
    confirm: bool = False


_ALWAYS, _ANYONE, _LOGGED_IN = Rule(Open.ALWAYS), Rule(Open.ANYONE), Rule(Open.LOGGED_IN)
_READ, _UPLOAD, _CONTRIBUTE = Rule(Action.READ), Rule(Action.UPLOAD), Rule(Action.CONTRIBUTE)
_MANAGE, _ADMINISTER = Rule(Action.MANAGE), Rule(Action.ADMINISTER)


def _of(rule: Rule, owner: Owner) -> Rule:
    return Rule(rule.needs, owner)


RULES: Mapping[str, Rule] = {
    # The frame
    "GET /healthz": _ALWAYS,
    "GET /readyz": _ALWAYS,
    "GET /metrics": Rule(Open.METRICS),
    "MOUNT /static": _ALWAYS,
    "GET /assets/htmx.js": _ALWAYS,
    "GET /assets/{name}": _ALWAYS,
    "GET /openapi.json": _ANYONE,
    "GET /docs": _ANYONE,
    "GET /glossary": _ANYONE,
    # Access itself
    "GET /login": _ANYONE,
    "POST /login": _ANYONE,
    "POST /logout": _ANYONE,
    "GET /login/oidc": _ANYONE,
    "GET /login/oidc/callback": _ANYONE,
    "GET /account/password": _LOGGED_IN,
    "POST /account/password": _LOGGED_IN,
    "GET /account/confirm": _LOGGED_IN,
    "POST /account/confirm": _LOGGED_IN,
    "GET /account/second-factor": _LOGGED_IN,
    "POST /account/second-factor": _LOGGED_IN,
    "POST /account/second-factor/remove": _LOGGED_IN,
    "GET /api/v1/whoami": _ANYONE,
    **dict.fromkeys(
        (
            "GET /settings/account",
            "POST /settings/account/sessions/others/end",
            "POST /settings/account/sessions/{key}/end",
            "GET /api/v1/account/sessions",
            "DELETE /api/v1/account/sessions/{key}",
        ),
        _LOGGED_IN,
    ),
    # Runs
    "GET /": _READ,
    "GET /runs": _READ,
    "GET /upload": _UPLOAD,
    "POST /upload": _UPLOAD,
    "GET /api/v1/runs": _READ,
    "POST /api/v1/runs": _UPLOAD,
    # A job appends to its own runs and reads their reports. Stored bytes are compared with what it sends.
    "POST /api/v1/runs/{run_id}/logs": Rule(Action.CONTRIBUTE, "run", own=Action.UPLOAD),
    **dict.fromkeys(
        (
            "GET /api/v1/runs/{run_id}/verdict",
            "GET /api/v1/runs/{run_id}/report",
            "GET /api/v1/runs/{run_id}/report.md",
        ),
        Rule(Action.READ, "run", own=Action.UPLOAD),
    ),
    **dict.fromkeys(
        (
            "GET /api/v1/runs/{run_id}",
            "GET /api/v1/runs/{run_id}/series",
            "GET /api/v1/runs/{run_id}/log",
            "GET /api/v1/runs/{run_id}/files/{position}",
            "GET /api/v1/runs/{run_id}/suggestions",
            "GET /runs/{run_id}",
            "GET /runs/{run_id}/chart",
            "GET /runs/{run_id}/log",
            "GET /runs/{run_id}/timers",
            "GET /runs/{run_id}/news",
            "GET /runs/{run_id}/series.csv",
            "GET /runs/{run_id}/next",
            "GET /runs/{run_id}/next/{rule}",
        ),
        _of(_READ, "run"),
    ),
    **dict.fromkeys(
        (
            "PATCH /api/v1/runs/{run_id}/contract",
            "PATCH /api/v1/runs/{run_id}/facts",
            "POST /api/v1/runs/{run_id}/quarantine",
            "POST /api/v1/runs/{run_id}/release",
            "POST /api/v1/runs/{run_id}/pin",
            "POST /api/v1/runs/{run_id}/unpin",
            "POST /runs/{run_id}/contract",
            "POST /runs/{run_id}/facts",
            "POST /runs/{run_id}/quarantine",
            "POST /runs/{run_id}/release",
            "POST /runs/{run_id}/pin",
            "POST /runs/{run_id}/unpin",
        ),
        _of(_CONTRIBUTE, "run"),
    ),
    # Regressions
    "GET /regressions": _READ,
    "POST /regressions": _CONTRIBUTE,
    "GET /regressions/{regression_id}": _of(_READ, "regression"),
    "POST /regressions/{regression_id}": _of(_CONTRIBUTE, "regression"),
    "GET /regressions/{regression_id}/chart": _of(_READ, "regression"),
    "GET /api/v1/regressions": _READ,
    "PATCH /api/v1/regressions": _CONTRIBUTE,
    "GET /api/v1/regressions/{regression_id}": _of(_READ, "regression"),
    "PATCH /api/v1/regressions/{regression_id}": _of(_CONTRIBUTE, "regression"),
    # Histories: a short key may match stacks of several projects, so the row filter decides
    "GET /history": _READ,
    **dict.fromkeys(
        (
            "GET /history/{stack}",
            "GET /history/{stack}/chart",
            "GET /history/{stack}/data",
            "GET /history/{stack}/runs",
            "GET /history/{stack}/runs.csv",
            "GET /api/v1/history/{stack}",
        ),
        _READ,
    ),
    "POST /history/{stack}/pin": _of(_CONTRIBUTE, "stack"),
    "POST /history/{stack}/unpin": _of(_CONTRIBUTE, "stack"),
    # Badges are shown on other websites; a key in their address gives access to the badge only
    "GET /badges/{stack}/verdict.svg": _ANYONE,
    "GET /badges/{stack}/step-time.svg": _ANYONE,
    "POST /badges/{stack}/renew": _of(_MANAGE, "stack"),
    # Experiments, plans and the rules behind them
    "GET /experiments": _READ,
    "GET /api/v1/experiments": _READ,
    "POST /api/v1/experiments": _CONTRIBUTE,
    "GET /api/v1/experiments/{experiment_id}": _of(_READ, "experiment"),
    "PATCH /api/v1/experiments/{experiment_id}": _of(_CONTRIBUTE, "experiment"),
    "GET /experiments/new": _CONTRIBUTE,
    "GET /runs/{run_id}/experiments/new": _of(_CONTRIBUTE, "run"),
    "POST /runs/{run_id}/experiments": _of(_CONTRIBUTE, "run"),
    "GET /runs/{run_id}/journey": _of(_READ, "run"),
    "GET /experiments/{experiment_id}": _of(_READ, "experiment"),
    "GET /experiments/{experiment_id}/news": _of(_READ, "experiment"),
    "POST /experiments/{experiment_id}": _of(_CONTRIBUTE, "experiment"),
    "GET /api/v1/journeys/{run_id}": _of(_READ, "run"),
    "GET /plan": _READ,
    "GET /api/v1/plan": _READ,
    "GET /playbook": _READ,
    "GET /playbook/{rule}": _READ,
    "GET /api/v1/rules": _READ,
    "GET /api/v1/rules/{rule}": _READ,
    # Over many runs
    **dict.fromkeys(
        (
            "GET /availability",
            "GET /api/v1/availability",
            "GET /compare",
            "GET /compare/distributions",
            "GET /compare/series",
            "GET /api/v1/compare",
            "GET /upgrade",
            "GET /upgrade/chart",
            "GET /upgrade.csv",
            "GET /api/v1/upgrade",
            "GET /leaderboards",
            "GET /leaderboards/{hardware}/{family}",
            "GET /leaderboards/{hardware}/{family}/gains",
            "GET /leaderboards/{hardware}/{family}/leaders",
            "GET /leaderboards/{hardware}/{family}/standings.csv",
            "GET /leaderboards/{hardware}/{family}/gains.csv",
            "GET /leaderboards/{hardware}/{family}/leaders.csv",
            "GET /api/v1/leaderboards",
            "GET /api/v1/leaderboards/changes",
            "GET /api/v1/leaderboards/gains",
            "GET /scaling",
            "GET /scaling/chart",
            "GET /scaling.csv",
            "GET /api/v1/scaling",
        ),
        _READ,
    ),
    # Reference points: those without a project are for everyone; administrators change them
    "GET /references": _READ,
    "GET /references.csv": _READ,
    "GET /references/nearest": _READ,
    "GET /references/{reference_id}": _READ,
    "GET /references/new": _CONTRIBUTE,
    "POST /references/new": _CONTRIBUTE,
    "POST /references/{number}/change": _of(_CONTRIBUTE, "reference"),
    "POST /references/{number}/withdraw": _of(_CONTRIBUTE, "reference"),
    "GET /api/v1/references": _READ,
    "GET /api/v1/references/nearest": _READ,
    "GET /api/v1/references/{reference_id}": _READ,
    "POST /api/v1/references": _CONTRIBUTE,
    "PATCH /api/v1/references/{number}": _of(_CONTRIBUTE, "reference"),
    "DELETE /api/v1/references/{number}": _of(_CONTRIBUTE, "reference"),
    # Projects, members, tokens
    "GET /settings/projects": _READ,
    "POST /settings/projects": _ADMINISTER,
    "GET /api/v1/projects": _READ,
    "POST /api/v1/projects": _ADMINISTER,
    **dict.fromkeys(
        (
            "GET /settings/projects/{slug}/members",
            "GET /settings/projects/{slug}/tokens",
            "GET /api/v1/projects/{slug}/members",
            "GET /api/v1/projects/{slug}/tokens",
        ),
        _of(_MANAGE, "project"),
    ),
    **dict.fromkeys(
        (
            "POST /settings/projects/{slug}/members",
            "POST /settings/projects/{slug}/members/{user_id}",
            "POST /settings/projects/{slug}/tokens",
            "POST /api/v1/projects/{slug}/members",
            "POST /api/v1/projects/{slug}/tokens",
        ),
        Rule(Action.MANAGE, "project", log_ins=True, confirm=True),
    ),
    **dict.fromkeys(
        (
            "POST /settings/projects/{slug}/public",
            "POST /settings/projects/{slug}/tokens/{token_id}/revoke",
            "PATCH /api/v1/projects/{slug}",
            "DELETE /api/v1/projects/{slug}/members/{user_id}",
            "DELETE /api/v1/projects/{slug}/tokens/{token_id}",
        ),
        Rule(Action.MANAGE, "project", log_ins=True),
    ),
    # Users and the audit
    "GET /settings/users": _ADMINISTER,
    "GET /api/v1/users": _ADMINISTER,
    **dict.fromkeys(
        (
            "POST /settings/users",
            "POST /settings/users/{user_id}",
            "POST /api/v1/users",
            "PATCH /api/v1/users/{user_id}",
            "POST /api/v1/users/{user_id}/password",
        ),
        Rule(Action.ADMINISTER, log_ins=True, confirm=True),
    ),
    "GET /settings/audit": _MANAGE,
    "GET /settings/audit.csv": _MANAGE,
    "GET /api/v1/audit": _MANAGE,
    # Settings
    "GET /settings/projects/{slug}": _of(_READ, "project"),
    "POST /settings/projects/{slug}": _of(_MANAGE, "project"),
    "POST /settings/projects/{slug}/rules": _of(_MANAGE, "project"),
    "GET /api/v1/projects/{slug}/defaults": _of(_READ, "project"),
    "PUT /api/v1/projects/{slug}/defaults": _of(_MANAGE, "project"),
    "GET /api/v1/projects/{slug}/rules": _of(_READ, "project"),
    "PATCH /api/v1/projects/{slug}/rules": _of(_MANAGE, "project"),
    # Notifications: contributors see receivers and the log
    **dict.fromkeys(
        (
            "GET /settings/projects/{slug}/notifications",
            "GET /settings/projects/{slug}/notifications/{receiver_id}",
            "GET /api/v1/projects/{slug}/receivers",
            "GET /api/v1/projects/{slug}/receivers/{receiver_id}",
            "GET /api/v1/projects/{slug}/deliveries",
        ),
        _of(_CONTRIBUTE, "project"),
    ),
    **dict.fromkeys(
        (
            "POST /settings/projects/{slug}/notifications",
            "POST /settings/projects/{slug}/notifications/{receiver_id}",
            "POST /settings/projects/{slug}/notifications/{receiver_id}/pause",
            "POST /settings/projects/{slug}/notifications/{receiver_id}/resume",
            "POST /settings/projects/{slug}/notifications/{receiver_id}/test",
            "POST /settings/projects/{slug}/notifications/{receiver_id}/replay",
            "POST /settings/projects/{slug}/notifications/{receiver_id}/dismiss",
            "POST /settings/projects/{slug}/notifications/{receiver_id}/secret",
            "POST /settings/projects/{slug}/notifications/{receiver_id}/delete",
            "POST /settings/projects/{slug}/notifications/deliveries/{delivery_id}/replay",
            "POST /api/v1/projects/{slug}/receivers",
            "PATCH /api/v1/projects/{slug}/receivers/{receiver_id}",
            "DELETE /api/v1/projects/{slug}/receivers/{receiver_id}",
            "POST /api/v1/projects/{slug}/receivers/{receiver_id}/test",
            "POST /api/v1/projects/{slug}/receivers/{receiver_id}/replay",
            "POST /api/v1/projects/{slug}/receivers/{receiver_id}/dismiss",
            "POST /api/v1/projects/{slug}/receivers/{receiver_id}/secret",
            "POST /api/v1/projects/{slug}/deliveries/{delivery_id}/replay",
        ),
        Rule(Action.MANAGE, "project", log_ins=True),
    ),
    "GET /settings/projects/{slug}/quota": _of(_READ, "project"),
    "POST /settings/projects/{slug}/quota": _of(_ADMINISTER, "project"),
    "GET /api/v1/projects/{slug}/quota": _of(_READ, "project"),
    "PUT /api/v1/projects/{slug}/quota": _of(_ADMINISTER, "project"),
    "GET /settings/definitions": _READ,
    "POST /settings/definitions/retry": _ADMINISTER,
    "GET /api/v1/definitions": _READ,
    "POST /api/v1/definitions/retry": _ADMINISTER,
}
"""By `METHOD /path/{of}/the/route`. Add a row for every new route."""


# --- The routes of the application with their rules, and the lookup of the route of a request.

_MOUNT = "MOUNT"


class UnruledRouteError(Exception):
    """A route has no access rule, so the service does not start."""


@dataclass(frozen=True, slots=True)
class RuledRoute:
    """`key`: of its rule. `route`: the label for metrics of refused requests."""

    key: str
    method: str
    path: str
    rule: Rule
    route: Any
    pattern: re.Pattern[str]

    @property
    def is_page(self) -> bool:
        """Whether the route is for browsers only. Programs use the API and tables as CSV."""
        return not self.path.startswith("/api/") and not self.path.endswith(".csv")


@dataclass(frozen=True, slots=True)
class Found:
    route: RuledRoute
    params: Mapping[str, str]


class RouteTable:
    """Finds the route of a request as the router does: the first with a matching pattern and method.

    Routes are indexed by their first words, so only a few patterns are tried.
    """

    def __init__(self, routes: tuple[RuledRoute, ...]) -> None:
        self.routes = routes
        self._plain: dict[str, RuledRoute] = {}
        self._by_start: dict[tuple[str, str], list[RuledRoute]] = {}
        self._anywhere: dict[str, list[RuledRoute]] = {}
        for route in routes:
            if "{" not in route.path and route.method != _MOUNT:
                self._plain.setdefault(route.key, route)
            elif (start := _start(route.path)) and "{" not in start:
                self._by_start.setdefault((route.method, start), []).append(route)
            else:
                self._anywhere.setdefault(route.method, []).append(route)

    def find(self, method: str, path: str) -> Found | None:
        if plain := self._plain.get(f"{method} {path}"):
            return Found(plain, {})
        start = _start(path)
        for key in ((method, start), (_MOUNT, start)):
            for route in self._by_start.get(key, ()):
                if matched := route.pattern.match(path):
                    return Found(route, matched.groupdict())
        for route in self._anywhere.get(method, ()):
            if matched := route.pattern.match(path):
                return Found(route, matched.groupdict())
        return None


def route_table(app: FastAPI, rules: Mapping[str, Rule] = RULES) -> RouteTable:
    """Return every route of the application with its rule. Raises UnruledRouteError for routes without one."""
    found: list[RuledRoute] = []
    unruled: list[str] = []
    for route in iter_route_contexts(app.routes):
        path, methods = str(route.path), sorted(route.methods or ())
        # HEAD is GET without the body, wherever a route answers it.
        if isinstance(route.original_route, Mount):
            methods = [_MOUNT]
        for method in methods:
            key = f"{'GET' if method == 'HEAD' else method} {path}"
            if key not in rules:
                unruled.append(key)
                continue
            found.append(RuledRoute(key, method, path, rules[key], route.original_route, route.path_regex))
    if unruled:
        raise UnruledRouteError(f"No access rule for {', '.join(unruled)}. Add one in app/access/rules.py.")
    return RouteTable(tuple(found))


def _start(path: str) -> str:
    """Return the first word of a path, or the first three of an API path: `/runs`, `/api/v1/runs`."""
    parts = path.split("/", 4)
    return "/".join(parts[:4] if parts[1:2] == ["api"] else parts[:2])


# --- Security schemes and refusals in the OpenAPI document.

_SCHEMES = {
    "token": {
        "type": "http", "scheme": "bearer", "bearerFormat": "tw_...", "description": "A token of the project.",
    },
    "session": {
        "type": "apiKey", "in": "cookie", "name": HOST_NAME,
        "description": f"The session of a browser. Over plain http the name is `{NAME}`.",
    },
}  # fmt: skip
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_NO_BODY = "The body does not match its Content-Type."
_SLOW_BODY = "The body did not arrive in time."
_LARGE_BODY = "The body is larger than this call accepts."
_OTHER_BODY = "This call does not accept the content type; `Accept` lists those that it does."
_NOT_NOW = "The database is unavailable, or the service is overloaded; `Retry-After` says when to retry."
_TOO_OFTEN = "Rate limit exceeded; `Retry-After` says when to retry."
_WAIT = {"Retry-After": {"description": "In seconds.", "schema": {"type": "integer"}}}
_NOT_LOGGED_IN = "No credentials, or the token is unknown, revoked or expired."


def describe_access(app: FastAPI, table: RouteTable) -> None:
    """Add security schemes and refusals to the application's OpenAPI document when it is first requested."""
    rules = {(route.method.lower(), route.path): route.rule for route in table.routes}
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add(made(), rules)  # FastAPI keeps the document that it gives
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def _add(document: dict[str, Any], rules: dict[tuple[str, str], Rule]) -> None:
    document.setdefault("components", {})["securitySchemes"] = _SCHEMES
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            rule = rules.get((method, path))
            if "requestBody" in call:
                call["responses"].setdefault("400", {"description": _NO_BODY, **_PROBLEM})
                call["responses"].setdefault("408", {"description": _SLOW_BODY, **_PROBLEM})
                call["responses"].setdefault("413", {"description": _LARGE_BODY, **_PROBLEM})
                call["responses"].setdefault("415", {"description": _OTHER_BODY, **_PROBLEM})
            if rule is not None and rule.needs is not Open.ALWAYS:
                call["responses"].setdefault("429", {"description": _TOO_OFTEN, "headers": _WAIT, **_PROBLEM})
                call["responses"].setdefault("503", {"description": _NOT_NOW, "headers": _WAIT, **_PROBLEM})
            if rule is not None and rule.needs is Open.LOGGED_IN:
                call["security"] = [{"session": []}]
                call["responses"].setdefault("401", {"description": _NOT_LOGGED_IN, **_PROBLEM})
            elif rule is not None and rule.needs is Open.METRICS:
                _add_to(call, Action.ADMINISTER, about_one=False)
            elif rule is not None and isinstance(rule.needs, Action):
                _add_to(call, rule.needs, about_one=bool(rule.owner), own=rule.own)


def _add_to(call: dict[str, Any], action: Action, *, about_one: bool, own: Action | None = None) -> None:
    scope = scope_for(action)
    call["security"] = [{name: []} for name in _SCHEMES if scope or name != "token"]
    if action is Action.READ:
        call["security"].append({})  # of a public project
    needed = f"a token with the scope `{scope}`, or a user" if scope else "a user"
    more = f" For runs that a token itself uploaded, the scope `{scope_for(own)}` suffices." if own else ""
    answers = {"401": _NOT_LOGGED_IN, "403": f"Needs {needed} with the permission to {action}.{more}"}
    if about_one:
        answers["404"] = "Does not exist, or the caller has no access to it."
    for status, text in answers.items():
        call["responses"].setdefault(status, {"description": text, **_PROBLEM})
    call["responses"] = dict(sorted(call["responses"].items()))

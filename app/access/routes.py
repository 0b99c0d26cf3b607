"""The routes of the application with the rules that they declare, and the lookup of the route of a request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from app.access.credentials import HOST_NAME, NAME
from app.domain.access.principal import Action, scope_for
from app.web.access_rule import AccessRule, Open, declared_rule
from app.web.errors import MEDIA_TYPE

_MOUNT = "MOUNT"
_RULES_OF_FASTAPI = {"/openapi.json": AccessRule(Open.ANYONE)}
"""Rules of the routes that FastAPI adds itself. Every other route declares its own."""


class UnruledRouteError(Exception):
    """A route declares no access rule, so the service does not start."""


@dataclass(frozen=True, slots=True)
class RuledRoute:
    """`path`: with the names of its parameters. `route`: the route of the framework."""

    method: str
    path: str
    rule: AccessRule
    route: Any
    pattern: re.Pattern[str]

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_upload(self) -> bool:
        return self.method == "POST" and self.rule.needs is Action.UPLOAD

    @property
    def is_page(self) -> bool:
        """Return whether the route is for browsers only. Programs use the API and tables as CSV."""
        return not self.path.startswith("/api/") and not self.path.endswith(".csv")


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a request. `params`: the parameters in its path, as text."""

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

    def find(self, method: str, path: str) -> RouteMatch | None:
        if plain := self._plain.get(f"{method} {path}"):
            return RouteMatch(plain, {})
        start = _start(path)
        for key in ((method, start), (_MOUNT, start)):
            for route in self._by_start.get(key, ()):
                if matched := route.pattern.match(path):
                    return RouteMatch(route, matched.groupdict())
        for route in self._anywhere.get(method, ()):
            if matched := route.pattern.match(path):
                return RouteMatch(route, matched.groupdict())
        return None


def route_table(app: FastAPI) -> RouteTable:
    """Return every route of the application with its rule. Raises UnruledRouteError for routes without one."""
    routes: list[RuledRoute] = []
    unruled: list[str] = []
    for context in iter_route_contexts(app.routes):
        path, route = str(context.path), context.original_route
        methods, handler = (
            ([_MOUNT], route.app) if isinstance(route, Mount) else (sorted(context.methods or ()), context.endpoint)
        )
        rule = _RULES_OF_FASTAPI.get(path) or declared_rule(handler)
        if rule is None:
            unruled += [f"{method} {path}" for method in methods]
        else:
            routes += [RuledRoute(method, path, rule, route, context.path_regex) for method in methods]
    if unruled:
        raise UnruledRouteError(f"No access rule for {', '.join(unruled)}. Declare it with @requires at the handler.")
    return RouteTable(tuple(routes))


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
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}}
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
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add(describe(), rules)  # FastAPI keeps the document that it gives
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]


def _add(document: dict[str, Any], rules: dict[tuple[str, str], AccessRule]) -> None:
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
    needed = f"a token with the `{scope}` scope, or a user" if scope else "a user"
    more = f" For runs that a token itself uploaded, the `{scope_for(own)}` scope suffices." if own else ""
    answers = {"401": _NOT_LOGGED_IN, "403": f"Needs {needed} with the permission to {action}.{more}"}
    if about_one:
        answers["404"] = "Does not exist, or the caller has no access to it."
    for status, text in answers.items():
        call["responses"].setdefault(status, {"description": text, **_PROBLEM})
    call["responses"] = dict(sorted(call["responses"].items()))

"""The application's own routes, each with its rule, and which of them a request is for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from app.web.access.rules import RULES, Rule

_MOUNT = "MOUNT"


class UnruledRouteError(Exception):
    """A route that nobody said who may use; the service does not start with it."""


@dataclass(frozen=True, slots=True)
class RuledRoute:
    """`key` is that of the rule. `route` is what the metrics of a refused request are counted under."""

    key: str
    method: str
    path: str
    rule: Rule
    route: Any
    pattern: re.Pattern[str]

    @property
    def is_page(self) -> bool:
        """Of what has a call of the API for programs. A table as CSV is for both."""
        return not self.path.startswith("/api/") and not self.path.endswith(".csv")

    @property
    def tells(self) -> bool:
        """Whether its answer says what is there, whatever else it does."""
        return self.method in ("GET", "HEAD") or self.rule.tells


@dataclass(frozen=True, slots=True)
class Found:
    route: RuledRoute
    params: Mapping[str, str]


class RouteTable:
    """Looks for the route of a request as the router does: the first whose pattern fits and whose method it is.

    Most routes begin with words, so only those that share the first ones are tried.
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
    """Every route of the application with its rule. Raises UnruledRouteError for one without."""
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
        raise UnruledRouteError(
            f"No rule for {', '.join(unruled)}. Say in app/web/access/rules.py what a caller must be allowed there."
        )
    return RouteTable(tuple(found))


def _start(path: str) -> str:
    """Its first word, and the two after it of an address of the API: `/runs`, `/api/v1/runs`."""
    parts = path.split("/", 4)
    return "/".join(parts[:4] if parts[1:2] == ["api"] else parts[:2])

"""The check in the OpenAPI document: how to say who one is, and what one hears who may not."""

from typing import Any

from fastapi import FastAPI

from app.domain.access.roles import Action, scope_for
from app.web.access.cookie import HOST_NAME, NAME
from app.web.access.route_table import RouteTable
from app.web.access.rules import Open, Rule
from app.web.problems import MEDIA_TYPE

_SCHEMES = {
    "token": {
        "type": "http", "scheme": "bearer", "bearerFormat": "tw_...", "description": "A token of the project.",
    },
    "session": {
        "type": "apiKey", "in": "cookie", "name": HOST_NAME,
        "description": f"A browser that is logged in. Over plain http the name is `{NAME}`.",
    },
}  # fmt: skip
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_NO_BODY = "The body is not of the form that its Content-Type names."
_SLOW_BODY = "The body did not come in time."
_LARGE_BODY = "The body is larger than this call takes."
_OTHER_BODY = "The body is of a type that this call does not take; `Accept` lists those that it does."
_NOT_NOW = "The database is away, or too many requests wait; `Retry-After` says when to ask again."
_TOO_OFTEN = "Asked too often; `Retry-After` says when to ask again."
_WAIT = {"Retry-After": {"description": "In seconds.", "schema": {"type": "integer"}}}
_IN_BRIEF = "Done. A token that may not read hears no more; `Location` has the address of what it made."
_NOT_LOGGED_IN = "Nobody is logged in, or the token is unknown, revoked or expired."


def describe_access(app: FastAPI, table: RouteTable) -> None:
    """Have the application's document tell it, once it is asked for."""
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
                if rule.needs is Action.CONTRIBUTE and method != "get" and not rule.own:
                    call["responses"].setdefault("204", {"description": _IN_BRIEF})


def _add_to(call: dict[str, Any], action: Action, *, about_one: bool, own: Action | None = None) -> None:
    scope = scope_for(action)
    call["security"] = [{name: []} for name in _SCHEMES if scope or name != "token"]
    if action is Action.READ:
        call["security"].append({})  # of a public project
    needed = f"a token with the scope `{scope}`, or a person" if scope else "a person"
    more = f" Of a run that it began itself, a token needs the scope `{scope_for(own)}` only." if own else ""
    answers = {"401": _NOT_LOGGED_IN, "403": f"It needs {needed} who may {action}.{more}"}
    if about_one:
        answers["404"] = "It is not there, or none of the caller's business."
    for status, text in answers.items():
        call["responses"].setdefault(status, {"description": text, **_PROBLEM})
    call["responses"] = dict(sorted(call["responses"].items()))

"""Make project names in addresses case-insensitive. No two slugs differ in case only.

`/settings/projects/Moe` and `?project=MOE` are rewritten to the project's own spelling before a handler reads them.
Names of projects that the caller may not know stay as written.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

from starlette.types import Scope

from app.access.routes import RouteMatch

Spelling = Callable[[str], str]
"""Returns the slug that the text names; the text itself if no such project exists or the caller may not know it."""

_PARAMETER = "project"


def names_project(scope: Scope, match: RouteMatch | None) -> bool:
    return _in_path(match) or f"{_PARAMETER}=".encode() in scope["query_string"]


def spell_projects(scope: Scope, match: RouteMatch | None, spelling: Spelling) -> RouteMatch | None:
    """Rewrite the address of a request and return its route with the new parameters."""
    _spell_query(scope, spelling)
    if match is None or not _in_path(match) or (slug := spelling(match.params["slug"])) == match.params["slug"]:
        return match
    path = match.route.pattern.match(scope["path"])
    assert path is not None  # noqa: S101  this path selected the route
    begin, end = path.span("slug")
    scope["path"] = f"{scope['path'][:begin]}{slug}{scope['path'][end:]}"
    return replace(match, params={**match.params, "slug": slug})


def _in_path(match: RouteMatch | None) -> bool:
    return match is not None and match.route.rule.owner == "project"


def _spell_query(scope: Scope, spelling: Spelling) -> None:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    spelled = [(name, spelling(value) if name == _PARAMETER else value) for name, value in pairs]
    if spelled != pairs:
        scope["query_string"] = urlencode(spelled).encode()


def spelling_of(slugs: Mapping[str, tuple[int, str]], may_know: Callable[[int], bool]) -> Spelling:
    """Return the function that spells names. `slugs`: id and slug of each project by its slug in lower case."""

    def spelling(text: str) -> str:
        project_id, slug = slugs.get(text.lower(), (None, text))
        return slug if project_id is not None and may_know(project_id) else text

    return spelling

"""Saved views: filters of the list of runs under a name, of one user or of a whole project, one of them the default."""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from fastapi import Path, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy import select, update
from sqlmodel import Session, col

from app.domain.access.principal import Action
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange, NotFound
from app.runs.queries import RunQuery
from app.storage import audit
from app.storage.audit import MAX_AUTHOR
from app.storage.database import transaction
from app.storage.projects import find_project
from app.storage.tables import ProjectRow, SavedViewRow, utc_now
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, AppEngine, ReadSession, Slug, api_router
from app.web.errors import documented
from app.web.identity import Author, author, author_field

router = api_router("runs")

MOST_VIEWS = 100
"""Views that one user, or a project, may save."""
DEFAULT = "default"
"""Names the default view in addresses."""
Name = Annotated[str, Path(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True)
class SavedView:
    """`shared`: of the whole project. `query`: as in the address of the list."""

    name: str
    query: str
    shared: bool
    is_default: bool


def views_of(session: Session, slug: str, user: str) -> list[SavedView]:
    """Return the views of a user in a project, then those of the project. Raises NotFound."""
    project = find_project(session, slug)
    chosen = select(SavedViewRow).where(
        col(SavedViewRow.project_id) == project.id, col(SavedViewRow.owner).in_({user, ""})
    )
    rows = session.execute(chosen.order_by(col(SavedViewRow.owner).desc(), col(SavedViewRow.name))).scalars()
    return [SavedView(row.name, row.query, row.owner == "", row.is_default) for row in rows]


def find_view(session: Session, slug: str, name: str, user: str) -> SavedView:
    """Return a view by name, or the default one: that of the user before that of the project. Raises NotFound."""
    views = views_of(session, slug, user)
    defaults = [view for view in views if view.is_default] if name == DEFAULT else []
    for view in [*defaults, *(view for view in views if view.name == name)]:
        return view
    raise NotFound(f"Project {slug} has no view {name[:100]!r} of yours.")


class ViewIn(BaseModel, extra="forbid"):
    query: str = Field(max_length=2000, description="Filters as in the address of the list: `verdict=regression`.")
    shared: bool = Field(False, description="For all users of the project.")
    default: bool = Field(False, description="The view that `view=default` opens.")
    author: Author = author_field("Whose view it is.")


class ViewOut(ApiValue):
    name: str
    query: str
    shared: bool
    default: bool

    @classmethod
    def of(cls, view: SavedView) -> "ViewOut":
        return cls.from_values(view, default=view.is_default)


class ViewList(BaseModel):
    items: list[ViewOut]


@router.get("/projects/{slug}/views", responses=documented(404, 422))
@requires(Action.READ, of="project")
def list_views(session: ReadSession, slug: Slug) -> ViewList:
    """List the saved views of the caller in a project, and those of the project."""
    return ViewList(items=[ViewOut.of(view) for view in views_of(session, slug, author())])


@router.put("/projects/{slug}/views/{name}", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def save_view(engine: AppEngine, slug: Slug, name: Name, view: ViewIn) -> ViewOut:
    """Save the filters under this name, in place of an earlier view of it."""
    RunQuery.from_params(dict(parse_qsl(view.query)))  # raises InvalidQuery
    owner, title = "" if view.shared else view.author, one_line(name)
    if title == DEFAULT or not title:
        raise InvalidChange("Choose another name.", (FieldError("name", f"must not be {DEFAULT}"),))
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        own = (col(SavedViewRow.project_id) == project.id, col(SavedViewRow.owner) == owner)
        rows = {row.name: row for row in session.execute(select(SavedViewRow).where(*own)).scalars()}
        if len(rows) >= MOST_VIEWS and title not in rows:
            raise InvalidChange(
                "Delete a view first.", (FieldError("name", f"exceeds the limit of {MOST_VIEWS} views"),)
            )
        if view.default:
            session.execute(update(SavedViewRow).where(*own).values(is_default=False))
        row = rows.get(title) or SavedViewRow(project_id=project.id or 0, owner=owner, name=title, query="")
        before = {"query": row.query} if row.query else {}
        row.query, row.is_default, row.changed_at = view.query, view.default, utc_now()
        session.add(row)
        _record(session, project, view.author, "view_saved", before=before, after={"view": title, "query": view.query})
        return ViewOut.of(SavedView(row.name, row.query, view.shared, row.is_default))


@router.delete("/projects/{slug}/views/{name}", status_code=204, responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def delete_view(
    engine: AppEngine,
    slug: Slug,
    name: Name,
    shared: Annotated[bool, Query(description="The view of the project.")] = False,
    stated: Annotated[str, Query(alias="author", max_length=MAX_AUTHOR, description="Whose view it is.")] = "",
) -> None:
    """Delete a saved view."""
    with transaction(engine, durable=True) as session:
        project, who = find_project(session, slug), author(stated)
        row = session.execute(
            select(SavedViewRow).where(
                col(SavedViewRow.project_id) == project.id,
                col(SavedViewRow.owner) == ("" if shared else who),
                col(SavedViewRow.name) == name,
            )
        ).scalar_one_or_none()
        if row is None:
            raise NotFound(f"Project {slug} has no view {name!r}.")
        _record(session, project, who or audit.SERVICE, "view_deleted", before={"view": name, "query": row.query})
        session.delete(row)


def _record(
    session: Session,
    project: ProjectRow,
    who: str,
    action: str,
    *,
    before: dict[str, str] | None = None,
    after: dict[str, str] | None = None,
) -> None:
    audit.record_project(session, project.id, action, who=who, before=before, after=after)


def query_of_view(request: Request, session: Session) -> str | None:
    """Return the query string of the view that the address of the list names; None without one. Raises NotFound."""
    name, slug = request.query_params.get("view", ""), request.query_params.get("project", "")
    if not name:
        return None
    query = find_view(session, slug, name, author()).query
    return query if "project=" in query else urlencode({"project": slug}) + f"&{query}"

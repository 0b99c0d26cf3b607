"""The projects that the caller may see: set once per request and added as a condition to every ORM statement.

This is a second line of defence behind the access rules of routes (`app/access`): a query without its own check finds
no rows of other projects. Rows without a project belong to the project of their run, regression, experiment or
receiver.

A request starts with no visible project. Other code must state what it may see, or `UnstatedProjectsError` is raised.
"""

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Table, and_, bindparam, event, literal_column, or_, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.orm.interfaces import CriteriaOption
from sqlalchemy.orm.util import LoaderCriteriaOption
from sqlmodel import SQLModel, col

from app.storage.tables import (
    GroupMemberRow,
    GroupRoleRow,
    GroupRow,
    MemberRow,
    ProjectRow,
    SessionRow,
    ShareLinkRow,
    TokenRow,
    UserRow,
)

ProjectIds = frozenset[int]

OWNED_THROUGH: Mapping[str, str] = {
    "run_result": "run_id",
    "run_file": "run_id",
    "run_label": "run_id",
    "segment": "file_id",
    "series": "run_id",
    "reading": "run_id",
    "amendment": "run_id",
    "profile": "run_id",
    "profile_file": "profile_id",
    "stated_fact": "run_id",
    "verdict": "run_id",
    "run_alarm": "run_id",
    "rule_firing": "run_id",
    "regression_member": "regression_id",
    "experiment_run": "experiment_id",
    "delivery": "receiver_id",
    "deletion_part": "deletion_id",
    "deletion_object": "part_id",
}
"""For tables without a project column: the foreign key to the row that has one."""

WITHOUT_PROJECT: Mapping[str, str] = {
    "account": "users belong to no project; their roles are in `member`",
    "user_group": "groups of users belong to no project; their roles are in `group_role`",
    "group_member": "a user is in a group for all projects",
    "login_session": "a session belongs to its user, not to a project",
    "stage_time": "workers serve all projects",
    "heartbeat": "it records the last activity of workers, which serve all projects",
    "stored_object": "content by hash, which projects may share; queries reach it through segments only",
}
"""Tables whose rows belong to no project, with the reason. Their rows are not filtered."""

EVERY_PROJECT: ProjectIds | None = None
NO_PROJECT: ProjectIds | None = frozenset()

_visible: ContextVar[ProjectIds | None] = ContextVar("visible_projects")
_process_sees_every_project = False


class UnstatedProjectsError(Exception):
    """Raised for a database statement of code that did not state which projects it may see."""


def visible_projects() -> ProjectIds | None:
    """Return the ids of the visible projects; None for all. Raises UnstatedProjectsError."""
    try:
        return _visible.get()
    except LookupError:
        if _process_sees_every_project:
            return EVERY_PROJECT
        raise UnstatedProjectsError(
            "This code did not state which projects it may see. Wrap it in `with seeing(...)`, or call "
            "see_every_project() at the start of a worker or command."
        ) from None


def see_every_project() -> None:
    """Make all projects visible to this process except inside `seeing`. For workers, commands and benches."""
    global _process_sees_every_project  # noqa: PLW0603  one fact of the process
    _process_sees_every_project = True


@contextmanager
def seeing(projects: ProjectIds | None) -> Iterator[None]:
    """Restrict the reads and writes of the block to these projects; EVERY_PROJECT for all."""
    before = _visible.set(projects)
    try:
        yield
    finally:
        _visible.reset(before)


class UnownedTableError(Exception):
    """Raised for a table without a declared owner."""


class _OfVisibleProjects(CriteriaOption):
    """The criteria of all tables as one option. One option per table would add 0.1 ms of cache lookup to each query.

    They are compiled once; the ids are bound when a statement is executed.
    """

    _traverse_internals = []  # noqa: RUF012  all instances are equal

    def process_compile_state(self, compile_state: Any) -> None:
        self.get_global_criteria(compile_state.global_attributes)

    def process_compile_state_replaced_entities(self, compile_state: Any, _mapper_entities: Any) -> None:
        self.process_compile_state(compile_state)

    def get_global_criteria(self, attributes: dict[Any, Any]) -> None:
        for criteria in _criteria():
            criteria.get_global_criteria(attributes)


_OF_VISIBLE_PROJECTS = _OfVisibleProjects()


@event.listens_for(Session, "do_orm_execute")
def _filter_by_project(state: ORMExecuteState) -> None:
    if state.is_column_load:
        return
    if (state.is_select or state.is_update or state.is_delete) and visible_projects() is not None:
        state.statement = state.statement.options(_OF_VISIBLE_PROJECTS)


@lru_cache
def _criteria() -> tuple[LoaderCriteriaOption, ...]:
    """Return the criteria of every owned table. An undeclared table raises UnownedTableError in every query."""
    ids: BindParameter[Any] = bindparam("visible", callable_=lambda: sorted(visible_projects() or ()), expanding=True)
    mapped_tables: dict[Any, type] = {mapper.local_table: mapper.class_ for mapper in SQLModel._sa_registry.mappers}
    return tuple(
        with_loader_criteria(mapped, _condition(table, mapped, ids), include_aliases=True)
        for table, mapped in mapped_tables.items()
        if table.name not in WITHOUT_PROJECT
    )


def _condition(table: Table, columns: Any, ids: BindParameter[Any]) -> ColumnElement[bool]:
    """Return the condition that the row's project is visible. Rows without a project are visible to all.

    `columns`: the columns of the table in the statement.
    """
    if table.name == "project":
        return _column(columns, "id").in_(ids)
    if table.name in OWNED_THROUGH:
        return _owner_is_visible(table, _column(columns, OWNED_THROUGH[table.name]), ids)
    if "project_id" not in table.columns:
        raise UnownedTableError(
            f"Table {table.name} has no declared owner: add a project_id, or a path to one in OWNED_THROUGH."
        )
    of_project = _column(columns, "project_id").in_(ids)
    if table.name == "reference_point":
        return or_(of_project, _column(columns, "project_id").is_(None))
    if table.name == "audit_event":
        return or_(
            of_project, and_(_column(columns, "project_id").is_(None), _column(columns, "subject") == "reference")
        )
    return of_project


def _owner_is_visible(table: Table, column: ColumnElement[Any], ids: BindParameter[Any]) -> ColumnElement[bool]:
    """Return the condition that the owning row is visible, by its primary key.

    It is evaluated row by row: a list of all visible owners would have to be built for each statement.
    """
    (key,) = table.columns[OWNED_THROUGH[table.name]].foreign_keys
    named: Any = key.column.table
    owner = named.alias()
    condition = and_(owner.columns[key.column.name] == column, _condition(named, owner.columns, ids))
    return select(literal_column("1")).select_from(owner).where(condition).correlate_except(owner).exists()


def _column(columns: Any, name: str) -> ColumnElement[Any]:
    """Return a column by name, of a mapped class or of an alias."""
    column: ColumnElement[Any] = getattr(columns, name)
    return column


# --- Changes of access rights. After a change this process drops what it cached about principals; other processes
# follow a few seconds later, when their cache expires (`access/credentials.py`).

CHANGES_NO_RIGHTS = "changes_no_rights"
"""Execution option of statements that do not change access rights, such as an update of the time of last use."""

_TABLES = (UserRow, MemberRow, GroupRow, GroupMemberRow, GroupRoleRow, SessionRow, ShareLinkRow, TokenRow, ProjectRow)
_CHANGED = "access_changed"

_lock = threading.Lock()
_generation = 0


def generation() -> int:
    """Return a number that grows with every committed change of rights. Values cached under a lower one are stale."""
    return _generation


@event.listens_for(Session, "before_flush")
def _note_rows(session: Session, _context: object, _instances: object) -> None:
    touched = (*session.new, *session.dirty, *session.deleted)
    if any(isinstance(row, _TABLES) for row in touched):
        session.info[_CHANGED] = True


@event.listens_for(Session, "do_orm_execute")
def _note_statements(state: ORMExecuteState) -> None:
    if not (state.is_update or state.is_delete or state.is_insert) or state.execution_options.get(CHANGES_NO_RIGHTS):
        return
    mapper = state.bind_mapper
    if mapper is not None and issubclass(mapper.class_, _TABLES):
        state.session.info[_CHANGED] = True


@event.listens_for(Session, "after_commit")
def _count(session: Session) -> None:
    global _generation  # noqa: PLW0603  one number of the process
    if session.info.pop(_CHANGED, False):
        with _lock:
            _generation += 1


# --- The projects of a grant.


def project_slugs(session: Session, ids: Collection[int]) -> list[str]:
    """Return the slugs of those projects that still exist, in alphabetical order."""
    chosen = select(col(ProjectRow.slug)).where(col(ProjectRow.id).in_(ids)).order_by(col(ProjectRow.slug))
    return list(session.execute(chosen).scalars())

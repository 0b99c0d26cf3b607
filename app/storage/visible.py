"""Which projects the caller may see: set once a request, and added to every ORM statement that touches their rows.

A second line behind the rules of routes (`web/access`): a query that forgot to ask finds nothing of other projects.
Rows without a project are reached through their run, regression, experiment or receiver, which have one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, event, or_
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.orm.interfaces import CriteriaOption
from sqlalchemy.orm.util import LoaderCriteriaOption
from sqlmodel import SQLModel, col

from app.storage import (  # noqa: F401  every table must be known before the criteria are made
    access_tables,
    experiment_tables,
    notice_tables,
    standings_tables,
)
from app.storage.judging_tables import AuditEventRow
from app.storage.reference_tables import ReferencePointRow
from app.storage.tables import ProjectRow

ProjectIds = frozenset[int]

_visible: ContextVar[ProjectIds | None] = ContextVar("visible_projects", default=None)
"""None: all of them, which is what workers, the command line and a service without log-ins see."""


def visible_projects() -> ProjectIds | None:
    """Ids of the projects that the caller sees; None for all of them."""
    return _visible.get()


@contextmanager
def seeing(projects: ProjectIds | None) -> Iterator[None]:
    """Only rows of these projects exist for what the block reads and changes."""
    before = _visible.set(projects)
    try:
        yield
    finally:
        _visible.reset(before)


class _OfVisibleProjects(CriteriaOption):
    """The criteria of all tables as one option: one a table would cost every query 0.1 ms, to find its compiled form.

    It is part of the compiled form once and for all; the ids are asked for when it is executed.
    """

    _traverse_internals = []  # noqa: RUF012  nothing tells one from another

    def process_compile_state(self, compile_state: Any) -> None:
        self.get_global_criteria(compile_state.global_attributes)

    def process_compile_state_replaced_entities(self, compile_state: Any, _mapper_entities: Any) -> None:
        self.process_compile_state(compile_state)

    def get_global_criteria(self, attributes: dict[Any, Any]) -> None:
        for criteria in _criteria():
            criteria.get_global_criteria(attributes)


_OF_VISIBLE_PROJECTS = _OfVisibleProjects()


@event.listens_for(Session, "do_orm_execute")
def _leave_out_others(state: ORMExecuteState) -> None:
    if _visible.get() is None or state.is_column_load or state.is_relationship_load:
        return
    if state.is_select or state.is_update or state.is_delete:
        state.statement = state.statement.options(_OF_VISIBLE_PROJECTS)


@lru_cache
def _criteria() -> tuple[LoaderCriteriaOption, ...]:
    """Of every table that says whose its rows are."""
    ids: BindParameter[Any] = bindparam("visible", callable_=lambda: sorted(_visible.get() or ()), expanding=True)
    owned = [m.class_ for m in SQLModel._sa_registry.mappers if "project_id" in m.local_table.columns]
    return (
        with_loader_criteria(ProjectRow, col(ProjectRow.id).in_(ids), include_aliases=True),
        *(with_loader_criteria(table, _condition(table, ids), include_aliases=True) for table in owned),
    )


def _condition(table: Any, ids: BindParameter[Any]) -> ColumnElement[bool]:
    """Reference points of no project are for every one, and so is what was done to them."""
    of_project = col(table.project_id).in_(ids)
    if table is ReferencePointRow:
        return or_(of_project, col(table.project_id).is_(None))
    if table is AuditEventRow:
        return or_(of_project, and_(col(table.project_id).is_(None), col(table.subject) == "reference"))
    return of_project

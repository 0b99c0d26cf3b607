"""The second line: whatever a statement looks like, it meets rows of visible projects only."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, exists, func, literal, select, union_all, update
from sqlalchemy.orm import aliased
from sqlmodel import Session, SQLModel, col

from app.storage import visible
from app.storage.database import read_session, transaction
from app.storage.tables import ProjectRow, RunRow, SeriesRow
from app.storage.visible import seeing
from tests.builders import make_run

ID: Any = col(RunRow.id)

STATEMENTS: dict[str, Callable[[int], Any]] = {
    "rows": lambda _: select(ID).select_from(RunRow),
    "columns alone": lambda _: select(func.max(ID)),
    "alias": lambda _: select(aliased(RunRow).id),  # type: ignore[call-overload]
    "subquery": lambda _: select(select(ID).subquery().c.id),
    "common table expression": lambda _: select(select(ID).cte().c.id),
    "exists": lambda other: select(literal(other)).where(exists(select(ID).where(other == ID))),
    "in": lambda _: select(col(SeriesRow.run_id)).where(col(SeriesRow.run_id).in_(select(ID))),
    "union": lambda _: union_all(select(ID), select(ID)),
    "outer join": lambda _: (
        select(ID).select_from(ProjectRow).outerjoin(RunRow, col(RunRow.project_id) == ProjectRow.id)
    ),
    "scalar": lambda _: select(select(func.max(ID)).scalar_subquery()),
}


@pytest.fixture
def runs(engine: Engine) -> tuple[int, int]:
    with transaction(engine) as session:
        return make_run(session, project="alpha"), make_run(session, project="omega")


def found(session: Session, statement: Any) -> set[int]:
    return {value for value in session.execute(statement).scalars() if value is not None}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_form_of_a_statement_sees_others(engine: Engine, runs: tuple[int, int], name: str) -> None:
    ours, theirs = runs
    with read_session(engine) as session:
        project = session.get_one(RunRow, ours).project_id
        assert theirs in found(session, STATEMENTS[name](theirs))
        for _ in range(2):  # also from the compiled form that is kept
            with seeing(frozenset({project})):
                assert theirs not in found(session, STATEMENTS[name](theirs))
            with seeing(frozenset()):
                assert found(session, STATEMENTS[name](theirs)) == set()


def test_neither_a_key_nor_a_change_reaches_others(engine: Engine, runs: tuple[int, int]) -> None:
    ours, theirs = runs
    with read_session(engine) as session:
        project = session.get_one(RunRow, ours).project_id
    with seeing(frozenset({project})), transaction(engine) as session:
        assert session.get(RunRow, theirs) is None
        assert session.execute(update(RunRow).values(name="mine")).rowcount == 1  # type: ignore[attr-defined]


def test_every_table_that_says_whose_its_rows_are_is_watched() -> None:
    owned = {m.class_ for m in SQLModel._sa_registry.mappers if "project_id" in m.local_table.columns}
    assert {option.entity.class_ for option in visible._criteria()} == owned | {ProjectRow}

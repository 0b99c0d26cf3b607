"""The second line: whatever a statement looks like, it meets rows of visible projects only."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.orm import aliased
from sqlmodel import Session, SQLModel, col
from sqlmodel.sql.sqltypes import UTCDateTime

import app
from app.settings import Settings
from app.storage import visible
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import ProjectRow, RunRow, SeriesRow, select_any, utc_now
from app.storage.visible import seeing
from tests.builders import make_run

ID: Any = col(RunRow.id)
OURS, THEIRS = 1, 2

STATEMENTS: dict[str, Callable[[int], Any]] = {
    "rows": lambda _: select(ID).select_from(RunRow),
    "columns alone": lambda _: select(func.max(ID)),
    "alias": lambda _: select_any(aliased(RunRow).id),
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


def test_a_statement_of_code_that_does_not_say_what_it_may_see_is_stopped(
    engine: Engine, runs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible, "_process_sees_every_project", False)
    with read_session(engine) as session:
        with pytest.raises(visible.UnsaidProjectsError):
            session.execute(select(ID))
        with seeing(visible.EVERY_PROJECT):
            assert found(session, select(ID)) == set(runs)


def test_neither_a_key_nor_a_change_reaches_others(engine: Engine, runs: tuple[int, int]) -> None:
    ours, theirs = runs
    with read_session(engine) as session:
        project = session.get_one(RunRow, ours).project_id
    with seeing(frozenset({project})), transaction(engine) as session:
        assert session.get(RunRow, theirs) is None
        assert session.execute(update(RunRow).values(name="mine")).rowcount == 1  # type: ignore[attr-defined]


def test_every_table_is_somebody_s_or_nobody_s_on_purpose() -> None:
    for module in pkgutil.walk_packages(app.__path__, "app."):
        importlib.import_module(module.name)  # a table that only a feature knows would be forgotten
    named = {table.name: table for table in SQLModel.metadata.tables.values()}
    assert set(visible.OWNED_THROUGH) | set(visible.OF_NOBODY) <= set(named)
    assert not [name for name in visible.OF_NOBODY if "project_id" in named[name].columns]
    watched = {str(option.entity.local_table) for option in visible._criteria()}  # type: ignore[union-attr]
    assert watched == set(named) - set(visible.OF_NOBODY)


def test_a_table_of_which_nothing_is_known_stops_everything() -> None:
    table = Table("unheard_of", MetaData(), Column("id", Integer, primary_key=True))
    with pytest.raises(visible.UnownedTableError, match="unheard_of"):
        visible._condition(table, table.columns, bindparam("visible", expanding=True))


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_of_no_table_a_row_of_others_is_read_changed_or_deleted(database: str, request: pytest.FixtureRequest) -> None:
    """Rows of two projects in every table there is, made from the tables themselves."""
    engine = _database(database, request)
    with transaction(engine) as session:
        if database == "postgresql":
            session.execute(text("SET session_replication_role = replica"))  # one row of each is no whole history
        for project in (OURS, THEIRS):
            for table in SQLModel.metadata.sorted_tables:
                session.execute(insert(table).values(_row(table, project)))
    wrong: list[str] = []
    for mapper in SQLModel._sa_registry.mappers:
        name = str(mapper.local_table)
        if name in visible.OF_NOBODY:
            continue
        one = aliased(mapper.class_)
        key, aliased_key = mapper.primary_key, [getattr(one, mapped.name) for mapped in mapper.primary_key]
        keys = [getattr(mapper.class_, mapped.name) for mapped in key]
        with read_session(engine) as session:
            rows: dict[int, tuple[Any, ...]] = {OURS: (), THEIRS: ()}
            for project in rows:
                with seeing(frozenset({project})):
                    found = [session.execute(select(*columns)).all() for columns in (keys, aliased_key)]
                    if [len(one) for one in found] != [1, 1]:
                        wrong.append(f"{name}: {len(found[0])} rows of one project, {len(found[1])} by an alias")
                    rows[project] = tuple(found[0][0])
            if rows[OURS] == rows[THEIRS]:
                wrong.append(f"{name}: both projects see the same row")
        theirs = [column == value for column, value in zip(keys, rows[THEIRS], strict=True)]
        with seeing(frozenset({OURS})), read_session(engine) as session:
            if session.get(mapper.class_, rows[THEIRS]) is not None:
                wrong.append(f"{name}: read by its key")
            for change in (update(mapper.class_).values({keys[0]: keys[0]}), delete(mapper.class_)):
                if session.execute(change.where(*theirs)).rowcount:  # type: ignore[attr-defined]
                    wrong.append(f"{name}: {change}")
    assert not wrong, "\n".join(wrong)
    if database == "postgresql":
        engine.dispose()


def _database(name: str, request: pytest.FixtureRequest) -> Engine:
    if name == "sqlite":
        engine: Engine = request.getfixturevalue("engine")
        return engine
    return make_engine(Settings(database_url=request.getfixturevalue("postgres_url")))


def _row(table: Table, project: int) -> dict[str, Any]:
    """What a row cannot be without; it refers to the rows of the same project."""
    return {
        one.name: _value(table, one, project)
        for one in table.columns
        if one.foreign_keys or one.primary_key or not one.nullable
    }


def _value(table: Table, column: Column[Any], project: int) -> Any:
    if column.foreign_keys:
        (key,) = column.foreign_keys
        return _value(key.column.table, key.column, project)
    kind = column.type
    if isinstance(kind, UTCDateTime):
        return utc_now()
    if isinstance(kind, JSON):
        return {}
    if isinstance(kind, LargeBinary):
        return b""
    if isinstance(kind, Boolean):
        return False
    return project if isinstance(kind, Integer | Float) else f"{table.name}{project}"[: kind.length or 99]  # type: ignore[attr-defined]

"""Statements return rows of visible projects only, and hidden equals missing."""

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
from app.access.routes import route_table
from app.settings import Settings
from app.storage import visible
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import ProjectRow, RunRow, SeriesRow, select_any, utc_now
from app.storage.visible import seeing
from tests.access.belongings import make_belongings
from tests.access.people import OURS, THEIRS, Teams
from tests.builders import make_run
from tests.pages import masked
from tests.references.test_references import OWN
from tests.statements import statements

ID: Any = col(RunRow.id)
OUR_ID, THEIR_ID = 1, 2

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


def visible_ids(session: Session, statement: Any) -> set[int]:
    return {value for value in session.execute(statement).scalars() if value is not None}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_form_of_a_statement_sees_others(engine: Engine, runs: tuple[int, int], name: str) -> None:
    ours, theirs = runs
    with read_session(engine) as session:
        project = session.get_one(RunRow, ours).project_id
        assert theirs in visible_ids(session, STATEMENTS[name](theirs))
        for _ in range(2):  # also from the cached compiled form
            with seeing(frozenset({project})):
                assert theirs not in visible_ids(session, STATEMENTS[name](theirs))
            with seeing(frozenset()):
                assert visible_ids(session, STATEMENTS[name](theirs)) == set()


def test_a_statement_of_code_without_declared_visibility_fails(
    engine: Engine, runs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible, "_process_sees_every_project", False)
    with read_session(engine) as session:
        with pytest.raises(visible.UnstatedProjectsError):
            session.execute(select(ID))
        with seeing(visible.EVERY_PROJECT):
            assert visible_ids(session, select(ID)) == set(runs)


def test_neither_a_key_nor_a_change_reaches_others(engine: Engine, runs: tuple[int, int]) -> None:
    ours, theirs = runs
    with read_session(engine) as session:
        project = session.get_one(RunRow, ours).project_id
    with seeing(frozenset({project})), transaction(engine) as session:
        assert session.get(RunRow, theirs) is None
        assert session.execute(update(RunRow).values(name="mine")).rowcount == 1


def test_every_table_has_an_owner_or_a_reason_for_none() -> None:
    for module in pkgutil.walk_packages(app.__path__, "app."):
        importlib.import_module(module.name)  # tables that only a feature imports must be included
    named = {table.name: table for table in SQLModel.metadata.tables.values()}
    assert set(visible.OWNED_THROUGH) | set(visible.WITHOUT_PROJECT) <= set(named)
    assert not [name for name in visible.WITHOUT_PROJECT if "project_id" in named[name].columns]
    watched = {str(option.entity.local_table) for option in visible._criteria()}
    assert watched == set(named) - set(visible.WITHOUT_PROJECT)


def test_a_table_without_a_declared_owner_fails_every_request() -> None:
    table = Table("unheard_of", MetaData(), Column("id", Integer, primary_key=True))
    with pytest.raises(visible.UnownedTableError, match="unheard_of"):
        visible._condition(table, table.columns, bindparam("visible", expanding=True))


def _forget_triggers(session: Session, database: str) -> None:
    """One row of each table is not a complete history, and triggers would derive more rows from runs."""
    if database == "postgresql":
        session.execute(text("SET session_replication_role = replica"))
        return
    for name in session.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all():
        session.execute(text(f"DROP TRIGGER {name}"))


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_rows_of_other_projects_are_never_read_changed_or_deleted(
    database: str, request: pytest.FixtureRequest
) -> None:
    """Rows of two projects in every existing table, generated from the table definitions."""
    engine = _database(database, request)
    with transaction(engine) as session:
        _forget_triggers(session, database)
        for project in (OUR_ID, THEIR_ID):
            for table in SQLModel.metadata.sorted_tables:
                session.execute(insert(table).values(_row(table, project)))
    wrong: list[str] = []
    for mapper in SQLModel._sa_registry.mappers:
        name = str(mapper.local_table)
        if name in visible.WITHOUT_PROJECT:
            continue
        alias = aliased(mapper.class_)
        key, aliased_key = mapper.primary_key, [getattr(alias, mapped.name) for mapped in mapper.primary_key]
        keys = [getattr(mapper.class_, mapped.name) for mapped in key]
        with read_session(engine) as session:
            rows: dict[int, tuple[Any, ...]] = {OUR_ID: (), THEIR_ID: ()}
            for project in rows:
                with seeing(frozenset({project})):
                    result = [session.execute(select(*columns)).all() for columns in (keys, aliased_key)]
                    if [len(item) for item in result] != [1, 1]:
                        wrong.append(f"{name}: {len(result[0])} rows of one project, {len(result[1])} by an alias")
                    rows[project] = tuple(result[0][0])
            if rows[OUR_ID] == rows[THEIR_ID]:
                wrong.append(f"{name}: both projects see the same row")
        theirs = [column == value for column, value in zip(keys, rows[THEIR_ID], strict=True)]
        with seeing(frozenset({OUR_ID})), read_session(engine) as session:
            if session.get(mapper.class_, rows[THEIR_ID]) is not None:
                wrong.append(f"{name}: read by its key")
            for change in (update(mapper.class_).values({keys[0]: keys[0]}), delete(mapper.class_)):
                if session.execute(change.where(*theirs)).rowcount:
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
    """The required values of a row; it refers to rows of the same project."""
    return {
        column.name: _value(table, column, project)
        for column in table.columns
        if column.foreign_keys or column.primary_key or not column.nullable
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
    return project if isinstance(kind, Integer | Float) else f"{table.name}{project}"[: kind.length or 99]


MISSING = {"project": "nosuch", "run": "999999", "regression": "999999", "experiment": "999999", "stack": "f" * 64}


@pytest.mark.parametrize("who", ["viewer", "token:all", "anonymous"])
def test_missing_and_invisible_objects_take_the_same_queries(teams: Teams, who: str) -> None:
    with transaction(teams.engine) as session:
        theirs = make_belongings(session, THEIRS)
    addresses = {
        "project": ("/api/v1/projects/{}/rules", THEIRS),
        "run": ("/api/v1/runs/{}", theirs.run),
        "regression": ("/api/v1/regressions/{}", theirs.regression),
        "experiment": ("/api/v1/experiments/{}", theirs.experiment),
        "stack": ("/history/{}/pin", theirs.stack),
    }
    team, stranger = teams.client("outsider"), teams.client(who)
    for what, (address, name) in addresses.items():
        method = "POST" if what == "stack" else "GET"
        if method == "POST" and who.startswith("token"):
            continue
        team.request(method, address.format(name), data={} if method == "POST" else None)  # the caller may know of it
        stranger.request(method, address.format("0"))
        queries = []
        for named in (name, MISSING[what]):
            with statements(teams.engine) as executed:
                answer = stranger.request(method, address.format(named))
            assert answer.status_code == (401 if who == "anonymous" else 404)
            queries.append(executed)
        assert queries[0] == queries[1] != [], what


PAGE = {"Accept": "text/html"}
FILTERED = (
    "/",
    "/runs",
    "/runs.csv",
    "/history",
    "/regressions",
    "/leaderboards/h100/qwen3-30b-a3b",
    "/experiments",
    "/references",
    "/playbook",
    "/scaling",
    "/upgrade",
    "/settings/audit",
    "/api/v1/runs",
    "/api/v1/history",
    "/api/v1/regressions",
    "/api/v1/leaderboards",
    "/api/v1/experiments",
    "/api/v1/references",
    "/api/v1/rules",
    "/api/v1/availability",
    "/api/v1/scaling",
    "/api/v1/upgrade",
    "/api/v1/upgrades",
    "/api/v1/audit",
)


def test_every_address_that_names_a_project_finds_it_in_any_case(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        params = make_belongings(session, OURS, whole=True).params()
    routes = [
        route.path for route in route_table(teams.app).routes if route.method == "GET" and route.rule.owner == "project"
    ]
    addresses = [
        *((path.format(**params), path.format(**params | {"slug": OURS.upper()})) for path in routes),
        *((f"{path}?project={OURS}", f"{path}?project={OURS.upper()}") for path in FILTERED),
    ]
    client = teams.client("maintainer")
    wrong = []
    for usual, shouted in addresses:
        headers = {} if usual.startswith("/api/") else PAGE
        expected, answer = client.get(usual, headers=headers), client.get(shouted, headers=headers)
        if answer.status_code != expected.status_code or masked(answer.text) != masked(expected.text):
            wrong.append(f"{shouted}: {answer.status_code} instead of {expected.status_code}")
    assert not wrong, "\n".join(wrong)
    assert len(routes) > 5


def test_a_project_is_changed_by_its_name_in_any_case(teams: Teams) -> None:
    client = teams.client("maintainer")
    changed = client.patch(f"/api/v1/projects/{OURS.title()}/rules", json={"baseline_branch": "trunk"})
    assert (changed.status_code, changed.json()["project"]) == (200, OURS)
    assert client.get(f"/api/v1/projects/{OURS}/rules").json()["baseline_branch"] == "trunk"


@pytest.mark.parametrize("who", ["anonymous", "viewer", "token:read"])
def test_a_project_that_the_caller_may_not_see_keeps_the_spelling_of_the_address(teams: Teams, who: str) -> None:
    """Otherwise the answer would reveal that it exists, and how its name is spelled."""
    client = teams.client(who)
    for path in FILTERED:
        answer = client.get(f"{path}?project={THEIRS.upper()}", headers=PAGE)
        assert THEIRS not in f"{answer.text} {answer.headers}", path
    assert client.get(f"/api/v1/projects/{THEIRS.upper()}/rules").status_code in (401, 404)


def test_a_figure_is_offered_to_a_project_in_any_case(teams: Teams) -> None:
    added = teams.client("contributor").post("/api/v1/references", json=OWN | {"author": "", "project": OURS.upper()})
    assert (added.status_code, added.json()["entered"]["project"]) == (201, OURS), added.text


def test_a_name_with_signs_of_addresses_in_it_comes_through(teams: Teams) -> None:
    answer = teams.client("viewer").get("/api/v1/runs", params={"project": OURS.upper(), "q": "a&b=c d%2"})
    assert answer.status_code == 200
    refused = teams.client("viewer").get("/api/v1/runs", params={"project": OURS.upper(), "sort": "a&b"})
    assert refused.status_code == 422

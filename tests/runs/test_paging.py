"""The list of runs is read by cursors, in the order of an index, on both databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlmodel import Session
from starlette.testclient import TestClient

from app.errors import InvalidQuery
from app.runs import queries
from app.runs.queries import SORTS, RunQuery, find_runs
from app.settings import Settings
from app.storage import runs as stored_runs
from app.storage.database import make_engine, migrate, read_session, transaction
from tests.builders import insert_runs, make_project, run_columns
from tests.services.postgres_server import Postgres

RUNS = 230


def _fill(session: Session, count: int) -> None:
    owner = make_project(session, "moe").id or 0
    columns = run_columns("moe", {}, 400.0)
    rows = []
    for number in range(count):
        figures = {"step_time_ms": None if number % 7 == 0 else 300.0 + number % 20, "outcome": "completed"}
        if number % 50 == 0:
            figures["outcome"] = "failed"
        row = columns | figures | {"project_id": owner, "content_key": f"{number:064}", "name": f"run {number % 9}"}
        rows.append(row)
    insert_runs(session, rows)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("paging")
    settings = Settings(data_dir=folder)
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres_server")
        settings = Settings(data_dir=folder, database_url=server.url(server.new_database()))
    migrate(settings)
    engine = make_engine(settings)
    with transaction(engine) as session:
        _fill(session, RUNS)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("sort", [sign + name for name in SORTS for sign in ("", "-")])
def test_cursors_lead_through_all_runs_and_back(filled: Engine, sort: str) -> None:
    with read_session(filled) as session:
        whole = [
            run.id for page in (1, 2) for run in find_runs(session, RunQuery(sort=sort, page=page, page_size=150)).items
        ]
        page, forwards = find_runs(session, RunQuery(sort=sort, page_size=40)), []
        while True:
            forwards.append([run.id for run in page.items])
            if not page.after:
                break
            page = find_runs(session, RunQuery(sort=sort, page_size=40, after=page.after))
        backwards = [forwards[-1]]
        while page.before:
            page = find_runs(session, RunQuery(sort=sort, page_size=40, before=page.before))
            backwards.insert(0, [run.id for run in page.items])
    assert len(whole) == len({*whole}) == RUNS
    assert [run for part in forwards for run in part] == whole
    assert backwards == forwards


def test_runs_without_the_figure_come_last_in_both_directions(filled: Engine) -> None:
    without = sum(number % 7 == 0 for number in range(RUNS))
    for sort in ("step_time_ms", "-step_time_ms"):
        with read_session(filled) as session:
            runs = [
                run
                for page in (1, 2)
                for run in find_runs(session, RunQuery(sort=sort, page=page, page_size=200)).items
            ]
            times = {row.id: row.step_time_ms for row in session.execute(text("SELECT id, step_time_ms FROM run"))}
        assert [times[run.id] is None for run in runs] == [False] * (RUNS - without) + [True] * without


def test_pages_too_deep_for_a_number_are_refused(filled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_COUNTED", 100)
    monkeypatch.setattr(stored_runs, "MOST_COUNTED", 100)
    monkeypatch.setattr(queries, "MOST_SKIPPED", 100)
    with read_session(filled) as session:
        page = find_runs(session, RunQuery(page=2))
        assert (page.total, page.is_exact, len(page.items)) == (100, False, 50)
        with pytest.raises(InvalidQuery, match="Invalid filter"):
            find_runs(session, RunQuery(page=3))
        assert len(find_runs(session, RunQuery(page=3, after=page.after)).items) == 50


def _plans(connection: Connection, statements: list[tuple[str, object]]) -> list[str]:
    explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
    return [
        "\n".join(str(row) for row in connection.exec_driver_sql(explain + statement, values))  # type: ignore[arg-type]
        for statement, values in statements
    ]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"after": "200"},
        {"before": "20"},
        {"sort": "step_time_ms"},
        {"sort": "-tflops_per_gpu"},
        {"outcome": "failed"},
        {"project": "moe"},
        {"model": "Qwen3-30B-A3B"},
    ],
    ids=str,
)
def test_pages_are_read_in_the_order_of_an_index(filled: Engine, query: dict[str, str]) -> None:
    statements: list[tuple[str, object]] = []

    def note(_c: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        if "LIMIT" in statement and "count" not in statement:
            statements.append((statement, values))

    with filled.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET enable_seqscan = off"))  # a table of 230 rows is read faster whole
            connection.execute(text("SET enable_sort = off"))
        with Session(connection) as session:
            event.listen(filled, "before_cursor_execute", note)
            find_runs(session, RunQuery(page_size=20, **query))
            event.remove(filled, "before_cursor_execute", note)
            plans = _plans(connection, statements)
    assert plans
    for plan in plans:
        assert "TEMP B-TREE" not in plan, plan
        assert "Sort" not in plan, plan
        assert "Seq Scan" not in plan, plan


def test_the_api_names_the_cursors(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        _fill(session, 7)
    first = client.get("/api/v1/runs?page_size=3").json()
    assert (first["total"], first["is_exact"], first["before"]) == (7, True, "")
    second = client.get("/api/v1/runs", params={"page_size": 3, "page": 2, "after": first["after"]}).json()
    assert [run["id"] for run in second["items"]] == [4, 3, 2]
    again = client.get("/api/v1/runs", params={"page_size": 3, "before": second["before"]}).json()
    assert again["items"] == first["items"]
    assert client.get("/api/v1/runs?after=x").status_code == 422
    assert client.get("/api/v1/runs?after=5,x&sort=mfu_pct").status_code == 422

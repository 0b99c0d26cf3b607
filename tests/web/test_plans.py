"""PostgreSQL reads no large table from end to end for a page: the plan of every statement of every page."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage.database import make_engine
from bench.pages import page_addresses
from bench.seed import fill
from tests.conftest import OPEN_TO
from tests.services.postgres_server import Postgres

RUNS = 12_000
LARGE = 5_000
"""Rows from which a sequential scan is a defect: with few rows it is the fastest plan."""

REUSED = {("playbook", "rule_firing"), ("API: rules", "rule_firing")}
"""Pages and tables whose rows are all counted, because a slow count is reused (`WhileSlow`)."""


@pytest.fixture(scope="module")
def settings(postgres_server: Postgres, migrated_template: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    url = postgres_server.url(postgres_server.new_database(migrated_template))
    settings = Settings(data_dir=tmp_path_factory.mktemp("seeded"), database_url=url)
    engine = make_engine(settings)
    fill(engine, settings, RUNS)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")  # as autovacuum does; index-only scans need it
    engine.dispose()
    return settings


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    app = create_app(settings, open_to=OPEN_TO)
    with TestClient(app) as client:
        yield client


def test_no_page_reads_a_large_table_from_end_to_end(client: TestClient) -> None:
    engine: Engine = client.app.state.engine
    executed: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            executed.append((statement, parameters))

    statements: dict[tuple[str, str], Any] = {}
    for page, address in page_addresses(engine).items():
        executed.clear()
        assert client.get(address).status_code == 200, address
        statements |= {(page, statement): parameters for statement, parameters in executed}
    event.remove(engine, "before_cursor_execute", record)
    with engine.connect() as connection:
        large = set(
            connection.scalars(
                text("SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples >= :n"), {"n": LARGE}
            )
        )
        assert {"run", "run_result", "verdict"} <= large
        scans = []
        for (name, statement), parameters in statements.items():
            rows = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
            plan = (json.loads(rows) if isinstance(rows, str) else rows)[0]["Plan"]
            read = {table for table in sequential_scans(plan) if table in large and (name, table) not in REUSED}
            scans += [f"{name}: {table}: {statement[:300]}" for table in sorted(read)]
    assert len(statements) > 100
    assert not scans, "\n\n".join(scans)


def sequential_scans(plan: dict[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the tables that a plan reads from end to end. Below a limit, a scan without a filter stops by itself."""
    if plan["Node Type"] == "Seq Scan" and not (parent == "Limit" and "Filter" not in plan):
        yield plan["Relation Name"]
    for child in plan.get("Plans", ()):
        yield from sequential_scans(child, plan["Node Type"])


def test_a_sequential_scan_is_noticed(client: TestClient) -> None:
    engine: Engine = client.app.state.engine
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "EXPLAIN (FORMAT JSON) SELECT count(*) FROM run WHERE ci_url = 'x' OR tags::text = 'y'"
        ).scalar_one()
    assert list(sequential_scans(rows[0]["Plan"])) == ["run"]

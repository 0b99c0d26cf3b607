"""Databases filled by the benches: pages, lists and the worker treat the copied rows as processed runs."""

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.pipeline.judge import judge_stack
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import EVERYTHING
from bench.seed import Seeded, fill

RUNS, TEMPLATES = 400, 12


@pytest.fixture
def seeded(engine: Engine, settings: Settings) -> Seeded:
    return fill(engine, settings, RUNS, stacks=12)


def test_a_seeded_database_has_pages(seeded: Seeded, client: TestClient) -> None:
    key = seeded.stacks[0][1]
    assert client.get("/api/v1/runs").json()["total"] == RUNS + TEMPLATES
    newest = client.get("/api/v1/runs").json()["items"][0]["id"]
    paths = (
        "/",
        "/runs",
        f"/runs/{newest}",
        "/regressions",
        "/leaderboards",
        "/history",
        f"/history/{key}",
        "/upgrade",
    )
    assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)
    assert len(client.get(f"/api/v1/runs/{newest}/series").json()["columns"]["iteration"]) > 0


def test_a_seeded_stack_can_be_judged(seeded: Seeded, engine: Engine, settings: Settings) -> None:
    project_id, key, runs = seeded.stacks[0]
    with transaction(engine) as session:
        work_id = stack_queue.request(session, project_id, key, judge_from=EVERYTHING)
    assert judge_stack(engine, settings, work_id) == runs

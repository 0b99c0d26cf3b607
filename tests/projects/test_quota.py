"""What a project may take: refused whole and said why, nothing that was acknowledged is lost."""

from datetime import timedelta

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage.audit import events
from app.storage.database import read_session, transaction
from app.storage.tables import RunRow, utc_now
from tests.access.people import SAME_ORIGIN, make_teams
from tests.builders import make_project
from tests.conftest import OPEN_TO
from tests.runs.uploading import LOG, assert_problem, traces, upload

QUOTA = "/api/v1/projects/small/quota"
SMALL = {"project": "small"}
SIZE = len(LOG)


def allow(client: TestClient, **quota: int) -> None:
    assert client.put(QUOTA, json=quota | {"author": "ada"}).status_code == 200


@pytest.fixture
def small(engine: Engine, client: TestClient) -> TestClient:
    with transaction(engine) as session:
        make_project(session, "small")
    return client


def test_an_upload_over_the_bytes_leaves_nothing_behind(small: TestClient, engine: Engine, settings: Settings) -> None:
    allow(small, quota_bytes=SIZE + 10)
    first = upload(small, LOG, meta=SMALL)
    assert first.status_code == 202
    before = traces(engine, settings)
    refused = upload(small, LOG + b"more of it\n", meta=SMALL)
    assert_problem(refused, 413, f"holds {SIZE:,} of the {SIZE + 10:,} bytes", "An administrator raises the quota")
    assert traces(engine, settings) == before
    assert upload(small, LOG, meta=SMALL).json()["id"] == first.json()["id"]  # the same again needs no room
    assert upload(small, LOG + b"\n", meta={"project": "other"}).status_code == 202


def test_a_log_that_grows_stays_as_it_was_when_there_is_no_more_room(small: TestClient) -> None:
    allow(small, quota_bytes=SIZE + 5)
    run = upload(small, LOG, meta=SMALL | {"complete": False}, key="grows").json()["id"]
    address = f"/api/v1/runs/{run}/logs"
    assert small.post(f"{address}?offset={SIZE}", content=b"five\n").status_code == 200
    assert_problem(small.post(f"{address}?offset={SIZE + 5}", content=b"x\n"), 413, "what was there stays")
    held = small.post(f"{address}?offset={SIZE + 5}&complete=true", content=b"")
    assert (held.status_code, held.json()["offset"]) == (200, SIZE + 5)


def test_runs_a_day_say_when_the_next_may_begin(small: TestClient, engine: Engine) -> None:
    allow(small, quota_runs_a_day=2)
    ids = [upload(small, LOG + b"\n" * n, meta=SMALL).json()["id"] for n in range(2)]
    refused = upload(small, LOG + b"third\n", meta=SMALL)
    assert_problem(refused, 429, "started 2 runs within 24 hours")
    assert 86_000 < int(refused.headers["Retry-After"]) <= 86_400
    with transaction(engine) as session:
        session.get_one(RunRow, ids[0]).created_at = utc_now() - timedelta(hours=25)
    assert upload(small, LOG + b"third\n", meta=SMALL).status_code == 202
    assert small.get(QUOTA).json() == {
        "project": "small", "quota_bytes": 0, "quota_runs_a_day": 2, "used_bytes": 3 * SIZE + 7, "runs_today": 2,
    }  # fmt: skip


def test_the_service_has_a_quota_for_projects_without_their_own(settings: Settings) -> None:
    app = create_app(settings.model_copy(update={"quota_bytes": SIZE, "quota_runs_a_day": 5}), open_to=OPEN_TO)
    client = TestClient(app)
    assert upload(client, LOG + b"more of it\n", meta=SMALL).status_code == 413
    assert upload(client, LOG, meta=SMALL).status_code == 202
    assert client.get(QUOTA).json()["quota_runs_a_day"] == 5
    allow(client, quota_bytes=0)
    assert upload(client, LOG + b"more of it\n", meta=SMALL).status_code == 202
    app.state.engine.dispose()


def test_only_an_administrator_sets_it_and_it_is_on_record(app: FastAPI, settings: Settings) -> None:
    asking = create_app(settings)
    teams = make_teams(asking)
    for who, status in (("viewer", 403), ("maintainer", 403), ("token:all", 403), ("administrator", 200)):
        answer = teams.client(who).put("/api/v1/projects/alpha/quota", json={"quota_bytes": 7})
        assert (who, answer.status_code) == (who, status)
    with read_session(teams.engine) as session:
        event = events(session, "project", teams.ours)[0]
    assert (event.action, event.who, event.before["bytes"], event.after["bytes"]) == ("quota", "administrator", None, 7)
    assert 'name="quota_bytes"' not in teams.client("maintainer").get("/settings/projects/alpha/quota").text
    asking.state.engine.dispose()


def test_the_form_does_the_same(small: TestClient) -> None:
    address = "/settings/projects/small/quota"
    form = {"quota_bytes": "1,000,000", "quota_runs_a_day": "", "author": "ada"}
    saved = small.post(address, data=form, headers=SAME_ORIGIN)
    assert saved.status_code == 200
    assert small.get(QUOTA).json()["quota_bytes"] == 1_000_000
    assert 'value="1000000"' in small.get(address).text
    refused = small.post(address, data=form | {"quota_bytes": "plenty", "quota_runs_a_day": "-1"}, headers=SAME_ORIGIN)
    assert refused.status_code == 422
    assert refused.text.count("must be empty or a whole number") == 2
    assert small.get(QUOTA).json()["quota_bytes"] == 1_000_000

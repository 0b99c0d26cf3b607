"""Corrections change what runs state, are recorded, and cause verdicts to be computed again."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func
from sqlmodel import select
from starlette.testclient import TestClient

from app.pipeline.judge import judge_stack
from app.pipeline.process import read_run
from app.pipeline.work import run_queue, stack_queue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import RegressionRow, RunRow
from app.web.templating import markdown
from tests.builders import FIRST_PLACE, make_project, make_run, make_stack

BY = {"author": "mia", "note": "a typo"}


def patch(client: TestClient, address: str, status: int = 200, **changes: Any) -> dict[str, Any]:
    answer = client.patch(address, json=changes | BY)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def work(engine: Engine, settings: Settings, log_files: LogFiles) -> None:
    for _ in range(4):
        with read_session(engine) as session:
            runs = run_queue.due(session, settings, limit=100)
            stacks = stack_queue.due(session, settings, limit=100)
        for run_id in runs:
            read_run(engine, log_files, settings, run_id)
        for work_id in stacks:
            judge_stack(engine, settings, work_id)


def test_a_corrected_run_shows_the_new_values_and_the_audit_both(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session, name="nigthly", branch="mian", tags=["a"])
    body = patch(client, f"/api/v1/runs/{run}", name="nightly", branch="main", tags=["b", "c"], notes="see **node 7**")
    assert (body["name"], body["branch"], body["tags"], body["notes"]) == (
        "nightly", "main", ["b", "c"], "see **node 7**",
    )  # fmt: skip
    assert client.get("/api/v1/runs?q=nightly").json()["items"][0]["notes"] == "see **node 7**"
    event = client.get("/api/v1/audit?subject=run").json()["items"][0]
    assert (event["action"], event["who"], event["note"]) == ("correct", "mia", "a typo")
    assert event["before"] == {"name": "nigthly", "branch": "mian", "tags": ["a"], "notes": None}
    page = client.get(f"/runs/{run}").text
    assert "<strong>node 7</strong>" in page
    assert client.get(f"/runs/{run}/correct").status_code == 200


def test_a_commit_time_moves_the_run_and_verdicts_are_made_again(
    client: TestClient, engine: Engine, settings: Settings, log_files: LogFiles
) -> None:
    with transaction(engine) as session:
        runs = make_stack(session, [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 112.0, 112.2, 112.1])
        assert session.execute(select(func.count()).select_from(RegressionRow)).scalar_one() == 1
    early = (FIRST_PLACE - timedelta(days=1)).isoformat()
    for run in runs[6:]:  # the slow runs were of old commits
        patch(client, f"/api/v1/runs/{run}", commit_time=early)
    work(engine, settings, log_files)
    with read_session(engine) as session:
        verdicts = [session.get_one(RunRow, run).verdict for run in runs]
    assert "regression" not in verdicts[:6]
    assert verdicts[6] == "no_baseline"


def test_a_run_moves_to_another_project(
    client: TestClient, engine: Engine, settings: Settings, log_files: LogFiles
) -> None:
    with transaction(engine) as session:
        runs = make_stack(session, [100.0, 100.2, 99.9, 112.0], log_files=log_files)
        make_project(session, "right")
    body = patch(client, f"/api/v1/runs/{runs[3]}", project="right")
    assert (body["project"], body["verdict"]) == ("right", "")
    work(engine, settings, log_files)
    body = client.get(f"/api/v1/runs/{runs[3]}").json()
    assert body["status"] == "ready"
    stacks = {item["project"] for item in client.get("/api/v1/runs").json()["items"]}
    assert stacks == {"right", "moe-lab"}
    assert client.get("/api/v1/regressions?state=any").json()["total"] == 0
    assert client.get("/api/v1/runs?project=moe-lab").json()["total"] == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"commit_time": "yesterday"}, "commit_time"),
        ({"project": "nowhere"}, "project"),
        ({"notes": "x" * 4001}, "notes"),
        ({"branch": "b" * 301}, "branch"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_changes(
    client: TestClient, engine: Engine, changes: dict[str, Any], field: str
) -> None:
    with transaction(engine) as session:
        run = make_run(session, name="before")
    body = patch(client, f"/api/v1/runs/{run}", 422, **changes | {"job": "new"})
    assert field in [error["field"] for error in body["errors"]]
    assert client.get(f"/api/v1/runs/{run}").json()["job"] == ""


def test_golden_runs_and_equal_uploads_do_not_move(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        runs = make_stack(session, [100.0, 100.1])
        make_project(session, "right")
    client.post(f"/api/v1/runs/{runs[0]}/pin", json={"author": "mia"})
    patch(client, f"/api/v1/runs/{runs[0]}", 409, project="right")


def test_bulk_corrections_are_all_or_none(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        runs = make_stack(session, [100.0, 100.1, 100.2])
    patch(client, "/api/v1/runs", 404, runs=[*runs, 999], branch="trunk")
    assert client.get("/api/v1/runs?branch=trunk").json()["total"] == 0
    assert patch(client, "/api/v1/runs", runs=runs, branch="trunk") == {"changed": 3}
    assert client.get("/api/v1/runs?branch=trunk").json()["total"] == 3
    assert patch(client, "/api/v1/runs", runs=runs, branch="trunk") == {"changed": 0}


def test_the_form_changes_only_what_differs(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session, name="before", branch="main")
    form = {"name": "after", "branch": "main", "project": "moe-lab", "commit": "", "tags": "", "author": "mia"}
    with read_session(engine) as session:
        row = session.get_one(RunRow, run)
        form |= {"commit": row.commit, "tags": ", ".join(row.tags), "job": row.job}
        form |= {"commit_time": row.commit_time.isoformat() if row.commit_time else ""}
    answer = client.post(f"/runs/{run}/correct", data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    event = client.get("/api/v1/audit?subject=run").json()["items"][0]
    assert event["after"] == {"name": "after"}


def test_notes_hold_no_html_and_no_dangerous_links() -> None:
    html = markdown("<script>x</script> [a](javascript:alert) ![i](http://evil.example/i.png) <img src=x> `code`")
    assert "<script" not in html
    assert "<img" not in html
    assert 'href="javascript' not in html
    assert "<code>code</code>" in html

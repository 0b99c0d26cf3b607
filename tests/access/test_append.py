"""What a token that only uploads may do with runs: bring its own, and hear what came of them."""

from datetime import timedelta

import pytest
from sqlalchemy import update
from sqlmodel import col
from starlette.testclient import TestClient

from app.domain.access.principal import Scope
from app.storage import tokens
from app.storage.database import transaction
from app.storage.tables import RunRow, utc_now
from tests.access.people import Teams
from tests.runs.uploading import assert_problem, upload
from tests.training_logs import training_log
from workers.tasks import process_run

LOG = training_log()
MORE = b"hello there\n"
ANSWERS = ("report", "report.md", "verdict")


@pytest.fixture
def fork(teams: Teams) -> TestClient:
    """Another pipeline of the project, with a token of its own that only uploads, too."""
    with transaction(teams.engine) as session:
        _, token = tokens.make_token(session, project_id=teams.ours, name="fork", scopes=[Scope.UPLOAD], by="test")
    client = teams.client("anonymous")
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def append(client: TestClient, run: int, piece: bytes, **params: str | int) -> tuple[int, str]:
    answer = client.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
    return answer.status_code, answer.text


def later(teams: Teams, run: int, hours: float) -> None:
    """So long after the last news of it."""
    with transaction(teams.engine) as session:
        heard_at = utc_now() - timedelta(hours=hours)
        session.execute(update(RunRow).where(col(RunRow.id) == run).values(heard_at=heard_at))


def test_a_token_that_only_uploads_changes_no_finished_run(teams: Teams) -> None:
    job, reader = teams.client("token:upload"), teams.client("viewer")
    run = upload(job, LOG).json()["id"]
    before = reader.get(f"/api/v1/runs/{run}").json()
    for params, piece in (
        ({"name": "evil.log"}, MORE),
        ({"offset": len(LOG)}, MORE),
        ({"complete": "false"}, b""),
        ({"complete": "false"}, LOG),
    ):
        answer = job.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
        assert_problem(answer, 403, "finished run", "needs triage", "Nothing was saved")
    assert reader.get(f"/api/v1/runs/{run}").json() == before
    assert append(job, run, LOG)[0] == 200  # what is there already may be sent again: its answer was lost
    assert reader.get(f"/api/v1/runs/{run}").json() == before


def test_it_brings_all_of_a_run_that_it_began_and_goes_on_after_it_closed_it_too_early(teams: Teams) -> None:
    job = teams.client("token:upload")
    begun = upload(job, LOG, meta={"complete": False}).json()["id"]
    assert append(job, begun, MORE, offset=len(LOG))[0] == 200
    later(teams, begun, hours=2)
    assert append(job, begun, b"", complete="true")[0] == 200
    assert append(job, begun, MORE, offset=len(LOG) + len(MORE), complete="false")[0] == 200
    assert append(job, begun, b"", complete="true")[0] == 200
    later(teams, begun, hours=2)
    assert append(job, begun, b"", complete="true")[0] == 200
    assert append(job, begun, LOG)[0] == 200  # no news, so it does not win time
    assert append(job, begun, b"", complete="false")[0] == 403
    assert append(job, begun, MORE, offset=len(LOG) + 2 * len(MORE))[0] == 403
    assert append(job, begun, MORE, name="evil.log")[0] == 403


def test_tokens_of_a_project_keep_to_their_own_runs(teams: Teams, fork: TestClient) -> None:
    job, reader = teams.client("token:upload"), teams.client("viewer")
    others = [
        upload(job, LOG, meta={"complete": False}).json()["id"],
        upload(job, LOG, meta={"name": "whole"}).json()["id"],
        upload(teams.client("contributor"), LOG, meta={"name": "by hand", "complete": False}).json()["id"],
    ]
    before = [reader.get(f"/api/v1/runs/{run}").json() for run in others]
    for run in others:
        for params, piece in (
            ({"offset": len(LOG)}, MORE),
            ({"complete": "true"}, b""),
            ({"name": "evil.log"}, MORE),
            ({}, LOG),  # nor does it hear whether it guessed the log
            ({"offset": 2**53}, b""),
        ):
            answer = fork.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
            assert_problem(answer, 403, "token fork did not upload this run", "needs triage", "Nothing was saved")
        for what in ANSWERS:
            answer = fork.get(f"/api/v1/runs/{run}/{what}")
            assert_problem(answer, 403, "token fork did not upload this run", "needs read")
    assert [reader.get(f"/api/v1/runs/{run}").json() for run in others] == before


def test_a_job_hears_what_came_of_its_own_run_and_nothing_else(teams: Teams, fork: TestClient) -> None:
    job = teams.client("token:upload")
    run = upload(job, LOG).json()["id"]
    process_run(run)
    assert job.get(f"/api/v1/runs/{run}/report").json()["run"]["id"] == str(run)
    assert {what: job.get(f"/api/v1/runs/{run}/{what}").status_code for what in ANSWERS} == dict.fromkeys(ANSWERS, 200)
    for what in ("", "/log", "/series", "/files/0", "/suggestions"):
        assert_problem(job.get(f"/api/v1/runs/{run}{what}"), 403, "needs read")
    assert job.get("/api/v1/runs").json()["items"] == []  # of public projects


def test_who_contributes_adds_to_finished_runs(teams: Teams) -> None:
    run = upload(teams.client("token:upload"), LOG).json()["id"]
    for number, who in enumerate(("contributor", "token:all")):
        assert append(teams.client(who), run, MORE, name=f"late-{number}.log")[0] == 200

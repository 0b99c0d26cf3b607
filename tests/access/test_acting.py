"""In whose name things are done, and into which project a job brings its runs."""

import json

import pytest
from starlette.testclient import TestClient

from app.pipeline.process import summarise_run
from app.settings import Settings
from app.storage.database import transaction
from app.storage.log_files import LogFiles
from tests.access.people import THEIRS, Teams
from tests.builders import make_run
from tests.training_logs import training_log


def upload(client: TestClient, **meta: str) -> tuple[int, str]:
    """The status, and the project or what was wrong."""
    answer = client.post("/api/v1/runs", files={"log": training_log()}, data={"meta": json.dumps(meta)})
    told = answer.json()
    return answer.status_code, told.get("detail", "")


def project_of(teams: Teams) -> str:
    runs = teams.client("administrator").get("/api/v1/runs").json()["items"]
    return str(runs[0]["project"])


def test_a_token_brings_runs_into_its_own_project_and_need_not_name_it(teams: Teams) -> None:
    client = teams.client("token:upload")
    assert upload(client)[0] == 202
    assert project_of(teams) == "alpha"
    assert upload(client, project="alpha", name="again")[0] == 202
    status, told = upload(client, project=THEIRS)
    assert (status, "alpha" in told) == (403, True)


def test_a_run_is_of_the_same_stack_whether_its_upload_names_the_project(
    teams: Teams, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = teams.client("token:all")
    answers = [
        client.post("/api/v1/runs", files={"log": training_log()}, data={"meta": json.dumps(meta)}).json()
        for meta in ({"name": "a"}, {"name": "b", "project": "alpha"})
    ]
    engine, files = teams.engine, LogFiles.from_settings(settings)
    for answer in answers:
        summarise_run(engine, files, settings, int(answer["id"]))
    keys = {client.get(f"/api/v1/runs/{answer['id']}").json()["stack_key"] for answer in answers}
    assert len(keys) == 1


def test_a_person_brings_runs_where_that_one_contributes(teams: Teams) -> None:
    client = teams.client("contributor")
    assert upload(client)[0] == 202
    assert project_of(teams) == "alpha"
    assert upload(client, project=THEIRS)[0] == upload(client, project="of-mine")[0] == 403


def test_an_administrator_begins_a_project_with_its_first_run(teams: Teams) -> None:
    assert upload(teams.client("administrator"), project="begun")[0] == 202
    assert project_of(teams) == "begun"


def test_who_may_not_upload_is_told_before_the_log_is_read(teams: Teams) -> None:
    assert teams.client("anonymous").post("/api/v1/runs", content=b"whatever").status_code == 401
    assert teams.client("viewer").post("/api/v1/runs", content=b"whatever").status_code == 403


@pytest.mark.parametrize(("who", "name"), [("contributor", "contributor"), ("token:all", "token token:all")])
def test_a_change_is_made_in_the_own_name_whatever_is_stated(teams: Teams, who: str, name: str) -> None:
    with transaction(teams.engine) as session:
        run = make_run(session, project="alpha")
    client, reader = teams.client(who), teams.client("viewer")
    for said in ({}, {"author": "the boss"}):
        assert client.post(f"/api/v1/runs/{run}/quarantine", json={"note": "bad node", **said}).status_code == 200
        assert reader.get(f"/api/v1/runs/{run}").json()["quarantine"]["by"] == name
        assert client.post(f"/api/v1/runs/{run}/release", json=said).status_code == 200


def test_a_form_asks_nobody_who_is_logged_in_for_a_name(teams: Teams) -> None:
    client = teams.client("maintainer")
    page = client.get("/settings/projects/alpha").text
    assert "Your name" not in page
    form = {"baseline_branch": "trunk", "commit_url": "", "compare_url": "", "author": "the boss"}
    assert client.post("/settings/projects/alpha/rules", data=form).status_code == 303
    assert client.get("/api/v1/projects/alpha/rules").json()["changes"][0]["who"] == "maintainer"


def test_what_is_for_all_projects_is_an_administrators(teams: Teams) -> None:
    body = {"contract": {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "precision": "bf16"}, "step_time_ms": 1.0}
    body |= {"measured_by": "a lab", "source": "a paper", "date": "2026-08"}
    assert teams.client("contributor").post("/api/v1/references", json=body).status_code == 403
    assert teams.client("contributor").post("/api/v1/references", json=body | {"project": THEIRS}).status_code == 422
    assert teams.client("contributor").post("/api/v1/references", json=body | {"project": "alpha"}).status_code == 201
    made = teams.client("administrator").post("/api/v1/references", json=body | {"note": "for all"})
    assert made.status_code == 201
    number = made.json()["id"]
    assert teams.client("outsider").get(f"/api/v1/references/{number}").status_code == 200
    assert teams.client("outsider").delete(f"/api/v1/references/{number}").status_code == 403

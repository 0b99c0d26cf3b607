"""The same upload is the same run, however often and however simultaneously it comes."""

import gzip
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.access.people import OURS, Teams
from tests.conftest import OPEN_TO
from tests.runs.uploading import LOG, assert_problem, traces, upload
from tests.training_logs import training_log
from workers.tasks import process_run

OTHER = training_log(step_time_ms=500.0)
META = {"project": OURS}


def test_the_same_key_again_is_the_same_run(client: TestClient) -> None:
    first = upload(client, LOG, key="job-17")
    again = upload(client, LOG, key="job-17")
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json() | {"created": False}
    assert again.headers["location"] == first.headers["location"]


def test_the_same_content_without_a_key_is_the_same_run(client: TestClient) -> None:
    first = upload(client, LOG, meta={"name": "a", "gpus": 8})
    again = upload(client, gzip.compress(LOG), name="other.gz", meta={"gpus": 8, "name": "a"}, key="new")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


def test_a_key_of_another_content_is_a_conflict(client: TestClient, engine: Engine, settings: Settings) -> None:
    first = upload(client, LOG, key="job-17")
    before = traces(engine, settings)
    assert_problem(upload(client, OTHER, key="job-17"), 409, "'job-17'", f"run {first.json()['id']}")
    assert traces(engine, settings) == before


@pytest.mark.parametrize(
    "change",
    [
        {"meta": {"name": "b"}},
        {"meta": {"name": "a", "project": "elsewhere"}},
        {"meta": {"name": "a"}, "config": b"tp: 8\n"},
    ],
)
def test_other_metadata_projects_or_files_are_another_run(client: TestClient, change: dict[str, bytes]) -> None:
    first = upload(client, LOG, meta={"name": "a"})
    other = upload(client, LOG, **change)  # type: ignore[arg-type]
    assert other.status_code == 202
    assert other.json()["id"] != first.json()["id"]


def test_a_key_is_the_project_s_own(client: TestClient) -> None:
    first = upload(client, LOG, meta={"project": "a"}, key="job-17")
    second = upload(client, OTHER, meta={"project": "b"}, key="job-17")
    assert (first.status_code, second.status_code) == (202, 202)


def test_a_key_is_its_sender_s_own(teams: Teams) -> None:
    senders = [teams.client(who) for who in ("token:upload", "token:all", "contributor", "maintainer")]
    logs = [training_log(step_time_ms=300.0 + number) for number in range(len(senders))]
    first = [upload(sender, log, meta=META, key="job-17").json() for sender, log in zip(senders, logs, strict=True)]
    again = [upload(sender, log, meta=META, key="job-17").json() for sender, log in zip(senders, logs, strict=True)]
    assert len({one["id"] for one in first}) == len(senders)
    assert [one["id"] for one in again] == [one["id"] for one in first]
    assert_problem(upload(senders[0], OTHER, meta=META, key="job-17"), 409, f"run {first[0]['id']}")


def test_an_answer_about_another_s_run_carries_no_verdict(teams: Teams) -> None:
    own = upload(teams.client("token:upload"), LOG, meta=META).json()
    process_run(own["id"])

    def told(who: str) -> set[str]:
        answer = upload(teams.client(who), LOG, meta=META, wait=0.1).json()
        assert answer["id"] == own["id"]
        return set(answer)

    assert told("token:upload") > told("token:all") == {"id", "url", "created", "status", "warnings"}
    assert "verdict" in told("token:upload")
    assert told("contributor") == told("token:all")


def test_slugs_that_differ_by_case_are_one_project(client: TestClient) -> None:
    for slug in ("MoE", "moe", "mOE"):
        assert upload(client, LOG, meta={"project": slug}).status_code == 202
    assert [one["project"] for one in client.get("/api/v1/projects").json()["items"]] == ["MoE"]
    made = client.post("/api/v1/projects", json={"project": "MOE", "author": "Ada"})
    assert_problem(made, 409, "MOE")


def send_together(app: FastAPI, times: int) -> list[int]:
    client = TestClient(app)
    with ThreadPoolExecutor(times) as pool:
        answers = list(pool.map(lambda _: upload(client, LOG, meta={"project": "new"}, key="k"), range(times)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    return sorted(answer.status_code for answer in answers)


def test_simultaneous_duplicates_are_one_run(app: FastAPI) -> None:
    assert send_together(app, 8) == [200] * 7 + [202]


def test_simultaneous_duplicates_are_one_run_on_postgresql(settings: Settings, postgres_url: str) -> None:
    app = create_app(settings.model_copy(update={"database_url": postgres_url}), open_to=OPEN_TO)
    assert send_together(app, 8) == [200] * 7 + [202]
    app.state.engine.dispose()

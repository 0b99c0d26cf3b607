"""What the API gives back: runs, series, lines, files; and every error as a problem document."""

import numpy as np
import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage import readings
from app.storage.database import transaction
from app.storage.tables import ProjectRow, RunRow, SeriesRow
from tests.runs.uploading import LOG, assert_problem, upload


@pytest.fixture
def run_id(engine: Engine) -> int:
    """A run with two iterations, the second without a loss."""
    with transaction(engine) as session:
        project = ProjectRow(slug="p")
        session.add(project)
        session.flush()
        assert project.id is not None
        run = RunRow(project_id=project.id, name="r", purpose="ci", content_key="k", status="ready")
        session.add(run)
        session.flush()
        assert run.id is not None
        columns = {"iteration": [1, 2], "step_time_ms": [412.5, 400], "lm_loss": [10.5, np.nan]}
        for metric, values in columns.items():
            blob = readings.pack_series(np.asarray(values, dtype=np.float64))
            session.add(SeriesRow(run_id=run.id, metric=metric, unit="ms" * ("ms" in metric), n=2, blob=blob))
        return run.id


def test_series_have_null_where_nothing_was_printed(client: TestClient, run_id: int) -> None:
    assert client.get(f"/api/v1/runs/{run_id}/series").json() == {
        "columns": {"iteration": [1, 2], "step_time_ms": [412.5, 400.0], "lm_loss": [10.5, None]},
        "units": {"iteration": "", "step_time_ms": "ms", "lm_loss": ""},
    }


def test_series_come_as_csv_when_asked_for(client: TestClient, run_id: int) -> None:
    answer = client.get(f"/api/v1/runs/{run_id}/series", headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text == "iteration,step_time_ms,lm_loss\n1,412.5,10.5\n2,400.0,\n"


def test_parquet_is_said_to_be_missing(client: TestClient, run_id: int) -> None:
    answer = client.get(f"/api/v1/runs/{run_id}/series", headers={"Accept": "application/vnd.apache.parquet"})
    assert_problem(answer, 406, "Parquet is not offered")


def test_a_run_that_waits_has_empty_series_and_null_metrics(client: TestClient) -> None:
    location = upload(client, LOG).headers["location"]
    assert client.get(f"{location}/series").json() == {"columns": {}, "units": {}}
    run = client.get(location).json()
    assert run["steady_state"] is None
    assert set(run["metrics"].values()) == {None}


def test_lines_are_numbered_from_one(client: TestClient) -> None:
    location = upload(client, b"first\nsecond <b>\nthird\n" + LOG).headers["location"]
    log = client.get(f"{location}/log?from=2&to=3").json()
    assert log == {
        "line_count": 53,
        "lines": [{"line": 2, "text": "second <b>"}, {"line": 3, "text": "third"}],
    }
    text = client.get(f"{location}/log?from=2&to=3", headers={"Accept": "text/plain"})
    assert text.text == "second <b>\nthird\n"


@pytest.mark.parametrize("asked", ["from=0", "from=5&to=4", "from=1&to=5001", "from=x"])
def test_lines_that_mean_nothing_are_refused(client: TestClient, asked: str) -> None:
    assert_problem(client.get(f"{upload(client, LOG).headers['location']}/log?{asked}"), 422)


def test_a_download_is_an_attachment_that_nobody_sniffs(client: TestClient) -> None:
    location = upload(client, LOG, name="über die;log.txt.gz").headers["location"]
    answer = client.get(f"{location}/files/0")
    assert answer.content == LOG
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BCber%20die%3Blog.txt"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-length"] == str(len(LOG))


def test_the_list_filters_sorts_and_pages(client: TestClient) -> None:
    for name in ("b", "a", "c"):
        upload(client, LOG, meta={"name": name, "branch": "main" if name < "c" else "other"})
    page = client.get("/api/v1/runs?branch=main&sort=name&page_size=1&page=2").json()
    assert [item["name"] for item in page["items"]] == ["b"]
    assert (page["total"], page["page"], page["pages"]) == (2, 2, 2)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/runs/999", 404),
        ("GET", "/api/v1/runs/999/series", 404),
        ("GET", "/api/v1/runs/999/log", 404),
        ("GET", "/api/v1/runs/999/files/0", 404),
        ("GET", "/api/v1/runs/0", 422),
        ("GET", "/api/v1/runs/99999999999999999999", 422),
        ("GET", "/api/v1/runs/%3Cscript%3E", 422),
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("DELETE", "/api/v1/runs", 405),
        ("GET", "/api/v1/runs?page=0", 422),
        ("GET", "/api/v1/runs?sort=password", 422),
        ("GET", "/api/v1/runs?status=%00", 422),
    ],
)
def test_every_error_is_a_problem_document(client: TestClient, method: str, path: str, status: int) -> None:
    assert_problem(client.request(method, path), status)


def test_a_file_that_a_run_does_not_have_is_not_found(client: TestClient) -> None:
    assert_problem(client.get(f"{upload(client, LOG).headers['location']}/files/7"), 404, "no file 7")


def test_a_refused_method_names_those_that_work(client: TestClient) -> None:
    assert "GET" in client.delete("/api/v1/runs/1").headers["allow"]


def test_openapi_describes_every_answer(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, calls in document["paths"].items():
        if path.startswith("/api/"):
            for call in calls.values():
                for status, answer in call["responses"].items():
                    if status == "204":
                        continue
                    assert answer["content"], (path, status)
                    problems = "application/problem+json" in answer["content"]
                    assert problems == (int(status) >= 400), (path, status)

"""What the service says of itself: alive, ready, its numbers, its reference; the frame of every answer; HEAD."""

import json
import re
import shutil
from datetime import datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from fastapi import FastAPI
from sqlalchemy import Engine, update
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from app import queue
from app.main import create_app
from app.settings import Settings, get_settings
from app.storage.database import transaction
from app.storage.tables import HeartbeatRow, utc_now
from app.web.request import CONTENT_SECURITY_POLICY
from tests.access.conftest import teams
from tests.access.people import Teams
from tests.builders import make_run
from tests.conftest import OPEN_TO
from tests.embedded.processes import Running
from tests.runs.uploading import LOG, assert_problem, upload

ROOT = Path(__file__).resolve().parents[2]
PEOPLE = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def broken(app: FastAPI) -> TestClient:
    """An application with a route that has a defect."""

    def fail() -> None:
        raise ZeroDivisionError("secret internals")

    app.add_api_route("/broken", fail)
    return TestClient(app, raise_server_exceptions=False)


def worker_was_seen(engine: Engine, ago: timedelta) -> datetime:
    seen_at = utc_now() - ago
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).values(seen_at=seen_at))
    return seen_at


def test_all_is_well(client: TestClient, engine: Engine) -> None:
    worker_was_seen(engine, timedelta(0))
    assert client.get("/healthz").json() == {"status": "ok"}
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert {part["status"] for part in answer.json().values() if isinstance(part, dict)} == {"ok"}


def test_without_a_worker_readiness_overview_and_uploads_that_wait_say_since_when(
    client: TestClient, engine: Engine
) -> None:
    since = worker_was_seen(engine, timedelta(minutes=17))
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["status"], ready.json()["worker"]["status"]) == (200, "degraded", "down")
    assert f"{since:%H:%M:%S}" in ready.json()["worker"]["detail"]
    assert f'data-silent-since="{since.isoformat()}"' in client.get("/", headers=PEOPLE).text
    answer = upload(client, LOG, wait=0.1).json()
    assert datetime.fromisoformat(answer["nothing_processed_since"]) == since
    assert f"{since:%H:%M:%S}" in answer["warnings"][-1]
    worker_was_seen(engine, timedelta(seconds=5))
    assert client.get("/readyz").json()["worker"]["status"] == "ok"
    assert "data-silent-since" not in client.get("/", headers=PEOPLE).text
    assert "nothing_processed_since" not in upload(client, LOG, wait=0.1).json()


def test_without_a_queue_it_is_degraded_and_still_ready(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEWALLS_BROKER_URL", "redis://127.0.0.1:9/0")
    get_settings.cache_clear()
    queue.get_celery.cache_clear()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["queue"]["status"] == "down"
    assert "Uploads are stored" in answer.json()["queue"]["detail"]


def test_without_a_database_it_is_not_ready(settings: Settings) -> None:
    away = settings.model_copy(update={"database_url": "postgresql+psycopg://nobody@127.0.0.1:9/none"})
    answer = TestClient(create_app(away, open_to=OPEN_TO)).get("/readyz")
    assert (answer.status_code, answer.json()["database"]["status"]) == (503, "down")
    assert answer.json()["database"]["detail"].startswith("The database did not answer")
    assert "Uploads are stored" not in answer.json()["worker"]["detail"]


def test_with_a_database_that_was_never_migrated_it_is_not_ready(settings: Settings, tmp_path: Path) -> None:
    empty = settings.model_copy(update={"database_url": f"sqlite:///{tmp_path / 'empty.db'}"})
    assert TestClient(create_app(empty, open_to=OPEN_TO)).get("/readyz").json()["database"]["status"] == "down"


def test_without_a_store_it_is_not_ready_and_uploads_say_so(settings: Settings) -> None:
    away = settings.model_copy(update={"artifact_url": "s3://bucket", "s3_endpoint": "http://127.0.0.1:9"})
    client = TestClient(create_app(away, open_to=OPEN_TO))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["artifact_store"]["status"]) == (503, "down")
    refused = upload(client, LOG)
    assert_problem(refused, 503, "artifact store did not answer")
    assert refused.headers["retry-after"]
    assert client.get("/api/v1/runs").json()["total"] == 0


def test_a_store_that_cannot_be_written_is_not_ready(client: TestClient, settings: Settings) -> None:
    probe = settings.data_dir / "artifacts" / "readiness"
    probe.write_text("in the way")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["artifact_store"]["status"]) == (503, "down")
    probe.unlink()
    assert client.get("/readyz").status_code == 200
    assert not list(probe.glob("*"))


def test_before_the_disk_is_full_uploads_are_refused_and_readiness_says_so(settings: Settings) -> None:
    free = shutil.disk_usage(settings.data_dir).free
    full = TestClient(create_app(settings.model_copy(update={"min_free_bytes": 4 * free}), open_to=OPEN_TO))
    ready = full.get("/readyz")
    assert (ready.status_code, ready.json()["disk"]["status"]) == (503, "down")
    assert ready.json()["disk"]["free_bytes"] > 0
    for path in ("/api/v1/runs", "/upload", "/api/v1/runs/1/logs"):
        refused = full.post(path, files={"log": ("train.log", LOG)})
        assert_problem(refused, 507, "THREEWALLS_MIN_FREE_BYTES")
        assert refused.headers["retry-after"]
    assert full.get("/api/v1/runs").json()["total"] == 0
    room = TestClient(create_app(settings.model_copy(update={"min_free_bytes": 0}), open_to=OPEN_TO))
    assert upload(room, LOG).status_code == 202


def test_metrics_count_requests_by_route_and_runs_by_status(client: TestClient) -> None:
    upload(client, LOG)
    client.get("/api/v1/runs/1")
    client.get("/wp-admin.php")
    text = client.get("/metrics").text
    assert 'threewalls_runs{status="received"} 1.0' in text
    assert 'threewalls_http_requests_total{method="GET",route="/api/v1/runs/{run_id}",status="200"} 1.0' in text
    assert 'route="unmatched",status="404"' in text
    assert "wp-admin" not in text
    waiting = next(line for line in text.splitlines() if line.startswith("threewalls_oldest_waiting_seconds "))
    assert float(waiting.split()[1]) > 0
    assert 'threewalls_queue_length{kind="run"} 1.0' in text
    assert 'threewalls_deliveries{state="given_up"} 0.0' in text
    assert 'threewalls_project_bytes{project="default"}' in text
    values = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
    assert values["threewalls_database_bytes"] > 100_000
    assert values["threewalls_disk_free_bytes"] > 0
    assert values["process_resident_memory_bytes"] > 0


def test_alert_rules_and_the_dashboard_name_metrics_that_exist(client: TestClient, settings: Settings) -> None:
    text = client.get("/metrics").text
    offered = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | set(re.findall(r"^(\w+)[{ ]", text, re.M))
    offered |= {"threewalls_http_request_seconds_bucket", "up"}
    rules = yaml.safe_load((ROOT / "docs/ops/alerts.yml").read_text())
    panels = json.loads((ROOT / "docs/ops/grafana.json").read_text())["panels"]
    queries = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    queries += [target["expr"] for panel in panels for target in panel["targets"]]
    named = {name for query in queries for name in re.findall(r"\b(?:threewalls|process)_\w+", query)}
    assert named <= offered
    assert len(queries) > 20


def test_counts_of_the_service_are_read_at_most_once_in_ten_seconds(client: TestClient) -> None:
    before = client.get("/metrics").text
    upload(client, LOG)
    assert 'threewalls_runs{status="received"} 0.0' in before
    assert 'threewalls_runs{status="received"} 0.0' in client.get("/metrics").text


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/v1/runs", "/nothing", "/docs", "/broken"])
@pytest.mark.parametrize("headers", [{}, PEOPLE], ids=["machines", "people"])
def test_every_answer_is_framed(broken: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = broken.get(path, headers={**headers, "X-Request-ID": "from-the-proxy.1"})
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-request-id"] == "from-the-proxy.1"


def test_a_request_id_that_is_none_is_replaced(client: TestClient) -> None:
    given = client.get("/healthz", headers={"X-Request-ID": "two words"}).headers["x-request-id"]
    assert given != "two words"
    assert given.isalnum()


def test_a_defect_says_how_to_find_it_and_nothing_of_itself(broken: TestClient) -> None:
    answer = broken.get("/broken", headers={"X-Request-ID": "abc-1"})
    assert_problem(answer, 500, "abc-1")
    assert "secret" not in answer.text
    page = broken.get("/broken", headers=PEOPLE)
    assert page.status_code == 500
    assert page.headers["content-type"].startswith("text/html")
    assert "secret" not in page.text


def test_people_get_a_page_for_what_is_not_there(client: TestClient) -> None:
    answer = client.get("/runs/999", headers=PEOPLE)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


def test_the_reference_shows_every_call_without_a_script_of_its_own(client: TestClient) -> None:
    page = client.get("/docs", headers=PEOPLE).text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page
    runs = client.get("/docs/runs", headers=PEOPLE).text
    anchors = set(re.findall(r'href="#(\w+)"', runs))
    assert len(anchors) > 10
    assert anchors <= set(re.findall(r'id="(\w+)"', runs))
    assert all(f'id="{call}"' in runs for call in re.findall(r'href="/docs/runs#(\w+)"', page))
    assert client.get("/docs/nothing", headers=PEOPLE).status_code == 404
    assert "//cdn" not in page
    assert "swagger" not in page


def test_logs_hold_no_body_and_no_secret(client: TestClient) -> None:
    with capture_logs() as lines:
        client.post("/api/v1/runs?wait=0&token=tw_secret", files=[("log", ("a", b"body-of-the-log\n"))])
    request = next(line for line in lines if line["event"] == "request")
    assert request["path"] == "/api/v1/runs"
    assert "tw_secret" not in str(lines)
    assert "body-of-the-log" not in str(lines)
    with capture_logs() as lines:
        assert {client.get(f"/{link}/the-secret").status_code for link in ("s", "invite")} == {200, 404}
    assert [line["path"] for line in lines if line["event"] == "request"][:2] == ["/s/...", "/invite/..."]
    assert "the-secret" not in str(lines)


__all__ = ["teams"]

OF_THIS_ANSWER = ("x-request-id", "date")


def test_a_real_server_answers_it_and_goes_on_with_the_connection(server: Running) -> None:
    connection = HTTPConnection(urlsplit(server.address).netloc, timeout=300)
    addresses = (
        "/",
        "/healthz",
        "/readyz",
        "/runs",
        "/static/app.css",
        "/api/v1/runs",
        "/settings/audit.csv",
        "/nowhere",
    )
    for path in addresses:
        answers = []
        for method in ("HEAD", "GET"):
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            assert bool(body) == (method == "GET"), path
            headers = {name.lower(): value for name, value in answer.getheaders()}
            answers.append((answer.status, {k: v for k, v in headers.items() if k not in OF_THIS_ANSWER}))
        assert answers[0] == answers[1], path
    connection.request("HEAD", "/api/v1/runs/1/quarantine")
    assert connection.getresponse().status == 405
    connection.close()


def test_it_opens_no_more_than_get(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        ours, theirs = make_run(session, project="alpha"), make_run(session, project="omega")

    def head_status(client: TestClient, run: int) -> int:
        return client.head(f"/api/v1/runs/{run}").status_code

    viewer = teams.client("viewer")
    assert (head_status(viewer, ours), head_status(viewer, theirs), head_status(teams.client("anonymous"), ours)) == (
        200,
        404,
        401,
    )
    scraped = teams.client("administrator").get("/metrics").text
    assert 'method="HEAD",route="/api/v1/runs/{run_id}",status="200"' in scraped

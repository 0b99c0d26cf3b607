"""The service's own state: health, readiness, metrics, API reference; the headers of every answer; HEAD."""

import asyncio
import html
import json
import re
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from anyio import CapacityLimiter
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from sqlalchemy import Engine, update
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from app import queue
from app.main import create_app
from app.settings import RESOURCES, Settings, get_settings
from app.storage.database import transaction
from app.storage.tables import HeartbeatRow, RunRow, utc_now
from app.storage.visible import seeing
from app.web.assets import asset_url
from app.web.docs_pages import stored_examples
from app.web.request import CONTENT_SECURITY_POLICY
from app.web.shared_answers import SharedAnswersMiddleware
from tests.access.people import Teams
from tests.builders import make_run, make_stack
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
    assert answer.json()["database"]["detail"].startswith("The database ")
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


def test_an_invalid_request_id_is_replaced(client: TestClient) -> None:
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


def test_a_page_that_could_not_be_read_offers_to_read_it_again(client: TestClient, app: FastAPI) -> None:
    def is_busy() -> None:
        raise PoolTimeout

    app.add_api_route("/busy", is_busy)
    page = TestClient(app, raise_server_exceptions=False).get("/busy?a=1&b=2", headers=PEOPLE)
    assert page.status_code == 503
    assert "in use. Try again in a moment." in page.text
    assert 'href="/busy?a=1&amp;b=2">Try again</a>' in page.text
    large = client.post("/regressions", data={"note": "x" * 3_000_000}, headers=PEOPLE)
    assert large.status_code == 413
    assert "larger than 2.1\u202fMB, the limit here. Nothing was saved. Send less at once." in large.text


def test_users_get_a_page_for_a_missing_object(client: TestClient) -> None:
    answer = client.get("/runs/999", headers=PEOPLE)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


def test_the_reference_shows_every_call_without_its_own_script(client: TestClient) -> None:
    page = client.get("/docs", headers=PEOPLE).text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page
    runs = client.get("/docs/runs", headers=PEOPLE).text
    anchors = set(re.findall(r'href="#(\w+)"', runs))
    assert len(anchors) > 10
    assert anchors <= set(re.findall(r'id="(\w+)"', runs))
    assert "&#34;name&#34;: &#34;NAME&#34;" in client.get("/docs/groups", headers=PEOPLE).text
    assert runs.count('class="response"') > 20
    groups = client.get("/docs/groups", headers=PEOPLE).text
    assert 'class="response"' not in groups, "only stored answers of the demo are shown, and it has no groups"
    assert all(f'id="{call}"' in runs for call in re.findall(r'href="/docs/runs#(\w+)"', page))
    assert client.get("/docs/nothing", headers=PEOPLE).status_code == 404
    assert "//cdn" not in page
    assert "swagger" not in page


def test_every_wait_has_the_limit_of_the_service(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"].values()
    calls = [call for path in paths for call in path.values()]
    waits = [field for call in calls for field in call.get("parameters", ()) if field["name"] == "wait"]
    assert len(waits) >= 5
    assert {json.dumps(field) for field in waits} == {json.dumps(waits[0])}
    assert "maximum" not in waits[0]["schema"], "a longer wait is cut, not refused"


def test_stored_answers_fit_the_schemas_of_the_reference(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    stored = stored_examples()["answers"]
    assert stored.keys() >= {"UploadAnswer", "RunOut", "RunListOut", "VerdictOut", "RegressionListOut", "CompareOut"}
    for name, answer in stored.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        Draft202012Validator(schema).validate(answer)
        fields = document["components"]["schemas"][name].get("properties", {})
        assert not answer.keys() - fields.keys(), name
    queries = stored_examples()["queries"]
    assert queries.keys() >= {"/api/v1/compare", "/api/v1/plan", "/api/v1/references/nearest"}
    assert queries.keys() <= document["paths"].keys()
    assert f"/api/v1/compare?{queries['/api/v1/compare']}" in html.unescape(client.get("/docs/compare").text)
    assert "BASE/runs/" in json.dumps(stored)
    assert "BASE/" not in client.get("/docs/runs", headers=PEOPLE).text


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


# --- Answers that several requests share.

Handler = Callable[[Scope], Awaitable[Response]]


class Service:
    """An application whose answers wait until `let_go`; they read `saved`."""

    def __init__(self, answer: Handler | None = None) -> None:
        self.handled: Counter[str] = Counter()
        self.saved = 0
        self.gate = asyncio.Event()
        self.answer = answer
        self.turns = CapacityLimiter(2)
        self.app = SharedAnswersMiddleware(self.handle, self.turns)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.handled[scope["path"]] += 1
        scope["route"] = "a route"
        read = self.saved
        await self.gate.wait()
        response = await self.answer(scope) if self.answer else PlainTextResponse(str(read))
        await response(scope, receive, send)

    async def get(self, path: str = "/", method: str = "GET", visible: int = 1, **headers: str) -> str:
        scope: Scope = {
            "type": "http", "method": method, "path": path, "query_string": b"", "scheme": "http",
            "client": ("127.0.0.1", 1), "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }  # fmt: skip
        messages: list[Message] = []

        async def receive() -> Message:
            return await asyncio.Event().wait() and {}  # the client stays

        async def send(message: Message) -> None:
            messages.append(message)

        with seeing(frozenset({visible})):
            await self.app(scope, receive, send)
        assert scope["route"] == "a route"
        messages[0]["headers"].append((b"x-request-id", b"1"))  # as the frame does: a shared list would grow
        assert sum(name == b"x-request-id" for name, _ in messages[0]["headers"]) == 1
        return b"".join(message["body"] for message in messages[1:]).decode()


async def together(service: Service, requests: list[Awaitable[str]]) -> list[str]:
    """Start the requests, let all arrive, then let the service answer."""
    tasks: list[asyncio.Future[str]] = [asyncio.ensure_future(request) for request in requests]
    await settled()
    service.gate.set()
    return await asyncio.gather(*tasks)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_crowd_is_answered_by_two_computations() -> None:
    async def crowd() -> None:
        service = Service()
        assert await together(service, [service.get() for _ in range(50)]) == ["0"] * 50
        assert service.handled["/"] == 2  # the first one, and one for all that arrived meanwhile

    asyncio.run(crowd())


def test_an_answer_has_what_was_saved_before_its_request() -> None:
    async def later() -> None:
        service = Service()
        early = asyncio.ensure_future(service.get())
        await settled()
        service.saved = 1
        assert await together(service, [service.get(), service.get()]) == ["1", "1"]
        assert await early == "0"

    asyncio.run(later())


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/other"},
        {"method": "POST"},
        {"visible": 2},
        {"cookie": "session=other"},
        {"authorization": "Bearer b"},
    ],
)
def test_different_requests_share_nothing(other: dict[str, Any]) -> None:
    async def two() -> None:
        service = Service()
        waiting = {"path": "/", "method": "GET", "visible": 1, "cookie": "session=mine"}
        requests = [service.get(**waiting), service.get(**waiting), service.get(**{**waiting, **other})]
        await together(service, requests)
        assert service.handled.total() == 3

    asyncio.run(two())


async def _stream(_: Scope) -> Response:
    async def parts() -> Any:
        yield b"1"
        yield b"2"

    return StreamingResponse(parts())


async def _error(_: Scope) -> Response:
    return PlainTextResponse("12", status_code=500)


async def _cookie(_: Scope) -> Response:
    return PlainTextResponse("12", headers={"Set-Cookie": "a=b"})


@pytest.mark.parametrize("answer", [_stream, _error, _cookie])
def test_streams_errors_and_cookies_are_not_shared(answer: Handler) -> None:
    async def crowd() -> None:
        service = Service(answer)
        assert await together(service, [service.get() for _ in range(5)]) == ["12"] * 5
        assert service.handled["/"] == 5

    asyncio.run(crowd())


def test_a_failed_or_cancelled_request_does_not_block_others() -> None:
    async def fail(_: Scope) -> Response:
        raise ValueError

    async def broken() -> None:
        service = Service(fail)
        tasks = [asyncio.ensure_future(service.get()) for _ in range(4)]
        await settled()
        tasks[1].cancel()  # it waits for its turn, and two wait for its answer
        await settled()
        service.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ValueError, asyncio.CancelledError, ValueError, ValueError]

    asyncio.run(broken())


def test_a_request_waits_for_an_identical_one_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.shared_answers.PATIENCE_SECONDS", 0.01)

    async def hanging() -> None:
        service = Service()
        tasks = [asyncio.ensure_future(service.get()) for _ in range(2)]
        while service.handled["/"] < 2:
            await asyncio.sleep(0.005)
        service.gate.set()
        assert await asyncio.gather(*tasks) == ["0", "0"]

    asyncio.run(hanging())


def test_requests_that_wait_for_their_turn_share_an_answer() -> None:
    async def busy() -> None:
        service = Service()
        others = [service.get(f"/{number}") for number in range(2)]
        assert await together(service, [*others, *(service.get() for _ in range(50))]) == ["0"] * (len(others) + 50)
        assert service.handled["/"] == 1
        assert service.turns.borrowed_tokens == 0

    asyncio.run(busy())


def test_a_busy_service_answers_static_files_and_checks_at_once() -> None:
    async def busy() -> None:
        service = Service()
        others = [service.get(f"/{number}") for number in range(4)]
        tasks = [asyncio.ensure_future(request) for request in [*others, service.get("/healthz")]]
        await settled()
        assert (service.handled["/healthz"], service.handled.total()) == (1, 3)
        service.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(busy())


# --- Compressed answers.

HTMX = {"HX-Request": "true"}


def test_pages_and_answers_of_the_api_are_compressed_for_clients_that_ask_for_it(
    client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        make_stack(session, [400.0 + number for number in range(40)])
    for path in ("/runs", "/api/v1/runs", "/openapi.json"):
        packed = client.get(path, headers={"Accept-Encoding": "gzip"})
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip", path
        assert "content-encoding" not in plain.headers
        assert int(packed.headers["content-length"]) < len(plain.content) / 3
        assert "Accept-Encoding" in packed.headers["vary"]
        assert packed.json() == plain.json() if "json" in path or "api" in path else packed.text[:500] in plain.text
    assert "content-encoding" not in client.get("/healthz", headers={"Accept-Encoding": "gzip"}).headers


def test_static_files_are_compressed_and_cached_for_a_year(client: TestClient) -> None:
    page = client.get("/").text
    for pattern in (r'"(/static/app\.css\?v=[^"]+)"', r'"(/assets/htmx\.js\?v=[^"]+)"'):
        match = re.search(pattern, page)
        assert match, pattern
        answer = client.get(match[1], headers={"Accept-Encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["etag"]


def test_the_script_of_the_charts_has_a_compressed_copy(client: TestClient) -> None:
    address = asset_url("vega/vega.js")
    for encoding in ("br", "gzip", "identity"):
        answer = client.get(address, headers={"Accept-Encoding": f"deflate, {encoding}"})
        assert answer.headers["content-type"].startswith("text/javascript")
        assert answer.headers.get("content-encoding", "identity") == encoding
        assert "immutable" in answer.headers["cache-control"]
        assert "Accept-Encoding" in answer.headers["vary"]
        conditional = {"Accept-Encoding": encoding, "If-None-Match": answer.headers["etag"]}
        assert client.get(address, headers=conditional).status_code == 304
    packed = client.get(address, headers={"Accept-Encoding": "br"})
    assert int(packed.headers["content-length"]) == (RESOURCES / "static/vega/vega.js.br").stat().st_size


def test_the_data_of_a_chart_travels_again_only_when_it_changed(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        runs = make_stack(session, [400.0 + number for number in range(20)])
        key = session.get_one(RunRow, runs[0]).stack_key
    path = f"/history/{key}/chart"
    first = client.get(path, headers=HTMX)
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
    conditional = HTMX | {"If-None-Match": first.headers["etag"]}
    again = client.get(path, headers=conditional)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    page = f"http://testserver/history/{key}"
    shown = client.get(path, headers=HTMX | {"HX-Current-URL": page, "If-None-Match": first.headers["etag"]})
    assert "HX-Push-Url" in first.headers
    assert "HX-Push-Url" not in shown.headers
    assert shown.status_code == 200, "a stored HX-Push-Url would change the address of a page that loads its chart"
    with transaction(engine) as session:
        session.get_one(RunRow, runs[7]).quarantine = "node 17 throttled"
    changed = client.get(path, headers=conditional)
    assert changed.status_code == 200
    assert "quarantined" in changed.text
    assert changed.headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "body: must be a JSON object"),
        (b'{"note', "body: is not JSON"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b'{"a":' * 5_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_rejected_with_what_to_send(
    client: TestClient, body: bytes, words: str
) -> None:
    answer = client.post("/api/v1/runs/1/quarantine", content=body, headers={"Content-Type": "application/json"})
    problem = answer.json()
    fields = " ".join(f"{field['field']}: {field['message']}" for field in problem["errors"])
    assert (answer.status_code in (400, 422), words in f"{problem['detail']} {fields}") == (True, True), problem
    assert "Nothing was saved" in problem["detail"]

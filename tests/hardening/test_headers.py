"""Headers of answers and requests: policies, hosts, proxies, and writes from other sites."""

import socket
from collections.abc import Mapping

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.embedded.service import _Server
from app.embedded.start_up import StartUp
from app.main import create_app
from app.settings import Settings
from app.storage import users
from app.storage.audit import events
from app.storage.database import make_engine, read_session, transaction
from tests.access.people import Teams
from tests.conftest import OPEN_TO
from tests.embedded.processes import Running
from tests.runs.uploading import LOG, assert_problem, traces, upload

PAGE = {"Accept": "text/html"}
HTTPS = "max-age=31536000"


def wrong_headers(headers: Mapping[str, str]) -> list[str]:
    """Return invalid parts of a header; for the policy, every source except our own."""
    policy = dict(part.strip().split(" ", 1) for part in headers.get("content-security-policy", "x y").split(";"))
    expected = {
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
    }
    wrong = [f"{name}: {headers.get(name)}" for name, value in expected.items() if headers.get(name) != value]
    for name in ("permissions-policy", "cross-origin-resource-policy", "x-request-id"):
        if not headers.get(name):
            wrong.append(f"no {name}")
    if policy.get("default-src") != "'none'" or policy.get("frame-ancestors") != "'none'":
        wrong.append("the policy begins with more than nothing")
    allowed = {"'none'", "'self'", "data:"}
    wrong += [f"{name} {given}" for name, given in policy.items() if set(given.split()) - allowed]
    if "data:" in policy.get("script-src", "") + policy.get("connect-src", ""):
        wrong.append("scripts from data:")
    return wrong


@pytest.mark.parametrize(
    ("method", "address"),
    [("GET", "/nowhere"), ("DELETE", "/runs"), ("GET", "/runs/x"), ("GET", "/runs/99999"), ("POST", "/login"),
     ("GET", "/static/none.css"), ("GET", "/api/v1/runs?page=x"), ("POST", "/api/v1/runs")],
)  # fmt: skip
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_every_error_has_security_headers(teams: Teams, method: str, address: str, accept: str) -> None:
    for who in ("anonymous", "administrator"):
        answer = teams.client(who).request(method, address, headers={"Accept": accept})
        assert not wrong_headers(answer.headers)


def test_so_does_a_defect(teams: Teams) -> None:
    @teams.app.get("/healthz/broken")
    def broken() -> None:
        raise RuntimeError("tells nobody")

    answer = teams.client("administrator").get("/healthz/broken")
    assert answer.status_code == 500
    assert not wrong_headers(answer.headers)
    assert "tells nobody" not in answer.text


@pytest.mark.parametrize(
    ("public_url", "base_url", "sent"),
    [
        ("", "http://testserver", None),
        ("", "https://testserver", HTTPS),
        ("https://t.example", "http://testserver", HTTPS),
    ],
)
def test_https_is_required_if_available(settings: Settings, public_url: str, base_url: str, sent: str | None) -> None:
    app = create_app(settings.model_copy(update={"public_url": public_url}))
    answer = TestClient(app, base_url=base_url).get("/login")
    assert answer.headers.get("strict-transport-security") == sent
    app.state.engine.dispose()


def test_a_log_out_leaves_no_cached_pages(teams: Teams) -> None:
    answer = teams.client("viewer").post("/logout")
    assert answer.headers["Clear-Site-Data"] == '"cache"'
    assert answer.headers["Cache-Control"] == "no-store"


ALLOWED = "threewalls.example, *.lab.example"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("threewalls.example", 200),
        ("THREEWALLS.example:8443", 200),
        ("a.b.lab.example", 200),
        ("localhost:8000", 200),
        ("[::1]:8000", 200),
        ("lab.example", 400),
        ("evil.example", 400),
        ("threewalls.example.evil.example", 400),
        ("threewalls.example@evil.example", 400),
        ('x"><script>alert(1)</script>', 400),
        ("", 400),
    ],
)
def test_it_answers_only_under_its_own_host_names(settings: Settings, host: str, status: int) -> None:
    app = create_app(settings.model_copy(update={"allowed_hosts": ALLOWED}))
    client = TestClient(app, headers={"Host": host})
    answer = client.get("/login")
    assert answer.status_code == status
    assert client.get("/healthz").status_code == 200
    if status == 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert not host or host not in answer.text
    app.state.engine.dispose()


@pytest.mark.parametrize("host", ['x"onload=x', "a b", "a/../b", "a,b", "a\\b", "[x]", "a:b:c"])
def test_an_invalid_name_is_rejected_without_a_list_too(settings: Settings, host: str) -> None:
    app = create_app(settings, open_to=OPEN_TO)
    assert TestClient(app, headers={"Host": host}).get("/").status_code == 400
    app.state.engine.dispose()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz/..%0d%0aX-Injected:1 HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /login?next=%0d%0aX-Injected:1 HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /runs?page=2%0d%0aX-Injected:1 HTTP/1.1\r\nHost: localhost\r\nHX-Request: true\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\x0bb\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n",
    ],
)
def test_line_breaks_and_other_names_cannot_add_headers(server: Running, head: bytes) -> None:
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    headers = answer.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert headers[0].startswith(b"http/1.1 ")
    assert not [line for line in headers if line.startswith(b"x-injected")]
    assert b"evil.example" not in b"\r\n".join(headers)


FORWARDED = {"X-Forwarded-For": "203.0.113.66, 198.51.100.7"}


@pytest.mark.parametrize(
    ("trusted", "connects", "comes_from"),
    [
        ("", "127.0.0.1", "127.0.0.1"),
        ("10.0.0.0/8", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "198.51.100.7"),  # any client can write the part before it
        ("10.0.0.0/8, ::1", "10.1.2.3", "198.51.100.7"),
    ],
)
def test_only_trusted_proxies_state_the_address_of_a_client(
    settings: Settings, trusted: str, connects: str, comes_from: str
) -> None:
    engine = make_engine(settings)
    with transaction(engine) as session:
        user = users.create_user(session, "ada", by="test", password="a password of hers")
    start = StartUp()
    start.done()
    server = _Server(settings.model_copy(update={"trusted_proxies": trusted}), None, "", lambda: None, start)
    server.config.load()
    client = TestClient(server.config.loaded_app, client=(connects, 1), headers=FORWARDED)
    assert client.post("/login", data={"name": "ada", "password": "wrong"}).status_code == 422
    with read_session(engine) as session:
        assert events(session, "account", user.id)[0].after["address"] == comes_from
    engine.dispose()


def test_an_invalid_network_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEWALLS_TRUSTED_PROXIES", "10.0.0.0/8, everybody")
    with pytest.raises(ValueError, match="everybody"):
        Settings()


PEOPLE = {"Accept": "text/html"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "http://testserver.elsewhere.example"},
        {"Origin": "http://testserver:9000", "Sec-Fetch-Site": "same-site"},
        {"Origin": "https://testserver"},
        {"Origin": "https://testserver:80"},
        {"Origin": "http://testserver:443"},
        {"Origin": "null"},
        {"Origin": "http://[broken"},
    ],
)
def test_another_website_cannot_write(
    client: TestClient, engine: Engine, settings: Settings, headers: dict[str, str]
) -> None:
    before = traces(engine, settings)
    for method, address in (("POST", "/api/v1/runs"), ("PATCH", "/api/v1/runs/1/contract"), ("PUT", "/api/v1/x")):
        refused = client.request(method, address, files={"log": ("a.log", LOG)}, headers=headers)
        assert_problem(refused, 403, "Nothing was saved", "command-line client")
        assert refused.json()["errors"][0]["field"] in headers
    page = client.post("/upload", files={"log": ("a.log", LOG)}, headers=headers | PEOPLE)
    assert page.status_code == 403
    assert 'class="error-page"' in page.text
    assert page.headers["X-Request-ID"]
    assert traces(engine, settings) == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://testserver"},
        {"Origin": "http://testserver"},
        {"Origin": "http://TestServer:80"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://in-front-of-the-proxy.example"},
    ],
)
def test_its_own_pages_and_command_line_clients_write(client: TestClient, headers: dict[str, str]) -> None:
    client.headers.update(headers)
    assert upload(client, LOG).status_code == 202


def test_the_public_address_is_its_own(settings: Settings) -> None:
    named = settings.model_copy(update={"public_url": "https://threewalls.example/"})
    client = TestClient(create_app(named, open_to=OPEN_TO))
    for origin, status in (("https://threewalls.example:443", 202), ("http://threewalls.example", 403)):
        client.headers["Origin"] = origin
        assert upload(client, LOG).status_code == status, origin


def test_reading_is_open_to_links_from_everywhere(client: TestClient) -> None:
    answer = client.get("/runs", headers={"Sec-Fetch-Site": "cross-site", "Origin": "https://elsewhere.example"})
    assert answer.status_code == 200

"""Who may write: pages of this service and command-line clients; no page of another address."""

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.conftest import OPEN_TO
from tests.runs.uploading import LOG, assert_problem, traces, upload

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

"""Headers that keep a browser in its bounds: on every route, and on every kind of error."""

import re
from collections.abc import Mapping

import pytest
from starlette.testclient import TestClient

from app.access.routes import route_table
from app.main import create_app
from app.settings import Settings
from app.storage.database import transaction
from tests.access.belongings import make_belongings
from tests.access.people import OURS, Teams

PAGE = {"Accept": "text/html"}
HTTPS = "max-age=31536000"


def wrong_headers(headers: Mapping[str, str]) -> list[str]:
    """What a header says that it should not; of the policy, every source but our own."""
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


KEPT = ("GET /healthz", "GET /readyz", "GET /assets/htmx.js", "GET /assets/{name}")
"""What is the same for everybody."""


def is_kept_to_oneself(address: str, cache_control: str) -> bool:
    if address.startswith(("/api/", "/settings/", "/account/")):
        return cache_control == "no-store"
    return cache_control.startswith(("private", "no-store"))


def test_every_route_keeps_the_browser_in_its_bounds(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        params = make_belongings(session, OURS).params() | {"name": "vega.js", "position": "0"}
    clients = {"anonymous": teams.client("anonymous"), "maintainer": teams.client("maintainer")}
    found: list[str] = []
    for route in route_table(teams.app).routes:
        if route.method in ("MOUNT", "HEAD") or route.key == "POST /logout":
            continue
        params_of_route = {name: params.get(name, "1") for name in re.findall(r"{(\w+)", route.path)}
        address = re.sub(r":\w+}", "}", route.path).format(**params_of_route)
        for who, client in clients.items():
            answer = client.request(route.method, address, headers=PAGE)
            found += [f"{who} {route.key}: {wrong}" for wrong in wrong_headers(answer.headers)]
            cache = answer.headers.get("cache-control", "")
            if not address.startswith(("/static", "/assets")) and "public" in cache:
                found.append(f"{who} {route.key}: {cache}")
            if who == "maintainer" and route.key not in KEPT and not is_kept_to_oneself(address, cache):
                found.append(f"{who} {route.key}: {cache}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("method", "address"),
    [("GET", "/nowhere"), ("DELETE", "/runs"), ("GET", "/runs/x"), ("GET", "/runs/99999"), ("POST", "/login"),
     ("GET", "/static/none.css"), ("GET", "/api/v1/runs?page=x"), ("POST", "/api/v1/runs")],
)  # fmt: skip
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_so_does_every_error(teams: Teams, method: str, address: str, accept: str) -> None:
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
def test_https_is_asked_for_where_there_is_some(
    settings: Settings, public_url: str, base_url: str, sent: str | None
) -> None:
    app = create_app(settings.model_copy(update={"public_url": public_url}))
    answer = TestClient(app, base_url=base_url).get("/login")
    assert answer.headers.get("strict-transport-security") == sent
    app.state.engine.dispose()


def test_whoever_logs_out_leaves_no_pages_behind(teams: Teams) -> None:
    answer = teams.client("viewer").post("/logout")
    assert answer.headers["Clear-Site-Data"] == '"cache"'
    assert answer.headers["Cache-Control"] == "no-store"

"""Rules for every route: security headers, one database connection, in a thread."""

import asyncio
from collections.abc import Iterator

import pytest
from httpx2 import Response
from sqlalchemy import event
from starlette.testclient import TestClient

from app.access.routes import RuledRoute, route_table
from app.main import create_app
from app.settings import Settings
from app.storage.database import transaction
from tests.access.belongings import make_belongings
from tests.access.people import OURS, Teams, make_teams
from tests.builders import make_run
from tests.hardening.test_headers import wrong_headers

PAGE = {"Accept": "text/html"}
FORM = {"author": "ana", "name": "x", "note": "seen", "state": "open", "decision": "accept", "regression": "1"}

FOR_EVERYBODY = (
    "GET /healthz",
    "GET /readyz",
    "GET /favicon.ico",
    "GET /assets/htmx.js",
    "GET /client/threewalls.pyz",
    "GET /client/threewalls.pyz.sha256",
)
"""What is the same for everybody."""


def is_kept_to_oneself(address: str, cache_control: str) -> bool:
    if address.startswith(("/api/", "/settings/", "/account/")):
        return cache_control == "no-store"
    return cache_control.startswith(("private", "no-store"))


@pytest.fixture
def world(settings: Settings) -> Iterator[tuple[Teams, dict[str, str]]]:
    """A service with objects of every kind, and a value for each URL parameter."""
    teams = make_teams(create_app(settings))
    with transaction(teams.engine) as session:
        belongings = make_belongings(session, OURS)
        run_id = make_run(session, project=OURS, name="read")
    yield teams, belongings.params() | {"run_id": str(run_id)}
    teams.engine.dispose()


class Connections:
    """Counts connections of the service's pool in use; `faults` lists forbidden uses."""

    def __init__(self, teams: Teams) -> None:
        self.request, self.faults = "", set[str]()
        self._in_use = 0
        event.listen(teams.engine, "checkout", self._out)
        event.listen(teams.engine, "checkin", self._back)

    def _out(self, *_: object) -> None:
        self._in_use += 1
        if self._in_use > 1:
            self.faults.add(f"{self.request} holds {self._in_use} connections")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.faults.add(f"{self.request} asks the database in the event loop")

    def _back(self, *_: object) -> None:
        self._in_use -= 1


def header_faults(route: RuledRoute, address: str, who: str, answer: Response) -> set[str]:
    """Return what is wrong with the headers of an answer."""
    if route.method in ("MOUNT", "HEAD") or route.key == "POST /logout":
        return set()
    wrong, cache = wrong_headers(answer.headers), answer.headers.get("cache-control", "")
    is_public = "public" in cache and not address.startswith(("/static", "/assets"))
    is_private = who == "anonymous" or route.key in FOR_EVERYBODY or is_kept_to_oneself(address, cache)
    if is_public or not is_private:
        wrong.append(f"cache-control: {cache}")
    return {f"{route.key}, {who}: {fault}" for fault in wrong}


def ask(client: TestClient, route: RuledRoute, address: str) -> Response:
    if route.method == "GET":
        return client.get(address, headers=PAGE if route.is_page else {})
    if route.is_page:
        client.request(route.method, address, data=FORM, headers=PAGE)
        return client.request(route.method, address, data={}, headers=PAGE)
    if route.path.endswith(("/runs", "/logs")):
        return client.post(address, files={"log": ("a.log", b"iteration 1\n")})
    return client.request(route.method, address, json={"author": "ana"})


def test_every_route_has_security_headers_and_reads_by_one_connection_in_a_thread(
    world: tuple[Teams, dict[str, str]],
) -> None:
    teams, params = world
    connections, wrong, statuses = Connections(teams), set[str](), set[int]()
    anonymous, token, person = (teams.client(who) for who in ("anonymous", "token:all", "administrator"))
    routes = sorted(route_table(teams.app).routes, key=lambda route: route.method in ("DELETE", "POST"))
    for route in routes:
        address = route.path.format(**params)
        connections.request = ""
        if route.method != "GET":
            person = teams.client("administrator")  # another log-in: some requests end theirs
        connections.request = route.key
        for who, client in {"administrator": person, "token": token}.items():
            if who == "administrator" or not route.is_page:
                answer = ask(client, route, address)
                statuses.add(answer.status_code)
                wrong |= header_faults(route, address, who, answer)
        refused = anonymous.request(route.method, address, headers=PAGE)
        wrong |= header_faults(route, address, "anonymous", refused)
    connections.request = "an address that is none"
    person.get("/nothing", headers=PAGE)
    assert statuses >= {200, 202, 303, 404, 422}
    assert connections.faults | wrong == set()

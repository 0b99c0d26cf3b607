"""A request holds one connection to the database at a time, in a thread: else many at once lock the service."""

import asyncio
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from sqlalchemy import event, text
from starlette.testclient import TestClient

from app.access.routes import route_table
from app.main import create_app
from app.settings import Settings
from app.storage.database import transaction
from tests.access.belongings import make_belongings
from tests.access.people import OURS, Teams, make_teams
from tests.builders import make_run

PAGE = {"Accept": "text/html"}
FORM = {"author": "ana", "name": "x", "note": "seen", "state": "open", "decision": "accept", "regression": "1"}


@pytest.fixture
def world(settings: Settings) -> Iterator[tuple[Teams, dict[str, str]]]:
    """A service with things of every kind, and what stands for each parameter of an address."""
    teams = make_teams(create_app(settings))
    with transaction(teams.engine) as session:
        made = make_belongings(session, OURS)
        run_id = make_run(session, project=OURS, name="read")
    yield teams, made.params() | {"run_id": str(run_id), "name": "vega.js"}
    teams.engine.dispose()


class Connections:
    """Connections of the service's pool that are in use; `faults` says what no request may do with them."""

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


def test_every_route_reads_by_one_connection_and_in_a_thread(world: tuple[Teams, dict[str, str]]) -> None:
    teams, params = world
    connections = Connections(teams)
    token, answered = teams.client("token:all"), set[int]()
    routes = sorted(route_table(teams.app).routes, key=lambda route: route.method in ("DELETE", "POST"))
    for route in routes:
        path = route.path.format(**params)
        connections.request, person = "", teams.client("administrator")  # another log-in: some requests end theirs
        for client in (person,) if route.is_page else (person, token):
            connections.request = route.key
            if route.method == "GET":
                answer = client.get(path, headers=PAGE if route.is_page else {})
            elif route.is_page:
                client.request(route.method, path, data=FORM, headers=PAGE)
                answer = client.request(route.method, path, data={}, headers=PAGE)
            elif route.path.endswith(("/runs", "/logs")):
                answer = client.post(path, files={"log": ("a.log", b"iteration 1\n")})
            else:
                answer = client.request(route.method, path, json={"author": "ana"})
            answered.add(answer.status_code)
    connections.request = "an address that is none"
    person.get("/nothing", headers=PAGE)
    assert answered >= {200, 202, 303, 404, 422}
    assert connections.faults == set()


def test_a_count_that_cannot_be_read_is_not_shown_as_none(client: TestClient, app: FastAPI) -> None:
    with transaction(app.state.engine) as session:
        session.execute(text("ALTER TABLE regression RENAME TO away"))
    page = client.get("/glossary", headers=PAGE)
    assert page.status_code == 200
    assert "not counted" in page.text

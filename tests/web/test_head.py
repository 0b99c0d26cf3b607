"""HEAD answers as GET does, without the body: for load balancers and link checkers, under the same rules."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

from starlette.testclient import TestClient

from app.storage.database import transaction
from tests.access.conftest import teams
from tests.access.people import Teams
from tests.builders import make_run
from tests.embedded.processes import Running

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
        told = []
        for method in ("HEAD", "GET"):
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            assert bool(body) == (method == "GET"), path
            headers = {name.lower(): value for name, value in answer.getheaders()}
            told.append((answer.status, {k: v for k, v in headers.items() if k not in OF_THIS_ANSWER}))
        assert told[0] == told[1], path
    connection.request("HEAD", "/api/v1/runs/1/quarantine")
    assert connection.getresponse().status == 405
    connection.close()


def test_it_opens_no_more_than_get(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        ours, theirs = make_run(session, project="alpha"), make_run(session, project="omega")

    def asked(client: TestClient, run: int) -> int:
        return client.head(f"/api/v1/runs/{run}").status_code

    viewer = teams.client("viewer")
    assert (asked(viewer, ours), asked(viewer, theirs), asked(teams.client("anonymous"), ours)) == (200, 404, 401)
    scraped = teams.client("administrator").get("/metrics").text
    assert 'method="HEAD",route="/api/v1/runs/{run_id}",status="200"' in scraped

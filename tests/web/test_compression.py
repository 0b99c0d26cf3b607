"""Answers travel compressed, and what a browser has already does not travel again."""

import re

from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.settings import RESOURCES
from app.storage.database import transaction
from app.storage.tables import RunRow
from app.web.assets import asset_url
from tests.builders import make_stack

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
    with transaction(engine) as session:
        session.get_one(RunRow, runs[7]).quarantine = "node 17 throttled"
    changed = client.get(path, headers=conditional)
    assert changed.status_code == 200
    assert "quarantined" in changed.text
    assert changed.headers["etag"] != first.headers["etag"]

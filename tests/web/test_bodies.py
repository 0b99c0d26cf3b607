"""Request bodies: each route sets size and types, and processor time and memory stay small."""

import asyncio
import json
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.access.guards import CREDENTIALS_BYTES, FORM_BYTES
from app.access.routes import RuledRoute, route_table
from app.main import create_app
from app.settings import Settings
from tests.access.people import OURS, Teams, make_teams
from tests.runs.uploading import LOG, upload

UPLOADS = {
    "POST /upload",
    "POST /api/v1/runs",
    "POST /api/v1/uploads/check",
    "POST /api/v1/runs/{run_id}/logs",
    "POST /api/v1/runs/{run_id}/profiles",
    "POST /runs/{run_id}/profiles",
}
CREDENTIALS = {"POST /login", "POST /account/password"}
JSON, PAIRS = "application/json", "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=bbbbbbbbbb"
PARAMS = {
    "run_id": "1", "regression_id": "1", "experiment_id": "1", "number": "1", "stack": "0" * 64, "slug": OURS,
    "receiver_id": "1", "delivery_id": "1", "user_id": "1", "token_id": "1", "key": "0" * 16,
    "profile_id": "1", "file_id": "1", "deletion_id": "1", "name": "slow", "link_id": "1", "group_id": "1",
    "invitation_id": "1", "secret": "0" * 43, "chart_id": "1",
}  # fmt: skip
REFUSED = [(401, False), (403, False), (404, False)]
"""By the check of who asks and what there is, which comes first."""

SECONDS, SECONDS_A_MB = 1.0, 0.5
"""Of the processor, some five times what the worst of these bodies takes."""


@pytest.fixture(scope="module")
def teams(module_settings: Settings) -> Iterator[Teams]:
    teams = make_teams(create_app(module_settings.model_copy(update={"requests_per_minute": 0, "log_level": "error"})))
    upload(teams.client("token:all"), LOG)
    yield teams
    teams.engine.dispose()


def writing(app: FastAPI) -> list[RuledRoute]:
    return [route for route in route_table(app).routes if route.method in ("POST", "PUT", "PATCH", "DELETE")]


def sent(client: TestClient, route: RuledRoute, headers: dict[str, str]) -> tuple[int, bool]:
    """The status of the answer to a request with these headers, and whether its body was read."""
    body_read, status = False, 0
    request = client.build_request(route.method, route.path.format(**PARAMS), headers=headers)
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": route.method, "path": request.url.path, "query_string": b"",
        "raw_path": request.url.raw_path, "scheme": "http", "server": ("testserver", 80), "client": ("testclient", 1),
        "root_path": "", "state": {}, "headers": [(name.lower(), value) for name, value in request.headers.raw],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        nonlocal body_read
        body_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    asyncio.run(client.app(scope, receive, send))
    return status, body_read


def test_only_uploads_may_be_large_and_larger_bodies_are_not_read(teams: Teams) -> None:
    wrong = []
    for route in writing(teams.app):
        limit = CREDENTIALS_BYTES if route.key in CREDENTIALS else FORM_BYTES
        client = teams.client("administrator" if route.is_page else "token:all")
        kind = PARTS if route.is_page or route.key in UPLOADS else JSON
        answer = sent(client, route, {"Content-Type": kind, "Content-Length": str(limit + 1)})
        if (answer[0] in (413, 415)) if route.key in UPLOADS else (answer not in [*REFUSED, (413, False)]):
            wrong.append((route.key, answer))
    assert wrong == []


def test_a_body_of_an_unsupported_type_is_refused_before_it_is_read(teams: Teams) -> None:
    wrong = []
    for route in writing(teams.app):
        client = teams.client("administrator" if route.is_page else "token:all")
        for kind in ("application/xml", JSON if route.is_page or route.key in UPLOADS else PAIRS):
            if route.key == "POST /api/v1/runs/{run_id}/logs" and kind == PAIRS:
                continue
            answer = sent(client, route, {"Content-Type": kind, "Content-Length": "100"})
            if answer not in [*REFUSED, (415, False)]:
                wrong.append((route.key, kind, answer))
    assert wrong == []


def test_a_chunked_body_has_the_same_limit(teams: Teams) -> None:
    chunks = iter([b"a" * 10_000] * 2)
    answer = teams.client("anonymous").post("/login", content=chunks, headers={"Content-Type": PAIRS})
    assert answer.status_code == 413


def filled(piece: bytes, size: int = FORM_BYTES - 1000) -> bytes:
    return piece * (size // len(piece))


def keys(count: int, name: str = "") -> bytes:
    pairs = b",".join(b'"k%d":0' % number for number in range(count))
    return b"{" + (b'"%s":{%s},"author":"ana"' % (name.encode(), pairs) if name else pairs) + b"}"


def part(name: bytes, more: bytes = b"") -> bytes:
    return b'--bbbbbbbbbb\r\nContent-Disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n"


FILE, END = part(b"log", b'; filename="a.log"'), b"\r\n--bbbbbbbbbb--\r\n"
BODIES: dict[str, dict[str, bytes]] = {
    PAIRS: {
        "separators": filled(b"&"), "fields": filled(b"a=1&"), "escapes": b"a=" + filled(b"%41"),
        "half escapes": b"a=" + filled(b"%"), "blanks": b"a=" + filled(b"+"),
    },
    PARTS: {
        "line ends": FILE + filled(b"\r\n") + END, "near boundaries": FILE + filled(b"\r\n--bbbbbbbbb") + END,
        "parts": filled(part(b"a") + b"\r\n"), "heads": FILE[:-4] + b"\r\n" + filled(b"a:b\r\n"),
        "before": filled(b"\r\n"), "after": FILE + END + filled(b"--bbbbbbbbbb\r\n"),
        "text": part(b"a") + filled(b"x") + END,
        "meta": part(b"meta") + keys(20_000) + END,
    },
    JSON: {
        "values": b"[" + filled(b"0,") + b"0]", "lists": b"[" + filled(b"[],") + b"0]", "nested": b"[" * 4_999,
        "deep": b'{"a":' * 4_999, "string": b'{"note":"' + filled(b"x") + b'"}',
        "escapes": b'{"note":"' + filled(b"\\u0041") + b'"}', "digits": b'{"note":' + filled(b"9") + b"}",
        "keys": keys(4_900), "many keys": keys(80_000), "contract": keys(4_900, "fields"),
        "few fields": keys(299, "fields"),
        "facts": keys(4_900, "facts"), "few facts": keys(299, "facts"),
        "rows": b'{"author":"ana","regressions":[' + filled(b"{},", 14_000) + b"{}]}",
    },
}  # fmt: skip
ROUTES = {
    PAIRS: [("POST", "/login"), ("POST", "/runs/1/contract"), ("POST", "/runs/1/facts"), ("POST", "/regressions")],
    PARTS: [("POST", "/login"), ("POST", "/runs/1/contract"), ("POST", "/upload")],
    JSON: [("PATCH", "/api/v1/regressions"), ("PATCH", "/api/v1/runs/1/contract"), ("PATCH", "/api/v1/runs/1/facts")],
}
"""Besides these, many keys to every call of the API that takes JSON."""


def test_no_body_takes_much_processor_time(teams: Teams) -> None:
    requests = [(method, path, kind, BODIES[kind]) for kind, paths in ROUTES.items() for method, path in paths]
    requests += [
        (route.method, route.path.format(**PARAMS), JSON, {"keys": BODIES[JSON]["keys"]})
        for route in writing(teams.app)
        if getattr(route.route, "body_field", None)
    ]
    person, slow, statuses = teams.client("administrator"), [], set[int]()
    person.get("/")
    for method, path, kind, bodies in requests:
        for shape, body in bodies.items():
            # The best of three, because a busy machine or garbage collection may slow any single one.
            for _ in range(3):
                began = time.process_time()
                answer = person.request(method, path, content=body, headers={"Content-Type": kind})
                seconds = time.process_time() - began
                statuses.add(answer.status_code)
                if seconds <= max(SECONDS_A_MB * len(body) / 1e6, SECONDS):
                    break
            else:
                slow.append((method, path, kind, shape, round(seconds, 2), answer.status_code))
    assert slow == []
    assert statuses <= {303, 400, 401, 403, 404, 409, 413, 422, 429}
    assert statuses >= {400, 413, 422}


def test_a_large_change_of_regressions_leaks_no_memory(teams: Teams) -> None:
    person = teams.client("administrator")

    def change(size: int) -> int:
        rows = [{"id": number, "seen_at": "2026-01-01T00:00:00Z"} for number in range(size)]
        sent = json.dumps({"regressions": rows, "author": "ana"})
        return person.patch("/api/v1/regressions", content=sent, headers={"Content-Type": JSON}).status_code

    assert change(10) in (404, 422)
    tracemalloc.start()
    try:
        body = b'{"regressions":[' + b'{"id":1},' * 13_000_000 + b"{}]}"
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        answer = person.patch("/api/v1/regressions", content=body, headers={"Content-Type": JSON})
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert (len(body) > 100_000_000, answer.status_code) == (True, 413)
    assert peak < 10_000_000

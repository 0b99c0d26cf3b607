"""A body over the limit is refused before it is read whole, declared or not, by a real server."""

import socket
import threading
from collections.abc import Iterator

import httpx2
import pytest
import uvicorn
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.conftest import OPEN_TO
from tests.runs.uploading import LOG, assert_problem, traces, upload

LIMIT = 4_000_000
FIVE_GB = 5_000_000_000


@pytest.fixture
def limited(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_upload_bytes": LIMIT})


@pytest.fixture
def address(limited: Settings) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(create_app(limited, open_to=OPEN_TO), log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


class Stream:
    """The first part of a form, as long as anybody reads it."""

    def __init__(self) -> None:
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="log"; filename="train.log"\r\n\r\n'
        while self.sent < FIVE_GB:
            self.sent += len(LOG)
            yield LOG


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_five_gigabytes_are_refused_early(address: str, engine: Engine, limited: Settings, declared: bool) -> None:
    stream = Stream()
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    if declared:
        headers["Content-Length"] = str(FIVE_GB)
    answer = httpx2.post(f"{address}/api/v1/runs", content=iter(stream), headers=headers, timeout=300)
    assert_problem(answer, 413, "4,000,000 bytes", "Nothing was kept")
    assert stream.sent < 50 * LIMIT
    assert traces(engine, limited) == {}


def test_people_get_a_page(limited: Settings) -> None:
    client = TestClient(create_app(limited, open_to=OPEN_TO))
    headers = {"Content-Length": str(FIVE_GB), "Accept": "text/html"}
    answer = client.post("/upload", content=b"", headers=headers)
    assert answer.status_code == 413
    assert "4,000,000 bytes" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


def test_a_body_within_the_limit_passes(limited: Settings) -> None:
    client = TestClient(create_app(limited, open_to=OPEN_TO))
    assert upload(client, LOG).status_code == 202

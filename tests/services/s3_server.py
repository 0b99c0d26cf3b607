"""A real S3-speaking server process (moto) on a free port, objects in its memory."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.services.redis_server import free_port

ACCESS_KEY, SECRET_KEY = "test", "test"
START_SECONDS = 200


@dataclass(frozen=True)
class S3Server:
    endpoint: str

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        put = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(put, timeout=300) as answer:
            assert answer.status == 200
        return name


@contextmanager
def running_s3() -> Iterator[S3Server]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _wait_until_it_answers(endpoint)
        yield S3Server(endpoint)
    finally:
        process.kill()
        process.wait()


def _wait_until_it_answers(endpoint: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(endpoint, timeout=300):
                return
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < end, "the S3 server did not start"
            time.sleep(0.05)

"""A real Redis on a free port, in memory only."""

import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

START_SECONDS = 200


def free_port() -> int:
    """Return a port that is free, below those that outgoing connections take meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def start_redis(port: int) -> subprocess.Popen[bytes]:
    """Start it and wait until it answers. FileNotFoundError, which fails the test, where it is not installed."""
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    # It overwrites its environment, so the janitor identifies it by its folder.
    process = subprocess.Popen([*command, "--databases", "64"], stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
    import redis  # noqa: PLC0415

    end = time.monotonic() + START_SECONDS
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
                return process
            except redis.ConnectionError:
                assert time.monotonic() < end, "Redis did not start"
                time.sleep(0.02)


@contextmanager
def running_redis(port: int) -> Iterator[str]:
    """The broker URL of a Redis that ends with the block."""
    process = start_redis(port)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()

"""kill -9 of a sync in the worst moment: the service has stored the upload, and its answer is on the way."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from tests.client.commands import job_environment, threewalls
from tests.embedded.processes import Running
from tests.training_logs import training_log


@contextmanager
def answers_withheld(service: str) -> Iterator[tuple[str, threading.Event]]:
    """An address that carries what is sent to the service, but no answer back; set once there was one."""
    there = urlsplit(service)
    answered = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:

        def carry() -> None:
            client, _ = door.accept()
            with client, socket.create_connection((there.hostname, there.port)) as onward:
                reader = threading.Thread(target=lambda: onward.recv(1) and answered.set(), daemon=True)
                reader.start()
                while data := _received(client):
                    onward.sendall(data)
                onward.shutdown(socket.SHUT_RDWR)
                reader.join()

        carrier = threading.Thread(target=carry, daemon=True)
        carrier.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}", answered
        carrier.join(10)


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(64 * 1024)
    except ConnectionResetError:  # it was killed
        return b""


def test_it_is_neither_lost_nor_doubled(server: Running, tmp_path: Path) -> None:
    project, kept = "client-killed", str(tmp_path / "spool")
    log = tmp_path / "train.log"
    log.write_bytes(training_log(step_time_ms=409))
    stated = ("upload", str(log), "--project", project, "--spool", kept)
    assert threewalls(server.address, tmp_path, *stated, "--offline").code == 0
    with answers_withheld(server.address) as (address, answered):
        command = [sys.executable, "-m", "app.cli", "sync", "--all", "--spool", kept]
        process = subprocess.Popen(command, env=job_environment(address, tmp_path), stderr=subprocess.DEVNULL)
        assert answered.wait(60)
        process.kill()
        process.wait()
    assert len(list((tmp_path / "spool").iterdir())) == 1
    done = threewalls(server.address, tmp_path, "sync", "--json", "--spool", kept)
    assert (done.code, [one["created"] for one in done.document["sent"]]) == (0, [False]), done.err
    assert list((tmp_path / "spool").iterdir()) == []
    items = httpx2.get(f"{server.address}/api/v1/runs", params={"project": project}, timeout=300).json()["items"]
    assert len(items) == 1
    assert threewalls(server.address, tmp_path, *stated).out.endswith("(already uploaded)\n")

"""`threewalls serve` as a person meets it: it starts, it refuses clearly, it stops, and it leaves nothing running."""

import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.processes import Running, is_alive, running, start, wait_for


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Running]:
    with running("serve", tmp_path / "data") as house:
        yield house


def worker_of(house: Running) -> int:
    wait_for(lambda: house.worker_pid() is not None, "the worker")
    pid = house.worker_pid()
    assert pid is not None
    return pid


def processes_of_session(leader: int) -> list[int]:
    """Processes of the session that `leader` leads: the worker and its pool."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader and is_alive(int(entry.name)):
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def test_it_answers_at_the_address_that_it_prints(house: Running) -> None:
    with urllib.request.urlopen(f"{house.address}/healthz", timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_server_and_worker(house: Running, number: int) -> None:
    worker = worker_of(house)
    assert house.stop(number) == 0
    assert processes_of_session(worker) == []
    assert "Traceback" not in house.output


def test_a_killed_server_takes_its_worker_along(house: Running) -> None:
    worker = worker_of(house)
    wait_for(lambda: len(processes_of_session(worker)) > 1, "the worker's pool")
    house.process.kill()
    wait_for(lambda: processes_of_session(worker) == [], "the end of the worker")


def test_a_worker_that_dies_is_started_again(house: Running) -> None:
    worker = worker_of(house)
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: house.worker_pid() not in (None, worker), "another worker")


def test_a_second_service_on_one_folder_is_refused_by_name(house: Running, tmp_path: Path) -> None:
    second = start("serve", tmp_path / "data", "--port", "0")
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 3
    assert f"process {house.process.pid} at {house.address}" in output
    assert "Traceback" not in output


def test_a_folder_is_free_again_after_a_kill(house: Running, tmp_path: Path) -> None:
    house.process.kill()
    house.process.wait()
    with running("serve", tmp_path / "data") as second:
        assert second.stop() == 0


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("serve", tmp_path / "data", "--port", str(port))
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"Port {port} on 127.0.0.1 is taken" in output
    assert "Traceback" not in output


def test_an_address_that_others_reach_is_warned_about(tmp_path: Path) -> None:
    with running("serve", tmp_path / "data", "--host", "0.0.0.0") as house:
        assert "no log-ins yet" in house.output


def test_a_setting_that_is_not_valid_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEWALLS_MAX_UPLOAD_BYTES", "-1")
    process = start("serve", tmp_path / "data")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "max_upload_bytes" in output
    assert "Traceback" not in output

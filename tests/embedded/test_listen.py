"""How the embedded server listens."""

import socket
import time

import pytest

from app.embedded.service import _listen
from app.embedded.start_up import StartUp


def test_answers_are_not_held_back_for_an_acknowledgement() -> None:
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_slow_start_prints_its_steps_until_the_server_is_ready(capfd: pytest.CaptureFixture[str]) -> None:
    start = StartUp(seconds=0)
    printed = ""
    for _ in range(6000):
        if printed := printed + capfd.readouterr().out:
            break
        time.sleep(0.01)
    start.step("migrating")
    start.done()
    start.step("too late")
    printed += capfd.readouterr().out
    assert [line.rpartition(": ")[2] for line in printed.splitlines()] == [
        "loading the service ...",
        "migrating ...",
    ]


def test_a_quick_start_prints_no_steps(capfd: pytest.CaptureFixture[str]) -> None:
    start = StartUp(seconds=600)
    start.step("migrating")
    start.done()
    assert capfd.readouterr().out == ""

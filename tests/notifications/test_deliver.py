"""Messages to a real receiver that is there, down, slow, broken or redirects, and to a real mail server."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.domain.notifications.messages import ATTEMPTS
from app.domain.notifications.targets import read_networks, read_web
from app.pipeline.deliver import NotReachedError, RefusedError, checked_addresses, deliver, post
from app.pipeline.work import delivery_queue
from app.settings import Settings
from app.storage.database import transaction
from tests.notifications.certificate import make_certificate
from tests.notifications.receiving import Receiver, receiving
from tests.notifications.sent import a_day_later, deliveries, later, states, trial, work_off

NEAR = read_networks("127.0.0.0/8")


def test_a_webhook_gets_signed_json(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    trial(engine, receiver.address)
    assert work_off(engine, settings) == [True]
    (got,) = receiver.got
    body = json.loads(got.body)
    assert got.path == "/hook?key=abc"
    assert (body["type"], body["project"], body["delivery"]) == ("test", "moe-lab", got.headers["webhook-id"])
    assert body["delivery"] == deliveries(engine)[0].message_id
    assert got.headers["content-type"] == "application/json; charset=utf-8"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["user-agent"].startswith("Threewalls/")
    assert states(engine) == [("test", "delivered", 1)]
    assert deliveries(engine)[0].answer_status == 200
    assert work_off(engine, settings) == []


def test_the_signature_is_right_by_openssl(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    trial(engine, receiver.address)
    work_off(engine, settings)
    (got,) = receiver.got
    key = subprocess.run(
        ["openssl", "base64", "-d", "-A"], input=b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", capture_output=True, check=True
    ).stdout
    told = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    made = subprocess.run(
        ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}", "-binary"],
        input=told, capture_output=True, check=True,
    ).stdout  # fmt: skip
    encoded = subprocess.run(["openssl", "base64", "-A"], input=made, capture_output=True, check=True).stdout.decode()
    assert got.headers["webhook-signature"] == f"v1,{encoded}"


def test_a_receiver_that_is_down_gets_it_when_it_is_back(engine: Engine, settings: Settings) -> None:
    with receiving() as gone:
        port, address = gone.port, gone.address
    trial(engine, address, n=3)
    # The first finds out; the others wait with it instead of each taking its time.
    assert work_off(engine, settings) == [False, None, None]
    assert [(one.attempts, one.work) for one in deliveries(engine)] == [(1, "waiting"), (0, "waiting"), (0, "waiting")]
    assert deliveries(engine)[0].error == "No answer came: nothing listens there."
    assert work_off(engine, settings) == []
    later(engine)
    with receiving(port) as back:
        assert work_off(engine, settings) == [True, True, True]
        assert len(set(back.ids)) == 3
    assert {state for _, state, _ in states(engine)} == {"delivered"}


def test_an_error_is_tried_again_with_the_same_id_and_another_signature(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    receiver.answers = [500, 429]
    receiver.headers = {"Retry-After": "120"}
    trial(engine, receiver.address)
    for expected in (False, False, True):
        assert work_off(engine, settings) == [expected]
        later(engine)
    assert states(engine) == [("test", "delivered", 3)]
    assert len(set(receiver.ids)) == 1
    assert len({one.body for one in receiver.got}) == 1


def test_a_redirect_is_not_followed(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    with receiving() as other:
        receiver.answers, receiver.headers = [302], {"Location": other.address}
        trial(engine, receiver.address)
        assert work_off(engine, settings) == [False]
        assert other.got == []
    assert "redirect" in deliveries(engine)[0].error
    assert deliveries(engine)[0].state == "waiting"


def test_what_never_arrives_is_given_up_and_stays_in_the_log(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    receiver.answers = [503] * ATTEMPTS
    trial(engine, receiver.address)
    a_day_later(engine)
    for _ in range(ATTEMPTS + 2):
        work_off(engine, settings)
        later(engine)
    assert len(receiver.got) == ATTEMPTS
    assert states(engine) == [("test", "failed", ATTEMPTS)]
    assert deliveries(engine)[0].error == "It answered 503."


def test_a_receiver_that_is_gone_for_good_is_not_asked_again(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    receiver.answers = [410]
    trial(engine, receiver.address)
    work_off(engine, settings)
    assert states(engine) == [("test", "failed", 1)]


def test_a_slow_receiver_is_cut_off(receiver: Receiver) -> None:
    receiver.released.clear()
    with pytest.raises(NotReachedError, match=r"within 0\.2 s"):
        post(read_web(receiver.address), b"{}", {}, NEAR, seconds=0.2)


def test_a_receiver_that_never_ends_its_answer_is_cut_off() -> None:
    with dripping() as port, pytest.raises(NotReachedError, match=r"within 0\.3 s"):
        post(read_web(f"http://127.0.0.1:{port}/"), b"{}", {}, NEAR, seconds=0.3)


@contextmanager
def dripping() -> Iterator[int]:
    """A server that sends its answer byte by byte, and never comes to an end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = subprocess.Popen([sys.executable, "-c", _DRIP], stdin=server.fileno())
        try:
            yield server.getsockname()[1]
        finally:
            process.kill()
            process.wait()


_DRIP = """
import socket, time
server = socket.socket(fileno=0)
peer, _ = server.accept()
peer.sendall(b"HTTP/1.1 200 OK\\r\\n")
while True:
    peer.sendall(b"x: y\\r\\n"[:1])
    time.sleep(0.02)
"""


def test_a_private_address_is_not_called_whatever_its_name(receiver: Receiver) -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
        with pytest.raises(RefusedError, match="not an address of the public internet"):
            post(read_web(f"http://{host}:{receiver.port}/"), b"{}", {}, ())
    assert receiver.got == []


def test_a_name_is_looked_up_once_and_called_at_the_address_that_was_checked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that changes its mind after the check."""
    asked: list[str] = []

    def answer(host: str, port: int, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host[0].isdigit():  # the connection itself, to an address
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        asked.append(host)
        place = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    target = read_web(f"http://hooks.example.com:{receiver.port}/")
    assert post(target, b"{}", {}, NEAR).status == 200
    assert asked == ["hooks.example.com"]
    assert receiver.got[0].headers["host"] == f"hooks.example.com:{receiver.port}"
    with pytest.raises(RefusedError):
        checked_addresses(target, NEAR)


def test_one_private_address_among_public_ones_spoils_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 443)) for place in ("1.1.1.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    with pytest.raises(RefusedError, match=r"10\.0\.0\.1"):
        checked_addresses(read_web("https://hooks.example.com/"), ())


def test_a_refused_address_is_given_up_at_once(engine: Engine, settings: Settings) -> None:
    trial(engine, "http://169.254.169.254/latest/meta-data/")
    work_off(engine, settings)
    assert states(engine) == [("test", "failed", 1)]
    assert "169.254.169.254" in deliveries(engine)[0].error


@pytest.mark.parametrize("kind", ["slack", "teams"])
def test_slack_and_teams_get_their_own_form_and_no_signature(
    engine: Engine, settings: Settings, receiver: Receiver, kind: str
) -> None:
    trial(engine, receiver.address, kind)
    assert work_off(engine, settings) == [True]
    (got,) = receiver.got
    assert ("blocks" in json.loads(got.body)) == (kind == "slack")
    assert ("attachments" in json.loads(got.body)) == (kind == "teams")
    assert not any(name.startswith("webhook-") for name in got.headers)


def test_a_worker_that_was_given_up_and_wakes_changes_nothing(engine: Engine, receiver: Receiver) -> None:
    trial(engine, receiver.address)
    with transaction(engine) as session:
        delivery_queue.mark_due(session)
    with transaction(engine) as session:
        first = delivery_queue.claim(session, 1)
        assert delivery_queue.claim(session, 1) is None
    later(engine)
    with transaction(engine) as session:
        second = delivery_queue.claim(session, 1)
    assert first is not None
    assert second is not None
    with transaction(engine) as session:
        assert not delivery_queue.given_up(session, first, status=None, error="late")
        assert delivery_queue.delivered(session, second, status=200)
    assert states(engine) == [("test", "delivered", 2)]


def test_a_certificate_of_another_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS is checked, also where the address is allowed."""
    for name, right in (("DNS:else.example", False), ("IP:127.0.0.1", True)):
        monkeypatch.setenv("SSL_CERT_FILE", str(make_certificate(tmp_path, name)))
        with receiving(certificate=tmp_path) as receiver:
            target = read_web(f"https://127.0.0.1:{receiver.port}/")
            if right:
                assert post(target, b"{}", {}, NEAR).status == 200
            else:
                with pytest.raises(NotReachedError, match="certificate"):
                    post(target, b"{}", {}, NEAR)
            assert len(receiver.got) == right


def test_a_delivery_that_there_is_not_is_nobodys(engine: Engine, settings: Settings) -> None:
    assert deliver(engine, settings, 4711) is None

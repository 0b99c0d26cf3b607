"""Deliveries by webhook and mail: retries, a killed worker, the documented example."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, update
from starlette.testclient import TestClient

from app.access.credentials import NAME
from app.domain.notifications.messages import ATTEMPTS, headers, new_secret
from app.domain.notifications.targets import read_networks, read_web
from app.pipeline.deliver import NotReachedError, RefusedError, checked_addresses, deliver, post
from app.pipeline.work import delivery_queue
from app.settings import ROOT, Settings
from app.storage import users
from app.storage.database import make_engine, transaction
from app.storage.tables import AllowanceRow, utc_now
from tests.access.people import SAME_ORIGIN
from tests.embedded.processes import running, wait_for
from tests.notifications.certificate import make_certificate
from tests.notifications.mail_server import MailServer, mail_server
from tests.notifications.receiving import Receiver, receiving
from tests.notifications.sent import (
    API,
    a_day_later,
    add,
    deliveries,
    later,
    listen,
    project,
    put_trial,
    states,
    trial,
    work_off,
)
from tests.runs.uploading import LOG, assert_problem
from tests.services.scaled import QUICK

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
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    output = subprocess.run(
        ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}", "-binary"],
        input=signed, capture_output=True, check=True,
    ).stdout  # fmt: skip
    encoded = subprocess.run(["openssl", "base64", "-A"], input=output, capture_output=True, check=True).stdout.decode()
    assert got.headers["webhook-signature"] == f"v1,{encoded}"


def test_a_receiver_that_is_down_gets_it_when_it_is_back(engine: Engine, settings: Settings) -> None:
    with receiving() as gone:
        port, address = gone.port, gone.address
    trial(engine, address, n=3)
    # The first attempt detects it; the others wait with it instead of timing out one by one.
    assert work_off(engine, settings) == [False, None, None]
    assert [(delivery.attempts, delivery.work) for delivery in deliveries(engine)] == [
        (1, "waiting"),
        (0, "waiting"),
        (0, "waiting"),
    ]
    assert "no service listens" in deliveries(engine)[0].error
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
    assert len({item.body for item in receiver.got}) == 1


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


def test_a_receiver_that_is_gone_is_not_tried_again(engine: Engine, settings: Settings, receiver: Receiver) -> None:
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
    """A server that sends its answer byte by byte and never finishes."""
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


def test_a_private_address_is_refused_under_any_name(receiver: Receiver) -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
        with pytest.raises(RefusedError, match="not an address of the public internet"):
            post(read_web(f"http://{host}:{receiver.port}/"), b"{}", {}, ())
    assert receiver.got == []


def test_a_name_is_looked_up_once_and_called_at_the_address_that_was_checked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that changes its mind after the check."""
    lookups: list[str] = []

    def answer(host: str, port: int, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host[0].isdigit():  # the connection itself, to an address
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        lookups.append(host)
        place = "127.0.0.1" if len(lookups) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    target = read_web(f"http://hooks.example.com:{receiver.port}/")
    assert post(target, b"{}", {}, NEAR).status == 200
    assert lookups == ["hooks.example.com"]
    assert receiver.got[0].headers["host"] == f"hooks.example.com:{receiver.port}"
    with pytest.raises(RefusedError):
        checked_addresses(target, NEAR)


def test_one_private_address_among_public_ones_rejects_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 443)) for place in ("1.1.1.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    with pytest.raises(RefusedError, match=r"10\.0\.0\.1"):
        checked_addresses(read_web("https://hooks.example.com/"), ())


def test_a_refused_address_is_given_up_immediately(engine: Engine, settings: Settings) -> None:
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
        assert delivery_queue.delivered(session, second, status=200, note="")
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


def test_a_missing_delivery_is_not_found(engine: Engine, settings: Settings) -> None:
    assert deliver(engine, settings, 4711) is None


ACCOUNT = ("walls", "a password of the mail server")


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The certificate of a private mail server, trusted as described in docs/notifications.md."""
    certificate = make_certificate(tmp_path, "IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return certificate


def by(settings: Settings, server: MailServer, security: str = "starttls", **more: Any) -> Settings:
    user, password = ACCOUNT
    account = {"smtp_user": user, "smtp_password": password}
    place = {"smtp_host": "127.0.0.1", "smtp_port": server.port, "smtp_security": security}
    return settings.model_copy(update=place | account | more)


def test_a_mail_is_taken_by_a_mail_server(engine: Engine, settings: Settings) -> None:
    with mail_server() as server:
        mailing = settings.model_copy(update={
            "smtp_host": "127.0.0.1", "smtp_port": server.port, "smtp_security": "none",
            "smtp_from": "Threewalls <walls@example.com>", "public_url": "https://walls.example/",
        })  # fmt: skip
        trial(engine, "a@example.com, b@example.com", "email")
        assert work_off(engine, mailing) == [True]
        (mail,) = server.mails
    assert mail.to == ["a@example.com", "b@example.com"]
    assert mail.message["Subject"].endswith("ci of moe-lab")
    assert mail.message["Message-ID"] == f"<{deliveries(engine)[0].message_id}@example.com>"
    assert "https://walls.example/" in mail.message.get_content()


def test_mails_over_the_hourly_limit_of_a_project_are_sent_later(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.pipeline.deliver.MAILS_AN_HOUR", 4)
    with mail_server() as server:
        mailing = by(settings, server, "none", smtp_user="")
        trial(engine, "a@example.com, b@example.com", "email", n=3)
        assert work_off(engine, mailing) == [True, True, False]
        last = deliveries(engine)[-1]
        assert (last.state, "4 mails per hour" in last.error) == ("waiting", True)
        assert last.lease_until is not None
        assert timedelta(minutes=55) < last.lease_until - utc_now() <= timedelta(hours=1)
        later(engine)
        assert work_off(engine, mailing) == [False]
        with transaction(engine) as session:
            session.execute(update(AllowanceRow).values(began_at=utc_now() - timedelta(hours=1)))
        later(engine)
        assert work_off(engine, mailing) == [True]
    assert len(server.mails) == 3


def test_a_project_has_so_many_mailboxes(app: FastAPI, client: TestClient, engine: Engine) -> None:
    app.state.settings = app.state.settings.model_copy(update={"smtp_host": "127.0.0.1"})
    project(engine)
    for group in range(3):
        add(client, ", ".join(f"p{group}-{n}@example.com" for n in range(20)), "email")
    body = {"name": "more", "kind": "email", "author": "Ada"}
    refused = client.post(f"{API}/receivers", json=body | {"target": "p9@example.com"})
    assert_problem(refused, 422, field="target")
    assert "60 mailboxes" in refused.text
    assert client.post(f"{API}/receivers", json=body | {"target": "P1-1@example.com"}).status_code == 201
    assert client.patch(f"{API}/receivers/1", json={"target": "p9@example.com", "author": "Ada"}).status_code == 200


def test_a_mail_waits_for_its_server(engine: Engine, settings: Settings) -> None:
    with mail_server() as gone:
        port = gone.port
    mailing = settings.model_copy(update={"smtp_host": "127.0.0.1", "smtp_port": port, "smtp_security": "none"})
    trial(engine, "a@example.com", "email")
    assert work_off(engine, mailing) == [False]
    assert deliveries(engine)[0].state == "waiting"
    later(engine)
    with mail_server(port) as back:
        assert work_off(engine, mailing) == [True]
        assert len(back.mails) == 1


def test_no_mail_is_sent_to_a_server_without_tls(engine: Engine, settings: Settings) -> None:
    with mail_server() as server:
        mailing = settings.model_copy(update={"smtp_host": "127.0.0.1", "smtp_port": server.port})
        trial(engine, "a@example.com", "email")
        assert work_off(engine, mailing) == [False]
        assert server.mails == []


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_goes_encrypted_to_a_server_that_asks_for_a_log_in(
    engine: Engine, settings: Settings, trusted: Path, security: str
) -> None:
    with mail_server(certificate=trusted, tls=security == "tls", account=ACCOUNT) as server:
        trial(engine, "a@example.com", "email")
        assert work_off(engine, by(settings, server, security)) == [True]
    assert server.shown == [ACCOUNT]
    assert [mail.encrypted for mail in server.mails] == [True]


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_server_that_cannot_prove_its_name_is_shown_neither_mail_nor_password(
    engine: Engine, settings: Settings, trusted: Path, monkeypatch: pytest.MonkeyPatch, security: str,
) -> None:  # fmt: skip
    with mail_server(certificate=trusted, tls=security == "tls", account=ACCOUNT) as server:
        trial(engine, "a@example.com", "email")
        # First a certificate for another name, then an untrusted one.
        assert work_off(engine, by(settings, server, security, smtp_host="localhost")) == [False]
        later(engine)
        monkeypatch.delenv("SSL_CERT_FILE")
        assert work_off(engine, by(settings, server, security)) == [False]
        assert "(SSLCertVerificationError)" in deliveries(engine)[0].error
        later(engine)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        assert (server.shown, server.mails) == ([], [])
        assert work_off(engine, by(settings, server, security)) == [True]


def test_a_refused_password_is_not_revealed(engine: Engine, settings: Settings, trusted: Path) -> None:
    with mail_server(certificate=trusted, account=("walls", "another")) as server:
        trial(engine, "a@example.com", "email")
        assert work_off(engine, by(settings, server)) == [False]
    assert (server.shown, server.mails) == ([ACCOUNT], [])
    assert deliveries(engine)[0].error.endswith("535 (SMTPAuthenticationError).")


@contextmanager
def administrator(data: Path, address: str) -> Iterator[httpx2.Client]:
    """The browser of an administrator of the service on this folder."""
    engine = make_engine(Settings(data_dir=data))
    with transaction(engine) as session:
        user = users.create_user(session, "Ada", by="test", administrator=True)
        secret = users.start_session(session, user.id, timedelta(hours=1))
    engine.dispose()
    with httpx2.Client(headers=SAME_ORIGIN, cookies={NAME: secret}) as browser:
        assert browser.get(f"{address}/settings/users").status_code == 200
        yield browser


def test_a_message_survives_the_death_of_its_worker(
    migrated_data: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    receiver.released.clear()
    with running("serve", migrated_data) as house, administrator(migrated_data, house.address) as browser:
        api = f"{house.address}/api/v1"
        files = {"log": LOG, "meta": (None, '{"project": "moe-lab"}')}
        assert browser.post(f"{api}/runs", files=files, timeout=300).status_code == 202
        api = f"{api}/projects/moe-lab"
        body = {"name": "ci", "kind": "webhook", "target": receiver.address, "author": "Ada"}
        number = browser.post(f"{api}/receivers", json=body, timeout=300).json()["id"]
        assert browser.post(f"{api}/receivers/{number}/test", json={"author": "Ada"}, timeout=300).status_code == 202
        assert receiver.came.wait(60)
        worker = house.worker_pid()
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: len(receiver.got) > 1, "the message to come again")
        receiver.released.set()

        def newest_delivery() -> dict[str, object]:
            result: dict[str, object] = browser.get(f"{api}/deliveries", timeout=300).json()["items"][0]
            return result

        wait_for(lambda: newest_delivery()["state"] == "delivered", "the delivery to be written down")
        assert len(set(receiver.ids)) == 1
        assert browser.get(f"{api}/deliveries", timeout=300).json()["total"] == 1
        assert house.stop() == 0


DOCUMENT = (ROOT / "docs/notifications.md").read_text()


class Receive(Protocol):
    def __call__(
        self, secret: str, headers: Mapping[str, str], body: bytes, handle: Callable[[dict[str, Any]], None]
    ) -> int: ...


@pytest.fixture
def receive() -> Receive:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    namespace: dict[str, object] = {}
    exec(code, namespace)  # noqa: S102  our own document
    return cast("Receive", namespace["receive"])


def test_the_example_handles_what_came_once(
    receive: Receive, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    receiver_id = listen(engine, receiver.address)
    with transaction(engine) as session:
        put_trial(session, receiver_id)
    work_off(engine, settings)
    (got,) = receiver.got
    secret, done = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", list[str]()

    def handle(message: dict[str, Any]) -> None:
        done.append(message["type"])

    def fail(_: dict[str, Any]) -> None:
        raise OSError("the pager is away")

    assert receive(secret, got.headers, got.body + b" ", handle) == 401
    assert receive(new_secret(), got.headers, got.body, handle) == 401
    assert receive(secret, got.headers | {"webhook-id": "msg_99"}, got.body, handle) == 401
    with pytest.raises(OSError, match="pager"):
        receive(secret, got.headers, got.body, fail)
    assert done == []
    assert receive(secret, got.headers, got.body, handle) == 200, "the next attempt, after one that failed"
    assert receive(secret, got.headers, got.body, handle) == 200, "the same message once more"
    assert done == ["test"]


def test_the_example_refuses_an_old_message(receive: Receive) -> None:
    secret, body = new_secret(), b"{}"
    assert receive(secret, headers(secret, "msg_1", int(time.time()) - 301, body), body, lambda _: None) == 401
    assert receive(secret, headers(secret, "msg_1", int(time.time()) - 60, body), body, lambda _: None) == 200

"""Mails to a real mail server: in the clear where that is set, encrypted and logged in otherwise, or not at all."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, update
from starlette.testclient import TestClient

from app.pipeline import deliver
from app.settings import Settings
from app.storage.database import transaction
from app.storage.runs import aware
from app.storage.tables import AllowanceRow, utc_now
from tests.notifications.certificate import make_certificate
from tests.notifications.mail_server import MailServer, mail_server
from tests.notifications.sent import API, add, deliveries, later, project, trial, work_off
from tests.runs.uploading import assert_problem

ACCOUNT = ("walls", "a password of the mail server")


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The certificate of a private mail server, made known as docs/notifications.md says."""
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
    assert mail.message["Subject"] == "[Threewalls] Test message for ci of moe-lab"
    assert mail.message["Message-ID"] == f"<{deliveries(engine)[0].message_id}@example.com>"
    assert "https://walls.example/" in mail.message.get_content()


def test_a_project_sends_so_many_mails_an_hour_and_the_others_later(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "MAILS_AN_HOUR", 4)
    with mail_server() as server:
        mailing = by(settings, server, "none", smtp_user="")
        trial(engine, "a@example.com, b@example.com", "email", n=3)
        assert work_off(engine, mailing) == [True, True, False]
        last = deliveries(engine)[-1]
        assert (last.state, "limit of 4 mails per hour" in last.error) == ("waiting", True)
        assert last.lease_until is not None
        assert timedelta(minutes=55) < aware(last.lease_until) - utc_now() <= timedelta(hours=1)
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
    assert "exceeds the limit of 60 mailboxes" in refused.text
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


def test_a_server_that_speaks_no_tls_gets_no_mail(engine: Engine, settings: Settings) -> None:
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
        # First another's certificate, then one that nobody vouches for.
        assert work_off(engine, by(settings, server, security, smtp_host="localhost")) == [False]
        later(engine)
        monkeypatch.delenv("SSL_CERT_FILE")
        assert work_off(engine, by(settings, server, security)) == [False]
        assert deliveries(engine)[0].error == "The mail server did not accept the message (SSLCertVerificationError)."
        later(engine)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        assert (server.shown, server.mails) == ([], [])
        assert work_off(engine, by(settings, server, security)) == [True]


def test_a_password_that_is_refused_is_told_to_nobody(engine: Engine, settings: Settings, trusted: Path) -> None:
    with mail_server(certificate=trusted, account=("walls", "another")) as server:
        trial(engine, "a@example.com", "email")
        assert work_off(engine, by(settings, server)) == [False]
    assert (server.shown, server.mails) == ([ACCOUNT], [])
    assert deliveries(engine)[0].error == "The mail server answered 535 (SMTPAuthenticationError)."

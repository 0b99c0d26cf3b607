"""Whom a request comes from: the one that connected, unless a proxy that was named says otherwise."""

import pytest
from starlette.testclient import TestClient

from app.embedded.service import _Server
from app.embedded.start_up import StartUp
from app.settings import Settings
from app.storage import users
from app.storage.audit import events
from app.storage.database import make_engine, read_session, transaction

FORWARDED = {"X-Forwarded-For": "203.0.113.66, 198.51.100.7"}


@pytest.mark.parametrize(
    ("trusted", "connects", "comes_from"),
    [
        ("", "127.0.0.1", "127.0.0.1"),
        ("10.0.0.0/8", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "198.51.100.7"),  # what is before it anybody can write
        ("10.0.0.0/8, ::1", "10.1.2.3", "198.51.100.7"),
    ],
)
def test_only_a_proxy_that_was_named_says_whom_a_request_comes_from(
    settings: Settings, trusted: str, connects: str, comes_from: str
) -> None:
    engine = make_engine(settings)
    with transaction(engine) as session:
        user = users.create_user(session, "ada", by="test", password="a password of hers")
    start = StartUp()
    start.done()
    server = _Server(settings.model_copy(update={"trusted_proxies": trusted}), None, "", lambda: None, start)
    server.config.load()
    client = TestClient(server.config.loaded_app, client=(connects, 1), headers=FORWARDED)  # type: ignore[arg-type]
    assert client.post("/login", data={"name": "ada", "password": "wrong"}).status_code == 422
    with read_session(engine) as session:
        assert events(session, "account", user.id)[0].after["address"] == comes_from
    engine.dispose()


def test_what_is_no_network_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEWALLS_TRUSTED_PROXIES", "10.0.0.0/8, everybody")
    with pytest.raises(ValueError, match="everybody"):
        Settings()

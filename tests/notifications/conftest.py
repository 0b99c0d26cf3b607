"""A service that may reach receivers of this machine, which no other service may."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.access.credentials import NAME
from app.storage import users
from app.storage.database import transaction
from tests.access.people import SAME_ORIGIN
from tests.notifications.receiving import Receiver, receiving
from tests.pages import PageClient


@pytest.fixture(autouse=True)
def _near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the settings are read."""
    monkeypatch.setenv("THREEWALLS_ALLOW_PRIVATE_TARGETS", "127.0.0.0/8")


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    """The browser of an administrator: without log-ins there are no receivers."""
    with transaction(app.state.engine) as session:
        user = users.create_user(session, "Ada", by="test", administrator=True)
        secret = users.start_session(session, user.id, timedelta(hours=1))
    return PageClient(app, raise_server_exceptions=False, headers=SAME_ORIGIN, cookies={NAME: secret})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server

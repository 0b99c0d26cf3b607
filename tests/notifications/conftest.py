"""A service that may reach receivers of this machine, which no other service may."""

from collections.abc import Iterator

import pytest

from tests.notifications.receiving import Receiver, receiving


@pytest.fixture(autouse=True)
def _near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the settings are read."""
    monkeypatch.setenv("THREEWALLS_ALLOW_PRIVATE_TARGETS", "127.0.0.0/8")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one

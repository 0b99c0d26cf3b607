"""The example of docs/notifications.md, run as it stands there against a message that really came."""

import re
import time
from collections.abc import Mapping
from typing import Protocol, cast

import pytest
from sqlalchemy import Engine

from app.domain.notices.signature import headers, new_secret
from app.settings import ROOT, Settings
from app.storage.database import transaction
from tests.notifications.receiving import Receiver
from tests.notifications.sent import listen, put_trial, work_off

DOCUMENT = (ROOT / "docs/notifications.md").read_text()


class IsGenuine(Protocol):
    def __call__(self, secret: str, headers: Mapping[str, str], body: bytes) -> bool: ...


@pytest.fixture
def is_genuine() -> IsGenuine:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    made: dict[str, object] = {}
    exec(code, made)  # noqa: S102  our own document
    return cast("IsGenuine", made["is_genuine"])


def test_the_example_takes_what_came_once(
    is_genuine: IsGenuine, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    receiver_id = listen(engine, receiver.address)
    with transaction(engine) as session:
        put_trial(session, receiver_id)
    work_off(engine, settings)
    (got,) = receiver.got
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert not is_genuine(secret, got.headers, got.body + b" ")
    assert not is_genuine(new_secret(), got.headers, got.body)
    assert not is_genuine(secret, got.headers | {"webhook-id": "delivery-99"}, got.body)
    assert is_genuine(secret, got.headers, got.body)
    assert not is_genuine(secret, got.headers, got.body), "the same message once more"


def test_the_example_refuses_an_old_message(is_genuine: IsGenuine) -> None:
    secret, body = new_secret(), b"{}"
    assert not is_genuine(secret, headers(secret, "delivery-1", int(time.time()) - 301, body), body)
    assert is_genuine(secret, headers(secret, "delivery-1", int(time.time()) - 60, body), body)

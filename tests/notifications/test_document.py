"""The example of docs/notifications.md, run as it stands there against a message that really came."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import pytest
from sqlalchemy import Engine

from app.domain.notifications.messages import headers, new_secret
from app.settings import ROOT, Settings
from app.storage.database import transaction
from tests.notifications.receiving import Receiver
from tests.notifications.sent import listen, put_trial, work_off

DOCUMENT = (ROOT / "docs/notifications.md").read_text()


class Receive(Protocol):
    def __call__(
        self, secret: str, headers: Mapping[str, str], body: bytes, handle: Callable[[dict[str, Any]], None]
    ) -> int: ...


@pytest.fixture
def receive() -> Receive:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    made: dict[str, object] = {}
    exec(code, made)  # noqa: S102  our own document
    return cast("Receive", made["receive"])


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

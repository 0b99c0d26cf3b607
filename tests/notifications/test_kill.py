"""kill -9 of the worker while it sends: the message comes again, with the same id, and is written down once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from app.access.credentials import NAME
from app.settings import Settings
from app.storage import users
from app.storage.database import make_engine, transaction
from tests.access.people import SAME_ORIGIN
from tests.embedded.processes import running, wait_for
from tests.notifications.receiving import Receiver
from tests.runs.uploading import LOG
from tests.services.scaled import QUICK


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
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    receiver.released.clear()
    with running("serve", tmp_path / "data") as house, administrator(tmp_path / "data", house.address) as browser:
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

        def one() -> dict[str, object]:
            found: dict[str, object] = browser.get(f"{api}/deliveries", timeout=300).json()["items"][0]
            return found

        wait_for(lambda: one()["state"] == "delivered", "the delivery to be written down")
        assert len(set(receiver.ids)) == 1
        assert browser.get(f"{api}/deliveries", timeout=300).json()["total"] == 1
        assert house.stop() == 0

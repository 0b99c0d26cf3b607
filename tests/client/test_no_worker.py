"""The command against a service whose workers all stopped."""

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn
from sqlalchemy import Engine, update

from app.main import create_app
from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import HeartbeatRow, utc_now
from tests.client.commands import threewalls
from tests.conftest import OPEN_TO
from tests.training_logs import training_log


@pytest.fixture
def address(settings: Settings) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(create_app(settings, open_to=OPEN_TO), log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_who_waits_hears_since_when_nothing_is_processed(address: str, engine: Engine, tmp_path: Path) -> None:
    since = utc_now() - timedelta(minutes=17)
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).values(seen_at=since))
    (tmp_path / "train.log").write_bytes(training_log())
    sent = threewalls(address, tmp_path, "upload", str(tmp_path / "train.log"), "--wait", "1")
    assert sent.code == 3
    assert f"Nothing has been processed since {since:%Y-%m-%d %H:%M:%S} UTC" in sent.out
    report = threewalls(address, tmp_path, "report", "1", "--json").document
    assert (report["status"], report["nothing_processed_since"]) == ("pending", since.isoformat())
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).values(seen_at=utc_now()))
    assert threewalls(address, tmp_path, "report", "1", "--json").document["nothing_processed_since"] is None

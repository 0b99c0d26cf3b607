"""The message files of the embedded mode, after a full disk or a kill cut one of them short."""

import errno
from pathlib import Path
from typing import Any

import pytest

from app.queue import PROCESS_RUN, QUEUE, make_celery
from app.settings import Settings


def test_an_empty_table_of_bindings_keeps_no_message_from_its_worker(settings: Settings) -> None:
    sending = make_celery(settings)
    folder = settings.data_dir / "queue"
    for name in (QUEUE, "celery"):  # what Kombu leaves when the disk is full while it writes them in place
        (folder / "control" / f"{name}.exchange").write_bytes(b"")
    sending.send_task(PROCESS_RUN, args=(17,), queue=QUEUE, retry=False)
    with make_celery(settings).connection_for_read() as connection:
        message = connection.SimpleQueue(next(iter(sending.conf.task_queues))).get(timeout=10)
        assert message.payload[0] == [17]
        message.ack()


def test_a_message_that_does_not_fit_on_the_disk_leaves_no_file(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    celery = make_celery(settings)
    write_text = Path.write_text

    def full(path: Path, *arguments: Any, **options: Any) -> int:
        write_text(path, "")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        celery.send_task(PROCESS_RUN, args=(17,), queue=QUEUE, retry=False)
    assert list((settings.data_dir / "queue" / "messages").iterdir()) == []

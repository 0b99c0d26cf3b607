"""A repair to Kombu's filesystem transport, named in `queue.py`."""

import json
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import filesystem


class _WholeFilesChannel(filesystem.Channel):
    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]
        # Kombu writes a message in place: a worker that looks in between reads an empty one, and ends.
        folder = Path(self.data_folder_out)
        name = f"{time.time_ns()}_{uuid.uuid4()}"
        unseen = folder / f"{name}.part"
        unseen.write_text(json.dumps(payload), encoding="utf-8")
        unseen.rename(folder / f"{name}.{queue}.msg")


class FilesystemTransport(filesystem.Transport):
    Channel = _WholeFilesChannel

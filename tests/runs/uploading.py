"""Uploads as a client makes them."""

import json
from pathlib import Path
from typing import Any

from httpx2 import Response
from sqlalchemy import Engine, text
from starlette.testclient import TestClient

from app.settings import Settings
from app.storage.database import read_session
from tests.training_logs import training_log

LOG = training_log()


def upload(
    client: TestClient,
    *logs: bytes,
    name: str = "train.log",
    meta: Any = None,
    key: str | None = None,
    wait: float = 0,
    **files: bytes,
) -> Response:
    """`meta`: an object to send as JSON, or text to send unchanged."""
    parts: list[Any] = [("log", (name, log)) for log in logs]
    parts += [(kind, (f"{kind}.bin", content)) for kind, content in files.items()]
    if meta is not None:
        parts.append(("meta", (None, meta if isinstance(meta, str) else json.dumps(meta))))
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"/api/v1/runs?wait={wait}", files=parts, headers=headers)


def assert_problem(answer: Response, status: int, *words: str, field: str | None = None) -> None:
    """A problem document of that status whose detail has all `words`, and which names `field`."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    for word in words:
        assert word in problem["detail"]
    if field is not None:
        assert field in [error["field"] for error in problem["errors"]]


def traces(engine: Engine, settings: Settings) -> dict[str, int]:
    """Everything that an upload could have left: rows of each table, stored objects, messages."""
    with read_session(engine) as session:
        result = {
            table: int(session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())  # noqa: S608
            for table in ("run", "run_file", "segment", "stored_object", "series")
        }
    result["objects"] = _files_in(settings.data_dir / "artifacts")
    result["messages"] = _files_in(settings.data_dir / "queue" / "messages")
    return {name: count for name, count in result.items() if count}


def _files_in(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))

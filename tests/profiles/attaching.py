"""Profiles as a client attaches them, read as a worker would."""

from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from tests.domain.profiles.traces import corpus
from tests.runs.uploading import LOG, upload
from workers.tasks import process_profile, process_run


def make_run(client: TestClient, **meta: Any) -> int:
    answer = upload(client, LOG, meta={"project": "profiled", **meta})
    run_id = int(answer.json()["id"])
    process_run(run_id)
    return run_id


def trace(name: str) -> bytes:
    return (corpus() / f"{name}.json.gz").read_bytes()


def attach(client: TestClient, run_id: int, *traces: bytes, name: str = "rank-0.json.gz", **fields: Any) -> Response:
    parts: list[Any] = [("profile", (name, data)) for data in traces]
    parts += [(field, (None, str(value))) for field, values in fields.items() for value in values]
    return client.post(f"/api/v1/runs/{run_id}/profiles", files=parts)


def attached(client: TestClient, run_id: int, *traces: bytes, **more: Any) -> Any:
    """The profile after a worker read it."""
    answer = attach(client, run_id, *traces, **more)
    assert answer.status_code == 202, answer.text
    process_profile(answer.json()["id"])
    return client.get(f"/api/v1/profiles/{answer.json()['id']}").json()

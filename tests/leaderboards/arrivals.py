"""Jobs of several dispatchers in two containers, uploaded like a client does, and actions of users."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from tests.training_logs import training_log

PROJECT = "arrivals"
FLAGS = {
    "allgather": {"moe_token_dispatcher_type": "allgather"},
    "alltoall": {"moe_token_dispatcher_type": "alltoall"},
    "deepep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
    "hybridep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
}


class Client(Protocol):
    """A test client, or a client of a separate process."""

    def get(self, url: str) -> httpx2.Response: ...
    def post(self, url: str, *, json: Any = None, files: Any = None) -> httpx2.Response: ...
    def patch(self, url: str, *, json: Any = None) -> httpx2.Response: ...


@dataclass(frozen=True)
class Job:
    """A run to upload. `day`: its commit date, so that a late upload is inserted between earlier ones."""

    dispatcher: str
    step_time_ms: float
    day: int
    mbs: int = 1
    container: str = "nemo:26.06"
    gpu: str = "H100"
    meta: tuple[tuple[str, Any], ...] = ()

    def upload(self, client: Client) -> int:
        meta = {
            "project": PROJECT, "purpose": "ci", "branch": "main", "commit": f"{self.day:08x}",
            "commit_time": f"2026-09-{self.day:02}T04:00:00Z", "container": self.container, "gpu": self.gpu, "gpus": 16,
            "model": "Qwen3-30B-A3B", "data_mode": "real", "routing_mode": "dropless",
        } | dict(self.meta)  # fmt: skip
        flags = FLAGS[self.dispatcher] | {"micro_batch_size": self.mbs, "expert_model_parallel_size": 16}
        head = ["-" * 24 + " arguments " + "-" * 24]
        head += [f"  {name + ' ':.<48} {value}" for name, value in sorted(flags.items())]
        head += ["-" * 20 + " end of arguments " + "-" * 21, ""]
        log = "\n".join(head).encode() + training_log(iterations=60, step_time_ms=self.step_time_ms)
        answer = client.post("/api/v1/runs", files=[("log", ("train.log", log)), ("meta", (None, json.dumps(meta)))])
        assert answer.status_code == 202, answer.text
        return int(answer.json()["id"])


NIGHTS = [
    Job(dispatcher, level * factor, day, mbs, container)
    for container in ("nemo:26.06", "nemo:26.02")
    for mbs, slower in ((1, 1.0), (2, 1.06))
    for dispatcher, usual in (("alltoall", 400.0), ("deepep", 340.0), ("hybridep", 341.0))
    for level in (usual * slower,)
    for day, factor in ((3, 1.0), (5, 1.004), (7, 0.997))
]
"""Three runs of each of twelve configurations in four stacks: enough to learn how much launches vary."""


def decide(client: Client, run_id: int, action: str, **statement: str) -> None:
    answer = client.post(f"/api/v1/runs/{run_id}/{action}", json={"author": "mara", **statement})
    assert answer.status_code == 200, answer.text


def amend(client: Client, run_id: int, **fields: Any) -> None:
    answer = client.patch(f"/api/v1/runs/{run_id}/contract", json={"author": "mara", "fields": fields})
    assert answer.status_code in (200, 202), answer.text


def standings(client: Client) -> dict[str, Any]:
    body: dict[str, Any] = client.get(f"/api/v1/leaderboards?project={PROJECT}").json()
    return body

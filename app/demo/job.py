"""One demo job: what was asked for, what happened, and the metadata that its CI would send along."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from app.demo.recording import Recording
from app.demo.workload import GPU, GPUS_PER_NODE, Workload

PROJECT = "demo"
TAG = "generated"


@dataclass(frozen=True, slots=True)
class Job:
    """`started` is the start of the log's clock; `window` the steady window as (first, last), when it is declared.

    `committed` is when its commit was made; a rerun has that of the first run. `pinned`: why it is made the golden
    baseline of its stack, if it is. `facts`: what a profile of it measured, by the names that the rules have for it.
    """

    name: str
    trainer: Literal["Megatron-LM", "Megatron-Bridge"]
    workload: Workload
    recording: Recording
    container: str
    started: datetime
    commit: str
    purpose: Literal["ci", "experiment", "release"] = "experiment"
    branch: str = ""
    tags: tuple[str, ...] = ()
    window: tuple[int, int] | None = None
    committed: datetime | None = None
    pinned: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its Idempotency-Key: seeding again adds nothing."""
        return f"demo: {self.name}"

    def metadata(self) -> dict[str, object]:
        """The `meta` document: what a log does not say. The rest is left to the log."""
        document: dict[str, object] = {
            "name": self.name,
            "project": PROJECT,
            "purpose": self.purpose,
            "branch": self.branch,
            "commit": self.commit,
            "tags": [TAG, *self.tags],
            "container": self.container,
            "model": "Qwen3-30B-A3B",
            "task": "pretrain",
            "data_mode": "mock",
            "gpu": GPU,
            "gpus": self.workload.gpus,
            "gpus_per_node": GPUS_PER_NODE,
            "cluster": "demo-h100",
            **self.facts,
        }
        if self.committed is not None:
            document["commit_time"] = self.committed.isoformat()
        if self.window is not None:
            document["window"] = {"first": self.window[0], "last": self.window[1]}
        return document

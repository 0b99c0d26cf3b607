"""The second demo project: real step times of Megatron-LM's public CI, as golden values of its functional tests.

`megatron_lm_ci.json.gz` restates the published numbers; `bench/public_ci.py` derives it, and NOTICE names the source.
Each run is uploaded as a `golden-run/1` document, which the service reads like any other.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = "Megatron-LM CI (public)"
REPOSITORY = "https://github.com/NVIDIA/Megatron-LM"
TAG = "real"
SCHEMA = "threewalls.public-ci/1"
DATA = Path(__file__).with_name("megatron_lm_ci.json.gz")


@dataclass(frozen=True, slots=True)
class PublicRun:
    """A run to upload: its metadata, its document and its idempotency key."""

    metadata: Mapping[str, object]
    document: Mapping[str, object]
    key: str


def public_runs() -> Iterator[PublicRun]:
    """Yield every run in the order of its commits."""
    data = json.loads(gzip.decompress(DATA.read_bytes()))
    for run in data["runs"]:
        yield _public_run(run, data)


def _public_run(run: Mapping[str, Any], tables: Mapping[str, Any]) -> PublicRun:
    platform = "/".join(part for part in (run["platform"], run["environment"]) if part)
    name = f"{run['test'].removeprefix('gpt3_')} {run['platform']} {run['commit_time'][:10]}"
    series = {"iteration-time": _series(tables["steps"][run["steps"]], run["step_time_s"])}
    if run["lm_loss"]:
        series["lm loss"] = _series(tables["steps"][run["loss_steps"]], run["lm_loss"])
    if run["max_allocated_bytes"] is not None:
        series["mem-max-allocated-bytes"] = _series([tables["steps"][run["steps"]][-1]], [run["max_allocated_bytes"]])
    document = {
        "schema": "golden-run/1",
        "run_id": f"{run['test']} {platform} {run['commit']}",
        "test_case": run["test"],
        "environment": platform,
        "gpu": run["gpu"],
        "world_size": run["gpus"],
        "recipe": {"gpus_per_node": run["gpus_per_node"]},
        "container": {"image": run["image"]},
        "launch_args": tables["arguments"][run["arguments"]],
        "env_vars": tables["variables"][run["variables"]],
        "series": series,
    }
    metadata = {
        "name": name,
        "project": PROJECT,
        "purpose": "ci",
        "branch": "main" if run["on_main"] else "other",
        "commit": run["commit"],
        "commit_time": run["commit_time"],
        "ci_url": f"{REPOSITORY}/blob/{run['commit']}/{run['path']}",
        "tags": [TAG, "golden values"],
    }
    return PublicRun(metadata, document, key=f"public CI: {run['commit'][:12]} {run['blob']}")


def _series(steps: list[int], values: list[float | None]) -> dict[str, object]:
    return {"start_step": steps[0], "step_interval": 1, "steps": steps, "values": values}

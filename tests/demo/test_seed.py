"""The demo, end to end: the command starts, the runs arrive by upload and are read, a second start keeps them."""

import json
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.demo.story import story
from tests.embedded.processes import running, wait_for

JOBS = list(story())


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/api/v1/{path}", timeout=30) as answer:
        return json.load(answer)


def demo_runs(address: str) -> list[dict[str, Any]]:
    return list(get(address, "runs?project=demo&page_size=200")["items"])


def is_done(address: str) -> bool:
    runs = demo_runs(address)
    return len(runs) == len(JOBS) and all(run["status"] in ("ready", "failed") for run in runs)


def test_the_demo_seeds_itself_once(tmp_path: Path) -> None:
    with running("demo", tmp_path / "data") as house:
        wait_for(lambda: is_done(house.address), "the story to be read")
        runs = {run["name"]: run for run in demo_runs(house.address)}
        ids = {run["id"] for run in runs.values()}
        assert Counter(run["status"] for run in runs.values()) == {"ready": 35, "failed": 3}
        detail = get(house.address, f"runs/{runs['dispatcher smoke, alltoall fallback']['id']}")
        assert detail["metrics"]["step_time_ms"]["value"] == pytest.approx(45_650, rel=0.005)
        assert house.stop() == 0

    with running("demo", tmp_path / "data") as again:
        wait_for(lambda: is_done(again.address), "the story to be there still")
        assert {run["id"] for run in demo_runs(again.address)} == ids
        assert again.stop() == 0

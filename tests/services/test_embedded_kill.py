"""kill -9 of the embedded server right after a 202: what was acknowledged is processed after the next start, once."""

from pathlib import Path

import httpx2
import pytest

from tests.embedded.processes import Running, running, wait_for
from tests.services.scaled import QUICK
from tests.training_logs import training_log


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "data"


def runs(house: Running) -> list[dict[str, object]]:
    items: list[dict[str, object]] = httpx2.get(f"{house.address}/api/v1/runs", timeout=60).json()["items"]
    return items


def test_every_acknowledged_run_is_processed_after_a_kill(data: Path) -> None:
    acknowledged = set()
    for killed in range(3):
        with running("serve", data) as house:
            for number in range(2):
                log = training_log(step_time_ms=100.0 * killed + 10 * number + 50)
                answer = httpx2.post(f"{house.address}/api/v1/runs", files={"log": log}, timeout=60)
                assert answer.status_code == 202
                acknowledged.add(answer.json()["id"])
            house.process.kill()
            house.process.wait()
    with running("serve", data) as house:
        wait_for(lambda: {run["status"] for run in runs(house)} <= {"ready", "failed"}, "all runs to be processed")
        assert {run["id"] for run in runs(house)} == acknowledged
        assert {run["status"] for run in runs(house)} == {"ready"}
        assert house.stop() == 0

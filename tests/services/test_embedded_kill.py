"""kill -9 of the embedded server right after its answer: what was acknowledged is there after the next start, once."""

from pathlib import Path

import httpx2
import pytest

from tests.cases import sized
from tests.embedded.processes import Running, running, wait_for
from tests.services.scaled import QUICK
from tests.training_logs import training_log


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "data"


def runs(house: Running) -> list[dict[str, object]]:
    items: list[dict[str, object]] = httpx2.get(f"{house.address}/api/v1/runs", timeout=300).json()["items"]
    return items


def test_everything_acknowledged_is_there_and_processed_after_a_kill(data: Path) -> None:
    acknowledged, grows, sent = set(), "", 0
    growing = training_log(iterations=60)
    for killed in range(sized(2, 10)):
        with running("serve", data) as house:
            for number in range(2):
                log = training_log(step_time_ms=100.0 * killed + 10 * number + 50)
                answer = httpx2.post(f"{house.address}/api/v1/runs", files={"log": log}, timeout=300)
                assert answer.status_code == 202
                acknowledged.add(answer.json()["id"])
            grows = grows or _opened(house)
            for _ in range(4):
                # Whoever does not know what arrived begins a little before.
                begin, end = max(0, sent - 100), sent + len(growing) // 48
                assert _append(house, grows, growing[begin:end], begin)["offset"] == end
                sent = end
            house.process.kill()
            house.process.wait()
    with running("serve", data) as house:
        assert httpx2.get(f"{house.address}{grows}/files/0", timeout=300).content == growing[:sent]
        assert _append(house, grows, growing[sent:], sent, "&complete=true")["offset"] == len(growing)
        wait_for(lambda: _iterations(house, grows) == 60, "the whole log to be read")
        wait_for(lambda: {run["status"] for run in runs(house)} <= {"ready", "failed"}, "all runs to be processed")
        assert {run["id"] for run in runs(house)} == acknowledged | {int(grows.rpartition("/")[2])}
        assert {run["status"] for run in runs(house)} == {"ready"}
        assert house.stop() == 0


def _opened(house: Running) -> str:
    answer = httpx2.post(
        f"{house.address}/api/v1/runs?complete=false", files={"meta": (None, '{"name": "grows"}')}, timeout=300
    )
    assert answer.status_code == 202, answer.text
    return f"/api/v1/runs/{answer.json()['id']}"


def _append(house: Running, address: str, piece: bytes, offset: int, more: str = "") -> dict[str, object]:
    answer = httpx2.post(f"{house.address}{address}/logs?offset={offset}{more}", content=piece, timeout=300)
    assert answer.status_code == 200, answer.text
    body: dict[str, object] = answer.json()
    return body


def _iterations(house: Running, address: str) -> object:
    return httpx2.get(f"{house.address}{address}", timeout=300).json()["health"].get("iterations")

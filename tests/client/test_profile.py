"""`threewalls upload --profile`: traces beside the log."""

from pathlib import Path

import httpx2

from tests.client.commands import threewalls
from tests.domain.profiles.traces import corpus
from tests.embedded.processes import Running
from tests.training_logs import training_log


def log_in(folder: Path, step_time_ms: float = 400) -> str:
    path = folder / "train.log"
    path.write_bytes(training_log(step_time_ms=step_time_ms))
    return str(path)


def test_traces_are_attached_to_the_uploaded_run(server: Running, tmp_path: Path) -> None:
    traces = [str(corpus() / f"synthetic/seed-11/ranks-{rank}.json.gz") for rank in range(2)]
    words = ("upload", log_in(tmp_path), "--project", "client-profile", "--json", "--profile", *traces)
    done = threewalls(server.address, tmp_path, *words)
    assert done.code == 0, done.err
    run_id = done.document["id"]
    items = httpx2.get(f"{server.address}/api/v1/runs/{run_id}/profiles", timeout=300).json()["items"]
    assert [file["name"] for file in items[0]["files"]] == ["ranks-0.json.gz", "ranks-1.json.gz"]
    assert done.document["profile"].endswith(f"/profiles/{items[0]['id']}")


def test_a_missing_trace_leaves_the_run_uploaded_and_fails(server: Running, tmp_path: Path) -> None:
    words = ("upload", log_in(tmp_path, 431), "--project", "client-profile", "--profile", str(tmp_path / "gone.json"))
    done = threewalls(server.address, tmp_path, *words)
    assert done.code != 0
    assert "the run is uploaded, its profile is not" in done.err
    assert done.out.startswith("run ")

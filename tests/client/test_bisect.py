"""`threewalls bisect` against a real service and a real git history, and what its call refuses."""

import json
import subprocess
import uuid
from pathlib import Path

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.cli import main
from app.client.bisect import text_of
from app.settings import Settings
from tests.client.commands import threewalls
from tests.embedded.processes import Running
from tests.regressions.judging import arrive, judge_all, steady
from tests.training_logs import training_log

CONTRACT = ("--set", "gpu=H100", "--set", "gpus=16", "--set", "container=train:2026.10")
SLOW_FROM = 5


def history(folder: Path, commits: int) -> list[str]:
    """A repository with empty commits, and their hashes, oldest first."""
    folder.mkdir()
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    script = " && ".join(f"git commit -q --allow-empty -m 'Change {number}'" for number in range(commits))
    config = f"git init -q -b main && git config {who[1].replace('=', ' ')} && git config {who[3].replace('=', ' ')}"
    subprocess.run(["sh", "-c", f"{config} && {script}"], cwd=folder, check=True)
    listed = subprocess.run(["git", "rev-list", "--reverse", "HEAD"], cwd=folder, check=True, capture_output=True)
    return listed.stdout.decode().split()


def test_asking_again_after_each_upload_finds_the_commit(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commits, project = history(tmp_path / "code", 9), f"bisect-{uuid.uuid4().hex[:8]}"

    def measure(place: int) -> int:
        log = tmp_path / f"{place}.log"
        mark = f"INFO: {uuid.uuid4()}\n".encode()
        log.write_bytes(mark + training_log(50, 480 if place >= SLOW_FROM else 400))
        words = ("--set", f"project={project}", "--set", f"commit={commits[place]}", "--json", "--wait=120")
        done = threewalls(server.address, tmp_path, "upload", str(log), *CONTRACT, *words, "--purpose", "experiment")
        return int(done.document["id"])

    measure(0)
    run = str(measure(8))
    asking = ["bisect", run, "--url", server.address, "--good", commits[0], "--repository", str(tmp_path / "code")]
    for expected in (4, 6, 5):
        assert main([*asking, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["next"] == commits[expected]
        measure(expected)
    assert main(asking) == 0
    assert f"first bad commit: {commits[SLOW_FROM]} Change {SLOW_FROM}" in capsys.readouterr().out
    assert main([*asking[:-2], "--repository", str(tmp_path)]) == 2
    assert main([*asking, "--bad", commits[0]]) == 2
    assert "the code did not change" in capsys.readouterr().err


def test_the_good_end_is_the_newest_run_before_the_change_also_in_another_container(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number, f"{number:07x}")
    arrive(engine, 1005.0, 10, "000000a", is_steady=False)
    moved = {"container": "registry.example.com/moe/train:2026.10"}
    first, *_ = [arrive(engine, 1200.0, 11 + number, f"abcdef{number}", fields=moved) for number in range(3)]
    judge_all(engine, settings)
    assert client.get(f"/api/v1/runs/{first}/bisect").json() == ends(first, "000000a")
    assert 'href="/runs?q=000000a"' in client.get("/regressions/1").text
    report = client.get(f"/api/v1/runs/{first}/report").json()
    assert report["what_changed"]["commit_range"]["first"] == "000000a"
    contrast = client.get(f"/api/v1/runs/{first}/verdict").json()["contrast"]["comparability"]
    assert [row["a"] for row in contrast["differences"] if row["field"] == "commit"] == ["000000a"]
    for address in (f"/api/v1/runs/{first}/report.md", "/regressions/1"):
        text = client.get(address).text
        assert (address, "0000009" in text, "000000a" in text) == (address, False, True)


def test_code_and_container_are_separated_in_the_earlier_container(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number, f"{number:07x}")
    old, new = "nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.08"
    moved = arrive(engine, 1200.0, 10, "abcdef0", fields={"container": new})
    judge_all(engine, settings)
    full = ["0000009" + "0" * 33, "1" * 40, "abcdef0" + "0" * 33]
    refused = client.post(f"/api/v1/runs/{moved}/bisect", json={"commits": full})
    (error,) = refused.json()["errors"]
    assert (refused.status_code, new in error["message"]) == (422, True)
    upload = f"threewalls upload train.log --set container={old} --set commit={full[-1]} --purpose experiment --wait"
    assert error["message"].splitlines()[-1] == upload
    again = arrive(engine, 1190.0, 11, "abcdef0", fields={"container": old}, purpose="experiment")
    judge_all(engine, settings)
    assert client.get(f"/api/v1/runs/{again}/bisect").json()["good"] == "0000009"
    assert client.post(f"/api/v1/runs/{again}/bisect", json={"commits": full}).json()["next"] == full[1]


def test_the_ends_are_those_of_the_verdict(engine: Engine, settings: Settings, client: TestClient) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number, f"{number:07x}")
    run = arrive(engine, 1200.0, 10, "abcdef0")
    judge_all(engine, settings)
    address = f"/api/v1/runs/{run}/bisect"
    assert client.get(address).json() == ends(run, "0000009")
    full = ["0000009" + "0" * 33, "1" * 40, "2" * 40, "abcdef0" + "0" * 33]
    answer = client.post(address, json={"commits": full}).json()
    assert (answer["next"] in full[1:3], answer["commits_left"], answer["launches"]) == (True, 3, 1)
    assert answer["change_pct"] == pytest.approx(20, abs=1)
    assert answer["gpu_hours_each"] > 0
    for commits in ([full[1], full[3]], [full[0], full[0], full[3]], [full[0]], ["x", full[3]]):
        assert client.post(address, json={"commits": commits}).status_code == 422
    assert client.get("/api/v1/runs/999/bisect").status_code == 404


def test_a_regression_of_memory_alone_is_bisected_by_memory(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number, f"{number:07x}", peak_memory_gib=40.0)
    run = arrive(engine, 1004.0, 10, "abcdef0", peak_memory_gib=42.0)
    judge_all(engine, settings)
    address = f"/api/v1/runs/{run}/bisect"
    assert client.get(address).json() == ends(run, "0000009", "peak_memory_gib")
    full = ["0000009" + "0" * 33, "1" * 40, "2" * 40, "abcdef0" + "0" * 33]
    answer = client.post(address, json={"commits": full}).json()
    assert (answer["metric"], answer["launches"]) == ("peak_memory_gib", 1)
    assert answer["change_pct"] == pytest.approx(5)
    assert text_of({**answer, "next": "", "left": []}, full, Path()).startswith("3 commits, peak memory 5.00 % more")
    refused = client.post(address, json={"commits": full, "metric": "step_time_ms"})
    assert (refused.status_code, "The two ends differ by" in refused.text) == (422, True)
    (suspect,) = client.get(f"/api/v1/runs/{run}/verdict").json()["suspects"]
    first = client.get(f"/api/v1/runs/{run}/suggestions").json()["suggestions"][0]
    assert (first["rule"], first["title"]) == ("val-regression-cause", "Bisect 0000009..abcdef0")
    assert first["why"].startswith("Peak memory is 5.0 % higher than in its baseline. Most likely cause: commit")
    assert (suspect["field"], suspect["is_likely"]) == ("commit", True)
    command = f"threewalls bisect {run} --metric peak_memory_gib"
    assert [recipe["run"] for recipe in first["recipes"]] == [command]
    assert command in client.get("/regressions/1").text
    assert "why peak memory is 5.0\u202f% higher before" in client.get(f"/runs/{run}/next").text


def ends(run: int, good: str, metric: str = "step_time_ms") -> dict[str, object]:
    return {"run": run, "metric": metric, "good": good, "bad": "abcdef0"}

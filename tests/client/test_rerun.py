"""An inconclusive verdict asks for reruns: in the API, on the command line and by webhook."""

import json
import math
from pathlib import Path

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.cli import main
from app.settings import Settings
from tests.client.answering import Answer, answering
from tests.notifications.sent import listen, states
from tests.regressions.judging import arrive, judge_all, steady

NOWHERE = "http://127.0.0.1:9/"


def asking(engine: Engine, settings: Settings) -> int:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number)
    run = arrive(engine, 1023.0, 10, "abc123", job="perf")
    judge_all(engine, settings)
    return run


def test_an_inconclusive_verdict_asks_once_for_few_reruns(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    run = asking(engine, settings)
    verdict = client.get(f"/api/v1/runs/{run}/verdict").json()
    assert verdict["verdict"] == "inconclusive"
    assert verdict["rerun"]["runs"] == verdict["need_runs"] == 1
    assert (verdict["rerun"]["commit"], verdict["rerun"]["job"]) == ("abc123", "perf")
    assert client.get(f"/api/v1/runs/{run}/report").json()["rerun"] == verdict["rerun"]
    again = arrive(engine, 1024.0, 11, "abc123", job="perf")
    judge_all(engine, settings)
    verdict = client.get(f"/api/v1/runs/{again}/verdict").json()
    assert verdict["candidate"]["runs"] == [str(run), str(again)]
    assert (verdict["verdict"], verdict["looks"], verdict["test"]["looks"]) == ("regression", 2, 2)
    assert verdict["rerun"] is None


def test_the_figures_of_a_verdict_give_its_interval(engine: Engine, settings: Settings, client: TestClient) -> None:
    run = asking(engine, settings)
    verdict = client.get(f"/api/v1/runs/{run}/verdict").json()
    test, time = verdict["test"], verdict["metrics"]["step_time_ms"]
    assert (test["candidate_runs"], test["baseline_runs"]) == (1, len(verdict["baseline"]["runs"]))
    assert test["degrees_of_freedom"] == 12
    half = 3.0545395894 * test["standard_error"]  # t(0.995, 12)
    assert time["ci_low_pct"] == pytest.approx(100 * (math.exp(test["shift"] - half) - 1))


def test_the_request_is_news(engine: Engine, settings: Settings, client: TestClient) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number)
    listen(engine, NOWHERE, "rerun.requested")
    arrive(engine, 1023.0, 10, "abc123")
    judge_all(engine, settings)
    assert [event for event, *_ in states(engine)] == ["rerun.requested"]


REPORT = {
    "run": {"id": 17, "name": "nightly", "address": "http://x/runs/17"},
    "status": "judged",
    "headline": "inconclusive",
    "exit_code": 5,
    "rerun": {"runs": 2, "commit": "abc123", "config_key": "9" * 64, "job": "perf", "command": "run.sh"},
}


def test_the_command_prints_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Answer(body=REPORT)) as service:
        assert main(["rerun", "17", "--url", service.url]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "2 more of run 17: commit abc123, configuration 999999999999", "job: perf", "command: run.sh",
    ]  # fmt: skip


def test_the_command_starts_each_rerun_with_what_it_needs(tmp_path: Path) -> None:
    log = tmp_path / "started"
    command = f'echo "$THREEWALLS_RERUN_COMMIT $THREEWALLS_RERUN_NUMBER of $THREEWALLS_RERUN_COUNT" >> {log}'
    with answering(Answer(body=REPORT)) as service:
        assert main(["rerun", "17", "--url", service.url, "--exec", command]) == 0
        assert log.read_text().splitlines() == ["abc123 1 of 2", "abc123 2 of 2"]
        assert main(["rerun", "17", "--url", service.url, "--exec", "exit 7"]) == 3


def test_a_run_that_asks_for_nothing_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Answer(body=REPORT | {"rerun": None})) as service:
        assert main(["rerun", "17", "--url", service.url, "--exec", f"touch {tmp_path / 'started'}"]) == 0
        assert main(["rerun", "17", "--url", service.url, "--json"]) == 0
    assert not (tmp_path / "started").exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run 17 needs no rerun: inconclusive"
    assert json.loads(lines[1]) == {"schema": "rerun/1", "run": 17, "rerun": None}

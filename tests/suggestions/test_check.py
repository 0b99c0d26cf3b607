"""`threewalls check`, its page and its API give the same answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.cli import main
from tests.domain.rules.test_launch_check import SCRIPT
from tests.runs.uploading import assert_problem

GOOD = SCRIPT.replace("FLAGS", "--moe-token-dispatcher-type alltoall")
BAD = GOOD.replace("--bf16", "--bf16 --overlap-moe-expert-parallel-comm")


def blockers(document: dict[str, Any]) -> list[str]:
    return [row["rule"] for row in document["blockers"]]


def test_the_command_exits_with_one_for_a_blocker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.sh", tmp_path / "bad.sh"
    good.write_text(GOOD)
    bad.write_text(BAD)
    assert main(["check", str(good), "--set", "gpu=H100"]) == 0
    assert main(["check", str(good), "--set", "gpuz=H100"]) == 2
    capsys.readouterr()
    assert main(["check", str(bad), "--set", "gpu=H100", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], blockers(document)) == ("threewalls.check/1", ["eo-needs-vpp"])
    assert main(["check", str(tmp_path / "none.sh")]) == 3


def test_the_api_answers_the_same_and_stores_nothing(client: TestClient) -> None:
    answer = client.post("/api/v1/check", json={"launch": BAD, "facts": {"gpu": "H100"}})
    assert (answer.status_code, blockers(answer.json())) == (200, ["eo-needs-vpp"])
    assert client.get("/api/v1/runs").json()["items"] == []
    assert_problem(client.post("/api/v1/check", json={"launch": "hello"}), 422, field="launch")
    assert_problem(
        client.post("/api/v1/check", json={"launch": GOOD, "facts": {"gpus": "many"}}), 422, field="facts.gpus"
    )


def test_the_page_shows_what_fires_and_keeps_the_text(client: TestClient) -> None:
    assert client.get("/check").status_code == 200
    page = client.post("/check", data={"launch": BAD + "<b>", "gpu": "H100"})
    assert page.status_code == 200
    assert 'data-rule="eo-needs-vpp"' in page.text
    assert "&lt;b&gt;" in page.text
    refused = client.post("/check", data={"launch": "hello"})
    assert refused.status_code == 422
    assert 'role="alert"' in refused.text

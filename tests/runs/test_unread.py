"""A log of a trainer that no reader knows says nothing about its job: the run is unread, and has not failed."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from starlette.testclient import TestClient

from app.domain.logs.read import KNOWN_FORMATS
from app.storage.database import read_session
from app.storage.tables import VerdictRow
from tests.analysis.commands import threewalls
from tests.runs.uploading import upload
from workers.tasks import process_run

HEAD = "[rank0]:[titan] 2026-11-01 10:00:00,000 - root - INFO - Starting job: Llama 3 8B training\n"
STEPS = "".join(
    f"[rank0]:[titan] 2026-11-01 10:00:{step:02d},123 - root - INFO - step: {step:2d}  loss: 10.70{step}  "
    "memory: 30.99GiB(32.62%)  tps: 7,034  tflops: 407.35  mfu: 41.19%\n"
    for step in range(1, 11)
)
UNREAD = (HEAD + STEPS + "[rank0]:[titan] 2026-11-01 10:01:00,000 - root - INFO - Training completed\n").encode()
CAUGHT = "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\nImportError: No module named 'apex'\n"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.\n"


def read(client: TestClient, log: bytes, **meta: str) -> dict[str, Any]:
    run_id = upload(client, log, meta=json.dumps({"gpu": "H100", **meta})).json()["id"]
    process_run(run_id)
    run: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}").json()
    return run


def test_the_api_says_which_formats_are_read_and_shows_lines_that_look_like_steps(client: TestClient) -> None:
    run = read(client, UNREAD)
    assert (run["status"], run["health"]["outcome"], run["failures"]) == ("unread", "unread", [])
    assert [name for name in KNOWN_FORMATS if name not in run["error"]] == []
    lines = UNREAD.decode().splitlines()
    assert [(one["line"], one["example"]) for one in run["not_understood"]] == [
        (line, lines[line - 1]) for line in (2, 3, 11)
    ]
    found = client.get("/api/v1/runs", params={"status": "unread", "outcome": "unread"}).json()
    assert [one["id"] for one in found["items"]] == [run["id"]]


def test_it_gets_no_verdict_and_its_report_is_neutral(client: TestClient, engine: Engine) -> None:
    run = read(client, UNREAD)
    report = client.get(f"/api/v1/runs/{run['id']}/report", params={"wait": "20"}).json()
    assert (report["status"], report["exit_code"], report["verdict"]) == ("unread", 6, None)
    assert (report["problems"], report["next_step"]) == ([], None)
    assert [one["line"] for one in report["step_lines"]] == [2, 3, 11]
    comment = client.get(f"/api/v1/runs/{run['id']}/report.md").text
    assert comment.splitlines()[0].startswith("**◌ unread")
    verdict = client.get(f"/api/v1/runs/{run['id']}/verdict").json()
    assert (verdict["status"], verdict["verdict"], verdict["exit_code"]) == ("unread", None, 6)
    with read_session(engine) as session:
        assert session.execute(select(VerdictRow)).all() == []


def test_the_page_shows_the_lines_and_no_failure(client: TestClient) -> None:
    run = read(client, UNREAD)
    page = client.get(f"/runs/{run['id']}").text
    assert [line for line in (2, 3, 11) if f'data-step-line="{line}"' not in page] == []
    assert 'class="badge failed"' not in page
    assert 'class="notice failed' not in page
    assert "rank that prints" not in page
    assert 'class="badge failed"' not in client.get("/runs").text
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("log", "status", "outcome"),
    [
        (HEAD + CAUGHT + STEPS, "unread", "unread"),  # it went on after the error
        (HEAD + STEPS + OUT_OF_MEMORY, "failed", "out_of_memory"),  # the job did fail, whoever its trainer is
        (HEAD + CAUGHT, "failed", "failed"),
        ("The quick brown fox\n" * 20, "unread", "unread"),
    ],
    ids=["caught", "out of memory", "crash", "prose"],
)
def test_only_what_ended_the_job_is_a_failure_of_it(client: TestClient, log: str, status: str, outcome: str) -> None:
    run = read(client, log.encode())
    assert (run["status"], run["health"]["outcome"]) == (status, outcome)


def test_the_command_line_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "titan.log"
    path.write_bytes(UNREAD)
    (tmp_path / "base.log").write_bytes(UNREAD)
    found = threewalls("analyze", path, "--json")
    document = found.document
    assert (found.code, document["status"], document["failures"], document["warnings"]) == (6, "unread", [], [])
    said = threewalls("analyze", path).output
    assert [line for line in (2, 3, 11) if f"line {line}: " not in said] == []
    compare = ("--baseline", tmp_path / "base.log", "--", path)
    assert threewalls("compare", *compare).code == 6
    assert threewalls("compare", "--allow", "unread", *compare).code == 0

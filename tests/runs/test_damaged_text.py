"""Logs with holes of NUL bytes and with garbage in them, as network file systems and crashed writers leave them."""

import hashlib
import os
from pathlib import Path

from starlette.testclient import TestClient

from app.domain.logs import parse_log, parse_text
from tests.analysis.commands import threewalls
from tests.runs.uploading import upload
from tests.training_logs import training_log
from workers.tasks import process_run

LOG = training_log(iterations=60, noise_bytes=200_000)
HALF = LOG.index(b"\n", len(LOG) // 2) + 1
GARBAGE = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(256))
DAMAGED = {
    "a hole at the start": bytes(65_536) + LOG,
    "a large hole at the start": bytes(900_000) + LOG,
    "a hole in the middle": LOG[:HALF] + bytes(65_536) + LOG[HALF:],
    "garbage at the start": GARBAGE + b"\n" + LOG,
    "a few bytes at the start": b"\xff\xfa\x00\x81" * 3 + b"\n" + LOG,
    "the mark of UTF-16 at the start": b"\xff\xfe" + LOG,
    "a torn line": LOG[:HALF] + b" iteration 31/ 60 | consumed sam" + bytes(4096) + b"\n" + LOG[HALF:],
}


def test_what_goes_on_as_text_is_read_and_what_was_skipped_is_said(client: TestClient) -> None:
    wrong = {}
    for what, log in DAMAGED.items():
        answer = upload(client, log, meta={"name": what})
        if answer.status_code != 202:
            wrong[what] = answer.text
            continue
        process_run(answer.json()["id"])
        run = client.get(f"/api/v1/runs/{answer.json()['id']}").json()
        said = [warning for warning in run["warnings"] if "NUL bytes" in warning or "not UTF-8" in warning]
        if (run["status"], run["health"]["iterations"], len(said)) != ("ready", 60, int("torn" not in what)):
            wrong[what] = (run["status"], run["error"], run["health"], run["warnings"])
    assert wrong == {}


def test_a_log_that_grows_may_begin_with_a_hole(client: TestClient) -> None:
    answer = client.post("/api/v1/runs?complete=false", files={"meta": (None, "{}")})
    pieces = f"/api/v1/runs/{answer.json()['id']}/logs?name=train.log"
    log, first = DAMAGED["a large hole at the start"], 500_000
    for begin, piece, complete in ((0, log[:first], "false"), (first, log[first:], "true")):
        sent = client.post(f"{pieces}&offset={begin}&complete={complete}", content=piece)
        assert sent.status_code == 200, sent.text
    process_run(answer.json()["id"])
    assert client.get(f"/api/v1/runs/{answer.json()['id']}").json()["health"]["iterations"] == 60


def test_what_is_no_text_is_refused_all_the_same(client: TestClient) -> None:
    utf16 = LOG.decode().encode("utf-16-le")
    for what in (os.urandom(200_000), bytes(65_536) + os.urandom(200_000), utf16, bytes(2 << 20)):
        assert upload(client, what).status_code == 422


def test_the_result_is_the_same_whatever_the_chunks_are() -> None:
    for log in DAMAGED.values():
        whole = parse_text(log)
        cut = parse_log(log[at : at + 4097] for at in range(0, len(log), 4097))
        assert (cut.problems, cut.n) == (whole.problems, whole.n)
        assert list(cut.line_numbers) == list(whole.line_numbers)


def test_the_command_line_and_doctor_read_it_too(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(DAMAGED["a hole at the start"])
    assert threewalls("analyze", path).code == 0
    assert "65,536 NUL bytes" in threewalls("analyze", path).output
    findings = threewalls("doctor", path, "--url=http://127.0.0.1:1", "--json").document["findings"]
    assert [one["state"] for one in findings if one["what"] == "log"] == ["ok"]

"""Stored logs that were lost or damaged: the rest of a run stays, they are found, and the same upload restores them."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Engine, select
from starlette.testclient import TestClient

from app.cli import main
from app.client.report import verdict_text
from app.domain.logs import parse_log, parse_text
from app.domain.logs.read import KNOWN_FORMATS
from app.domain.numbers import THIN
from app.main import create_app
from app.settings import Settings
from app.storage.database import read_session
from app.storage.log_files import write_frames
from app.storage.tables import RunRow, VerdictRow
from tests.analysis.commands import threewalls
from tests.conftest import OPEN_TO
from tests.in_process import served
from tests.runs.uploading import LOG, assert_problem, traces, upload
from tests.training_logs import training_log
from workers.tasks import process_run

PEOPLE = {"Accept": "text/html,application/xhtml+xml"}


def flip_a_byte(stored: Path) -> None:
    content = bytearray(stored.read_bytes())
    content[len(content) // 3] ^= 0xFF
    stored.write_bytes(content)


def swap_content(stored: Path) -> None:
    with stored.open("wb") as file:
        write_frames([b"another log\n"], file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda stored: stored.write_bytes(b""),
    "cut": lambda stored: stored.write_bytes(stored.read_bytes()[:-30]),
    "zeros": lambda stored: stored.write_bytes(bytes(len(stored.read_bytes()))),
    "flipped byte": flip_a_byte,
    "another content": swap_content,
}


def stored_object(settings: Settings) -> Path:
    return next((settings.data_dir / "artifacts").rglob("*.zst"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_hides_nothing_else_is_found_and_is_restored_by_its_upload(
    damage: str, client: TestClient, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = upload(client, LOG).json()["id"]
    process_run(run_id)
    good = stored_object(settings).read_bytes()
    assert main(["verify"]) == 0
    DAMAGES[damage](stored_object(settings))
    page = client.get(f"/runs/{run_id}?tab=log", headers=PEOPLE)
    assert (page.status_code, "data-log-problem" in page.text) == (200, damage != "another content")
    assert client.get(f"/api/v1/runs/{run_id}").json()["metrics"]["step_time_ms"]["value"] > 0
    assert client.get(f"/api/v1/runs/{run_id}/log").status_code == (200 if damage == "another content" else 503)
    assert main(["verify"]) == 3
    assert f"run {run_id}, train.log" in capsys.readouterr().out
    again = upload(client, LOG).json()
    assert (again["id"], again["created"]) == (run_id, False)
    assert stored_object(settings).read_bytes() == good
    assert main(["verify"]) == 0
    assert "data-log-problem" not in client.get(f"/runs/{run_id}?tab=log", headers=PEOPLE).text


def test_a_run_that_failed_for_its_damaged_log_is_read_once_that_is_restored(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    run_id = upload(client, LOG).json()["id"]
    flip_a_byte(stored_object(settings))
    for _ in range(settings.max_attempts):
        process_run(run_id)
    with read_session(engine) as session:
        run = session.get_one(RunRow, run_id)
    assert (run.status, "damaged" in (run.error or "")) == ("failed", True)
    upload(client, LOG)
    process_run(run_id)
    assert client.get(f"/api/v1/runs/{run_id}").json()["status"] == "ready"


# --- Logs with holes of NUL bytes and with garbage in them, as network file systems and crashed writers leave them.


LONG_LOG = training_log(iterations=60, noise_bytes=200_000)
HALF = LONG_LOG.index(b"\n", len(LONG_LOG) // 2) + 1
GARBAGE = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(256))
DAMAGED = {
    "a hole at the start": bytes(65_536) + LONG_LOG,
    "a large hole at the start": bytes(900_000) + LONG_LOG,
    "a hole in the middle": LONG_LOG[:HALF] + bytes(65_536) + LONG_LOG[HALF:],
    "garbage at the start": GARBAGE + b"\n" + LONG_LOG,
    "a few bytes at the start": b"\xff\xfa\x00\x81" * 3 + b"\n" + LONG_LOG,
    "the mark of UTF-16 at the start": b"\xff\xfe" + LONG_LOG,
    "a torn line": LONG_LOG[:HALF] + b" iteration 31/ 60 | consumed sam" + bytes(4096) + b"\n" + LONG_LOG[HALF:],
}


def test_text_after_garbage_is_read_with_a_warning(client: TestClient) -> None:
    wrong = {}
    for what, log in DAMAGED.items():
        answer = upload(client, log, meta={"name": what})
        if answer.status_code != 202:
            wrong[what] = answer.text
            continue
        process_run(answer.json()["id"])
        run = client.get(f"/api/v1/runs/{answer.json()['id']}").json()
        warnings = [warning for warning in run["warnings"] if "NUL bytes" in warning or "not UTF-8" in warning]
        if (run["status"], run["health"]["iterations"], len(warnings)) != ("ready", 60, int("torn" not in what)):
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


def test_binary_data_is_still_refused(client: TestClient) -> None:
    utf16 = LONG_LOG.decode().encode("utf-16-le")
    for what in (os.urandom(200_000), bytes(65_536) + os.urandom(200_000), utf16, bytes(2 << 20)):
        assert upload(client, what).status_code == 422


def test_the_result_does_not_depend_on_the_chunks() -> None:
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
    assert [finding["state"] for finding in findings if finding["what"] == "log"] == ["ok"]


# --- A log of an unknown trainer says nothing about its job: the run is unread, not failed.


HEAD = "INFO:tensorflow:Starting job: Switch Transformer training\n"
STEPS = "".join(
    f"INFO:tensorflow:global step {step}: loss = 79.{step:04d} ({16 + step / 10:.3f} sec/step)\n"
    for step in range(1, 11)
)
UNREAD = (HEAD + STEPS + "INFO:tensorflow:Training completed\n").encode()
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
    assert [(item["line"], item["example"]) for item in run["not_understood"]] == [
        (line, lines[line - 1]) for line in (2, 3, 11)
    ]
    body = client.get("/api/v1/runs", params={"status": "unread", "outcome": "unread"}).json()
    assert [item["id"] for item in body["items"]] == [run["id"]]


def test_it_gets_no_verdict_and_its_report_is_neutral(client: TestClient, engine: Engine) -> None:
    run = read(client, UNREAD)
    report = client.get(f"/api/v1/runs/{run['id']}/report", params={"wait": "20"}).json()
    assert (report["status"], report["exit_code"], report["verdict"]) == ("unread", 6, None)
    assert (report["problems"], report["next_step"]) == ([], None)
    assert [line["line"] for line in report["step_lines"]] == [2, 3, 11]
    assert report["suggested_read_as"] == run["suggested_read_as"] != ""
    assert any(f"--read-as '{run['suggested_read_as']}'" in line for line in verdict_text(report))
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


# --- Exported tables of iterations can be uploaded again, and a stated format is checked immediately.


TABLE = "step,step_time_s,loss\n" + "".join(f"{n},{0.5 + n % 3 / 1000},{3 - n / 100}\n" for n in range(1, 41))


def test_the_series_of_a_run_can_be_uploaded_again(client: TestClient) -> None:
    run = read(client, TABLE.encode(), name="from a table")
    assert (run["status"], run["files"][0]["document"]) == ("ready", "iterations")
    assert run["metrics"]["step_time_ms"]["value"] == pytest.approx(501, abs=1)
    address = f"/api/v1/runs/{run['id']}/series"
    series = client.get(address)
    for text in (series.content, client.get(address, headers={"Accept": "text/csv"}).content):
        again = read(client, text, name=f"again {len(text)}")
        assert client.get(f"/api/v1/runs/{again['id']}/series").json()["columns"] == series.json()["columns"]


def test_a_stated_format_that_a_file_does_not_have_is_refused(client: TestClient) -> None:
    for stated, text, field in (("iterations", "step,loss\n1,2\n", "step time"), ("bencher", TABLE, "not JSON")):
        refused = upload(client, text.encode(), meta=json.dumps({"format": stated}))
        assert (refused.status_code, field in refused.json()["detail"]) == (422, True)
    assert upload(client, b"x", meta=json.dumps({"format": "parquet"})).json()["errors"][0]["field"] == "meta.format"
    as_log = read(client, TABLE.encode(), format="log")
    assert (as_log["status"], as_log["files"][0]["document"]) == ("unread", "")


def test_a_table_without_step_times_is_unread_and_says_why(client: TestClient) -> None:
    for table in (b"step,step_time,loss\n1,2,3\n", b"iteration,loss\n1,2.5\n"):
        run = read(client, table)
        assert (run["status"], run["health"]["outcome"], run["failures"]) == ("unread", "unread", [])
        assert "step_time_ms" in run["error"]


def test_a_run_without_any_text_is_unread_and_never_a_failed_job(client: TestClient) -> None:
    begun = client.post("/api/v1/runs?complete=false", files={"meta": (None, "{}")})
    address = f"/api/v1/runs/{begun.json()['id']}"
    assert client.post(f"{address}/logs", params={"complete": "true"}, content=b"\0" * 5_000).is_success
    process_run(begun.json()["id"])
    empty = client.get(address).json()
    assert (empty["status"], empty["health"]["outcome"], empty["failures"]) == ("unread", "unread", [])


def test_a_problem_of_a_table_is_one_warning(client: TestClient) -> None:
    run = read(client, b'{"step": 1, "step_time_s": 0.8}\n{"step": 2, "step_time_s":\n')
    assert [text for text in run["warnings"] if "Line 2" in text] == [
        f"{run['files'][0]['name']}: Line 2 is not JSON and was skipped."
    ]


LINE = "global step {iteration}: loss = {loss} ({step_time_s} sec/step)"


def test_a_description_of_its_step_lines_makes_a_run_of_it(client: TestClient, engine: Engine) -> None:
    run = read(client, UNREAD)
    address = f"/api/v1/runs/{run['id']}/read-as"
    draft = "step {iteration}: loss = {loss} ({step_time_sec} sec/step"
    assert (run["read_as"], run["suggested_read_as"]) == ("", draft)
    refused = client.put(address, json={"read_as": "step {iteration}", "author": "ada"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "read_as")
    changed = client.put(address, json={"read_as": LINE, "author": "ada"})
    assert changed.status_code == 200
    process_run(run["id"])
    after = client.get(f"/api/v1/runs/{run['id']}").json()
    assert (after["status"], after["trainer"], after["read_as"]) == ("ready", "described lines", LINE)
    assert [(change["field"], change["author"]) for change in after["amendments"]] == [("read_as", "ada")]
    series = client.get(f"/api/v1/runs/{run['id']}/series").json()["columns"]
    assert series["step_time_ms"] == pytest.approx([16_100 + 100 * step for step in range(10)])
    assert LINE in client.get(f"/runs/{run['id']}", params={"tab": "log"}).text
    process_run(run["id"])  # from the stored reading
    assert client.get(f"/api/v1/runs/{run['id']}").json()["status"] == "ready"
    client.put(address, json={"read_as": "", "author": "ada"})
    process_run(run["id"])
    assert client.get(f"/api/v1/runs/{run['id']}").json()["status"] == "unread"
    assert client.put(address, json={"read_as": "", "author": "ada"}).status_code == 422


def test_metadata_and_the_form_describe_step_lines_too(client: TestClient) -> None:
    assert read(client, UNREAD, read_as=LINE)["status"] == "ready"
    wrong = upload(client, UNREAD, meta=json.dumps({"read_as": "step"}))
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "meta.read_as")
    run = read(client, UNREAD, name="by form")
    tried = client.get(f"/runs/{run['id']}", params={"read_as": "step {iteration}: loss = {} ({step_time_s} sec"}).text
    assert "step_time_ms = 16,100" in tried
    assert f'action="/runs/{run["id"]}/read-as"' in tried
    assert f'href="/runs/{run["id"]}/next"' not in tried, "without figures, the form has the advice"
    form = {"read_as": "{step_time_s}", "author": "ada"}
    refused = client.post(f"/runs/{run['id']}/read-as", data=form)
    assert (refused.status_code, 'aria-invalid="true"' in refused.text) == (422, True)
    sent = client.post(f"/runs/{run['id']}/read-as", data=form | {"read_as": LINE}, follow_redirects=False)
    assert sent.status_code == 303
    process_run(run["id"])
    assert client.get(f"/api/v1/runs/{run['id']}").json()["status"] == "ready"


@pytest.mark.parametrize(
    ("log", "status", "outcome"),
    [
        (HEAD + CAUGHT + STEPS, "unread", "unread"),  # it went on after the error
        (HEAD + STEPS + OUT_OF_MEMORY, "failed", "out_of_memory"),  # the job did fail, whatever its trainer
        (HEAD + CAUGHT, "failed", "failed"),
        ("The quick brown fox\n" * 20, "unread", "unread"),
    ],
    ids=["caught", "out of memory", "crash", "prose"],
)
def test_only_what_ended_the_job_is_a_failure_of_it(client: TestClient, log: str, status: str, outcome: str) -> None:
    run = read(client, log.encode())
    assert (run["status"], run["health"]["outcome"]) == (status, outcome)


def test_the_command_line_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_bytes(UNREAD)
    (tmp_path / "base.log").write_bytes(UNREAD)
    result = threewalls("analyze", path, "--json")
    document = result.document
    assert (result.code, document["status"], document["failures"], document["warnings"]) == (6, "unread", [], [])
    output = threewalls("analyze", path).output
    assert [line for line in (2, 3, 11) if f"line {line}: " not in output] == []
    assert "--read-as '" in output
    assert threewalls("analyze", path, "--read-as", LINE, "--json").document["trainer"] == "described lines"
    compare = ("--baseline", tmp_path / "base.log", "--", path)
    assert threewalls("compare", *compare).code == 6
    assert threewalls("compare", "--allow", "unread", *compare).code == 0


# --- A real server refuses a body over the limit before reading all of it, whether its size is declared or not.


LIMIT = 4_000_000
FIVE_GB = 5_000_000_000


@pytest.fixture
def limited(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_upload_bytes": LIMIT})


@pytest.fixture
def address(limited: Settings) -> Iterator[str]:
    with served(create_app(limited, open_to=OPEN_TO)) as address:
        yield address


class Stream:
    """Yield the first part of a form for as long as it is read."""

    def __init__(self) -> None:
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="log"; filename="train.log"\r\n\r\n'
        while self.sent < FIVE_GB:
            self.sent += len(LOG)
            yield LOG


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_five_gigabytes_are_refused_early(address: str, engine: Engine, limited: Settings, declared: bool) -> None:
    stream = Stream()
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    if declared:
        headers["Content-Length"] = str(FIVE_GB)
    answer = httpx2.post(f"{address}/api/v1/runs", content=iter(stream), headers=headers, timeout=300)
    assert_problem(answer, 413, f"4.0{THIN}MB", "Nothing was saved")
    assert stream.sent < 50 * LIMIT
    assert traces(engine, limited) == {}


def test_browsers_get_a_page(limited: Settings) -> None:
    client = TestClient(create_app(limited, open_to=OPEN_TO))
    headers = {"Content-Length": str(FIVE_GB), "Accept": "text/html"}
    answer = client.post("/upload", content=b"", headers=headers)
    assert answer.status_code == 413
    assert f"4.0{THIN}MB" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


def test_a_body_within_the_limit_passes(limited: Settings) -> None:
    client = TestClient(create_app(limited, open_to=OPEN_TO))
    assert upload(client, LOG).status_code == 202

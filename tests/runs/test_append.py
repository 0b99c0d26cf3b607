"""A run that changes after its upload: pieces of a growing log, further logs, corrected fields."""

import gzip
import io
import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import zstandard
from httpx2 import Response
from sqlalchemy import Engine, update
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.pipeline import append
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import RunRow, SegmentRow, utc_now
from tests.cases import sized
from tests.runs.uploading import LOG, assert_problem, upload
from tests.training_logs import training_log
from workers.tasks import process_run, sweep

CUT = 3333


def opened(client: TestClient, log: bytes = b"", **meta: Any) -> int:
    """A run that will receive more."""
    run_id: int = upload(client, *([log] if log else []), meta={"complete": False, **meta}).json()["id"]
    return run_id


def send(client: TestClient, run_id: int, piece: bytes, **query: Any) -> Response:
    words = "&".join(f"{name}={value}" for name, value in query.items())
    return client.post(f"/api/v1/runs/{run_id}/logs?{words}", content=piece)


def run_of(client: TestClient, run_id: int) -> dict[str, Any]:
    run: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}").json()
    return run


def stored_text(client: TestClient, run_id: int) -> bytes:
    return client.get(f"/api/v1/runs/{run_id}/files/0").content


def test_a_growing_log_has_the_figures_so_far(client: TestClient) -> None:
    run_id = opened(client, LOG[:CUT])
    process_run(run_id)
    first = run_of(client, run_id)
    assert (first["status"], first["receiving"], first["health"]["outcome"]) == ("ready", True, "running")
    assert first["failures"] == [], "a log without an end yet was not cut off"
    answer = send(client, run_id, LOG[CUT:], offset=CUT)
    assert answer.json() == {
        "id": run_id,
        "url": f"http://testserver/runs/{run_id}",
        "status": "ready",
        "name": "train.log",
        "offset": len(LOG),
        "receiving": True,
    }
    between = run_of(client, run_id)
    assert (between["status"], between["updating"], between["metrics"]) == ("ready", True, first["metrics"])
    process_run(run_id)
    assert run_of(client, run_id)["health"]["iterations"] == 50
    assert send(client, run_id, b"", complete="true", offset=len(LOG)).json()["receiving"] is False
    process_run(run_id)
    whole = client.get(upload(client, LOG).headers["location"]).json()["id"]
    process_run(whole)
    assert client.get(f"/api/v1/runs/{run_id}/series").json() == client.get(f"/api/v1/runs/{whole}/series").json()
    assert run_of(client, run_id)["metrics"] == run_of(client, whole)["metrics"]
    assert run_of(client, run_id)["reception"] == "complete"


def test_a_piece_sent_again_changes_nothing(client: TestClient) -> None:
    run_id = opened(client, LOG[:CUT])
    for _ in range(2):
        assert send(client, run_id, LOG[1000:5000], offset=1000).json()["offset"] == 5000
    assert send(client, run_id, LOG[:200], offset=0).json()["offset"] == 5000
    assert stored_text(client, run_id) == LOG[:5000]


def test_a_gap_and_a_different_text_are_rejected_with_the_stored_offset(client: TestClient) -> None:
    run_id = opened(client, LOG[:CUT])
    for offset in (CUT + 1, 4000):
        gap = send(client, run_id, LOG[offset:], offset=offset)
        assert_problem(gap, 409, "3,333 bytes of train.log are stored", "Nothing was saved")
        assert gap.json()["offset"] == CUT
    other = send(client, run_id, b"another text", offset=CUT - 4)
    assert_problem(other, 409, "differs from the stored")
    assert other.json()["offset"] == CUT
    assert stored_text(client, run_id) == LOG[:CUT]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_a_piece_may_be_compressed_by_itself(client: TestClient, compress: Any) -> None:
    run_id = opened(client)
    assert send(client, run_id, compress(LOG[:CUT])).json()["offset"] == CUT
    form = {"offset": str(CUT), "complete": "true"}
    files = {"log": ("piece", compress(LOG[CUT:]))}
    answer = client.post(f"/api/v1/runs/{run_id}/logs", data=form, files=files)
    assert (answer.json()["offset"], answer.json()["receiving"]) == (len(LOG), False)
    assert stored_text(client, run_id) == LOG
    assert_problem(send(client, run_id, compress(LOG)[:-9], offset=0), 422, "ends ", "Nothing was saved")


def test_many_small_pieces_are_few_objects_and_one_text(client: TestClient, engine: Engine) -> None:
    run_id, log = opened(client), training_log(iterations=120)
    cuts = [*range(0, len(log), sized(311, 97)), len(log)]
    for start, end in itertools.pairwise(cuts):
        assert send(client, run_id, log[start:end], offset=start).status_code == 200
    with read_session(engine) as session:
        segments = session.exec(select(SegmentRow)).all()
    assert len(segments) <= 12
    assert sum(segment.size_bytes for segment in segments) == len(log)
    assert stored_text(client, run_id) == log
    page = client.get(f"/api/v1/runs/{run_id}/log?from=60&to=61").json()
    assert page["line_count"] == 120
    assert "iteration       60/" in page["lines"][0]["text"]
    process_run(run_id)
    assert run_of(client, run_id)["health"]["iterations"] == 120


def test_concurrent_clients_append_one_after_another(client: TestClient) -> None:
    run_id = opened(client, LOG[:CUT])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda end: send(client, run_id, LOG[CUT:end], offset=CUT), range(4000, 4800, 100)))
    assert {answer.status_code for answer in answers} == {200}
    assert stored_text(client, run_id) == LOG[:4700]


def test_another_name_is_another_log_of_the_run(client: TestClient) -> None:
    first, second = training_log(iterations=30), training_log(iterations=60)
    resumed = b"".join(second.splitlines(keepends=True)[20:])
    run_id = upload(client, first).json()["id"]
    answer = send(client, run_id, resumed, name="slice-2.log")
    assert (answer.json()["name"], answer.json()["receiving"]) == ("slice-2.log", False)
    process_run(run_id)
    run = run_of(client, run_id)
    assert [file["name"] for file in run["files"]] == ["train.log", "slice-2.log"]
    assert run["health"]["iterations"] == 60
    assert set(client.get(f"/api/v1/runs/{run_id}/series").json()["columns"]["log_file"]) == {0, 1}
    assert_problem(send(client, run_id, b"more", offset=0), 422, "several logs: train.log, slice-2.log", "`name`")
    assert client.get(f"/api/v1/runs/{run_id}/log?file=1").json()["line_count"] == 40
    assert_problem(client.get(f"/api/v1/runs/{run_id}/log?file=2"), 404, "has no log 2")


def test_a_run_without_iterations_yet_has_not_failed(client: TestClient) -> None:
    run_id = opened(client, b"initializing torch distributed ...\n")
    process_run(run_id)
    run = run_of(client, run_id)
    assert (run["status"], run["error"]) == ("ready", None)
    assert "No iteration line" in run["warnings"][0]
    send(client, run_id, b"", complete="true")
    process_run(run_id)
    assert run_of(client, run_id)["status"] == "unread"


def test_appends_while_a_worker_reads_are_read_after_it_once(
    client: TestClient, engine: Engine, log_files: LogFiles, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = opened(client, LOG[:CUT])
    really_read, readings = LogFiles.stream, []

    def append_meanwhile(store: LogFiles, keys: Any) -> Any:
        readings.append(len(keys))
        if len(readings) == 1:
            for start, end in ((CUT, 5000), (5000, len(LOG))):
                append.append_log(
                    engine, log_files, settings, run_id, append.Piece(io.BytesIO(LOG[start:end]), offset=start)
                )
        return really_read(store, keys)

    monkeypatch.setattr(LogFiles, "stream", append_meanwhile)
    process_run(run_id)
    assert run_of(client, run_id)["updating"] is True
    process_run(run_id)
    process_run(run_id)
    run = run_of(client, run_id)
    assert (run["updating"], run["health"]["iterations"]) == (False, 50)


def test_a_run_without_new_lines_is_closed_and_new_lines_reopen_it(client: TestClient, engine: Engine) -> None:
    run_id = opened(client, LOG[:CUT])
    process_run(run_id)
    with transaction(engine) as session:
        long_ago = utc_now() - timedelta(hours=2)
        session.execute(update(RunRow).where(col(RunRow.id) == run_id).values(heard_at=long_ago))
    sweep()
    process_run(run_id)
    run = run_of(client, run_id)
    assert (run["reception"], run["receiving"]) == ("incomplete", False)
    assert [warning for warning in run["warnings"] if "closed as incomplete" in warning]
    assert send(client, run_id, LOG[CUT:], offset=CUT).json()["receiving"] is True


def test_two_jobs_that_begin_alike_are_two_runs_and_one_key_is_one(client: TestClient) -> None:
    assert opened(client, LOG[:CUT]) != opened(client, LOG[:CUT])
    first, again = (upload(client, LOG[:CUT], meta={"complete": False}, key="job-9") for _ in range(2))
    assert (first.status_code, again.status_code, again.json()["id"]) == (202, 200, first.json()["id"])


@pytest.mark.parametrize(
    ("query", "words"),
    [({"offset": "-1"}, "offset"), ({"offset": "x"}, "offset"), ({"complete": "maybe"}, "complete")],
)
def test_what_means_nothing_is_refused_by_name(client: TestClient, query: dict[str, str], words: str) -> None:
    assert_problem(send(client, opened(client), b"text", **query), 422, words)


def test_a_piece_that_is_not_text_is_not_a_log(client: TestClient) -> None:
    assert_problem(send(client, opened(client), bytes(range(256)) * 40), 422, "is binary data")
    assert_problem(send(client, 99, b"text"), 404, "Run 99 does not exist")


@pytest.fixture
def run_id(client: TestClient) -> int:
    run: int = upload(client, LOG, meta={"gpus": 8, "project": "moe"}).json()["id"]
    process_run(run)
    return run


def amend(client: TestClient, run_id: int, author: str = "Ada", note: str = "", **fields: Any) -> Response:
    body = {"fields": fields, "author": author, "note": note}
    answer = client.patch(f"/api/v1/runs/{run_id}/contract", json=body)
    if answer.status_code == 200:
        assert answer.json()["updating"] is True
        process_run(run_id)
    return answer


def test_unknown_fields_are_listed_with_ways_to_supply_them(client: TestClient, run_id: int) -> None:
    run = run_of(client, run_id)
    listed = {field["name"]: field for field in run["unknown_fields"]}
    assert set(listed) == set(run["unknown"])
    assert (listed["gpu"]["role"], listed["gpu"]["meta"]) == ("stack", "gpu")
    assert "--expert-model-parallel-size" in listed["ep"]["megatron_lm"]
    roles = [field["role"] for field in run["unknown_fields"]]
    assert roles == sorted(roles, key=lambda role: role != "stack")


def test_a_stated_field_counts_and_is_recorded(client: TestClient, run_id: int) -> None:
    before = run_of(client, run_id)
    amend(client, run_id, gpu="h100", gpus="16", note="from the job script")
    run = run_of(client, run_id)
    assert run["contract"]["gpu"]["value"] == "H100"
    assert run["contract"]["gpus"]["value"] == 16
    assert run["contract"]["gpus"]["detail"].startswith("stated by Ada on 20")
    assert "gpu" not in run["unknown"]
    assert run["stack_key"] != before["stack_key"]
    assert [(a["field"], a["value"], a["old_value"], a["old_source"], a["note"]) for a in run["amendments"]] == [
        ("gpu", "H100", None, "", "from the job script"),
        ("gpus", 16, 8, "metadata", "from the job script"),
    ]


def test_withdrawing_it_restores_the_value_of_the_run(client: TestClient, run_id: int) -> None:
    before = run_of(client, run_id)
    amend(client, run_id, gpu="H100", gpus=16)
    assert amend(client, run_id, author="Grace", gpu={"unset": True}, gpus={"unset": True}).status_code == 200
    run = run_of(client, run_id)
    assert (run["contract"], run["stack_key"]) == (before["contract"], before["stack_key"])
    assert [(a["author"], a["removed"]) for a in run["amendments"]] == [("Ada", False)] * 2 + [("Grace", True)] * 2


@pytest.mark.parametrize(
    ("fields", "author", "field"),
    [
        ({"gpus": -8}, "Ada", "fields.gpus"),
        ({"gpus": 8, "colour": "green"}, "Ada", "fields.colour"),
        ({"container": None}, "Ada", "fields.container"),
        ({"gpu": {"unset": True}}, "Ada", "fields.gpu"),
        ({}, "Ada", "fields"),
        ({"gpus": 8}, "  ", "author"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_changed(
    client: TestClient, run_id: int, fields: dict[str, Any], author: str, field: str
) -> None:
    assert_problem(amend(client, run_id, author=author, **fields), 422, "Nothing was changed", field=field)
    assert run_of(client, run_id)["amendments"] == []


def test_a_run_that_is_not_there_cannot_be_amended(client: TestClient) -> None:
    assert_problem(amend(client, 99, gpus=8), 404, "Run 99 does not exist")


def test_a_waiting_upload_gets_the_unknown_fields(client: TestClient, run_id: int) -> None:
    again = upload(client, LOG, meta={"gpus": 8, "project": "moe"}, wait=1).json()
    assert "container" in {field["name"] for field in again["unknown_fields"]}
    assert again["warnings"] == run_of(client, run_id)["warnings"]

"""A valid upload is answered immediately, stored completely, and processed into figures."""

import gzip
import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import pytest
import zstandard
from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.main import create_app
from app.pipeline.receive import UploadedFile, accept_upload
from app.pipeline.uploaded_file import document_kind
from app.runs.preview import MOST_TEXT_BYTES, PREVIEW_BYTES
from app.runs.queries import get_series
from app.settings import Settings
from app.storage.database import read_session
from app.storage.log_files import LogFiles, StagedFile
from tests.access.people import OURS, PUBLIC, SAME_ORIGIN, THEIRS, Teams
from tests.builders import megatron_log, step_times
from tests.cases import every_case, sized
from tests.conftest import OPEN_TO
from tests.domain.documents.event_files import event, event_file, simple
from tests.runs.uploading import LOG, assert_problem, traces, upload
from tests.shared_papers import shared_folder
from tests.training_logs import training_log
from workers.tasks import process_run


def test_an_upload_is_acknowledged_with_its_address(client: TestClient) -> None:
    answer = upload(client, LOG, meta={"name": "nightly"})
    assert answer.status_code == 202
    run_id = answer.json()["id"]
    assert answer.json() == {
        "id": run_id,
        "url": f"http://testserver/runs/{run_id}",
        "status": "received",
        "created": True,
        "warnings": [],
    }
    assert answer.headers["location"] == f"/api/v1/runs/{run_id}"
    assert client.get(answer.headers["location"]).json()["name"] == "nightly"


def test_a_processed_run_has_its_figures(client: TestClient) -> None:
    run_id = upload(client, training_log(step_time_ms=412.0), meta={"gpus": 8, "model": "Qwen3-30B-A3B"}).json()["id"]
    process_run(run_id)
    run = client.get(f"/api/v1/runs/{run_id}").json()
    assert run["status"] == "ready"
    assert run["error"] is None
    gpus = run["contract"]["gpus"]
    assert (gpus["value"], gpus["source"], gpus["in_use"]) == (8, "metadata", True)
    assert run["metrics"]["step_time_ms"]["value"] == pytest.approx(412.6, abs=0.5)
    assert list(run["metrics"]) == [
        "step_time_ms",
        "tokens_per_s_per_gpu",
        "tflops_per_gpu",
        "mfu_pct",
        "peak_memory_gib",
    ]


@pytest.mark.parametrize(
    "compressed",
    [
        LOG,
        gzip.compress(LOG),
        gzip.compress(LOG[:3000]) + gzip.compress(LOG[3000:]),
        gzip.compress(LOG) + b"\0" * 512,
        zstandard.compress(LOG),
        zstandard.compress(LOG[:3000]) + zstandard.compress(LOG[3000:]),
    ],
    ids=["plain", "gzip", "two gzip members", "padded gzip", "zstd", "two zstd frames"],
)
@pytest.mark.parametrize("name", ["train.log", "train.log.gz", "train.log.zst"])
def test_compression_is_recognised_by_content(client: TestClient, compressed: bytes, name: str) -> None:
    run = client.get(upload(client, compressed, name=name).headers["location"]).json()
    assert run["files"][0]["sha256"] == hashlib.sha256(LOG).hexdigest()
    assert client.get(run["files"][0]["url"]).content == LOG


def test_logs_with_progress_bars_colours_and_other_encodings_are_text(client: TestClient) -> None:
    odd = b"\x1b[32mok\x1b[0m\r 10%|#  |\r 20%|## |\n" + "größer 速度\n".encode() + "größer\n".encode("latin-1")
    assert upload(client, LOG + odd * 20).status_code == 202


def test_several_logs_are_one_text_in_their_order(client: TestClient) -> None:
    first, second = b"slice one", training_log(iterations=20)
    run_id = upload(client, first, second).json()["id"]
    log = client.get(f"/api/v1/runs/{run_id}/log?from=1&to=2").json()
    assert log["line_count"] == 21
    assert log["lines"][0] == {"line": 1, "text": "slice one"}
    assert "iteration        1/" in log["lines"][1]["text"]


def test_configuration_and_events_are_stored_with_the_log(client: TestClient) -> None:
    events = bytes(range(256)) * 4
    run_id = upload(client, LOG, config=b"model:\n  tp: 8\n", events=events).json()["id"]
    process_run(run_id)
    run = client.get(f"/api/v1/runs/{run_id}").json()
    assert [file["kind"] for file in run["files"]] == ["log", "config", "events"]
    assert client.get(run["files"][2]["url"]).content == events
    assert [warning for warning in run["warnings"] if "not read" in warning] != []


def test_metadata_may_come_as_a_file(client: TestClient) -> None:
    files = [("log", ("a.log", LOG)), ("meta", ("meta.json", b'{"name": "from a file"}'))]
    run = client.get(client.post("/api/v1/runs", files=files).headers["location"]).json()
    assert run["name"] == "from a file"


def test_without_a_name_a_run_is_named_after_its_log(client: TestClient) -> None:
    run = client.get(upload(client, LOG, name="C:\\jobs\\qwen3 night.log.gz").headers["location"]).json()
    assert run["name"] == "qwen3 night"


def test_unknown_fields_are_stored_with_a_warning(client: TestClient) -> None:
    run_id = upload(client, LOG, meta={"gpus": 8, "favourite_colour": "green"}).json()["id"]
    process_run(run_id)
    warnings = client.get(f"/api/v1/runs/{run_id}").json()["warnings"]
    assert [warning for warning in warnings if "favourite_colour" in warning] != []


def test_html_in_names_stays_text(client: TestClient) -> None:
    evil = "<script>alert(1)</script>"
    answer = upload(client, LOG, name=f"{evil}.log", meta={"name": evil, "branch": "<b>", "tags": ["<i>"]})
    process_run(answer.json()["id"])
    page = client.get(f"/runs/{answer.json()['id']}", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert evil not in page.text
    assert "&lt;script&gt;" in page.text


def test_the_wait_ends_when_time_is_up(client: TestClient) -> None:
    assert upload(client, LOG, wait=0.05).json()["status"] == "received"


def test_an_upload_leaves_one_object_one_row_and_one_message(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    upload(client, LOG)
    assert traces(engine, settings) == {
        "run": 1,
        "run_file": 1,
        "segment": 1,
        "stored_object": 1,
        "objects": 1,
        "messages": 1,
    }


def test_the_upload_page_has_one_primary_action_after_the_project(client: TestClient) -> None:
    page = client.get("/upload").text.partition("<dialog")[0]
    assert page.count('class="button primary"') == 1
    assert page.index('id="f-log"') < page.index('id="f-project"') < page.index('class="button primary"')


def test_an_address_fills_the_form(client: TestClient) -> None:
    inputs = re.findall(
        r'<input id="f-(?:project|gpu)".*?>', client.get("/upload?project=moe&gpu=%22H100").text, re.DOTALL
    )
    assert [re.findall(r'value="([^"]*)"', text) for text in inputs] == [["&#34;H100"], ["moe"]]


# --- The upload page with log-ins: the project is one where the user may upload.


def offered(teams: Teams, who: str) -> list[str]:
    page = teams.client(who).get("/upload").text
    chosen = re.search(r'<select id="f-project".*?</select>', page, re.DOTALL)
    assert chosen is not None
    return re.findall(r"<option[^>]*>([^<]+)", chosen[0])


def test_the_project_is_chosen_of_those_where_one_may_upload(teams: Teams) -> None:
    assert offered(teams, "contributor") == [OURS]
    assert offered(teams, "administrator") == ["choose one", OURS, THEIRS, PUBLIC]
    admin = teams.client("administrator")
    page = admin.post("/upload", data={"project": ""}, files={"log": ("a.log", b"line")}, headers=SAME_ORIGIN)
    assert (page.status_code, "name a project" in page.text) == (422, True)
    assert "/projects/default" not in admin.get("/settings/projects").text
    page = admin.post("/upload", data={"project": THEIRS}, files={"log": ("a.log", b"line")}, headers=SAME_ORIGIN)
    assert page.status_code == 303


# --- The same upload is the same run, even if it is sent repeatedly or concurrently.


OTHER = training_log(step_time_ms=500.0)
META = {"project": OURS}


def test_the_same_key_again_is_the_same_run(client: TestClient) -> None:
    first = upload(client, LOG, key="job-17")
    again = upload(client, LOG, key="job-17")
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json() | {"created": False}
    assert again.headers["location"] == first.headers["location"]


def test_the_same_content_without_a_key_is_the_same_run(client: TestClient) -> None:
    first = upload(client, LOG, meta={"name": "a", "gpus": 8})
    again = upload(client, gzip.compress(LOG), name="other.gz", meta={"gpus": 8, "name": "a"}, key="new")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


def test_a_key_of_another_content_is_a_conflict(client: TestClient, engine: Engine, settings: Settings) -> None:
    first = upload(client, LOG, key="job-17")
    before = traces(engine, settings)
    assert_problem(upload(client, OTHER, key="job-17"), 409, "'job-17'", f"run {first.json()['id']}")
    assert traces(engine, settings) == before


@pytest.mark.parametrize(
    "change",
    [
        {"meta": {"name": "b"}},
        {"meta": {"name": "a", "project": "elsewhere"}},
        {"meta": {"name": "a"}, "config": b"tp: 8\n"},
    ],
)
def test_other_metadata_projects_or_files_are_another_run(client: TestClient, change: dict[str, bytes]) -> None:
    first = upload(client, LOG, meta={"name": "a"})
    other = upload(client, LOG, **change)
    assert other.status_code == 202
    assert other.json()["id"] != first.json()["id"]


def test_a_key_is_the_project_s_own(client: TestClient) -> None:
    first = upload(client, LOG, meta={"project": "a"}, key="job-17")
    second = upload(client, OTHER, meta={"project": "b"}, key="job-17")
    assert (first.status_code, second.status_code) == (202, 202)


def test_an_idempotency_key_belongs_to_its_sender(teams: Teams) -> None:
    senders = [teams.client(who) for who in ("token:upload", "token:all", "contributor", "maintainer")]
    logs = [training_log(step_time_ms=300.0 + number) for number in range(len(senders))]
    first = [upload(sender, log, meta=META, key="job-17").json() for sender, log in zip(senders, logs, strict=True)]
    again = [upload(sender, log, meta=META, key="job-17").json() for sender, log in zip(senders, logs, strict=True)]
    assert len({item["id"] for item in first}) == len(senders)
    assert [item["id"] for item in again] == [item["id"] for item in first]
    assert_problem(upload(senders[0], OTHER, meta=META, key="job-17"), 409, f"run {first[0]['id']}")


def test_an_answer_about_the_run_of_another_caller_has_no_verdict(teams: Teams) -> None:
    own = upload(teams.client("token:upload"), LOG, meta=META).json()
    process_run(own["id"])

    def keys_of_answer(who: str) -> set[str]:
        answer = upload(teams.client(who), LOG, meta=META, wait=0.1).json()
        assert answer["id"] == own["id"]
        return set(answer)

    assert (
        keys_of_answer("token:upload") > keys_of_answer("token:all") == {"id", "url", "created", "status", "warnings"}
    )
    assert "verdict" in keys_of_answer("token:upload")
    assert keys_of_answer("contributor") == keys_of_answer("token:all")


def test_slugs_that_differ_by_case_are_one_project(client: TestClient) -> None:
    for slug in ("MoE", "moe", "mOE"):
        assert upload(client, LOG, meta={"project": slug}).status_code == 202
    assert [item["project"] for item in client.get("/api/v1/projects").json()["items"]] == ["MoE"]
    answer = client.post("/api/v1/projects", json={"project": "MOE", "author": "Ada"})
    assert_problem(answer, 409, "MOE")


def send_together(app: FastAPI, times: int) -> list[int]:
    client = TestClient(app)
    with ThreadPoolExecutor(times) as pool:
        answers = list(pool.map(lambda _: upload(client, LOG, meta={"project": "new"}, key="k"), range(times)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    return sorted(answer.status_code for answer in answers)


def test_simultaneous_duplicates_are_one_run(app: FastAPI) -> None:
    assert send_together(app, 8) == [200] * 7 + [202]


def test_simultaneous_duplicates_are_one_run_on_postgresql(settings: Settings, postgres_url: str) -> None:
    app = create_app(settings.model_copy(update={"database_url": postgres_url}), open_to=OPEN_TO)
    assert send_together(app, 8) == [200] * 7 + [202]
    app.state.engine.dispose()


# --- The content determines the type of a file, not the form field; golden values keep their series.


COMMAND = b"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --bf16 --num-experts 64 --moe-router-topk 8\n"
ENVIRONMENT = b"PATH=/usr/bin\nPWD=/job\nSLURM_JOB_ID=17\nNCCL_NVLS_ENABLE=1\nWORLD_SIZE=16\n"
CONTAINER = b"_target_: megatron.bridge.training.config.ConfigContainer\nmodel:\n  tensor_model_parallel_size: 2\n"
GOLDEN = {
    "iteration-time": {"start_step": 1, "end_step": 3, "step_interval": 1, "values": {"1": 9, "2": 0.5, "3": 0.5}}
}

TENSORBOARD = event_file(
    *(event(step, simple("iteration-time", value)) for step, value in ((1, 9.0), (2, 0.5), (3, 0.5)))
)
EVERY = sized(48, 1)
"""Which of the corpus's golden runs go through a database; tests/domain/documents reads all of them."""


def processed(client: TestClient, *parts: tuple[str, tuple[str, bytes]]) -> dict[str, Any]:
    answer = client.post("/api/v1/runs", files=list(parts))
    assert answer.status_code == 202, answer.text
    process_run(answer.json()["id"])
    run: dict[str, Any] = client.get(answer.headers["location"]).json()
    return run


def test_a_document_next_to_a_log_states_its_fields(client: TestClient) -> None:
    with every_case() as case:
        for content, document, stated, value in (
            (COMMAND, "launch command", "gpus", 16),
            (ENVIRONMENT, "job environment", "gpus", 16),
            (CONTAINER, "bridge configuration", "tp", 2),
        ):
            for field, compress in itertools.product(("log", "config", "events"), (bytes, gzip.compress)):
                with case((document, field, compress.__name__)):
                    log = (
                        LOG + f"{document} {field} {compress.__name__}\n".encode()
                    )  # another log each time: another run
                    run = processed(client, ("log", ("train.log", log)), (field, ("anything.txt", compress(content))))
                    files = [(file["kind"], file["document"]) for file in run["files"]]
                    assert files == [("log", ""), ("config", document)]
                    assert run["contract"][stated]["value"] == value
                    assert run["health"]["iterations"] == 50


@pytest.mark.parametrize("field", ["log", "config", "events"])
def test_a_run_may_be_made_of_documents_only(client: TestClient, field: str) -> None:
    run = processed(client, (field, ("golden.json", json.dumps(GOLDEN).encode())))
    assert (run["status"], run["name"]) == ("ready", "golden.json")
    series = client.get(f"/api/v1/runs/{run['id']}/series").json()["columns"]
    assert series["step_time_ms"] == [9000, 500, 500]


def test_tensorboard_events_are_series(client: TestClient) -> None:
    run = processed(client, ("log", ("events.out", TENSORBOARD)))
    assert (run["files"][0]["kind"], run["files"][0]["document"]) == ("events", "tensorboard")
    assert client.get(f"/api/v1/runs/{run['id']}/series").json()["columns"]["step_time_ms"] == [9000, 500, 500]


def test_a_document_that_is_broken_inside_is_warned_of(client: TestClient) -> None:
    broken = b"_target_: x.ConfigContainer\nmodel: [1,\n"
    run = processed(client, ("log", ("train.log", LOG)), ("config", ("conf.yaml", broken)))
    assert run["status"] == "ready"
    assert any("conf.yaml" in warning and "bridge configuration" in warning for warning in run["warnings"])


@pytest.mark.parametrize("head", [COMMAND, b"+ " + COMMAND, ENVIRONMENT, CONTAINER])
def test_a_log_that_begins_with_its_command_or_environment_is_a_log(client: TestClient, head: bytes) -> None:
    run = processed(client, ("log", ("train.log", head + LOG)))
    assert [(file["kind"], file["document"]) for file in run["files"]] == [("log", "")]
    assert run["health"]["iterations"] == 50


def test_a_crash_behind_the_command_is_a_log(client: TestClient) -> None:
    crash = b"Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    run = processed(client, ("log", ("train.log", COMMAND + crash)))
    assert (run["files"][0]["kind"], run["status"]) == ("log", "failed")


def test_every_log_of_the_corpus_is_a_log() -> None:
    for path in sorted(shared_folder("corpus").glob("logs/**/*.log")):
        with path.open("rb") as file, StagedFile(iter(lambda: file.read(1 << 20), b"")) as staged:
            assert document_kind("log", path.name, staged) == "", path


@pytest.mark.parametrize(
    ("cut_log", "iterations"),
    [(gzip.compress(LOG)[:-4], 50), (gzip.compress(LOG) + gzip.compress(LOG)[:5], 50), (b"", 0)],
    ids=["trailer missing", "second member missing", "zstd"],
)
def test_a_compressed_log_that_ends_early_is_read_up_to_the_cut(
    client: TestClient, cut_log: bytes, iterations: int
) -> None:
    answer = upload(client, cut_log or _cut_zstd(), name="train.log.gz")
    assert answer.status_code == 202
    assert "but ends early at" in answer.json()["warnings"][0]
    process_run(answer.json()["id"])
    run = client.get(answer.headers["location"]).json()
    read = run["health"]["iterations"]
    assert read == iterations or (iterations == 0 and read > 100)
    size = run["files"][0]["size_bytes"]
    assert f"({size:,} bytes). {read:,} iterations" in run["warnings"][0]


def _cut_zstd() -> bytes:
    """A stream of several blocks without its last."""
    return zstandard.compress(training_log(iterations=3000))[:-1000]


def test_a_golden_run_returns_its_step_times(engine: Engine, log_files: LogFiles, settings: Settings) -> None:
    for path in sorted(shared_folder("corpus").glob("golden/*/*.json"))[::EVERY]:
        series = json.loads(path.read_text())["series"]
        if "iteration-time" not in series:
            continue
        document = {name: _as_upstream_writes(metric) for name, metric in series.items()}
        sent = UploadedFile("log", path.name, BytesIO(json.dumps(document).encode()))
        meta = json.dumps({"name": path.name}).encode()
        accepted = accept_upload(engine, log_files, settings, files=[sent], meta=meta)
        process_run(accepted.run_id)
        with read_session(engine) as session:
            columns = get_series(session, accepted.run_id).columns
        read = dict(zip(columns["iteration"].tolist(), columns["step_time_ms"].tolist(), strict=True))
        expected = {step: value * 1000 for step, value in _points(series["iteration-time"]) if value is not None}
        assert {step: value for step, value in read.items() if not math.isnan(value)} == pytest.approx(expected), path


def _points(metric: Mapping[str, Any]) -> list[tuple[int, float | None]]:
    first = metric["start_step"] + (metric["start_step"] == 0)
    steps = metric.get("steps") or [first + place * metric["step_interval"] for place in range(len(metric["values"]))]
    return list(zip(steps, metric["values"], strict=True))


def _as_upstream_writes(metric: Mapping[str, Any]) -> dict[str, Any]:
    """The layout of Megatron-LM's own files: values by step since 2025, lists from step 0 before."""
    points = _points(metric)
    head = {"start_step": metric["start_step"], "end_step": points[-1][0], "step_interval": metric["step_interval"]}
    if metric["start_step"] == 0:
        return head | {"values": metric["values"]}
    return head | {"values": {str(step): "nan" if value is None else value for step, value in points}}


# --- The preview of a file before its upload.


BYTES = SAME_ORIGIN | {"Content-Type": "application/octet-stream"}


def preview(client: TestClient, data: bytes, name: str = "train.log") -> dict[str, Any]:
    answer = client.post(f"/upload/preview?name={name}", content=data, headers=BYTES)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def test_a_preview_names_what_the_log_shows_and_what_it_does_not(client: TestClient) -> None:
    log = megatron_log(step_times(412.0, 60)).encode()
    for data in (log, gzip.compress(log), gzip.compress(log)[:-20]):  # the browser sends only the beginning
        shown = preview(client, data)
        assert (shown["is_log"], "60 iterations" in shown["sentence"]) == (True, True)
        assert {"cluster", "container"} <= set(shown["missing"])
        assert not set(shown["missing"]) & set(shown["recognised"])
        assert shown["proposed"] == {}
    in_name = preview(client, log, "gb200x64.log")
    assert in_name["proposed"].keys() == {"gpu", "gpus"} & set(in_name["missing"])
    assert client.get("/api/v1/runs").json()["items"] == []


def test_a_preview_of_a_failed_job_names_its_failure(client: TestClient) -> None:
    log = megatron_log(step_times(412.0, 60))
    crash = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    text = preview(client, f"{log}{crash}".encode())["sentence"]
    assert "A GPU ran out of memory" in text
    assert f"line {log.count(chr(10)) + 1:,}" in text
    assert "failed" not in preview(client, log.encode())["sentence"]


def test_a_preview_of_anything_else_says_so(client: TestClient) -> None:
    assert preview(client, b"\x00\x01\x02" * 500)["is_refused"]
    assert not preview(client, b"a line\n")["is_refused"]
    for data in (b"", b"\x00\x01\x02" * 500, b"a line\n", gzip.compress(b"x")[:12], b"\x1f\x8b" + b"a" * 300):
        assert (preview(client, data)["is_log"], preview(client, data)["recognised"]) == (False, {})


def test_a_preview_is_bounded_and_needs_the_right_to_upload(teams: Teams) -> None:
    client = teams.client("contributor")
    too_much = client.post("/upload/preview", content=b"a" * (PREVIEW_BYTES + 1), headers=BYTES)
    assert too_much.status_code == 413
    bomb = gzip.compress(b" iteration 1/50 | elapsed time per iteration (ms): 400.0 |\n" * 2_000_000)
    assert len(bomb) < PREVIEW_BYTES < MOST_TEXT_BYTES
    shown = preview(client, bomb)
    assert shown["recognised"] == {}
    refused = teams.client("viewer").post("/upload/preview", content=b"a line", headers=BYTES)
    assert refused.status_code in (403, 404)

"""A good upload is answered at once, stored whole, and processed into figures."""

import gzip
import hashlib

import pytest
import zstandard
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.settings import Settings
from tests.runs.uploading import LOG, traces, upload
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
    assert run["contract"]["gpus"] == {"value": 8, "source": "metadata", "detail": run["contract"]["gpus"]["detail"]}
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
def test_what_is_compressed_is_seen_by_its_bytes(client: TestClient, compressed: bytes, name: str) -> None:
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


def test_configuration_and_events_are_kept_beside_the_log(client: TestClient) -> None:
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


def test_without_a_name_a_run_is_called_as_its_log(client: TestClient) -> None:
    run = client.get(upload(client, LOG, name="C:\\jobs\\qwen3 night.log.gz").headers["location"]).json()
    assert run["name"] == "qwen3 night"


def test_fields_that_nobody_knows_are_kept_and_warned_of(client: TestClient) -> None:
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

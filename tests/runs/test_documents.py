"""Files are what they say, whatever field they come in; golden values give back the series they hold."""

import gzip
import itertools
import json
import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pytest
import zstandard
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.pipeline.receive import UploadedFile, accept_upload
from app.pipeline.uploaded_file import document_kind
from app.runs.queries import get_series
from app.settings import Settings
from app.storage.database import read_session
from app.storage.log_files import LogFiles, StagedFile
from tests.cases import every_case, sized
from tests.domain.documents.event_files import event, event_file, simple
from tests.runs.uploading import LOG, upload
from tests.shared_papers import shared_folder
from tests.training_logs import training_log
from workers.tasks import process_run

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


def test_a_document_beside_a_log_states_its_fields(client: TestClient) -> None:
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
    assert [warning for warning in run["warnings"] if warning.startswith("conf.yaml looks like bridge configuration")]


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
    assert f"({size:,} bytes). The {read:,} iterations before the cut were read." in run["warnings"][0]


def _cut_zstd() -> bytes:
    """A stream of several blocks without its last."""
    return zstandard.compress(training_log(iterations=3000))[:-1000]


def test_a_golden_run_gives_back_its_step_times(engine: Engine, log_files: LogFiles, settings: Settings) -> None:
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

"""`threewalls import`: runs of other tools become runs of a real service, once."""

import json
import struct
from pathlib import Path

import httpx2
import pytest

from app.client.history_import import _records
from tests.client.commands import Done, threewalls
from tests.domain.documents.event_files import event, event_file, simple
from tests.embedded.processes import Running

STEPS = range(1, 31)


def seconds(step: int) -> float:
    return 0.5 + step % 3 / 1000


def mlflow_store(folder: Path) -> Path:
    """A folder as MLflow 3.17 writes it with `file:` as its tracking address."""
    run = folder / "mlruns" / "0" / "dc5bd4f307f843a78275cabd45c091fb"
    (run / "metrics" / "train").mkdir(parents=True)
    (run / "params").mkdir()
    (run / "tags").mkdir()
    (run.parent / "meta.yaml").write_text("experiment_id: '0'\nname: Default\n")
    (run / "meta.yaml").write_text("end_time: 1795417130442\nrun_name: ml-a\nstart_time: 1795417127442\nstatus: 3\n")
    (run / "params" / "model").write_text("Qwen3-30B-A3B")
    (run / "params" / "tensor_model_parallel_size").write_text("2")
    (run / "params" / "cards").write_text("16")
    (run / "tags" / "mlflow.runName").write_text("ml-a")
    (run / "metrics" / "step_time_s").write_text("".join(f"1795417127500 {seconds(n)} {n}\n" for n in STEPS))
    (run / "metrics" / "train" / "loss").write_text("".join(f"1795417127500 {3 - n / 100} {n}\n" for n in STEPS))
    return folder / "mlruns"


def wandb_export(folder: Path) -> Path:
    run = folder / "wandb" / "b35xc0yg"
    run.mkdir(parents=True)
    (run / "config.json").write_text(
        json.dumps({"model": "Qwen3-30B-A3B", "gpus": 16, "tensor_model_parallel_size": 2})
    )
    rows = ({"_step": n, "perf/iter": seconds(n), "loss": 3 - n / 100} for n in STEPS)
    (run / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "wandb"


def tensorboard_folder(folder: Path) -> Path:
    run = folder / "tb" / "nightly"
    run.mkdir(parents=True)
    scalars = [
        event(n, simple(tag, value)) for n in STEPS for tag, value in (("iteration-time", seconds(n)), ("loss", 3.0))
    ]
    (run / "events.out.tfevents.1795417127.host").write_bytes(event_file(*scalars))
    return folder / "tb"


def tables(folder: Path) -> Path:
    (folder / "tables").mkdir()
    for name in ("a", "b"):
        rows = "".join(f"{n},{seconds(n)}\n" for n in STEPS)
        (folder / "tables" / f"{name}.csv").write_text(f"step,step_time_s\n{rows}")
        (folder / "tables" / f"{name}.config.json").write_text(json.dumps({"gpus": 16, "note": name}))
    return folder / "tables"


MAKERS = {"mlflow": mlflow_store, "tensorboard": tensorboard_folder, "csv": tables}


@pytest.mark.parametrize(
    ("source", "more", "fields"),
    [
        ("mlflow", ("--map", "cards=gpus"), {"gpus": 16, "tp": 2, "model": "Qwen3-30B-A3B"}),
        ("tensorboard", (), {}),
        ("csv", (), {"gpus": 16}),
    ],
)
def test_runs_of_another_tool_are_imported_once(
    server: Running, tmp_path: Path, source: str, more: tuple[str, ...], fields: dict[str, object]
) -> None:
    where = MAKERS[source](tmp_path)

    def run(*words: str) -> Done:
        return threewalls(
            server.address, tmp_path, "import", source, str(where), "--project", f"import-{source}", *more, *words
        )

    dry = run("--dry-run", "--json")
    assert dry.code == 0, dry.err
    count = len(dry.document["runs"])
    listed = httpx2.get(f"{server.address}/api/v1/runs", params={"project": f"import-{source}"}, timeout=300)
    assert (count, listed.json()["total"]) == (2 if source == "csv" else 1, 0)
    first = run("--json").document["runs"]
    assert [row["created"] for row in first] == [True] * count
    again = run("--json").document["runs"]
    assert [(row["id"], row["created"]) for row in again] == [(row["id"], False) for row in first]
    address = f"{server.address}/api/v1/runs/{first[0]['id']}"
    httpx2.get(f"{address}/report", params={"wait": "60"}, timeout=300)
    imported = httpx2.get(address, timeout=300).json()
    assert (imported["status"], imported["tags"]) == ("ready", [f"imported:{source}"])
    assert imported["metrics"]["step_time_ms"]["value"] == pytest.approx(501, abs=1)
    assert {name: imported["contract"][name]["value"] for name in fields} == fields


def test_a_metric_of_another_name_is_mapped_and_a_refusal_is_said(server: Running, tmp_path: Path) -> None:
    where = wandb_export(tmp_path)
    words = ("import", "wandb", str(where), "--project", "import-wandb", "--json")
    refused = threewalls(server.address, tmp_path, *words)
    assert (refused.code, "step_time_s" in refused.document["runs"][0]["error"]) == (3, True)
    done = threewalls(server.address, tmp_path, *words, "--column", "perf/iter=step_time_s")
    assert (done.code, done.document["runs"][0]["created"]) == (0, True)
    servers = (("wandb", "https://wandb.example"), ("wandb", "http://127.0.0.1:9/team/moe"))
    for wrong in (*servers, ("csv", "nowhere"), ("csv", str(where), "--map", "x")):
        assert threewalls(server.address, tmp_path, "import", *wrong).code == 2
    (tmp_path / "empty").mkdir()
    for source in MAKERS:
        assert threewalls(server.address, tmp_path, "import", source, str(tmp_path / "empty"), "--dry-run").code == 3


def test_records_of_an_offline_run_are_joined_over_blocks() -> None:
    whole, long = b"a" * 100, b"b" * 40_000
    first = 32_768 - 7 - 107 - 7
    data = b":W&B\xe1\xbe\x00" + _record(whole, 1) + _record(long[:first], 2) + _record(long[first:], 4)
    assert list(_records(data)) == [whole, long]
    assert list(_records(data[:-1])) == [whole]


def _record(part: bytes, kind: int) -> bytes:
    return struct.pack("<IHB", 0, len(part), kind) + part

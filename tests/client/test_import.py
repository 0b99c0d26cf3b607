"""`threewalls import`: runs of other tools become runs of a real service, once."""

import json
import struct
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.client.history_import import _records
from app.client.options import IMPORT_SOURCES
from app.client.upload import PIECE_BYTES
from tests.client.commands import threewalls
from tests.client.other_tools import COMMIT, ITERATIONS, running_mlflow, write_mlflow, write_tensorboard
from tests.embedded.processes import Running

STEPS = range(1, 31)


def seconds(step: int) -> float:
    return 0.5 + step % 3 / 1000


def wandb_export(folder: Path) -> Path:
    run = folder / "wandb" / "b35xc0yg"
    run.mkdir(parents=True)
    (run / "config.json").write_text(
        json.dumps({"model": "Qwen3-30B-A3B", "gpus": 16, "tensor_model_parallel_size": 2})
    )
    rows = ({"_step": n, "perf/iter": seconds(n), "loss": 3 - n / 100} for n in STEPS)
    (run / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "wandb"


def tables(folder: Path) -> Path:
    (folder / "tables").mkdir()
    for name in ("a", "b"):
        rows = "".join(f"{n},{seconds(n)}\n" for n in STEPS)
        (folder / "tables" / f"{name}.csv").write_text(f"step,step_time_s\n{rows}")
        (folder / "tables" / f"{name}.config.json").write_text(json.dumps({"gpus": 16, "note": name}))
    return folder / "tables"


def imported_once(server: Running, folder: Path, *words: str, runs: int) -> list[dict[str, Any]]:
    """Import runs and return them: a dry run creates none, and a repeated import creates no duplicates."""

    def run(*more: str) -> list[dict[str, Any]]:
        done = threewalls(server.address, folder, "import", *words, *more, "--json")
        assert done.code == 0, done.out + done.err
        rows: list[dict[str, Any]] = done.document["runs"]
        return rows

    dry, first, again, dry_again = run("--dry-run"), run(), run(), run("--dry-run")
    assert [row["id"] for row in dry] == [None] * runs
    assert [row["created"] for row in first] == [True] * runs
    assert [(row["id"], row["created"]) for row in again] == [(row["id"], False) for row in first]
    assert [row["id"] for row in dry_again] == [row["id"] for row in first]
    return [judged(server, row["id"]) for row in first]


def judged(server: Running, run_id: int) -> dict[str, Any]:
    address = f"{server.address}/api/v1/runs/{run_id}"
    httpx2.get(f"{address}/report", params={"wait": "60"}, timeout=300)
    run: dict[str, Any] = httpx2.get(address, timeout=300).json()
    assert run["status"] == "ready", run
    assert run["metrics"]["step_time_ms"]["value"] == pytest.approx(501, abs=1)
    return run


def assert_loss(server: Running, run: dict[str, Any]) -> None:
    series = httpx2.get(f"{server.address}/api/v1/runs/{run['id']}/series", timeout=300).json()["columns"]
    assert (len(series["loss"]), series["loss"][-1]) == (ITERATIONS, pytest.approx(2.7))


def contract(run: dict[str, Any], *names: str) -> dict[str, object]:
    return {name: run["contract"][name]["value"] for name in names}


def test_a_real_mlflow_server_its_database_and_a_file_store_are_imported_once(server: Running, tmp_path: Path) -> None:
    store, database = tmp_path / "mlruns", tmp_path / "mlflow.db"
    write_mlflow(f"file:{store}")
    (losses,) = store.glob("*/*/metrics/train/loss")
    with losses.open("a") as file:  # as MLflow writes it for a data set, and the last line of an active run
        file.write("1780000000000 2.7 30 tokens 1f2e\n1780000")
    options = ("--map", "cards=gpus", "--project")
    with running_mlflow(database) as address:
        write_mlflow(address)
        (of_server,) = imported_once(server, tmp_path, "mlflow", address, *options, "import-mlflow", runs=1)
    (of_files,) = imported_once(server, tmp_path, "mlflow", str(store), *options, "import-mlruns", runs=1)
    for run in (of_server, of_files):
        assert (run["name"], run["tags"], run["commit"]) == ("ml: a", ["imported:mlflow"], COMMIT)
        assert contract(run, "gpus", "tp", "model") == {"gpus": 16, "tp": 2, "model": "Qwen3-30B-A3B"}
        assert_loss(server, run)
    for where in (database, tmp_path, f"sqlite:///{database}"):  # the database of the server has the same run
        done = threewalls(
            server.address, tmp_path, "import", "mlflow", str(where), *options, "import-mlflow", "--dry-run", "--json"
        )
        assert of_server["id"] in [row["id"] for row in done.document["runs"]]


def test_event_files_of_real_tensorboard_are_imported_once(server: Running, tmp_path: Path) -> None:
    write_tensorboard(tmp_path / "tb" / "nightly")
    words = ("tensorboard", str(tmp_path / "tb"), "--project", "import-tensorboard")
    (run,) = imported_once(server, tmp_path, *words, runs=1)
    assert (run["name"], run["tags"]) == ("nightly", ["imported:tensorboard"])
    assert_loss(server, run)


def test_tables_of_a_folder_are_imported_once(server: Running, tmp_path: Path) -> None:
    words = ("csv", str(tables(tmp_path)), "--project", "import-csv")
    runs = imported_once(server, tmp_path, *words, runs=2)
    assert [contract(run, "gpus") for run in runs] == [{"gpus": 16}] * 2


def test_a_long_table_is_read_as_a_table(server: Running, tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    filler = ",".join(f"m{number}" for number in range(100))
    values = ",0.123456789" * 100
    rows = "".join(f"{n},{seconds(n)}{values}\n" for n in range(1, 8_001))
    table = tmp_path / "long" / "a.csv"
    table.write_text(f"step,step_time_s,{filler}\n{rows}")
    assert table.stat().st_size > PIECE_BYTES
    words = ("import", "csv", str(tmp_path / "long"), "--project", "import-long", "--json")
    judged(server, threewalls(server.address, tmp_path, *words).document["runs"][0]["id"])
    words = ("upload", str(table), "--project", "upload-long", "--json")
    judged(server, threewalls(server.address, tmp_path, *words).document["id"])


def test_a_metric_with_another_name_is_mapped_and_a_refusal_is_reported(server: Running, tmp_path: Path) -> None:
    where = wandb_export(tmp_path)
    words = ("import", "wandb", str(where), "--project", "import-wandb", "--json")
    refused, dry = (
        threewalls(server.address, tmp_path, *words),
        threewalls(server.address, tmp_path, *words, "--dry-run"),
    )
    assert (refused.code, "--column" in refused.document["runs"][0]["error"]) == (3, True)
    assert (dry.code, dry.document["runs"]) == (3, refused.document["runs"])
    done = threewalls(server.address, tmp_path, *words, "--column", "perf/iter=step_time_s")
    assert (done.code, done.document["runs"][0]["created"]) == (0, True)
    servers = (("wandb", "https://wandb.example"), ("wandb", "http://127.0.0.1:9/team/moe"))
    for wrong in (*servers, ("csv", "nowhere"), ("csv", str(where), "--map", "x")):
        assert threewalls(server.address, tmp_path, "import", *wrong).code == 2
    (tmp_path / "text.db").write_text("no database")
    assert threewalls(server.address, tmp_path, "import", "mlflow", str(tmp_path / "text.db")).code == 2
    (tmp_path / "bare" / "metrics").mkdir(parents=True)
    (tmp_path / "bare" / "meta.yaml").write_text("run_name: bare\n")
    bare = threewalls(server.address, tmp_path, "import", "mlflow", str(tmp_path / "bare"), "--json")
    assert (bare.code, "no metrics" in bare.document["runs"][0]["error"]) == (3, True)
    (tmp_path / "empty").mkdir()
    for source in IMPORT_SOURCES:
        assert threewalls(server.address, tmp_path, "import", source, str(tmp_path / "empty"), "--dry-run").code == 3


def test_records_of_an_offline_run_are_joined_over_blocks() -> None:
    whole, long = b"a" * 100, b"b" * 40_000
    first = 32_768 - 7 - 107 - 7
    data = b":W&B\xe1\xbe\x00" + _record(whole, 1) + _record(long[:first], 2) + _record(long[first:], 4)
    assert list(_records(data)) == [whole, long]
    assert list(_records(data[:-1])) == [whole]


def _record(part: bytes, kind: int) -> bytes:
    return struct.pack("<IHB", 0, len(part), kind) + part

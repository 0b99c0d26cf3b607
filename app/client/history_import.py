"""`threewalls import`: reads runs of W&B, MLflow, TensorBoard and folders of tables, and uploads each as a run.

A run becomes a table of its metrics (`docs/documents.md`), its configuration the launch arguments of the metadata, so
that the service maps known names to contract fields. Equal content is the same run, so an import can be repeated.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import math
import sqlite3
import struct
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from app.client.delivery import check, deliver
from app.client.errors import FINE, SERVICE, Unreachable, failure
from app.client.service import ClientSettings, Service
from app.client.terminal import one_line, out
from app.client.upload import TABLE_SUFFIXES, Upload, read_upload
from app.errors import ThreewallsError, UsageError

SCHEMA = "threewalls.import/1"
MAX_RUNS = 10_000
MAX_METRICS = 200
MAX_STEPS = 200_000
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_PAGE = 1_000
_TIMEOUT = 60.0
_WITHOUT_STEP = 2
_STEPS = ("_step", "step", "global_step", "iteration", "trainer/global_step")
_HISTORIES = ("history.jsonl", "wandb-history.jsonl", "history.csv")

_FIELDS = (
    "model", "gpu", "gpus", "gpus_per_node", "cluster", "container", "precision", "seq_len", "gbs", "mbs", "tp", "pp",
    "cp", "ep", "etp", "dp", "vpp", "dispatcher", "routing_mode", "data_mode", "task",
)  # fmt: skip
"""Contract fields that a configuration may state under their own names."""

Columns = dict[str, dict[float, float]]
"""Values by name and step."""


@dataclass(frozen=True)
class SourceRun:
    """A run of another tool. Either its metrics, or files that the service reads as they are."""

    key: str
    name: str
    config: Mapping[str, object] = field(default_factory=dict)
    started_at: str = ""
    commit: str = ""
    columns: Columns = field(default_factory=dict)
    logs: tuple[Path, ...] = ()
    events: tuple[Path, ...] = ()


def import_runs(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    """Import all runs of a source. Return 3 if there is none or one was refused.

    Raises UsageError for a source that cannot be read.
    """
    renamed = _pairs(options.column, "--column NAME=COLUMN")
    mapped = _pairs(options.map, "--map KEY=FIELD")
    runs = _SOURCES[options.source](options.where, env)
    rows: list[dict[str, object]] = []
    failed = False
    with tempfile.TemporaryDirectory() as folder, Service(settings) as service:
        for index, run in enumerate(runs):
            if index >= MAX_RUNS:
                raise UsageError(f"{options.where} has more than {MAX_RUNS:,} runs. Import parts of it.")
            meta = _metadata(run, options, mapped, settings.project)
            row: dict[str, object] = {"name": run.name, "source": run.key, "meta": meta}
            row |= {
                "steps": max((len(values) for values in run.columns.values()), default=0),
                "metrics": sorted({renamed.get(name, name) for name in run.columns}),
            }
            try:
                upload = _upload(run, meta, renamed, Path(folder) / str(index))
                if options.dry_run:
                    row["id"] = check(service, upload)
                else:
                    delivered = deliver(service, upload)
                    row |= {"id": delivered.id, "url": delivered.url, "created": delivered.created}
            except Unreachable:
                raise
            except ThreewallsError as error:
                failed = True
                row["error"] = failure(error, settings.url, of_upload=True).lines
            rows.append(row)
            if not options.json:
                out(_line(row, dry_run=options.dry_run))
    if options.json:
        out(json.dumps({"schema": SCHEMA, "dry_run": options.dry_run, "runs": rows}))
    elif not rows:
        out(f"{options.where} has no {_READ_FROM[options.source]}, so there is nothing to import.")
    return SERVICE if failed or not rows else FINE


def _pairs(texts: list[str], usage: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [text for text, (name, _, value) in zip(texts, pairs) if not name or not value]:
        raise UsageError(f"{wrong[0]!r} is not {usage}.")
    return {name: value for name, _, value in pairs}


def _metadata(
    run: SourceRun, options: argparse.Namespace, mapped: Mapping[str, str], project: str
) -> dict[str, object]:
    """Return the metadata of a run: mapped keys are contract fields, the others launch arguments."""
    mapped = {**{name: name for name in _FIELDS}, **mapped}
    config = {str(key): value for key, value in run.config.items() if isinstance(value, (str, int, float, bool))}
    meta: dict[str, object] = {
        "name": run.name,
        "purpose": options.purpose,
        "tags": [*options.tag, f"imported:{options.source}"],
        "commit": run.commit,
        "commit_time": run.started_at,
        "launch_args": {key: value for key, value in config.items() if key not in mapped},
        **{mapped[key]: value for key, value in config.items() if key in mapped},
    }
    if project:
        meta["project"] = project
    return {name: value for name, value in meta.items() if value not in ("", {}, [])}


def _upload(run: SourceRun, meta: Mapping[str, object], renamed: Mapping[str, str], folder: Path) -> Upload:
    logs = list(run.logs)
    if not (run.columns or logs or run.events):
        raise UsageError("The run has no metrics, or its file is damaged from the beginning.")
    if run.columns:
        folder.mkdir()
        table = folder / "iterations.json"
        table.write_text(json.dumps(_table(run.columns, renamed)), encoding="utf-8")
        logs.append(table)
    if logs:
        meta = {**meta, "format": "iterations"}
    return read_upload(logs=logs, events=run.events, meta=meta)


def _table(columns: Columns, renamed: Mapping[str, str]) -> dict[str, object]:
    steps = sorted({step for values in columns.values() for step in values})[:MAX_STEPS]
    named: dict[str, list[float | None]] = {"iteration": [int(step) for step in steps]}
    for name in sorted(columns)[:MAX_METRICS]:
        column = renamed.get(name, name)
        if column != "iteration":
            named.setdefault(column, [_finite(columns[name].get(step)) for step in steps])
    return {"columns": named}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _line(row: Mapping[str, Any], *, dry_run: bool) -> str:
    name = one_line(str(row["name"]))
    if "error" in row:
        return f"{name}: refused: {row['error']}"
    if dry_run:
        metrics = ", ".join(row["metrics"][:12])
        content = f"{row['steps']:,} steps of {metrics}" if metrics else "files that the service reads as they are"
        arguments = len(row["meta"].get("launch_args", {}))
        imported = f"; already imported as run {row['id']}" if row["id"] else ""
        return f"{name}: {content}; launch arguments: {arguments}{imported}"
    return f"{name}: run {row['id']} {row['url']}" + ("" if row["created"] else " (already imported)")


# --- Folders of tables: a file for each run, or a folder with a table and `config.json`.


def _csv(where: str, _: Mapping[str, str]) -> Iterator[SourceRun]:
    path = _existing(where)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.is_dir():
            yield from _exported(file)
        elif file.suffix.lower() in TABLE_SUFFIXES and not file.name.endswith(".config.json"):
            config = _json_file(file.with_name(f"{file.stem}.config.json"))
            yield _with_table(SourceRun(str(file), file.stem, config), file)


def _with_table(run: SourceRun, file: Path) -> SourceRun:
    """Return the run with the metrics of a table by step. JSON of one piece is left to the service."""
    if file.suffix.lower() == ".json":
        return replace(run, logs=(file,))
    columns: Columns = {}
    for index, row in enumerate(_rows(file), 1):
        if index > MAX_STEPS:
            break
        step = next((number for name in _STEPS if (number := _number(row.get(name))) is not None), float(index))
        for name, value in row.items():
            number = _number(value)
            if number is not None and name not in _STEPS and (name in columns or len(columns) < MAX_METRICS):
                columns.setdefault(name, {})[step] = number
    return replace(run, columns=columns)


def _rows(file: Path) -> Iterator[Mapping[str, object]]:
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as text:
        if file.suffix.lower() == ".jsonl":
            for line in text:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict):
                    yield row
        else:
            yield from csv.DictReader(text, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _existing(where: str) -> Path:
    path = Path(where)
    if not path.exists():
        raise UsageError(f"{where} does not exist. Name a folder, or a URL where the source is a server.")
    return path


def _json_file(path: Path) -> dict[str, object]:
    """Return the object in a JSON file; empty when there is none. Raises UsageError for other content."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8")[:MAX_ANSWER_BYTES])
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} must contain a JSON object.")
    return document


# --- TensorBoard: each folder with event files is a run. The service reads them.


def _tensorboard(where: str, _: Mapping[str, str]) -> Iterator[SourceRun]:
    root = _existing(where)
    for folder in sorted({file.parent for file in root.rglob("*tfevents*") if file.is_file()}):
        events = tuple(sorted(file for file in folder.glob("*tfevents*") if file.is_file()))
        name = str(folder.relative_to(root)) if folder != root else root.resolve().name
        yield SourceRun(str(folder), name, _json_file(folder / "config.json"), events=events)


# --- MLflow: a tracking server by its REST API, its SQLite database, or the folder of its file store.


def _mlflow(where: str, env: Mapping[str, str]) -> Iterator[SourceRun]:
    if where.startswith(("http://", "https://")):
        yield from _mlflow_server(where.rstrip("/"), env)
        return
    root = _existing(where.removeprefix("sqlite:///"))
    for file in sorted(root.rglob("mlflow.db")) if root.is_dir() else [root]:
        yield from _mlflow_database(file)
    for folder in sorted(file.parent for file in root.rglob("meta.yaml") if (file.parent / "metrics").is_dir()):
        params, tags = _texts(folder / "params"), _texts(folder / "tags")
        meta = dict(line.partition(": ")[::2] for line in _text(folder / "meta.yaml").splitlines())
        if meta.get("lifecycle_stage") == "deleted":
            continue
        columns: Columns = {}
        for file in sorted((folder / "metrics").rglob("*"))[:MAX_METRICS]:
            if file.is_file():
                columns[str(file.relative_to(folder / "metrics"))] = _points(file)
        name = tags.get("mlflow.runName") or meta.get("run_name", "") or folder.name
        started = meta.get("start_time", "")
        commit = tags.get("mlflow.source.git.commit", "")
        yield SourceRun(folder.name, name, params, _time_ms(started), commit, columns)


def _texts(folder: Path) -> dict[str, str]:
    """Return the texts of all files below a folder by their path: a name may contain slashes."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): _text(file) for file in files}


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace")


def _points(file: Path) -> dict[float, float]:
    """Return the values of a metric by step. A line: time, value, step, and perhaps the data set and its digest.

    Old lines have no step. A truncated line, as in a copy of an active run, is left out.
    """
    points: dict[float, float] = {}
    for line in _text(file).splitlines()[:MAX_STEPS]:
        words = line.split()
        try:
            points[float(words[2]) if len(words) > _WITHOUT_STEP else 0.0] = float(words[1])
        except (IndexError, ValueError):
            continue
    return points


def _mlflow_database(file: Path) -> Iterator[SourceRun]:
    """Yield the runs of an SQLite store, where MLflow writes by default since version 3.7."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True)) as database:
            runs = database.execute(
                "SELECT run_uuid, name, start_time FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time"
            ).fetchall()
            for run_id, name, started in runs:
                params = dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run_id,)))
                tags = dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (run_id,)))
                columns: Columns = {}
                points = database.execute(
                    "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY key, timestamp", (run_id,)
                )
                for key, step, value, is_nan in points:
                    if key in columns or len(columns) < MAX_METRICS:
                        columns.setdefault(key, {})[float(step)] = math.nan if is_nan else value
                commit = tags.get("mlflow.source.git.commit", "")
                yield SourceRun(run_id, name or run_id, params, _time_ms(started), commit, columns)
    except sqlite3.Error as error:
        raise UsageError(f"{file} is not an SQLite database of MLflow: {error}.") from None


def _time_ms(text: object) -> str:
    try:
        return datetime.fromtimestamp(int(str(text)) / 1000, timezone.utc).isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def _mlflow_server(url: str, env: Mapping[str, str]) -> Iterator[SourceRun]:
    token = env.get("MLFLOW_TRACKING_TOKEN", "")
    api = f"{url}/api/2.0/mlflow"
    for experiment in _pages(f"{api}/experiments/search", token, "experiments", {}):
        chosen = {"experiment_ids": [experiment["experiment_id"]]}
        for run in _pages(f"{api}/runs/search", token, "runs", chosen):
            info, data = run["info"], run.get("data", {})
            tags = {item["key"]: item["value"] for item in data.get("tags", [])}
            columns: Columns = {}
            for metric in data.get("metrics", [])[:MAX_METRICS]:
                query = urlencode({"run_id": info["run_id"], "metric_key": metric["key"], "max_results": MAX_STEPS})
                points = _answer(f"{api}/metrics/get-history?{query}", token).get("metrics", [])
                columns[metric["key"]] = {float(point["step"]): float(point["value"]) for point in points}
            yield SourceRun(
                info["run_id"],
                info.get("run_name") or tags.get("mlflow.runName") or info["run_id"],
                {item["key"]: item["value"] for item in data.get("params", [])},
                _time_ms(info.get("start_time", "")),
                tags.get("mlflow.source.git.commit", ""),
                columns,
            )


def _pages(url: str, token: str, name: str, body: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    """Yield all items of a paged list."""
    page = ""
    while True:
        answer = _answer(url, token, {**body, "max_results": _PAGE, **({"page_token": page} if page else {})})
        yield from answer.get(name, [])
        page = answer.get("next_page_token", "")
        if not page:
            return


def _answer(url: str, token: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return the JSON of a GET, or of a POST with `body`. Raises UsageError when the server does not answer so."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)  # noqa: S310  # the caller checks the scheme
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
            text = answer.read(MAX_ANSWER_BYTES)
        document = json.loads(text)
    except (OSError, ValueError) as error:
        address = url.partition("?")[0]
        raise UsageError(f"The server at {address} does not answer like an MLflow server: {error}.") from None
    return document if isinstance(document, dict) else {}


# --- W&B: a project of a server, exported folders (`config.json`, `history.jsonl` or `history.csv`), and files of its
# offline runs.


def _wandb(where: str, env: Mapping[str, str]) -> Iterator[SourceRun]:
    if where.startswith(("http://", "https://")):
        yield from _wandb_server(where, env)
        return
    root = _existing(where)
    for folder in sorted({file.parent for name in _HISTORIES for file in root.rglob(name)}):
        yield from _exported(folder)
    for file in sorted(root.rglob("run-*.wandb")):
        yield _offline_run(file)


def _wandb_server(where: str, env: Mapping[str, str]) -> Iterator[SourceRun]:
    """Read the runs of a project with W&B's own library. `where`: `https://wandb.ai/ENTITY/PROJECT`."""
    parts = urlsplit(where)
    path = parts.path.strip("/")
    if path.count("/") != 1:
        raise UsageError(f"{where} is not the address of a W&B project: https://wandb.ai/ENTITY/PROJECT.")
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        raise UsageError("W&B servers are read with W&B's own library: pip install wandb, then import again.") from None
    host = "api.wandb.ai" if parts.netloc == "wandb.ai" else parts.netloc
    try:
        api = wandb.Api({"base_url": f"{parts.scheme}://{host}"}, api_key=env.get("WANDB_API_KEY"))
        for run in api.runs(path, lazy=False):
            yield _server_run(run)
    except (OSError, ValueError, wandb.Error) as error:
        raise UsageError(f"The W&B server at {where} returned no runs: {one_line(str(error))}.") from None


def _server_run(run: Any) -> SourceRun:
    columns: Columns = {}
    for index, row in enumerate(run.scan_history()):
        if index >= MAX_STEPS:
            break
        _add_history(columns, row, float(index))
    metadata = run.metadata or {}
    commit = str((metadata.get("git") or {}).get("commit", ""))
    return SourceRun(run.id, run.name or run.id, dict(run.config), str(run.created_at or ""), commit, columns)


def _add_history(columns: Columns, row: Mapping[str, object], index: float) -> None:
    """Add a row of a history. Its step is `_step`, else `index`; names with `_` at the start are W&B's own."""
    stated = _number(row.get("_step"))
    for key, value in row.items():
        if (
            isinstance(value, (int, float))
            and not key.startswith("_")
            and (key in columns or len(columns) < MAX_METRICS)
        ):
            columns.setdefault(key, {})[index if stated is None else stated] = float(value)


def _exported(folder: Path) -> Iterator[SourceRun]:
    """Yield the run of a folder with a history; none for other folders."""
    history = next((folder / name for name in _HISTORIES if (folder / name).is_file()), None)
    if history is not None:
        config = _json_file(folder / "config.json")
        meta = _json_file(folder / "wandb-metadata.json")
        git = meta.get("git")
        commit = str(git.get("commit", "")) if isinstance(git, dict) else ""
        run = SourceRun(str(folder), folder.name, config, str(meta.get("startedAt", "")), commit)
        yield _with_table(run, history)


def _offline_run(file: Path) -> SourceRun:
    """Read a file of an offline run with the library that wrote it. Raises UsageError without that library."""
    try:
        messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
        damaged = importlib.import_module("google.protobuf.message").DecodeError
    except ImportError:
        raise UsageError(f"{file} is read with W&B's own library: pip install wandb, then import again.") from None
    config: dict[str, object] = {}
    columns: Columns = {}
    name, started, commit, steps = file.stem, "", "", 0
    for data in _records(file.read_bytes()):
        record = messages.Record()
        try:
            record.ParseFromString(data)
        except damaged:
            break  # as for a cut file: what was read so far is the run
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name = record.run.display_name or name
            started = _time_ms(record.run.start_time.seconds * 1000)
            commit = record.run.git.commit
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key}
        elif kind == "config":
            config |= {item.key: json.loads(item.value_json) for item in record.config.update if item.key}
        elif kind == "history" and steps < MAX_STEPS:
            steps += 1
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            _add_history(columns, row, float(record.history.step.num))
    config.pop("_wandb", None)
    return SourceRun(file.stem, name, config, started, commit, columns)


_FILE_HEADER = 7
_BLOCK = 32_768
_RECORD_HEADER = 7
_FULL, _FIRST, _LAST = 1, 2, 4


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a `.wandb` file: a LevelDB log with its own header. A cut last record is dropped."""
    at, parts = _FILE_HEADER, b""
    while at + _RECORD_HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _RECORD_HEADER:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part = data[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        at += _RECORD_HEADER + length
        if kind == 0 or len(part) < length:
            return
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            yield parts


_SOURCES: Mapping[str, Callable[[str, Mapping[str, str]], Iterator[SourceRun]]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}

_READ_FROM: Mapping[str, str] = {
    "csv": "tables (.csv, .tsv, .jsonl, .json)",
    "tensorboard": "event files (*tfevents*)",
    "mlflow": "MLflow runs (mlflow.db, or meta.yaml next to metrics/)",
    "wandb": "W&B runs (history.jsonl or history.csv, or run-*.wandb)",
}

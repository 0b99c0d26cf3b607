"""Write app/demo/megatron_lm_ci.json.gz, the second demo project, from public golden values of Megatron-LM.

    .venv/bin/python -m bench.public_ci PATH [--out FILE] [--least 6]

PATH is a folder of `golden-run/1` documents, one per version of a golden-values file in the history of
NVIDIA/Megatron-LM (docs/documents.md). Included are tests with at least `--least` versions on one platform: names,
commits, dates, hardware, performance-relevant arguments, and the recorded numbers. No file of the source is copied.
"""

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.demo.studies import DATA, SCHEMA

MOST_VALUES = 400
"""Maximum recorded steps per run; only release tests have more."""
DIGITS = 5


def documents(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*/*.json")):
        document = json.loads(path.read_text())
        if document.get("schema") == "golden-run/1" and document["perf_usable"]:
            yield document


def histories(folder: Path, least: int) -> list[dict[str, Any]]:
    """Return the runs of every test with at least `least` runs, in commit order."""
    by_test: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for document in documents(folder):
        by_test[document["test_base"], str(document["platform"]), str(document["environment"])].append(document)
    runs = [document for group in by_test.values() if len(group) >= least for document in group]
    return sorted(runs, key=lambda run: (_time(run), run["run_id"]))


def restated(run: Mapping[str, Any], tables: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the facts of a run, with arguments, variables and platforms as indexes into the shared tables."""
    series = run["series"]
    time = series["iteration-time"]
    arguments = {key: value for key, value in run["launch_args"].items() if "$" not in str(value)}
    memory = [value for value in series.get("mem-max-allocated-bytes", {"values": []})["values"] if value]
    steps = time.get("steps") or [
        time["start_step"] + place * time["step_interval"] for place in range(len(time["values"]))
    ]
    loss = series.get("lm loss") or {"start_step": 1, "step_interval": 1, "values": []}
    loss_steps = [loss["start_step"] + place * loss["step_interval"] for place in range(len(loss["values"]))]
    return {
        "test": run["test_base"],
        "platform": run["platform"] or "",
        "environment": run["environment"] or "",
        "gpu": run["gpu"],
        "gpus": run["world_size"],
        "gpus_per_node": (run["recipe"] or {}).get("gpus_per_node"),
        "image": (run["container"] or {}).get("image"),
        "commit": run["commit"],
        "commit_time": _time(run).isoformat(),
        "on_main": run["on_main"],
        "path": run["source"]["path"],
        "blob": run["source"]["blob"][:12],
        "arguments": _place(tables["arguments"], arguments),
        "variables": _place(tables["variables"], run["env_vars"]),
        "steps": _place(tables["steps"], steps[:MOST_VALUES]),
        "step_time_s": [_short(value) for value in time["values"][:MOST_VALUES]],
        "loss_steps": _place(tables["steps"], loss_steps[:MOST_VALUES]),
        "lm_loss": [_short(value) for value in loss["values"][:MOST_VALUES]],
        "max_allocated_bytes": max(memory, default=None),
    }


def _time(run: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(run["commit_date"]).astimezone(UTC)


def _place(table: list[Any], value: Any) -> int:
    if value not in table:
        table.append(value)
    return table.index(value)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="folder of golden-run/1 documents")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--least", type=int, default=6, help="runs that a test must have (default: %(default)s)")
    options = parser.parse_args()
    tables: dict[str, list[Any]] = {"arguments": [], "variables": [], "steps": []}
    runs = [restated(run, tables) for run in histories(options.path, options.least)]
    content = json.dumps({"schema": SCHEMA, **tables, "runs": runs}, separators=(",", ":"))
    options.out.write_bytes(gzip.compress(content.encode(), 9, mtime=0))
    print(
        f"{len(runs)} runs, {options.out.stat().st_size:,} bytes: {runs[0]['commit_time']} to {runs[-1]['commit_time']}"
    )


if __name__ == "__main__":
    main()

"""Speed of reading profiles, compared with HolisticTraceAnalysis (HTA).

    python3 -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis
    .venv/bin/python -m bench.profiles --corpus ../shared/corpus/traces --hta /tmp/hta/bin/python

Repeats traces of the corpus until they are large, then measures processor seconds and peak memory, each in a new
process. Both tools compute the same from the same file: the breakdown of the step, and the share of hidden
communication. With HTA's own filter (`^nccl.*Kernel`, activities with a launch) our share must equal HTA's. HTA is set
to keep the last step and not to round times to microseconds. Then the bench compares exposed communication under that
filter with the classes of docs/profiles.md. Exit code 1 if a target is missed.
"""

import argparse
import gzip
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.options import parser

LEAST_SPEED_UP = 15.0
MOST_MEMORY_MIB = 256.0
_KERNELS = 1_000_000
ROUNDS = 3
_HTA_DIGITS = 0.0051
"""Tolerance in percentage points: HTA reports two decimals."""

_OURS = """
import json, resource, sys, time
from bench.profiles import read_file
import app.domain.profiles.profile, app.pipeline.profile_files, app.settings
began = time.process_time()
document = read_file(sys.argv[1])
device = next(iter(document["files"][0]["devices"].values()))
print(json.dumps({
    "seconds": time.process_time() - began,
    "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "exposed_ms": device["whole"]["exposed_comm_ms"],
    "hidden_pct": 100 * (device["whole"]["comm_hidden_frac"] or 0),
    "events": document["files"][0]["events"],
    "activities": device["device_events"],
}))
"""

_HTA = """
import json, resource, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
began = time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/", include_last_profiler_step=True)
breakdown = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print("RESULT" + json.dumps({
    "seconds": time.process_time() - began + children.ru_utime + children.ru_stime,
    "mib": max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, children.ru_maxrss) / 1024,
    "hidden_pct": float(overlap.iloc[0]["comp_comm_overlap_pctg"]),
}))
"""


def read_file(path: str) -> dict[str, Any]:
    """Read a plain or compressed trace, or an SQLite export, as the command line does."""
    from app.domain.profiles.profile import describe_profile  # noqa: PLC0415  measured processes start with this
    from app.pipeline.profile_files import OpenedFile, read_profile  # noqa: PLC0415
    from app.settings import Settings  # noqa: PLC0415

    return describe_profile(read_profile([OpenedFile(Path(path).name, Path(path))], Settings()))


def repeat(source: Path, target: Path, size: int) -> None:
    """Write a trace of at least `size` bytes: repetitions of the source, shifted in time, with new correlation ids."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = document.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X"]
    first = min(event["ts"] for event in timed)
    span = max(event["ts"] + event["dur"] for event in timed) - first + 1000
    ids = 1 + max(int(event["args"].get(name) or 0) for event in timed for name in ("correlation", "External id"))
    steps = sum(1 for event in timed if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation")
    with target.open("w") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
        copy = 0
        while file.tell() < size:
            for event in events:
                file.write(("" if copy == 0 and event is events[0] else ",\n") + _moved(event, copy, span, ids, steps))
            copy += 1
        file.write("\n]}")


def _moved(event: dict[str, Any], copy: int, span: float, ids: int, steps: int) -> str:
    moved = dict(event)
    if "ts" in event:
        moved["ts"] = round(event["ts"] + copy * span, 3)
    if "id" in event and isinstance(event["id"], int):
        moved["id"] = event["id"] + copy * 100_000_000
    if isinstance(event.get("args"), dict):
        args = moved["args"] = dict(event["args"])
        for name in ("correlation", "External id"):
            if isinstance(args.get(name), int):
                args[name] += copy * ids
    if str(event.get("name", "")).startswith("ProfilerStep#"):
        moved["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + copy * steps}"
    return json.dumps(moved)


def write_export(path: Path, kernels: int) -> None:
    """Write an SQLite export of Nsight Systems with `kernels` kernels and their launches."""
    names = ["nvjet_tst_192x192_64x4", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "flash_fwd_kernel", "Adam"]
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT)")
    rows = [*enumerate(names), (9, "cudaLaunchKernel_v7000")]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", rows)
    connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
        "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX, gridY, gridZ)"
    )
    connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, end INTEGER, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER)"
    )
    process = 7 << 24
    connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, ?, ?, ?, 132, 1, 1)",
        ((10_000 * k, 10_000 * k + 8_000, 7 + k % 2, k + 1, process, k % 4, k % 4) for k in range(1, kernels + 1)),
    )
    connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 9)",
        ((10_000 * k - 6_000, 10_000 * k - 2_000, process + 99, k + 1) for k in range(1, kernels + 1)),
    )
    connection.commit()
    connection.close()


def ours(path: Path) -> dict[str, Any]:
    """Measure our reader in new processes and return the fastest, because other load slows down the others."""
    command = [sys.executable, "-c", _OURS, str(path)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(ROUNDS)]
    answers: list[dict[str, Any]] = [json.loads(run.stdout.splitlines()[-1]) for run in runs]
    return min(answers, key=lambda answer: float(answer["seconds"]))


def hta(python: str, path: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure HTA in the same way."""
    command = [python, "-c", _HTA, str(path)]
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    answers: list[dict[str, Any]] = []
    for _ in range(rounds):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
        answers.append(json.loads(line.removeprefix("RESULT")))
    return min(answers, key=lambda answer: float(answer["seconds"]))


def _targets(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Print the measurements and yield the missed targets."""
    source = options.corpus / "ddp-a100-ns.json.gz"
    large = folder / "large.json"
    print(f"{'file':<28}{'MB':>8}{'activities':>12}{'s':>8}{'MB/s':>8}{'MiB':>8}")
    for name, size in (("trace, 54 MB", 54_000_000), ("trace, 215 MB", 215_000_000), ("trace, 1 GB", 1_000_000_000)):
        repeat(source, large, size)
        result = ours(large)
        megabytes = large.stat().st_size / 1e6
        _row(name, megabytes, result)
        if result["mib"] > MOST_MEMORY_MIB:
            yield f"{name}: {result['mib']:.0f} MiB"
        if options.hta and size == 215_000_000:
            other = hta(options.hta, large)
            print(f"{'  HTA':<28}{megabytes:>8.0f}{'':>12}{other['seconds']:>8.2f}{'':>8}{other['mib']:>8.0f}")
            speed_up = other["seconds"] / result["seconds"]
            print(
                f"  {speed_up:.1f} times as fast; hidden: {result['hidden_pct']:.2f} % and {other['hidden_pct']:.2f} %"
            )
            if speed_up < LEAST_SPEED_UP:
                yield f"{speed_up:.1f} times as fast as HTA"
    export = folder / "export.sqlite"
    write_export(export, _KERNELS)
    _row("export, 1 M kernels", export.stat().st_size / 1e6, ours(export))


def _row(name: str, megabytes: float, result: dict[str, Any]) -> None:
    print(
        f"{name:<28}{megabytes:>8.0f}{result['activities']:>12,}{result['seconds']:>8.2f}"
        f"{megabytes / result['seconds']:>8.0f}{result['mib']:>8.0f}",
        flush=True,
    )


def _classes(options: argparse.Namespace) -> Iterator[str]:
    """Print communication under HTA's filter and by our classes for every trace; yield differences from HTA."""
    print(f"\n{'':<26}{'exposed, ms':>12}{'exposed, ms':>14}{'hidden, %':>12}{'hidden, %':>10}")
    print(f"{'trace':<26}{'HTA filter':>12}{'our classes':>14}{'HTA filter':>12}{'HTA':>10}")
    for path in sorted([*options.corpus.glob("*.json.gz"), *options.corpus.glob("synthetic/seed-11/*.json.gz")]):
        name = path.name.removesuffix(".json.gz")
        document = read_file(str(path))
        device = next(iter(document["files"][0]["devices"].values()))
        exposed, _ = by_name(path, launched=False)
        _, hidden = by_name(path, launched=True)
        theirs = ""
        if options.hta and hidden is not None:
            answer = hta(options.hta, path, rounds=1)["hidden_pct"]
            theirs = f"{answer:.2f}"
            if abs(answer - hidden) > _HTA_DIGITS:
                yield f"{name}: HTA finds {answer:.2f} % hidden, its filter {hidden:.2f} %"
        shown = "" if hidden is None else f"{hidden:.2f}"
        ours_ms = device["whole"]["exposed_comm_ms"]
        print(f"{name:<26}{exposed:>12.3f}{ours_ms:>14.3f}{shown:>12}{theirs:>10}", flush=True)


def by_name(path: Path, *, launched: bool) -> tuple[float, float | None]:
    """Return exposed communication (ms) and hidden share (%), counting only names like `nccl...Kernel`.

    `launched`: skip kernels without a known launch, as HTA does.
    """
    events = [
        event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event.get("ph") == "X"
    ]
    on_device = ("kernel", "gpu_memcpy", "gpu_memset")
    launches = {event.get("args", {}).get("correlation") for event in events if event.get("cat") not in on_device}
    borders: list[tuple[int, int, int]] = []
    for event in events:
        if event.get("cat") == "kernel" and (not launched or event["args"].get("correlation") in launches):
            is_comm = event["name"].startswith("nccl") and "Kernel" in event["name"]
            start = round(event["ts"] * 1000)
            borders += [(start, is_comm, 1), (start + round(event["dur"] * 1000), is_comm, -1)]
    running, exposed, hidden, before = [0, 0], 0, 0, 0
    for moment, is_comm, change in sorted(borders):
        if running[1] and running[0]:
            hidden += moment - before
        elif running[1]:
            exposed += moment - before
        running[is_comm] += change
        before = moment
    return exposed / 1e6, 100 * hidden / (hidden + exposed) if hidden + exposed else None


def main() -> int:
    options_parser = parser(__doc__)
    options_parser.add_argument("--corpus", type=Path, required=True, help="folder of traces")
    options_parser.add_argument("--hta", default="", metavar="PYTHON", help="Python with HolisticTraceAnalysis")
    options = options_parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        missed = list(_targets(options, Path(folder)))
    missed += _classes(options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{time.monotonic() - began:.0f} s in all, {peak:.0f} MiB in this process")
    for text in missed:
        print(f"missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

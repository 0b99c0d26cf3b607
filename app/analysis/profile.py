"""`threewalls profile`: print where the steps of GPU traces go, from local files."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.analysis.options import FINE, USAGE
from app.domain.profiles.budget import IDLE_REASONS
from app.domain.profiles.profile import describe_profile
from app.pipeline.profile_files import InvalidProfile, OpenedFile, read_profile
from app.settings import Settings

UNUSABLE = USAGE
"""Exit code when a file is not a profile or cannot be used."""
_PARTS = (
    ("compute", "compute_ms"),
    ("exposed communication", "exposed_comm_ms"),
    ("exposed copies", "exposed_copy_ms"),
    ("idle", "idle_ms"),
)
_CLASSES = 12


def profile(options: argparse.Namespace, settings: Settings) -> int:
    """Print the profile. Return 2 if a file cannot be used."""
    try:
        files = read_profile([OpenedFile(path.name, path) for path in options.files], settings)
    except (InvalidProfile, OSError) as error:
        message = error.detail if isinstance(error, InvalidProfile) else f"{error.filename}: {error.strerror}."
        print(f"threewalls: {message}", file=sys.stderr)
        return UNUSABLE
    document = describe_profile(files)
    if options.json:
        objects = file_objects(document)
        print(json.dumps(objects if len(objects) > 1 else objects[0], indent=1, allow_nan=False), flush=True)
    else:
        print("\n".join(profile_text(document)), flush=True)
    return FINE


def file_objects(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one object for each file; with several ranks, each document also has their comparison."""
    together = {"ranks": document["ranks"]} if len(document["ranks"]["rows"]) > 1 else {}
    return [{**file, **together, "quality": document["quality"]} for file in document["files"]]


def profile_text(document: Mapping[str, Any]) -> Iterable[str]:
    for file in document["files"]:
        yield _title(file)
        yield from (f"  warning: {warning}" for warning in file["warnings"])
        for key, device in file["devices"].items():
            yield from _device_lines(key, device)
    yield from _rank_lines(document["ranks"])
    yield from _fact_lines(document)


def _title(file: Mapping[str, Any]) -> str:
    rank = f", rank {file['rank']} ({file['rank_from']})" if file["rank"] is not None else ""
    world = f" of {file['world_size']}" if file["world_size"] and rank else ""
    gpu = f", {file['gpu']}" if file["gpu"] else ""
    return f"{file['file']}: {file['format']} {file['version']}{rank}{world}{gpu}, {file['events']:,} events".replace(
        "  ", " "
    )


def _device_lines(key: str, device: Mapping[str, Any]) -> Iterable[str]:
    windows = [step for step in device["steps"] if not step.get("irregular")] or [device["whole"]]
    source = device["step_source"]
    kind = f"{len(windows)} steps by {source}" if device["steps"] else "no steps found: the whole trace is one window"
    yield f"  device {key}: {kind}"
    if len(windows) < 3:
        window = windows[(len(windows) - 1) // 2]
    else:
        window = sorted(windows, key=lambda step: step["window_ms"])[len(windows) // 2]
    yield f"    {'window':<24}{window['window_ms']:>12,.3f} ms"
    for label, name in _PARTS:
        yield _part(label, window[name], window["window_ms"])
    for reason in IDLE_REASONS:
        yield _part("  " + reason.replace("_", " "), window["idle_split_ms"][reason], window["window_ms"])
    yield "    classes (time with at least one kernel; they overlap):"
    for name, time in list(window["class_union_ms"].items())[:_CLASSES]:
        yield _part("  " + name, time, window["window_ms"])


def _part(label: str, milliseconds: float | None, window: float) -> str:
    if milliseconds is None:
        return f"    {label:<24}{'unknown':>12}"
    return f"    {label:<24}{milliseconds:>12,.3f} ms {milliseconds / (window or 1):>7.1%}"


def _rank_lines(ranks: Mapping[str, Any]) -> Iterable[str]:
    rows: Sequence[Mapping[str, Any]] = ranks["rows"]
    if len(rows) < 2:
        return
    yield f"ranks: {ranks['matched']} collectives matched"
    for row in rows:
        wait = f", waits {row['wait_ms']:,.3f} ms, last {row['times_last']} times" if "wait_ms" in row else ""
        yield (
            f"  rank {row['rank']}: step {row['step_ms']:,.3f} ms, compute {row['compute_ms']:,.3f} ms, "
            f"exposed communication {row['exposed_comm_ms']:,.3f} ms, idle {row['idle_ms']:,.3f} ms{wait}"
        )
    if ranks["straggler_rank"] is not None:
        yield f"  straggler: rank {ranks['straggler_rank']}, the others wait {ranks['straggler_frac']:.1%} for it"


def _fact_lines(document: Mapping[str, Any]) -> Iterable[str]:
    if not document["facts"]:
        yield "facts: none, because the trace is incomplete"
        return
    rank = (document["facts_from"] or {}).get("rank")
    yield "facts:" if rank is None else f"facts, from rank {rank}:"
    yield from (f"  {name} = {value}" for name, value in document["facts"].items() if value is not None)

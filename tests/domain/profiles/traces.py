"""The traces of the shared corpus, and small traces written by tests."""

import gzip
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.domain.profiles.kineto import read_kineto
from app.domain.profiles.nsight import read_nsight
from app.domain.profiles.profile import ProfileFile, describe_profile
from app.domain.profiles.trace import Trace
from tests.shared_papers import shared_folder

BLANKS = b" \t\r\n"


def corpus() -> Path:
    return shared_folder("corpus") / "traces"


def names(pattern: str, suffix: str) -> list[str]:
    """Names of corpus files without their suffix; empty where the corpus is missing."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "traces"
    return sorted(str(path.relative_to(folder)).removesuffix(suffix) for path in folder.glob(pattern + suffix))


def expected(name: str, suffix: str = ".expected.json") -> Any:
    return json.loads((corpus() / (name + suffix)).read_text())


def chunks(data: bytes, size: int = 1 << 20) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def kineto(name: str) -> Trace:
    return read_kineto(chunks(gzip.decompress((corpus() / f"{name}.json.gz").read_bytes())))


def nsight(name: str, folder: Path) -> Trace:
    plain = folder / "export.sqlite"
    plain.write_bytes(gzip.decompress((corpus() / f"{name}.sqlite.gz").read_bytes()))
    connection = sqlite3.connect(f"file:{plain}?mode=ro&immutable=1", uri=True)
    try:
        return read_nsight(connection)
    finally:
        connection.close()


def document(*traces: Trace) -> Any:
    return describe_profile([ProfileFile(f"file {at}", trace) for at, trace in enumerate(traces)])


def differences(expected_: Any, actual: Any, place: str = "") -> list[str]:
    """Where the document misses the expected values; further keys and a tail of further steps are allowed."""
    if isinstance(expected_, Mapping):
        if not isinstance(actual, Mapping):
            return [f"{place}: {actual!r} instead of an object"]
        return [
            text
            for key, value in expected_.items()
            for text in differences(value, actual.get(key, 0 if place.endswith("_ms") else None), f"{place}.{key}")
        ]
    if isinstance(expected_, list):
        if len(expected_) != len(actual):
            return [f"{place}: {len(actual)} instead of {len(expected_)}"]
        return [
            text
            for at, (a, b) in enumerate(zip(expected_, actual, strict=True))
            for text in differences(a, b, f"{place}.{at}")
        ]
    if isinstance(expected_, float):
        is_equal = isinstance(actual, int | float) and abs(expected_ - actual) < 1.5e-6
        return [] if is_equal else [f"{place}: {actual} instead of {expected_}"]
    return [] if expected_ == actual else [f"{place}: {actual!r} instead of {expected_!r}"]


# --- Small traces

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}


def event(**fields: Any) -> dict[str, Any]:
    arguments = {"device": 0, "stream": 7, "correlation": 1} | fields.pop("args", {})
    return EVENT | {"args": arguments} | fields


def trace_bytes(events: Sequence[Mapping[str, Any]], **head: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **head, "traceEvents": list(events)}).encode()


def read(data: bytes, size: int = 1 << 20) -> Trace:
    return read_kineto(chunks(data, size))

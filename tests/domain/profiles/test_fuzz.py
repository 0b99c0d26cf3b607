"""Damaged and hostile profiles: whatever the bytes, the readers answer with a trace or say why not."""

import json
import random
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.profiles.nsight import read_nsight
from app.domain.profiles.nsys_stats import read_stats
from app.domain.profiles.trace import UnusableProfile
from tests.cases import sized
from tests.domain.profiles.traces import document, event, read, trace_bytes

SEED = trace_bytes(
    [
        event(
            ts=1, args={"grid": [8, 1, 1], "Collective name": "allreduce", "Seq": 3, "Process Group Ranks": "[0, 1]"}
        ),
        event(ts=4, cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", args={"graph id": 3}),
        event(ts=0, cat="cuda_runtime", name="cudaLaunchKernel", pid=9, tid=9),
        event(cat="cuda_sync", args={"wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 1}),
        event(ts=0, dur=3, cat="user_annotation", name="ProfilerStep#1", pid=9, tid=9),
        event(ts=3, dur=3, cat="user_annotation", name="ProfilerStep#2", pid=9, tid=9),
    ],
    baseTimeNanoseconds=17,
    distributedInfo={"rank": 0, "world_size": 2},
)

EXAMPLES = settings(max_examples=sized(30, 2_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
FIELDS = st.sampled_from(
    ["ph", "cat", "name", "ts", "dur", "pid", "tid", "args", "id", "correlation", "device", "stream", "grid"]
)


def is_answered(data: bytes, size: int = 1 << 20) -> None:
    """Read the bytes; a trace that is accepted has a document of valid JSON."""
    try:
        trace = read(data, size)
    except UnusableProfile:
        return
    json.dumps(document(trace), allow_nan=False)


@pytest.mark.parametrize("seed", range(sized(40, 4_000)))
def test_damaged_bytes_are_answered(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    data = bytearray(SEED)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.randint(1, 40)]
        elif kind == 2:
            data[at:at] = bytes(chance.choice(b'{}[]",:\\0e-.\x00\xff') for _ in range(chance.randint(1, 9)))
        else:
            other = chance.randrange(len(data))
            data[at:at] = data[other : other + chance.randint(1, 200)]
    is_answered(bytes(data), chance.choice([1, 7, 100, 1 << 20]))


@EXAMPLES
@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=8), max_size=6), st.booleans())
def test_events_of_any_values_are_answered(events: list[dict[str, Any]], with_good: bool) -> None:
    good = [event(ts=at) for at in range(600)] if with_good else []
    for item in events:
        item.setdefault("ph", "X")
        item.setdefault("cat", "kernel")
    is_answered(trace_bytes([*good, *events]))


@EXAMPLES
@given(st.lists(st.tuples(*([st.one_of(SCALARS, st.binary(max_size=8))] * 7)), max_size=20))
def test_rows_of_any_values_are_answered(rows: list[tuple[Any, ...]]) -> None:
    connection = sqlite3.connect(":memory:")
    columns = "start, end, deviceId, streamId, correlationId, globalPid, demangledName"
    connection.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL({columns})")
    good = [(at, at + 1, 0, 7, at, 5, 1) for at in range(2_100)]
    fit = [row for row in rows if all(not isinstance(v, int) or abs(v) < 2**63 for v in row) and _is_text(row)]
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", [*good, *fit])
    try:
        json.dumps(document(read_nsight(connection)), allow_nan=False)
    except UnusableProfile:
        pass
    finally:
        connection.close()


CELLS = st.one_of(
    st.text(max_size=9), st.integers().map(str), st.sampled_from(["", "1000", "[CUDA memset]", '"', "nccl"])
)
HEADERS = ("Start (ns),Duration (ns),Device,Strm,Name", "Total Time (ns),Instances,Name", "Total Time (ns),Operation")


@EXAMPLES
@given(st.sampled_from(HEADERS), st.lists(st.lists(CELLS, max_size=6), max_size=20), st.integers(1, 50))
def test_tables_of_any_cells_are_answered(header: str, rows: list[list[str]], size: int) -> None:
    data = "\n".join([header, *(",".join(row) for row in rows)]).encode()
    with suppress(UnusableProfile):
        json.dumps(document(read_stats([data[at : at + size] for at in range(0, len(data), size)])), allow_nan=False)


def _is_text(row: tuple[Any, ...]) -> bool:
    return all(not isinstance(value, str) or value.isprintable() for value in row)


@pytest.mark.parametrize(
    "data",
    [
        b'{"traceEvents": [' + b"[" * 200_000,
        b'{"traceEvents": [' + b'"' * 200_001,
        b'{"traceEvents": [{"name": "' + b"\\" * 200_001,
        b'{"traceEvents": [' + b"}" * 200_000,
        b'{"traceEvents": [' + b"{}, " * 100_000,
        b'{"traceEvents": [' + b'{"a": {"b": [{"c": 1}, ' * 50_000,
        b'{"traceEvents": [' + b" " * 5_000_000,
        b"[" * 500_000,
        b'{"a": ' + b'"traceEvents", ' * 100_000,
        b"\xef\xbb\xbf" * 100_000,
        bytes(range(256)) * 4_000,
    ],
    ids=range(11),
)
def test_repeated_pieces_take_no_quadratic_time(data: bytes) -> None:
    """The time limit of the test run stops a reader that is quadratic in any of these."""
    is_answered(data, 1 << 16)


def test_an_endless_event_is_refused_before_it_fills_memory() -> None:
    with pytest.raises(UnusableProfile, match="larger than"):
        read(b'{"traceEvents": [{"name": "' + b"x" * (30 << 20), 1 << 20)


def test_a_view_that_never_ends_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    writer = sqlite3.connect(path)
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS id, 'x' AS value FROM r"
    writer.execute(f"CREATE VIEW StringIds AS {endless}")
    writer.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, streamId, globalPid)")
    writer.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 7, 5)")
    writer.commit()
    writer.close()
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    assert read_nsight(connection, seconds=30).devices[0].start.size == 1
    connection.close()

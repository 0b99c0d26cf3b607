"""Readers of profiles: styles of writing, broken files, and bounds."""

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from app.domain.profiles.nsight import read_nsight
from app.domain.profiles.trace import Trace, UnusableProfile
from tests.domain.profiles.traces import corpus, document, event, read, trace_bytes


def times(trace: Trace) -> list[tuple[int, int]]:
    device = trace.devices[0]
    return [(int(start), int(end)) for start, end in zip(device.start, device.end, strict=True)]


@pytest.mark.parametrize(
    ("ts", "dur", "start", "length"),
    [
        ("1669783687815755", "41", 1669783687815755000, 41000),
        ("1669783687815755.123", "41.007", 1669783687815755123, 41007),
        ("4212936085387.172", "115.414", 4212936085387172, 115414),
        ("6791040000123.999", "0.001", 6791040000123999, 1),
    ],
)
def test_times_are_exact_to_the_nanosecond(ts: str, dur: str, start: int, length: int) -> None:
    text = json.dumps({"traceEvents": [event()]}).replace('"ts": 1,', f'"ts": {ts},')
    assert times(read(text.replace('"dur": 2', f'"dur": {dur}').encode())) == [(start, start + length)]


@pytest.mark.parametrize("layout", [{"indent": 2}, {"separators": (",", ":")}, {"indent": 0}, {}])
@pytest.mark.parametrize("size", [7, 1000, 1 << 20])
def test_layout_and_size_of_chunks_change_nothing(layout: dict[str, object], size: int) -> None:
    events = [event(ts=10 * at, name=f'k "{at}" }}, {{ [') for at in range(50)]
    document = {"traceEvents": events, "traceName": "x", "baseTimeNanoseconds": 5}
    trace = read(json.dumps(document, **layout).encode(), size)
    assert times(trace) == [(10_000 * at, 10_000 * at + 2_000) for at in range(50)]
    assert trace.base_ns == 5


def test_a_file_of_many_blocks_yields_every_event_once() -> None:
    # Longer than two blocks, with texts that look like boundaries between events.
    events = [event(ts=at, dur=1, name="a}, {b" * (at % 50), args={"text": "}\n,\n{" * 20}) for at in range(30_000)]
    data = trace_bytes(events)
    assert len(data) > 3 * (2 << 20)
    trace = read(data, 100_000)
    assert trace.events == 30_000
    assert [start for start, _ in times(trace)] == [1000 * at for at in range(30_000)]


def test_the_bare_array_of_events_is_a_trace() -> None:
    assert times(read(json.dumps([event()]).encode())) == [(1000, 3000)]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty", "is empty"),
        ("deep", "nested deeper"),
        ("huge-time", "no usable time"),
        ("missing-duration", "no usable time"),
        ("nan", "no usable time"),
        ("negative-duration", "no usable time"),
        ("string-time", "no usable time"),
        ("no-events", "without"),
        ("not-a-trace", "without"),
        ("no-gpu", "no GPU activity"),
        ("two-ranks-interleaved", "Two ranks"),
    ],
)
def test_a_bad_file_is_refused_with_its_cause(name: str, says: str) -> None:
    with pytest.raises(UnusableProfile, match=says):
        read((corpus() / "bad" / f"{name}.json").read_bytes())


@pytest.mark.parametrize("name", ["array", "control-character", "duplicate-correlation", "not-utf8"])
def test_an_odd_file_is_read(name: str) -> None:
    trace = read((corpus() / "bad" / f"{name}.json").read_bytes())
    assert times(trace)[0] == (1000, 3000)


def test_the_first_launch_of_a_correlation_wins() -> None:
    trace = read((corpus() / "bad" / "duplicate-correlation.json").read_bytes())
    assert trace.devices[0].launch.tolist() == [0, 0]


def test_a_truncated_file_is_read_up_to_its_end_without_facts() -> None:
    data = trace_bytes([event(ts=10 * at) for at in range(100)])
    trace = read(data[: len(data) // 2])
    assert "ends early" in trace.incomplete
    assert 40 < len(times(trace)) < 60
    assert document(trace)["facts"] == {}


def test_few_broken_events_are_skipped_and_counted() -> None:
    good = [json.dumps(event(ts=at)) for at in range(500)]
    bad = json.dumps(event()).replace('"ts": 1', '"ts": NaN')
    trace = read(('{"traceEvents": [' + ",".join([*good, bad]) + "]}").encode())
    assert (trace.skipped, len(times(trace))) == (1, 500)


def test_a_second_trace_behind_the_first_is_refused() -> None:
    with pytest.raises(UnusableProfile, match="Two ranks"):
        read(trace_bytes([event()]) * 2)


def test_names_are_cut_and_free_of_control_characters() -> None:
    trace = read(trace_bytes([event(name="<script>\x1b[31m\n" + "x" * 5000)]))
    (name,) = {trace.devices[0].names[at] for at in trace.devices[0].name}
    assert len(name) == 1000
    assert name.isprintable()


def export(path: Path, *statements: str) -> sqlite3.Connection:
    writer = sqlite3.connect(path)
    for statement in statements:
        writer.execute(statement)
    writer.commit()
    writer.close()
    return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)


KERNELS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, streamId, correlationId, globalPid, demangledName)"
)
CALLS = "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId, nameId)"
STRINGS = "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT)"


def test_equal_correlations_of_two_processes_join_their_own_launches(tmp_path: Path) -> None:
    first, second = 3 << 24, 5 << 24
    connection = export(
        tmp_path / "x.sqlite",
        KERNELS,
        CALLS,
        STRINGS,
        "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000')",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 0, 7, 1, {first}, 1)",  # noqa: S608
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 0, 7, 1, {second}, 1)",  # noqa: S608
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 20, {first + 9}, 1, 2), (50, 60, {second + 9}, 1, 2)",  # noqa: S608
    )
    devices = read_nsight(connection).devices
    assert [(device.key, int(device.calls.start[device.launch[0]])) for device in devices] == [("3:0", 10), ("5:0", 50)]
    connection.close()


@pytest.mark.parametrize("name", ["empty", "no-kernel-table", "view-instead-of-table", "not-sqlite"])
def test_an_unusable_export_is_refused(name: str) -> None:
    path = corpus() / "bad" / f"{name}.sqlite"
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    with pytest.raises(UnusableProfile):
        read_nsight(connection)
    connection.close()


def test_values_of_wrong_types_do_not_break_the_reader(tmp_path: Path) -> None:
    rows = ["(100, 200, 0, 7, 1, 5, 1)"] * 400 + ["('x', NULL, 'a', x'00', 1e400, 'p', 'q')"]
    values = ", ".join(rows)
    connection = export(tmp_path / "x.sqlite", KERNELS, f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {values}")  # noqa: S608
    trace = read_nsight(connection)
    assert (trace.skipped, trace.devices[0].start.size) == (1, 400)
    connection.close()


def test_order_of_events_means_nothing() -> None:
    events = [event(ts=10 * at, dur=5, name=f"k{at % 3}") for at in range(200)]
    shuffled = random.Random(1).sample(events, len(events))  # noqa: S311
    assert (
        document(read(trace_bytes(events)))["files"][0]["devices"]
        == (document(read(trace_bytes(shuffled)))["files"][0]["devices"])
    )


# --- Recorded dependencies: which gaps waited for communication, in both formats.

# Stream 7 computes, stream 9 communicates. The second GEMM is launched early; its stream waits for an event that is
# recorded behind the all-reduce, or behind a copy.
COMMUNICATION, COPY = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "Memcpy HtoD (Pinned -> Device)"


def kineto(producer: str, *, with_waits: bool = True) -> Trace:
    def call(name: str, ts: int, correlation: int) -> dict[str, Any]:
        args = {"correlation": correlation}
        return event(cat="cuda_runtime", name=name, ts=ts, dur=1, pid=1, tid=1, args=args)

    category = "gpu_memcpy" if producer == COPY else "kernel"
    events = [
        call("cudaLaunchKernel", 0, 1),
        call("cudaLaunchKernel", 2, 2),
        call("cudaLaunchKernel", 3, 5),
        call("cudaEventRecord", 4, 3),
        call("cudaStreamWaitEvent", 6, 4),
        call("cudaLaunchKernel", 8, 6),
        event(name="gemm_a", ts=10, dur=20, args={"stream": 7, "correlation": 1}),
        event(name=producer, cat=category, ts=20, dur=30, args={"stream": 9, "correlation": 2}),
        event(name=COMMUNICATION, ts=20, dur=30, args={"stream": 11, "correlation": 5}),
        event(name="gemm_b", ts=50, dur=20, args={"stream": 7, "correlation": 6}),
    ]
    args = {"stream": 7, "correlation": 4, "wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 3}
    if with_waits:
        events.append(event(cat="cuda_sync", name="Stream Wait Event", ts=6, dur=1, args=args))
    return read(trace_bytes(events))


@pytest.mark.parametrize(
    ("producer", "blocked_ms"), [(COMMUNICATION, 0.02), (COPY, 0.0)], ids=["communication", "copy"]
)
def test_a_gap_is_attributed_to_the_event_that_its_stream_waited_for(producer: str, blocked_ms: float) -> None:
    profile = document(kineto(producer))
    assert profile["quality"]["dependencies"] == {"gaps": 1, "resolved": 1, "blocking_comm_ms": blocked_ms}
    assert profile["facts"]["dependency_trace"] is True


def test_without_records_dependencies_are_not_mentioned() -> None:
    profile = document(kineto(COMMUNICATION, with_waits=False))
    assert profile["quality"]["dependencies"] is None
    assert profile["facts"]["dependency_trace"] is False


@pytest.mark.parametrize(("sync_type", "resolved"), [(2, 1), (3, 0)])
def test_an_export_joins_waits_by_the_id_of_the_synchronization(sync_type: int, resolved: int) -> None:
    process = 5 << 24
    connection = sqlite3.connect(":memory:")
    place = "start, end, deviceId, streamId, correlationId, globalPid"
    connection.executescript(f"""
        CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT);
        INSERT INTO StringIds VALUES (1, 'gemm'), (2, '{COMMUNICATION}'), (3, 'cudaLaunchKernel_v7000');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL({place}, demangledName);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
            (10000, 30000, 0, 7, 1, {process}, 1), (20000, 50000, 0, 9, 2, {process}, 2),
            (50000, 70000, 0, 7, 6, {process}, 1);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId, nameId);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES
            (0, 1000, {process + 1}, 1, 3), (2000, 3000, {process + 1}, 2, 3), (4000, 5000, {process + 1}, 3, 3),
            (6000, 7000, {process + 1}, 4, 3), (8000, 9000, {process + 1}, 6, 3);
        CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT(globalPid, eventId, eventSyncId, streamId, correlationId);
        INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES ({process}, 77, 1, 9, 3), ({process}, 77, 2, 7, 1);
        CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION(
            globalPid, eventId, eventSyncId, streamId, correlationId, syncType);
        INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES ({process}, 77, 1, 7, 4, {sync_type});
    """)  # noqa: S608
    profile = document(read_nsight(connection))
    connection.close()
    assert profile["facts"]["dependency_trace"] is bool(resolved)
    if resolved:
        assert profile["quality"]["dependencies"] == {"gaps": 1, "resolved": 1, "blocking_comm_ms": 0.02}

"""Recorded dependencies: which gaps waited for communication, in both formats."""

import sqlite3
from typing import Any

import pytest

from app.domain.profiles.nsight import read_nsight
from app.domain.profiles.trace import Trace
from tests.domain.profiles.traces import document, event, read, trace_bytes

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


def test_without_records_nothing_is_said_of_dependencies() -> None:
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

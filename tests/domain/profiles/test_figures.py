"""Figures of small traces: why the GPU starves, ranks of several stages, tables of sums."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.profiles.intervals import Coverage
from app.domain.profiles.nsight import is_table, read_stats
from app.domain.profiles.profile import ProfileFile, describe_profile
from app.domain.profiles.trace import UnusableProfile
from tests.domain.profiles.traces import document, event, kineto, read, trace_bytes


def test_the_time_without_a_launch_is_divided_by_what_the_host_did() -> None:
    def call(name: str, ts: int, dur: int, correlation: int = 0) -> dict[str, Any]:
        args = {"correlation": correlation}
        return event(cat="cuda_runtime", name=name, ts=ts, dur=dur, pid=1, tid=1, args=args)

    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    profile = document(
        read(
            trace_bytes(
                [
                    call("cudaLaunchKernel", 0, 1, 1),
                    event(cat="user_annotation", name=loader, ts=20, dur=30, pid=1, tid=1),
                    call("cudaMalloc", 50, 20),
                    call("cudaStreamSynchronize", 70, 5),
                    call("cudaLaunchKernel", 100, 1, 2),
                    event(name="a", ts=10, dur=10, args={"correlation": 1}),
                    event(name="b", ts=120, dur=10, args={"correlation": 2}),
                ]
            )
        )
    )
    split = profile["view"]["starved_split_ms"]
    assert split == {"data_loader": 0.03, "allocation": 0.02, "graph_launch": 0.0, "other": 0.035}
    reasons = profile["view"]["window"]["compute_absent_split_ms"]
    assert sum(split.values()) == pytest.approx(reasons["launch_starved"])
    assert reasons["host_sync"] == 0.005


def test_the_timeline_shades_communication_without_computation() -> None:
    kernels = [
        event(name="gemm", ts=0, dur=600, args={"stream": 7}),
        event(name="ncclDevKernel_AllReduce", ts=500, dur=300, args={"stream": 9}),
        event(name="gemm", ts=700, dur=300, args={"stream": 7}),
    ]
    view = document(read(trace_bytes(kernels)))["view"]
    assert view["timeline"]["exposed_comm"] == [[0.6, 0.1]]
    assert view["window"]["exposed_comm_ms"] == 0.1


def test_exposed_communication_is_split_by_class() -> None:
    kernels = [
        event(name="gemm", ts=0, dur=600, args={"stream": 7}),
        event(name="ncclDevKernel_AllGather_RING_LL", ts=500, dur=150, args={"stream": 9}),
        event(name="deep_ep::internode::dispatch", ts=650, dur=300, args={"stream": 9}),
        event(name="gemm", ts=950, dur=50, args={"stream": 7}),
    ]
    parts = ("exposed_comm_frac", "exposed_collective_frac", "exposed_p2p_frac", "exposed_ep_frac")
    facts = document(read(trace_bytes(kernels)))["facts"]
    assert [facts[name] for name in parts] == [0.35, 0.05, 0.0, 0.3]
    without_experts = document(read(trace_bytes([*kernels[:2], kernels[3]])))["facts"]
    assert without_experts["exposed_ep_frac"] is None, "its all-to-all may count as point-to-point"


def test_ranks_are_compared_within_their_stage() -> None:
    traces = [kineto(f"synthetic/seed-11/ranks-{rank}") for rank in range(4)]
    alone = [
        describe_profile([ProfileFile(str(rank), traces[rank]) for rank in ranks])["ranks"]
        for ranks in ((0, 1), (2, 3))
    ]
    both = describe_profile([ProfileFile(str(rank), trace, stage=rank // 2) for rank, trace in enumerate(traces)])
    waits = [row["wait_ms"] for row in both["ranks"]["rows"]]
    assert waits == [row["wait_ms"] for part in alone for row in part["rows"]]
    assert both["ranks"]["matched"] == sum(part["matched"] for part in alone)
    assert both["facts"]["stage_spread_frac"] is not None


def test_collectives_name_the_rank_that_comes_last() -> None:
    profile = document(*(kineto(f"synthetic/seed-11/ranks-{rank}") for rank in range(4)))
    shared = profile["ranks"]["collectives"]
    assert sum(item["matched"] for item in shared) == profile["ranks"]["matched"]
    assert {item["late_rank"] for item in shared} == {profile["ranks"]["straggler_rank"]}
    waits = sum(row["wait_ms"] for row in profile["ranks"]["rows"])
    assert sum(item["wait_ms"] for item in shared) == pytest.approx(waits, abs=1e-4)


TRACE = b"""Processing [report.sqlite] with [cuda_gpu_trace.py]...
Start (ns),Duration (ns),CorrId,GrdX,Bytes (MB),Device,Strm,Name
1000,400,11,132,,NVIDIA H100 80GB HBM3 (0),7,"void gemm<float, 4>(int)"
1200,600,12,16,,NVIDIA H100 80GB HBM3 (0),9,ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)
2000,100,13,,4.2,NVIDIA H100 80GB HBM3 (0),7,[CUDA memcpy Host-to-Device]
"""


def test_the_table_of_all_activities_shows_the_parts_but_no_reasons() -> None:
    assert is_table(TRACE)
    profile = document(read_stats([TRACE[:90], TRACE[90:]]))
    whole = profile["files"][0]["devices"]["0"]["whole"]
    parts = [whole[name] for name in ("compute_ms", "exposed_comm_ms", "exposed_copy_ms", "idle_ms")]
    assert parts == [0.0004, 0.0004, 0.0001, 0.0002]
    assert profile["files"][0]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert profile["facts"]["launch_starved_frac"] is None


def test_tables_of_sums_feed_only_the_shares_of_sums() -> None:
    kernels = b"""Time (%),Total Time (ns),Instances,Avg (ns),Name
75.0,3000,3,1000,"void gemm<float>(int)"
25.0,1000,1,1000,ncclDevKernel_AllGather_RING_LL(int)
"""
    memory = b"Time (%),Total Time (ns),Count,Operation\n100.0,800,2,[CUDA memcpy Device-to-Device]\n"
    profile = document(read_stats([kernels]), read_stats([memory]))
    assert profile["facts"] == {
        "nccl_share_of_summed_kernel_time": 0.25,
        "memcpy_share_of_summed_kernel_time": 0.2,
    }
    assert (profile["view"], profile["ranks"]["rows"]) == (None, [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a,b\n1,2\n",
        b"Start (ns),Duration (ns),Name\n",
        b"Start (ns),Duration (ns),Name\nx,1,a\n2,y,b\n",
        b"Start (ns),Duration (ns),Name\n" + b"x" * 100_000,
        b'Total Time (ns),Instances,Name\n"',
        b"Total Time (ns),Operation\n,\n",
    ],
    ids=range(7),
)
def test_broken_tables_are_refused(data: bytes) -> None:
    with pytest.raises(UnusableProfile):
        read_stats([data])


def test_an_interval_trace_never_states_shares_of_sums() -> None:
    traced = [document(kineto(name))["facts"] for name in ("ddp-a100-ns", "synthetic/seed-11/moe-deepep-rel_ns")]
    assert all("nccl_share_of_summed_kernel_time" not in facts for facts in traced)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12)


def test_a_late_launch_behind_communication_is_exposed_communication() -> None:
    launches = [(0, 1), (250, 2), (800, 3)]  # the last two are late: one behind communication, one on an idle GPU
    kernels = [
        event(name="gemm", ts=10, dur=90, args={"stream": 7, "correlation": 1}),
        event(name="deep_ep::internode::dispatch", ts=100, dur=200, args={"stream": 9}),
        event(name="gemm", ts=300, dur=100, args={"stream": 7, "correlation": 2}),
        event(name="gemm", ts=900, dur=100, args={"stream": 7, "correlation": 3}),
    ]
    calls = [
        event(cat="cuda_runtime", name="cudaLaunchKernel", ts=ts, dur=1, pid=1, tid=1, args={"correlation": number})
        for ts, number in launches
    ]
    profile = document(read(trace_bytes([*calls, *kernels])))
    window = profile["view"]["window"]
    assert (window["exposed_comm_ms"], window["idle_ms"]) == (0.2, 0.5)
    assert window["idle_split_ms"] == {
        "launch_starved": 0.41, "host_sync": 0.0, "issued_other": 0.09, "unresolved": 0.0,
    }  # fmt: skip
    assert profile["facts"]["launch_starved_frac"] == pytest.approx(0.41 / 0.99, abs=1e-6)
    assert [gap["reasons_ms"] for gap in profile["view"]["gaps"]] == [
        {"launch_starved": 0.41, "issued_other": 0.09},
        {"wait_comm": 0.2},
    ]


LAUNCHED = st.lists(
    st.tuples(
        st.sampled_from(("gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD", "cudaStreamSynchronize")),
        st.integers(0, 400), st.integers(1, 60), st.integers(0, 50),
    ),
    min_size=1, max_size=12,
)  # fmt: skip
"""Name, start, length, and how long before the start it was launched."""


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(LAUNCHED)
def test_the_parts_of_any_step_are_disjoint_and_add_up_to_it(drawn: list[tuple[str, int, int, int]]) -> None:
    events = [event(name="gemm", ts=0, dur=5)]
    for number, (name, ts, dur, early) in enumerate(drawn):
        if name == "cudaStreamSynchronize":
            events.append(event(cat="cuda_runtime", name=name, ts=ts, dur=dur, pid=1, tid=1))
            continue
        args = {"stream": name, "correlation": number}
        events.append(
            event(cat="gpu_memcpy" if name.startswith("Memcpy") else "kernel", name=name, ts=ts, dur=dur, args=args)
        )
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": max(0, ts - early), "dur": 1}
        events.append(event(**call, pid=1, tid=1, args={"correlation": number}))
    view = document(read(trace_bytes(events)))["view"]
    window = view["window"]
    idle = window["idle_split_ms"]
    parts = [window[name] for name in ("compute_ms", "exposed_comm_ms", "exposed_copy_ms")] + list(idle.values())
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(window["window_ms"], abs=1e-9)
    assert sum(idle.values()) == pytest.approx(window["idle_ms"], abs=1e-9)
    assert sum(view["starved_split_ms"].values()) == pytest.approx(idle["launch_starved"], abs=1e-9)
    for gap in view["gaps"]:
        assert sum(gap["reasons_ms"].values()) == pytest.approx(gap["length_ms"], abs=1e-9)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(SPANS, SPANS)
def test_what_one_union_covers_and_another_does_not(
    own_spans: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    def union(spans: list[tuple[int, int]]) -> Coverage:
        starts = np.array([start for start, _ in spans], np.int64)
        return Coverage.of(starts, starts + np.array([length for _, length in spans], np.int64))

    def moments(coverage: Coverage) -> set[int]:
        pairs = zip(coverage.start.tolist(), coverage.end.tolist(), strict=True)
        return {moment for start, end in pairs for moment in range(start, end)}

    own, other = union(own_spans), union(theirs)
    rest = moments(own) - moments(other)
    assert moments(own.minus(other)) == rest
    assert own.outside(other, 10, 40) == len({moment for moment in rest if 10 <= moment < 40})
    assert moments(Coverage.join((own, other))) == moments(own) | moments(other)

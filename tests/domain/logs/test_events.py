"""Events, memory reports and timers between iterations."""

import pytest

from app.domain.logs import events, memory, parse_log, parse_text, timers
from tests.domain.logs.lines import column, iteration

LINES = [
    ("[before the start of training step] datetime: 2025-04-13 23:41:00 ", "training_started", None, None),
    ("  successfully loaded checkpoint from /c [ t 1/4, p 1/2 ] at iteration 45", "checkpoint_loaded", None, 45),
    (
        "  successfully saved checkpoint from iteration     100 to /c [ t 1/2, p 1/1 ]",
        "checkpoint_saved",
        None,
        100,
    ),
    ("successfully saved checkpoint at iteration    2000 to /c", "checkpoint_saved", None, 2000),
    (" validation loss at iteration 2000 | lm loss value: 4.583530E+00 | ", "validation", None, 2000),
    ("[after training is done] datetime: 2025-02-05 21:43:14 ", "training_done", None, None),
    ("`Trainer.fit` stopped: `max_epochs=1` reached.", "training_done", None, None),
    ("[default0]:[exiting program after 690.0159 minutes] datetime: 2026-08-25 19:54:10 ", "exit_duration", None, None),
    ("[exiting program after receiving SIGTERM.] datetime: 2026-08-25 19:54:10 ", "exit_signal", None, None),
    ("[exiting program at iteration 500] datetime: 2026-08-25 19:54:10 ", "exit_iteration", None, 500),
    (
        "[rank3]: ImportError: DeepEP is not installed. Please install DeepEP package from ...",
        "deepep_missing",
        3,
        None,
    ),
    ("ImportError: HybridEP is not installed. Please install HybridEP package", "hybridep_missing", None, None),
    ("ImportError: TransformerEngine NCCL EP is unavailable. The 'ncclep' backend", "ncclep_missing", None, None),
    ("RuntimeError: transformer_engine.pytorch.ep is unavailable. The 'ncclep' flex", "ncclep_missing", None, None),
    ("AssertionError: DeepEP dispatcher requires TPxEP > 1", "dispatcher_refused", None, None),
    ("ValueError: DeepEP backend is only supported with flex token dispatcher.", "dispatcher_refused", None, None),
    (
        "DeepEP is only applicable to Ampere, Hopper, and Blackwell (B200/B300) GPUs. Current GPU: NVIDIA GB200. "
        "Falling back to alltoall.",
        "dispatcher_fallback",
        None,
        None,
    ),
    (
        "UserWarning: Current DeepEP version does not support fused permute dispatch or num_blocks_permute/"
        "num_blocks_unpermute. Falling back to unfused HybridEP dispatch.",
        "permute_fallback",
        None,
        None,
    ),
    ("CUDA graph capture done for training!!!", "graph_captured", None, None),
    ("Time spent in CUDA Graphs capture on rank 0: 1.25s", "graph_captured", 0, None),
    (
        "INFO:megatron.core.transformer.cuda_graphs:> built 4 cuda graph(s) in 0.25 sec, with total memory usage: "
        "allocated 1.0 mb, reserved 2.0 mb.",
        "graph_captured",
        None,
        None,
    ),
    (
        "[rank12]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 4 has a total "
        "capacity of 79.11 GiB of which 1.02 GiB is free.",
        "out_of_memory",
        12,
        None,
    ),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", "out_of_memory", None, None),
    ("[rank428]: RuntimeError: DeepEP error: timeout (dispatch CPU)", "deepep_timeout", 428, None),
    ("DeepEP timeout for dispatch receivers, rank 3, responsible_channel = 2, tokens", "deepep_timeout", 3, None),
    (
        "[rank5]:[E ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(",
        "nccl_timeout",
        5,
        None,
    ),
    ("torch.distributed.DistBackendError: NCCL error in: /x.cpp:1", "nccl_error", None, None),
    ("ncclInternalError: Internal check failed.", "nccl_error", None, None),
    (
        "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #7 invocation #2",
        "not_finite",
        3,
        7,
    ),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "process_failed", None, None),
    ("  exitcode  : -9 (pid: 92121)", "exit_code", None, None),
    ("srun: error: node-003: task 17: Exited with exit code 1", "scheduler", None, None),
    ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT ... DUE TO NODE FAILURE ***", "scheduler", None, None),
    (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "scheduler",
        None,
        None,
    ),
    (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***",
        "scheduler",
        None,
        None,
    ),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.", "scheduler", None, None),
    ("srun: Force Terminated StepId=12.0", "scheduler", None, None),
    (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 76 got signal: 15",
        "scheduler",
        None,
        None,
    ),
    (
        "Transformer Engine and Apex are not installed. Falling back to Torch optimizers.",
        "optimizer_fallback",
        None,
        None,
    ),
    (
        "UserWarning: DeepEP only supports float32 probs, please set --moe-router-dtype=fp32",
        "router_dtype",
        None,
        None,
    ),
    ("[OOM] rank 3 saved memory snapshot to /tmp/snapshot.pickle", "out_of_memory", 3, None),
    ("ncclRemoteError: A call failed possibly due to a network error", "nccl_error", None, None),
    ("AssertionError: Rank 3: found NaN in local forward loss calculation.", "not_finite", 3, None),
    ("ValueError: Only one backend is supported for flex token dispatcher.", "dispatcher_refused", None, None),
    (
        "AssertionError: Invalid backend: fooPlease set --moe-flex-dispatcher-backend to deepep",
        "dispatcher_refused",
        None,
        None,
    ),
    ("[rank2]: AssertionError", "error", 2, None),
    ("ImportError: Transformer Engine is not installed. Please install it.", "error", None, None),
    ("Memory access fault by GPU node-4 (Agent handle: 0x1) on address 0x7f.", "error", None, None),
    ("[rank0]: KeyError: 'model'", "error", 0, None),
    ("7: ModuleNotFoundError: No module named 'x'", "error", 7, None),
]


@pytest.mark.parametrize(("text", "kind", "rank", "iteration"), LINES)
def test_a_line_is_recognised(text: str, kind: str, rank: int | None, iteration: int | None) -> None:
    (event,) = parse_text(f"noise\n{text}\nnoise\n").events
    assert (event.kind, event.line, event.rank, event.iteration) == (kind, 2, rank, iteration)
    assert event.text in text


def test_an_exit_code_has_the_rank_that_its_report_names() -> None:
    report = (
        "  host      : node-1\n  rank      : {0} (local_rank: 1)\n  exitcode  : {1} (pid: 7)\n  error_file: <N/A>\n"
    )
    reported = parse_text(report.format(9, -15) + "Root Cause (first observed failure):\n" + report.format(6, 1)).events
    assert [(event.kind, event.rank) for event in reported] == [("exit_code", 9), ("exit_code", 6)]


def test_every_end_of_a_run_is_tried_here() -> None:
    assert {kind for _, kind, _, _ in LINES} >= events.FAILURES | events.ENDS


@pytest.mark.parametrize(
    "text",
    [
        "[after dataloaders are built] datetime: 2025-04-13 23:41:00 ",
        "WARNING: Falling back to the slow path",
        "  error_injection_rate ............................ 0",
        "INFO: relative error: 1e-3",
        "successfully read everything",
        "Setting rerun_state_machine.current_iteration to 0...",
    ],
)
def test_ordinary_lines_are_not_events(text: str) -> None:
    assert parse_text(text + "\n").events == ()


def test_an_out_of_memory_event_keeps_the_sizes() -> None:
    (event,) = parse_text("CUDA Error: x\nError: CUDA out of memory. Tried to allocate 1.50 GiB.\n").events[-1:]
    assert "1.50 GiB" in event.text


def test_very_many_events_of_one_kind_are_counted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_A_KIND", 3)
    text = "KeyError: 'a'\n" * 10 + "[after training is done] datetime: 2025-02-05 21:43:14 \n"
    log = parse_text(text)
    assert [event.kind for event in log.events] == ["error"] * 3 + ["training_done"]
    assert {problem.kind for problem in log.problems} == {"many events"}


MEGATRON = (
    "[Rank {rank}] (after {at} iterations) memory (MB) | allocated: 1464.33154296875 | max allocated: {most} | "
    "reserved: 1576.0 | max reserved: 1600.0"
)
BRIDGE = (
    "[Rank 0] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 51.072 | mem-active-gigabytes: 51.072 | "
    "mem-reserved-gigabytes: 216.89 | mem-max-allocated-gigabytes: 194.41 | mem-max-reserved-gigabytes: 216.9 | "
    "mem-alloc-retires: 3 | mem-allocated-count: 571\n"
)


def test_megatron_lm_says_mb_and_means_mib() -> None:
    log = parse_text("noise\n" + MEGATRON.format(rank=7, at=10, most="1464.5") + "\n")
    (report,) = log.memory
    assert (report.line, report.rank, report.iteration) == (2, 7, 10)
    assert report.max_allocated_bytes == 1464.5 * 2**20
    assert report.allocated_bytes == 1464.33154296875 * 2**20
    assert (report.reserved_bytes, report.max_reserved_bytes) == (1576 * 2**20, 1600 * 2**20)
    assert report.alloc_retries is None


def test_megatron_bridge_says_gb_and_means_it() -> None:
    log = parse_text(BRIDGE)
    (report,) = log.memory
    assert report.max_allocated_bytes == pytest.approx(194.41e9)
    assert report.max_reserved_bytes == pytest.approx(216.9e9)
    assert report.alloc_retries == 3
    assert log.trainer == "Megatron-Bridge"


def test_joined_reports_are_separated() -> None:
    glued = MEGATRON.format(rank=0, at=2, most="10.0") + MEGATRON.format(rank=8, at=2, most="20.0") + "\n"
    log = parse_text(glued)
    assert [(report.rank, report.max_allocated_bytes) for report in log.memory] == [(0, 10 * 2**20), (8, 20 * 2**20)]
    assert log.unrecognised_lines == 0


def test_a_torn_report_is_counted() -> None:
    log = parse_text("[Rank 0] (after 2 iterations) memory (MB) | allocated: 1[default3]: noise\n")
    assert (log.memory, log.unrecognised_lines) == ((), 1)


@pytest.mark.parametrize("text", ["out of (some) memory (very bad)", "memory (MB) is a unit", "(all) memory (MB) used"])
def test_other_lines_about_memory_are_not_reports(text: str) -> None:
    log = parse_text(text + "\n")
    assert (log.memory, log.unrecognised_lines) == ((), 0)


def test_after_very_many_reports_only_the_top_of_each_rank_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_REPORTS", 2)
    text = "\n".join(MEGATRON.format(rank=0, at=n, most=float(n)) for n in (1, 2, 9, 5)) + "\n"
    log = parse_text(text)
    assert [report.max_allocated_bytes / 2**20 for report in log.memory] == [1, 2, 9]
    assert [problem.kind for problem in log.problems] == ["many memory lines"] * 2


HEAD = "(min, max) time across ranks (ms):\n"


def entry(name: str, low: float, high: float, tag: str = "") -> str:
    return f"{tag}    {(name + ' ').ljust(48, '.')}: ({low:.2f}, {high:.2f})\n"


def block(low: float, tag: str = "") -> str:
    return f"{tag}{HEAD}" + entry("forward-backward", low, low + 1, tag) + entry("optimizer", 2.0, 3.0, tag)


@pytest.mark.parametrize("tag", ["", "15: ", "[default7]:", "node-001: "])
def test_a_block_belongs_to_the_iteration_above_it(tag: str) -> None:
    log = parse_text("".join(f"{tag}{iteration(n, 10.0)}{block(n * 10.0, tag)}" for n in (1, 2, 3)))
    assert column(log, "timer_forward_backward_ms") == [11.0, 21.0, 31.0]
    assert column(log, "timer_forward_backward_min_ms") == [10.0, 20.0, 30.0]
    assert column(log, "timer_optimizer_ms") == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("INFO:megatron.core.timers:" + HEAD + entry("optimizer", 1.0, 2.0), 1.0, 2.0),
        (HEAD.rstrip("\n") + entry("optimizer", 1.0, 2.0).strip() + "\n", 1.0, 2.0),
        ("max time across ranks (ms):\n    optimizer ....................: 2.00\n", None, 2.0),
        ("times across ranks (ms):\n  optimizer:\n     rank  0: 1.00\n     rank  1: 2.00\n", 1.0, 2.0),
        ("time (ms) | forward-compute: 1.00 | optimizer: 2.00\n", None, 2.0),
        (HEAD + "7: NCCL INFO noise\n" * 5 + entry("optimizer", 1.0, 2.0), 1.0, 2.0),
        ('{"log":"' + HEAD.rstrip("\n") + '\\n","stream":"stdout","time":"1"}\n{"log":"'
         + entry("optimizer", 1.0, 2.0).rstrip("\n") + '\\n","stream":"stdout","time":"2"}\n', 1.0, 2.0),
        ("\x1b[1m[timers.py:450] : " + HEAD + entry("optimizer", 1.0, 2.0).rstrip("\n") + "\x1b[0m\n", 1.0, 2.0),
    ],
)  # fmt: skip
def test_every_shape_of_a_block_is_read(text: str, low: float | None, high: float) -> None:
    log = parse_text(iteration(1, 10.0) + text)
    assert column(log, "timer_optimizer_ms") == [high]
    assert low is None or column(log, "timer_optimizer_min_ms") == [low]


def test_deepspeed_prints_its_times_before_the_iteration() -> None:
    head = "[2024-04-04 09:09:53,313] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
    log = parse_text("".join(f"{head}fwd: {n}.5 | step: 1.0\n{iteration(n, 10.0)}" for n in (1, 2)))
    assert column(log, "timer_fwd_ms") == [1.5, 2.5]


def test_a_block_can_have_more_timers_later() -> None:
    later = block(20.0) + entry("all-grads-sync", 0.5, 0.75)
    log = parse_text(iteration(1, 1.0) + block(10.0) + iteration(2, 1.0) + later + iteration(3, 1.0) + block(30.0))
    assert column(log, "timer_forward_backward_ms") == [11.0, 21.0, 31.0]
    assert column(log, "timer_all_grads_sync_ms") == [None, 0.75, None]


def test_timers_of_the_start_up_are_facts_of_the_run() -> None:
    log = parse_text(HEAD + entry("model-and-optimizer-setup", 1.0, 2.0) + iteration(1, 10.0))
    assert log.arguments == {"start-up timer: model_and_optimizer_setup (ms)": 2.0}
    assert not any(name.startswith("timer") for name in log.columns)


def test_timers_behind_a_doubled_line_stay_with_it() -> None:
    log = parse_text(iteration(1, 10.0) + iteration(1, 10.0) + block(10.0) + iteration(2, 10.0))
    assert column(log, "timer_forward_backward_ms") == [11.0, None]


@pytest.mark.parametrize("step", [1, 7, 100, 1000])
def test_how_the_bytes_arrive_changes_nothing(step: int) -> None:
    text = "".join(iteration(n, 10.0) + block(n * 10.0) + "x\n" * 30 for n in range(1, 6)).encode()
    log = parse_log([text[at : at + step] for at in range(0, len(text), step)])
    assert column(log, "timer_forward_backward_ms") == [11.0, 21.0, 31.0, 41.0, 51.0]


def test_no_log_makes_timers_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "MAX_TIMERS", 2)
    monkeypatch.setattr(timers, "MAX_VALUES", 5)
    text = "".join(iteration(n, 10.0) + HEAD + "".join(entry(f"t{i}-{n}", 1.0, 2.0) for i in range(5)) for n in (1, 2))
    log = parse_text(text)
    assert [name for name in log.columns if name.startswith("timer")] == [
        "timer_t0_1_min_ms", "timer_t0_1_ms", "timer_t1_1_min_ms", "timer_t1_1_ms"
    ]  # fmt: skip
    assert {problem.kind for problem in log.problems} == {"many timers"}

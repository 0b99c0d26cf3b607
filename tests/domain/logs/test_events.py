"""What happened in a run: each line with its kind, rank and iteration."""

import pytest

from app.domain.logs import events, parse_text

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


def test_every_kind_is_described_and_tried_here() -> None:
    assert {kind for _, kind, _, _ in LINES} == set(events.KINDS)
    assert set(events.KINDS) >= events.FAILURES | events.ENDS


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
def test_ordinary_lines_are_no_events(text: str) -> None:
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

"""Failures as people read them, from events and columns; texts are those of real logs and of the programs' sources."""

import math
from pathlib import Path

import pytest

from app.domain.logs import parse_log, parse_text
from app.domain.logs.merge import merge_logs
from app.domain.performance.failures import KINDS
from app.domain.performance.health import explain_failures
from app.domain.run import Failure, LogEvent, LogPart
from tests.domain.builders import make_log
from tests.shared_papers import shared_folder

DOCS = " ".join((Path(__file__).resolve().parents[3] / "docs" / "failures.md").read_text().split())
NAN = math.nan

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.02 GiB is free."
)
DEEPEP = (
    "ImportError: DeepEP is not installed. Please install DeepEP package from https://github.com/deepseek-ai/deepep."
)
WATCHDOG = (
    "[Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=600000) ran for 600024 milliseconds before timing out."
)
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
SLURM = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-05-11T03:00:00"


def event(kind: str, line: int, text: str, rank: int | None = None, file: int = 0) -> LogEvent:
    return LogEvent(kind, line, text, rank, file=file)


def failures(*events: LogEvent, total: int = 20) -> tuple[Failure, ...]:
    """Iterations 1 to 10 stand on lines 101 to 110."""
    return explain_failures(make_log([100.0] * 10, events=events, total_iterations=total))


@pytest.mark.parametrize(
    ("events", "kind", "says"),
    [
        ([event("out_of_memory", 120, OOM, 3)], "out_of_memory", "1.50 GiB with 1.02 GiB of 79.11 GiB free"),
        ([event("out_of_memory", 120, OOM, 3), event("out_of_memory", 121, OOM, 1)], "out_of_memory", "2 ranks report"),
        ([event("deepep_missing", 120, DEEPEP), event("process_failed", 130, CHILD)], "deepep_missing", "backend"),
        ([event("error", 120, "ModuleNotFoundError: No module named 'apex'")], "import_error", "Missing: apex."),
        ([event("nccl_timeout", 120, WATCHDOG, 5)], "nccl_timeout", "ALLREDUCE; time limit: 600 s"),
        ([event("deepep_timeout", 120, "RuntimeError: DeepEP error: timeout (dispatch CPU)", 428)], "deepep_timeout",
         "tokens"),
        ([event("nccl_error", 119, "NCCL error"), event("out_of_memory", 120, OOM)], "out_of_memory", "1.50 GiB"),
        ([event("exit_code", 121, "exitcode  : -9 (pid: 7)"), event("process_failed", 120, CHILD)], "process_failed",
         "Exit code -9 (SIGKILL)."),
        ([event("error", 120, "AssertionError: disable full recomputation when enabling "
          "overlap_moe_expert_parallel_comm")], "overlap_refused", ""),
        ([event("error", 120, "KeyError: 'x'")], "exception", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO TIME LIMIT ***")], "time_limit", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO PREEMPTION ***")], "preempted", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO NODE FAILURE ***")], "node_failure", ""),
        ([event("scheduler", 120, f"{SLURM} ***")], "cancelled", ""),
        ([event("scheduler", 120, "SignalException: Process 76 got signal: 15")], "cancelled", ""),
        ([event("scheduler", 120, "srun: error: node1: task 3: Out Of Memory")], "host_out_of_memory", ""),
        ([event("scheduler", 120, "srun: error: node1: task 3: Exited with exit code 1")], "scheduler", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO TIME LIMIT ***"), event("nccl_error", 125, "NCCL error")],
         "time_limit", ""),
        ([event("nccl_timeout", 118, WATCHDOG), event("scheduler", 120, f"{SLURM} ***")], "nccl_timeout", ""),
        ([event("exit_duration", 120, "[exiting program after 690.01 minutes] datetime: x")], "time_limit", ""),
        ([event("exit_signal", 120, "[exiting program after receiving SIGTERM.] datetime: x")], "signal", ""),
        ([], "truncated", "The last iteration is 10 of 20."),
    ],
)  # fmt: skip
def test_how_a_run_ended(events: list[LogEvent], kind: str, says: str) -> None:
    (failure,) = failures(*events)
    assert failure.kind == kind
    assert says in failure.explanation
    assert failure.iteration == 10
    assert failure.evidence


def test_a_chain_is_one_failure_with_its_cause_first() -> None:
    (failure,) = failures(
        event("nccl_error", 118, "torch.distributed.DistBackendError: NCCL error in: x"),
        event("deepep_missing", 120, DEEPEP, 2),
        event("deepep_missing", 121, DEEPEP, 3),
        event("process_failed", 130, CHILD),
        event("exit_code", 133, "exitcode  : 1 (pid: 7)"),
    )
    assert (failure.kind, failure.rank) == ("deepep_missing", 2)
    assert [line.line for line in failure.evidence] == [120, 121, 118, 130, 133]


@pytest.mark.parametrize(
    "events",
    [
        [event("error", 105, "ConnectionError: tried again"), event("training_done", 120, "[after training is done]")],
        [event("training_done", 120, "[after training is done]"), event("nccl_error", 125, "NCCL error")],
        [event("exit_iteration", 120, "[exiting program at iteration 10]")],
    ],
)
def test_a_run_that_ended_well_has_no_failure(events: list[LogEvent]) -> None:
    assert failures(*events) == ()


def test_a_failure_before_a_restart_is_told_as_such() -> None:
    events = (event("out_of_memory", 50, OOM, 1), event("training_started", 90, "x"), event("training_done", 120, "y"))
    (failure,) = failures(*events)
    assert failure.kind == "out_of_memory"
    assert failure.explanation.startswith("Before a restart: ")
    assert failure.iteration is None


def test_skipped_steps_and_lost_losses_are_shown_with_their_iterations() -> None:
    log = make_log(
        [100.0] * 4,
        columns={"lm_loss": [NAN, NAN, 2.0, NAN], "skipped_iterations": [1.0, 1.0, 0.0, 0.0],
                 "nan_iterations": [0.0, 1.0, 0.0, 0.0], "grad_norm": [NAN, NAN, 1.0, NAN]},
        total_iterations=4,
    )  # fmt: skip
    told = {failure.kind: failure for failure in explain_failures(log)}
    assert set(told) == {"loss_not_finite", "skipped_iterations", "nan_iterations"}
    assert told["loss_not_finite"].iteration == 4
    assert told["skipped_iterations"].explanation.endswith("Here: 2 between iterations 1 and 2.")
    assert told["nan_iterations"].evidence[0].line == 102
    assert told["loss_not_finite"].evidence[0].text == (
        "iteration 4, lm_loss not a number, grad_norm not a number, skipped_iterations 0, nan_iterations 0"
    )


def test_the_failure_of_one_rank_counts_though_another_file_has_the_iterations() -> None:
    rows = make_log([100.0] * 10, total_iterations=20)
    other = make_log(events=[event("out_of_memory", 7, OOM, 3)])
    (failure,) = explain_failures(merge_logs([LogPart("last.log", rows), LogPart("rank3.log", other)]))
    assert (failure.kind, failure.rank, failure.iteration) == ("out_of_memory", 3, 10)
    assert failure.evidence[0].file == 1


def test_an_optional_import_that_fails_on_rank_zero_before_training_ends_nothing() -> None:
    rank0 = parse_text(
        "ImportError: No module named 'optional'\n[before the start of training step] datetime: 2026-05-11 03:00:00 \n"
    )
    rows = make_log([100.0] * 10, total_iterations=20)
    assert [one.kind for one in explain_failures(merge_logs([LogPart("a", rows), LogPart("b", rank0)]))] == [
        "truncated"
    ]


@pytest.mark.parametrize(
    ("name", "kind", "iteration", "rank"),
    [
        ("real-excerpts/bridge-deepep-timeout-traceback", "deepep_timeout", None, 428),
        ("real-excerpts/megatron-nan-rerun-state-machine", "not_finite", 3, 3),
        ("real-excerpts/megatron-deepspeed-nan-gradnorm-no-loss", "loss_not_finite", 5426, None),
        ("real-full/dsv4-p22-turbo-crash", "process_failed", None, None),
    ],
)
def test_failures_of_real_logs(name: str, kind: str, iteration: int | None, rank: int | None) -> None:
    path = shared_folder("corpus") / "logs" / f"{name}.log"
    failure = explain_failures(parse_log([path.read_bytes()]))[0]
    assert (failure.kind, failure.iteration, failure.rank) == (kind, iteration, rank)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_in_the_document_with_its_texts(kind: str) -> None:
    assert f"| `{kind}` |" in DOCS
    assert f"`{kind}`. {KINDS[kind].explanation}" in DOCS
    assert f"*What to do:* {KINDS[kind].advice}" in DOCS

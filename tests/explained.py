"""Columns of a run with every value that a page can show: for `make_run(**explained())`."""

from dataclasses import asdict
from typing import Any

from app.domain.run import Activity, Failure, LineExample, LogEvidence, Slice, Stated, Timer

OUT_OF_MEMORY = Failure(
    kind="out_of_memory",
    title="A GPU ran out of memory",
    explanation="PyTorch asked for 2.50 GiB with 1.20 GiB free.",
    advice="Lower `mbs`, or recompute more.",
    iteration=20,
    rank=3,
    evidence=(LogEvidence(0, 61, "torch.OutOfMemoryError: CUDA out of memory. <b>Tried</b> to allocate 2.50 GiB"),),
)
FOLLOWED = Failure(
    kind="process_failed",
    title="A process failed",
    explanation="torchrun ended the others.",
    advice="Look at the failure before.",
    evidence=(LogEvidence(0, 62, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),),
)
FELL_BACK = Activity(
    requested=Stated("deepep", "arguments", "line 20: moe_flex_dispatcher_backend = deepep"),
    active=Stated("alltoall", "log line", "line 33: Falling back to alltoall dispatcher."),
    agrees=False,
)
SAME = Activity(Stated("bf16", "arguments", "line 9: bf16 = True"), Stated("bf16", "derived", "the steps ran"), True)
UNPROVEN = Activity(Stated("local", "arguments", "line 12: cuda_graph_impl = local"), None, None)
SLICES = (
    Slice("train.log", "start", 1, 25, 0, iterations_kept=20),
    Slice("train.log", "resume", 21, 50, 20, iterations_kept=30),
)
TIMERS = (
    Timer("forward-backward", 0.83, 25_987.0, 1.04),
    Timer("optimizer", 0.031, 970.6, 1.31),
    Timer("forward-compute", 0.31, 9_706.0, 1.12),
    Timer("batch-generator", 0.0042, 131.5),
)
EXAMPLE = LineExample("iteration line", 12, "step 7 | expert load <max>: 3.1 | fancy metric: 0.2", 58)


def explained(**columns: Any) -> dict[str, Any]:
    return {
        "failures": [asdict(OUT_OF_MEMORY), asdict(FOLLOWED)],
        "activity": {"graph_impl": asdict(UNPROVEN), "precision": asdict(SAME), "dispatcher": asdict(FELL_BACK)},
        "slices": [asdict(piece) for piece in SLICES],
        "timers": [asdict(timer) for timer in TIMERS],
        "not_understood": [asdict(EXAMPLE)],
        "definitions": {"steady_state": 1, "flops": 2},
        "fair_for_timing": False,
        "warnings": ["Not fair for timing: `timing_log_level` is 2, and its barriers slow every step down."],
    } | columns

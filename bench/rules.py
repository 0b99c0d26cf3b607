"""Time to evaluate all rules for one run, with a complete contract and with a sparse one.

First `make setup`; then `.venv/bin/python -m bench.rules`. Exit code 1 if a run takes more than 5 ms. It also prints
the times of the stepper, of the diffs, and of reading the rule files, which each process does once.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping

from app.domain.rules.change import change_of
from app.domain.rules.engine import evaluate
from app.domain.rules.load import built_in_rules
from app.domain.rules.phases import tuning_phases
from bench.options import without_options

LIMIT_MS = 5.0
ROUNDS = 300
LITTLE: Mapping[str, object] = {"gpu": "H100", "gpus": 16, "model": "Qwen3-30B-A3B"}
WHOLE: Mapping[str, object] = {
    **LITTLE,
    "tp": 2,
    "pp": 2,
    "vpp": None,
    "cp": 1,
    "ep": 8,
    "etp": 1,
    "sp": True,
    "mbs": 1,
    "gbs": 1024,
    "seq_len": 4096,
    "precision": "bf16",
    "dispatcher": "alltoall",
    "routing_mode": "dropless",
    "data_mode": "real",
    "mtp": None,
    "graph_impl": "none",
    "graph_modules": [],
    "te_rng": False,
    "recompute_granularity": "none",
    "ep_overlap": False,
    "delay_wgrad": False,
    "shared_overlap": False,
    "dist_opt": True,
    "fsdp": "none",
    "opt_offload": False,
    "act_offload": False,
    "fine_offload": [],
    "grouped_gemm": True,
    "permute_fusion": True,
    "router_fusion": True,
    "manual_gc": False,
    "attention": "flash",
    "router_dtype": "fp32",
    "task": "pretrain",
    "te_version": "2.8",
    "pytorch_version": "2.8",
    "container": "nemo:26.06",
    "steps_done": 60,
    "window": 10,
    "oom": False,
    "fits": True,
    "mem_alloc_peak_gb": 61.0,
    "mem_reserved_peak_gb": 66.0,
    "unknown_fields": 0,
    "exposed_comm_frac": 0.3,
    "gpu_idle_frac": 0.05,
    "installed_flex_backends": ["deepep"],
    "loss_finite": True,
    "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTORCH_CUDA_ALLOC_CONF": None},
}
COMMAND = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --moe-token-dispatcher-type alltoall --bf16"


def milliseconds(work: Callable[[], object], rounds: int) -> list[float]:
    """Return the processor time of each round, which other load does not lengthen."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1000)
    return sorted(times)


def main() -> int:
    without_options(__doc__)
    start = time.perf_counter()
    book = built_in_rules()
    print(f"{len(book.rules)} rules read in {(time.perf_counter() - start) * 1000:.0f} ms (again: ", end="")
    print(f"{statistics.median(milliseconds(built_in_rules.__wrapped__, 3)):.0f} ms)")
    worst = 0.0
    for name, facts in (("says little", LITTLE), ("whole", WHOLE)):
        times = milliseconds(lambda facts=facts: evaluate(facts, book), ROUNDS)
        evaluation = evaluate(facts, book)
        counts = ", ".join(
            f"{len(rules)} {what}"
            for what, rules in (
                ("fire", evaluation.fired),
                ("silent", evaluation.silent),
                ("ask", evaluation.asks),
                ("broken", evaluation.broken),
            )
        )
        median, high = statistics.median(times), times[int(0.95 * len(times))]
        print(f"{name:12} median {median:.2f} ms, 95 % under {high:.2f} ms: {counts}")
        worst = max(worst, median)
    for what, work in (
        ("stepper", lambda: tuning_phases(evaluation)),
        ("all diffs", lambda: [change_of(suggestion, evaluation.facts, COMMAND) for suggestion in evaluation.fired]),
    ):
        print(f"{what:12} median {statistics.median(milliseconds(work, ROUNDS)):.2f} ms")
    print(f"limit {LIMIT_MS:.0f} ms: {'met' if worst <= LIMIT_MS else 'EXCEEDED'}")
    return int(worst > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())

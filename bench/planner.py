"""Time of a plan: try every combination of degrees, rank the feasible ones, describe fifty of them.

First `make setup`; then `.venv/bin/python -m bench.planner`. Exit code 1 if an ordinary plan takes more than 50 ms, or
if a plan with nearly the maximum number of combinations takes more than a second.
"""

import statistics
import sys
import time
from collections.abc import Mapping

from app.domain.planning.plan import make_plan
from app.domain.planning.request import read_request
from bench.options import without_options

LIMIT_MS, WIDEST_MS = 50.0, 1000.0
ROUNDS = 20
ORDINARY: Mapping[str, Mapping[str, object]] = {
    "DeepSeek-V3, 256 H100": {
        "model": "DeepSeek-V3",
        "mtp": 1,
        "gpu": "H100",
        "gpus": 256,
        "seq_len": 4096,
        "gbs": 8192,
    },
    "DeepSeek-V3, 512 H100, 256k": {"model": "DeepSeek-V3", "mtp": 1, "gpu": "H100", "gpus": 512, "seq_len": 262_144},
    "Qwen3-235B, 128 GB200, 128k": {"model": "Qwen3-235B-A22B", "gpu": "GB200", "gpus": 128, "seq_len": 131_072},
    "Kimi-K2, 4096 GB300": {"model": "Kimi-K2", "gpu": "GB300", "gpus": 4096, "seq_len": 4096, "gbs": 16_384},
}
WIDEST: Mapping[str, object] = {
    "model": "all divisors", "num_layers": 1000, "num_attention_heads": 2520, "num_experts": 360, "gpu": "GB200",
    "gpus": 110_880, "seq_len": 55_440 * 32, "tp": 1,
}  # fmt: skip


def measure(fields: Mapping[str, object], rounds: int) -> tuple[float, int, int]:
    """Return median milliseconds, and the numbers of tried and feasible combinations."""
    request = read_request({name: str(value) for name, value in fields.items()})
    took = []
    for _ in range(rounds):
        begin = time.process_time()
        plan = make_plan(request)
        took.append(1000 * (time.process_time() - begin))
    return statistics.median(took), plan.tried, plan.feasible


def main() -> int:
    slow = 0
    for name, fields in ORDINARY.items():
        slow += _report(name, fields, ROUNDS, LIMIT_MS)
    return min(1, slow + _report("nearly the most allowed", WIDEST, 3, WIDEST_MS))


def _report(name: str, fields: Mapping[str, object], rounds: int, limit_ms: float) -> bool:
    ms, tried, feasible = measure(fields, rounds)
    print(f"{name:30} {ms:8.1f} ms  {tried:9,} tried  {feasible:9,} feasible")
    return ms > limit_ms


if __name__ == "__main__":
    without_options(__doc__)
    sys.exit(main())

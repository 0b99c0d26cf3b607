"""Logs whose numbers were damaged: they are read and explained, and no impossible figure comes of them."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import asdict

from app.domain.logs import parse_text
from app.domain.performance.figures import LARGEST, SMALLEST
from app.domain.performance.steady_state import MAX_STEP_MS
from app.domain.performance.summary import summarise
from app.domain.run import Metadata
from app.storage.json_text import storable

CASES = 300
MOST = {"step_time_ms": MAX_STEP_MS, "mfu_pct": 100.0, **LARGEST}
MEGATRON = b"".join(
    (
        b"using world size: 8, data-parallel size: 1\n",
        b"--- arguments ---\n  num_experts ...... 64\n  seq_length ..... 4096\n  global_batch_size ..... 8\n"
        b"--- end of arguments ---\n",
        *(
            b" [2026-05-11 02:59:%02d.912300] iteration %d/ 12 | consumed samples: %d | elapsed time per iteration "
            b"(ms): 782.5 | throughput per GPU (TFLOP/s/GPU): 4.3 | tokens/sec/gpu: 123.4 | global batch size: 8 | "
            b"lm loss: 1.2E+01 | grad norm: 1.5 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
            b"(min, max) time across ranks (ms):\n    optimizer ........: (1.00, 2.00)\n" % (n, n, 8 * n)
            for n in range(1, 13)
        ),
        b"[Rank 3] (after 2 iterations) memory (MB) | allocated: 10.5 | max allocated: 20.5 | reserved: 5.0\n",
        b"[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has 1.02 GiB free.\n",
        b"WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600024 milliseconds before timing out.\n",
    )
)
OTHERS = b"".join(
    b"Training epoch 0, iteration %d/99 | lr: 1.9e-07 | train_step_timing in s: 2.008 | consumed_samples: 8\n"
    b"2026-01-01 10:00:00 | INFO | step %08d/00000015 | step-time 43.142 sec | tokens-per-second 48,611 |\n" % (n, n)
    for n in range(1, 10)
)
NUMBER = re.compile(rb"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")
DAMAGE = (
    b"inf",
    b"-inf",
    b"nan",
    b"1e308",
    b"-1e308",
    b"1e400",
    b"1e-320",
    b"-1",
    b"-0.0",
    b"0",
    b"9" * 30,
    b"1e18",
    b"",
)
FIELDS = (
    b"elapsed time per iteration (ms):", b"throughput per GPU (TFLOP/s/GPU):", b"tokens/sec/gpu:", b"lm loss:",
    b"number of skipped iterations:", b"number of nan iterations:", b"global batch size:", b"consumed samples:",
    b"max allocated:", b"train_step_timing in s:", b"step-time", b"tokens-per-second",
)  # fmt: skip


def damaged(case: int) -> bytes:
    """A log with some of its numbers replaced: all of one field, or any."""
    chance = random.Random(case)  # noqa: S311  # a sample that is the same every time
    log = chance.choice((MEGATRON, OTHERS, MEGATRON + OTHERS))
    if case % 2:
        field = re.escape(chance.choice(FIELDS))
        return re.sub(rb"(%b) *[-+.\w]+" % field, lambda match: match[1] + b" " + chance.choice(DAMAGE), log)
    share = chance.choice((0.005, 0.05, 0.5))
    return NUMBER.sub(lambda match: chance.choice(DAMAGE) if chance.random() < share else match[0], log)


def wrong_with(data: bytes) -> Iterator[str]:
    summary = summarise(parse_text(data), Metadata())
    json.dumps(storable(asdict(summary)), allow_nan=False)
    for name, metric in summary.metrics.items():
        if metric and not SMALLEST <= metric.ci_low <= metric.value <= metric.ci_high <= MOST[name]:
            yield f"{name} is {metric}"
    for name in ("skipped_iterations", "nan_iterations", "alloc_retries", "last_iteration"):
        count = summary.health[name]
        if isinstance(count, int) and not 0 <= count <= 10**12:
            yield f"{name} is {count}"


def test_damaged_numbers_never_raise_and_never_become_figures() -> None:
    wrong = []
    for case in range(CASES):
        try:
            wrong += [f"case {case}: {sentence}" for sentence in wrong_with(damaged(case))]
        except (ArithmeticError, ValueError, TypeError, RuntimeWarning) as error:
            wrong.append(f"case {case}: {error!r}")
    assert wrong == []

"""Describes the iteration line of Megatron-LM, which Megatron-Bridge and all forks print too.

` [2026-05-11 02:59:22.912300] iteration  1/  20 | consumed samples: 896 | elapsed time per iteration (ms): 782.5 | ...`
"""

from collections.abc import Sequence

from app.domain.logs.iterations import Shape
from app.domain.logs.trainers import primus

TRAINER = "Megatron-LM"

ELAPSED = b"elapsed time per iteration ("
ELAPSED_WITHOUT_BLANK = b"elapsed time per iteration("
"""All versions print the step time under this name, and no other line has it. Some forks omit the blank."""

DEEPSPEED = "Megatron-DeepSpeed"
DEEPSPEED_NAMES: dict[bytes, tuple[str, float]] = {
    b"TFLOPs": ("tflops_per_gpu", 1.0),
    b"tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens per gpu per second(tgs)": ("tokens_per_s_per_gpu", 1.0),
}
"""What it prints differently from Megatron-LM."""

NAMES: dict[bytes, tuple[str, float]] = {
    ELAPSED + b"ms)": ("step_time_ms", 1.0),
    ELAPSED + b"s)": ("step_time_ms", 1000.0),
    ELAPSED_WITHOUT_BLANK + b"ms)": ("step_time_ms", 1.0),
    ELAPSED_WITHOUT_BLANK + b"s)": ("step_time_ms", 1000.0),
    b"throughput per GPU (TFLOP/s/GPU)": ("tflops_per_gpu", 1.0),
    b"energy per GPU (J/iter/GPU)": ("energy_j_per_gpu", 1.0),
    b"power per GPU (W/GPU)": ("power_w_per_gpu", 1.0),
    b"number of skipped iterations": ("skipped_iterations", 1.0),
    b"number of nan iterations": ("nan_iterations", 1.0),
    b"tokens/sec/gpu": ("tokens_per_s_per_gpu", 1.0),
    b"total grad norm": ("grad_norm", 1.0),
    **primus.NAMES,
    **DEEPSPEED_NAMES,
}


def trainer(prefix: bytes, names: Sequence[bytes]) -> str:
    """Return the family of a line with this prefix and these fields; Megatron-LM by default."""
    if fork := primus.trainer(prefix, names):
        return fork
    is_deepspeed = b"samples per second" in names and (b"TFLOPs" in names or b"actual seqlen" in names)
    return DEEPSPEED if is_deepspeed else TRAINER


SHAPE = Shape(keys=(ELAPSED, ELAPSED_WITHOUT_BLANK), first_keys=(b"| consumed samples:",), names=NAMES, trainer=trainer)

"""What Megatron-DeepSpeed prints otherwise than Megatron-LM: seconds, TFLOPs at the end, tokens per GPU and second."""

from collections.abc import Sequence

TRAINER = "Megatron-DeepSpeed"

NAMES: dict[bytes, tuple[str, float]] = {
    b"TFLOPs": ("tflops_per_gpu", 1.0),
    b"tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens per gpu per second(tgs)": ("tokens_per_s_per_gpu", 1.0),
}


def trainer(names: Sequence[bytes]) -> str | None:
    """The family's name for a line that tells its samples per second and its TFLOPs, as no other does."""
    return TRAINER if b"samples per second" in names and (b"TFLOPs" in names or b"actual seqlen" in names) else None

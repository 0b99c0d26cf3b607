"""Names that Megatron-DeepSpeed prints differently from Megatron-LM: TFLOPs, and tokens per GPU and second."""

from collections.abc import Sequence

TRAINER = "Megatron-DeepSpeed"

NAMES: dict[bytes, tuple[str, float]] = {
    b"TFLOPs": ("tflops_per_gpu", 1.0),
    b"tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens per gpu per second(tgs)": ("tokens_per_s_per_gpu", 1.0),
}


def trainer(names: Sequence[bytes]) -> str | None:
    """Return the family's name for a line with its characteristic fields, else None."""
    return TRAINER if b"samples per second" in names and (b"TFLOPs" in names or b"actual seqlen" in names) else None

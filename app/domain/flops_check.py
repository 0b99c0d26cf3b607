"""Compares printed TFLOP/s with those of the FLOPs formula, and looks for the one input that would explain a gap."""

from collections.abc import Iterator
from dataclasses import replace

from app.domain.model_flops import flops_per_token
from app.domain.model_shape import GroupedQueryAttention, ModelShape

TOLERANCE = 0.005
"""FLOPs of a token are a constant of model and sequence length: half a per cent is no rounding any more."""


def explain_difference(
    printed: float, computed: float, shape: ModelShape, seq_len: int, *, digit: float, discount_window: bool
) -> str | None:
    """A sentence on the difference of two TFLOP/s figures, or None when they agree.

    `digit`: half the last printed digit, which a small figure's rounding may explain.
    """
    tolerance = max(TOLERANCE, digit / printed)
    if abs(computed / printed - 1) <= tolerance:
        return None
    base = flops_per_token(shape, seq_len, discount_window=discount_window)
    fitting = [
        explanation
        for explanation, factor in _alternatives(shape, seq_len, base, discount_window=discount_window)
        if abs(computed * factor / printed - 1) <= tolerance
    ]
    change = 100 * (computed / printed - 1)
    hint = (
        f"They agree if {' or '.join(fitting)}."
        if fitting
        else "Check `seq_len`, `gbs`, `gpus`, `mtp`, `vocab_size` and the model's shape."
    )
    return (
        f"The log prints {printed:.1f} TFLOP/s/GPU, the FLOPs formula gives {computed:.1f} ({change:+.1f} %). {hint} "
        f"The printed figure is shown."
    )


def _alternatives(
    shape: ModelShape, seq_len: int, base: float, *, discount_window: bool
) -> Iterator[tuple[str, float]]:
    """One changed input each, and the factor by which it changes the computed figure."""

    def ratio(changed: ModelShape, window: bool = discount_window) -> float:
        return flops_per_token(changed, seq_len, discount_window=window) / base

    for mtp in (0, 1, 2):
        if mtp != shape.mtp_layers:
            yield f"`mtp` is {mtp}", ratio(replace(shape, mtp_layers=mtp))
    gated = "off" if shape.gated else "on"
    yield f"`swiglu` is {gated}", ratio(replace(shape, gated=not shape.gated))
    if isinstance(shape.attention, GroupedQueryAttention) and shape.attention.window is not None:
        counted = "in full" if discount_window else "as the windows they are"
        yield f"sliding windows are counted {counted}", ratio(shape, not discount_window)
    if shape.experts is not None and shape.experts.shared_width:
        without = replace(shape, experts=replace(shape.experts, shared_width=0))
        yield "shared experts are not counted", ratio(without)
    yield "`gpus` is half, or `gbs` double", 2.0
    yield "`gpus` is double, or `gbs` half", 0.5

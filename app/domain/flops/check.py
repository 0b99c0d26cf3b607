"""Compares printed TFLOP/s with those of the FLOPs formula, and looks for the inputs that would explain a gap.

Every input is changed alone, and when no single change explains the gap, two together: systematically, so that a
sentence names all that fit and nothing is guessed. A trainer that counts otherwise is explained the same way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from app.domain.flops.model_flops import flops_per_token
from app.domain.flops.model_shape import GroupedQueryAttention, ModelShape, pad_vocabulary

TOLERANCE = 0.005
"""FLOPs of a token are a constant of model and sequence length: half a per cent is no rounding any more."""

MAX_NAMED = 4
"""Explanations named in a sentence; of a small model more may fit by chance."""

_PADDING = 128
_FACTORS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the FLOPs of a step depend on. `times`: how much more tokens a GPU has than the contract says.

    `masked` is False where attention is counted in full, without its causal half.
    """

    shape: ModelShape
    seq_len: int
    discount_window: bool
    tp: int = 1
    times: float = 1.0
    masked: bool = True


_Change = tuple[str, Callable[[Inputs], Inputs]]


def explain_difference(printed: float, computed: float, inputs: Inputs, *, digit: float) -> str | None:
    """A sentence on the difference of two TFLOP/s figures, or None when they agree.

    `digit`: half the last printed digit, which a small figure's rounding may explain.
    """
    tolerance = max(TOLERANCE, digit / printed)
    if abs(computed / printed - 1) <= tolerance:
        return None
    fitting = _fitting(printed / computed, inputs, tolerance)
    change = 100 * (computed / printed - 1)
    hint = (
        f"They agree if {' or '.join(fitting[:MAX_NAMED])}."
        if fitting
        else "No one or two inputs explain it: check `seq_len`, `gbs`, `gpus` and the model's shape."
    )
    return (
        f"The log prints {printed:.1f} TFLOP/s/GPU, the FLOPs formula gives {computed:.1f} ({change:+.1f} %). {hint} "
        f"The printed figure is shown."
    )


def _fitting(wanted: float, inputs: Inputs, tolerance: float) -> list[str]:
    """Changes after which the computed figure is `wanted` times as large: single ones, else pairs of two inputs."""
    base = _flops(inputs)
    groups = [list(group) for group in _groups(inputs)]

    def fits(changed: Inputs) -> bool:
        return abs(_flops(changed) / base / wanted - 1) <= tolerance

    single = [text for group in groups for text, change in group if fits(change(inputs))]
    if single:
        return single
    return [
        f"{one} and {other}"
        for first, second in combinations(groups, 2)
        for one, change in first
        for other, then in second
        if fits(then(change(inputs)))
    ]


def _flops(inputs: Inputs) -> float:
    """FLOPs of a GPU's tokens in a step, in units of its own."""
    context = inputs.seq_len if inputs.masked else 2 * inputs.seq_len
    one = flops_per_token(inputs.shape, context, discount_window=inputs.discount_window)
    return inputs.times * inputs.seq_len * one


def _groups(inputs: Inputs) -> Iterator[Iterator[_Change]]:
    """The inputs that may be wrong, each with the values to try."""
    yield _batch()
    yield _sequence(inputs)
    yield _multi_token_prediction(inputs)
    yield _vocabulary(inputs)
    yield _experts(inputs)
    yield _feed_forward(inputs)
    yield _attention(inputs)
    yield _hybrid(inputs)


def _batch() -> Iterator[_Change]:
    names = {2: ("half", "double"), 4: ("a quarter", "four times"), 8: ("an eighth", "eight times")}
    for factor in _FACTORS:
        less, more = names[factor]
        yield f"`gpus` is {less}, or `gbs` {more}", _times(factor)
        yield f"`gpus` is {more}, or `gbs` {less}", _times(1 / factor)


def _times(factor: float) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, times=one.times * factor)


def _sequence(inputs: Inputs) -> Iterator[_Change]:
    lengths = (inputs.seq_len * factor for factor in _FACTORS)
    shorter = (inputs.seq_len // factor for factor in _FACTORS if inputs.seq_len % factor == 0)
    for length in (*lengths, *shorter):
        yield f"`seq_len` is {length}", _length(length)


def _length(seq_len: int) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, seq_len=seq_len)


def _shape(**changes: Any) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, shape=replace(one.shape, **changes))


def _multi_token_prediction(inputs: Inputs) -> Iterator[_Change]:
    for mtp in (0, 1, 2, 3):
        if mtp != inputs.shape.mtp_layers:
            yield f"`mtp` is {mtp}", _shape(mtp_layers=mtp)


def _vocabulary(inputs: Inputs) -> Iterator[_Change]:
    """Padded where it was not; without the padding it has; or not counted, as trainers that skip the logits do."""
    size = inputs.shape.vocabulary
    for tp in sorted({1, inputs.tp, 2, 4, 8}):
        padded = pad_vocabulary(size, _PADDING, tp)
        if padded != size:
            yield f"`vocab_size` is {padded} (padded to {_PADDING} x {tp})", _shape(vocabulary=padded)
    yield "the vocabulary's products are not counted", _shape(vocabulary=0)


def _experts(inputs: Inputs) -> Iterator[_Change]:
    experts = inputs.shape.experts
    if experts is None:
        return
    if experts.shared_width:
        yield "shared experts are not counted", _shape(experts=replace(experts, shared_width=0))
    else:
        with_one = replace(experts, shared_width=experts.width)
        yield "there is a shared expert of the routed ones' width", _shape(experts=with_one)
    for topk in (1, 2, 4, 6, 8):
        if topk != experts.topk:
            yield f"`topk` is {topk}", _shape(experts=replace(experts, topk=topk))
    if 0 in experts.pattern:
        all_moe = replace(experts, pattern=(1,) * len(experts.pattern))
        yield "all layers are MoE layers (`moe_layer_freq` is 1)", _shape(experts=all_moe)


def _feed_forward(inputs: Inputs) -> Iterator[_Change]:
    yield f"`swiglu` is {'off' if inputs.shape.gated else 'on'}", _shape(gated=not inputs.shape.gated)


def _attention(inputs: Inputs) -> Iterator[_Change]:
    attention = inputs.shape.attention
    if isinstance(attention, GroupedQueryAttention):
        if attention.window is not None:
            counted = "in full" if inputs.discount_window else "as the windows they are"
            other = not inputs.discount_window
            yield f"sliding windows are counted {counted}", lambda one: replace(one, discount_window=other)
        if attention.query_groups != attention.heads:
            every = replace(attention, query_groups=attention.heads)
            yield "every head has its own keys and values (`num_query_groups` is unset)", _shape(attention=every)
    yield "attention is counted without its causal half, as older trainers do", lambda one: replace(one, masked=False)


def _hybrid(inputs: Inputs) -> Iterator[_Change]:
    """A hybrid model counted as if all its layers were alike."""
    if inputs.shape.hybrid is not None:
        yield "the layers are counted as those of a plain transformer (no `hybrid_layer_pattern`)", _shape(hybrid=None)

"""Model FLOPs of one optimizer step, by the convention of Megatron-LM's `num_floating_point_operations`.

It counts GEMMs, forward and backward; router, norms and softmax do not count, and recomputation adds nothing.
Full routing is assumed: dropped tokens do not reduce the figure. Sources: Megatron-LM `megatron/training/training.py`,
Megatron-Bridge `src/megatron/bridge/training/utils/flop_utils.py`; prose and test vectors in `docs/metrics.md`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from app.domain.numbers import signed
from app.domain.performance.model_shape import (
    Experts,
    GatedDeltaNet,
    GroupedQueryAttention,
    HybridLayers,
    LatentAttention,
    ModelShape,
    pad_vocabulary,
)

FORWARD_AND_BACKWARD = 3
"""The forward product, and one each for the gradients of data and weights."""
MULTIPLY_ADD = 2
FACTOR = FORWARD_AND_BACKWARD * MULTIPLY_ADD


def flops_per_step(shape: ModelShape, sequences: int, seq_len: int, *, discount_window: bool) -> float:
    """Return the FLOPs of one step over `sequences` unpacked sequences of `seq_len` tokens.

    `discount_window`: windowed layers count only the tokens they see, as in Megatron-Bridge; Megatron-LM counts the
    full causal half for them too. Raises ValueError for a non-positive batch.
    """
    if sequences <= 0 or seq_len <= 0:
        raise ValueError(f"a step needs sequences and tokens, got {sequences} x {seq_len}")
    return sequences * seq_len * flops_per_token(shape, seq_len, discount_window=discount_window)


def flops_per_token(shape: ModelShape, seq_len: int, *, discount_window: bool) -> float:
    """Return the FLOPs of one token in unpacked sequences of `seq_len` tokens."""
    if shape.hybrid is not None:
        products = _hybrid_products(shape, shape.hybrid, seq_len)
    else:
        products = (
            _feed_forward_products(shape)
            + _attention_products(shape, seq_len, discount_window=discount_window)
            + shape.mtp_layers * (3 * shape.hidden + 2 * shape.hidden**2)  # two norms, and the joining projection
        )
    return FACTOR * (products + shape.hidden * shape.vocabulary * (1 + shape.mtp_layers))


def _matrices(shape: ModelShape) -> int:
    """Return the matrices of a feed-forward block: gated ones have a third."""
    return 3 if shape.gated else 2


def _moe_layer_products(shape: ModelShape, experts: Experts) -> float:
    inner = experts.width * experts.topk * _matrices(shape)
    routed = inner * shape.hidden
    if (
        experts.latent_width is not None
    ):  # routed experts work in the latent width; two projections convert to it and back
        routed = inner * experts.latent_width + 2 * experts.latent_width * shape.hidden
    return routed + shape.hidden * experts.shared_width * _matrices(shape)


def _dense_layer_products(shape: ModelShape) -> float:
    return shape.hidden * shape.ffn_width * _matrices(shape)


def _feed_forward_products(shape: ModelShape) -> float:
    """Return products of all feed-forward blocks; a multi-token-prediction layer equals the last layer."""
    if shape.experts is None:
        return (shape.layers + shape.mtp_layers) * _dense_layer_products(shape)
    pattern = shape.experts.pattern
    moe_layers = sum(pattern) + shape.mtp_layers * pattern[-1]
    dense_layers = shape.layers + shape.mtp_layers - moe_layers
    return moe_layers * _moe_layer_products(shape, shape.experts) + dense_layers * _dense_layer_products(shape)


def _attention_products(shape: ModelShape, seq_len: int, *, discount_window: bool) -> float:
    """Return products of all attention layers, including multi-token prediction."""
    layers = shape.layers + shape.mtp_layers
    attention = shape.attention
    if isinstance(attention, LatentAttention):
        per_layer = _latent_projections(attention, shape.hidden) + _latent_core(attention, seq_len)
        everything = layers * per_layer
    else:
        context = _context_of_layers(attention, layers, seq_len, discount_window=discount_window)
        query = attention.heads * attention.head_width
        everything = layers * _grouped_projections(attention, shape.hidden) + 2 * query * context
    if shape.linear is None:
        return everything
    full_layers = layers - shape.linear.linear_layers
    delta = shape.linear.linear_layers * _delta_net_products(shape.linear, shape.hidden)
    return everything * full_layers / layers + delta


def _grouped_projections(attention: GroupedQueryAttention, hidden: int) -> float:
    query = attention.heads * attention.head_width
    key = attention.query_groups * attention.head_width
    gate = query if attention.output_gate else 0
    return hidden * (query + 2 * key + gate) + query * hidden


def _context_of_layers(attention: GroupedQueryAttention, layers: int, seq_len: int, *, discount_window: bool) -> float:
    """Return the mean tokens that a token attends to, summed over layers: half the sequence, less with a window."""
    full = seq_len / 2
    window = attention.window
    if not discount_window or window is None or window >= seq_len:
        return layers * full
    windowed = window - window * (window - 1) / (2 * seq_len)
    full_layers = layers // attention.full_every if attention.full_every else 0
    return full_layers * full + (layers - full_layers) * windowed


def _latent_projections(attention: LatentAttention, hidden: int) -> float:
    query_width = attention.heads * (attention.head_width + attention.rotary_width)
    if attention.query_rank is None:
        query: float = hidden * query_width
    else:
        query = attention.query_rank * (hidden + query_width + 1)
    key_value = attention.key_value_rank * (
        hidden + attention.heads * (attention.head_width + attention.value_width) + 1
    )
    output = attention.heads * attention.value_width * hidden
    return query + key_value + hidden * attention.rotary_width + output


def _latent_core(attention: LatentAttention, seq_len: int) -> float:
    width = attention.head_width + attention.rotary_width + attention.value_width
    return seq_len * attention.heads * width / 2


def _delta_net_products(net: GatedDeltaNet, hidden: int) -> float:
    key = net.key_width * net.key_heads
    value = net.value_width * net.value_heads
    into = hidden * (2 * key + 2 * value + 2 * net.value_heads)
    convolution = net.convolution * (2 * key + value)
    rule = 4 * net.value_heads * net.value_width**2
    return into + convolution + rule + hidden * value


def _mamba_layer_products(hybrid: HybridLayers, hidden: int) -> float:
    inner = 2 * hidden
    into = hidden * (2 * inner + 2 * hybrid.mamba_groups * hybrid.mamba_state + hybrid.mamba_heads)
    scan = 7 * inner * hybrid.mamba_state / MULTIPLY_ADD  # counted upstream as single operations
    return into + scan + inner * hidden


def _hybrid_products(shape: ModelShape, hybrid: HybridLayers, seq_len: int) -> float:
    """Return products by kind of layer. Upstream does not count the joining projection of multi-token prediction."""
    products = hybrid.mamba * _mamba_layer_products(hybrid, shape.hidden) if hybrid.mamba else 0.0
    products += hybrid.dense * _dense_layer_products(shape)
    if shape.experts is not None:
        products += hybrid.experts * _moe_layer_products(shape, shape.experts)
    if isinstance(shape.attention, GroupedQueryAttention):
        query = shape.attention.heads * shape.attention.head_width
        products += hybrid.attention * (_grouped_projections(shape.attention, shape.hidden) + query * seq_len)
    return products


# --- Compares printed TFLOP/s with the FLOPs formula and searches for inputs that explain a gap.
#
# Every input is changed alone, then two together when no single change explains the gap, so that the sentence names all
# that fit. A trainer that counts differently is explained the same way.

TOLERANCE = 0.005
"""FLOPs of a token are a constant of model and sequence length: 0.5 % is more than rounding."""

MAX_NAMED = 4
"""Most explanations in a sentence; for a small model more may fit by chance."""

_PADDING = 128
_FACTORS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a step's FLOPs. `times`: ratio of actual tokens per GPU to the contract's.

    `masked` is False when attention is counted in full, without its causal half.
    """

    shape: ModelShape
    seq_len: int
    discount_window: bool
    tp: int = 1
    times: float = 1.0
    masked: bool = True


_Change = tuple[str, Callable[[Inputs], Inputs]]


def explain_difference(printed: float, computed: float, inputs: Inputs, *, digit: float) -> str | None:
    """Return a sentence on the difference of two TFLOP/s figures, or None when they agree.

    `digit`: half the last printed digit, because rounding may explain the difference of small figures.
    """
    tolerance = max(TOLERANCE, digit / printed)
    if abs(computed / printed - 1) <= tolerance:
        return None
    fitting = _fitting(printed / computed, inputs, tolerance)
    change = 100 * (computed / printed - 1)
    hint = (
        f"They agree if {' or '.join(fitting[:MAX_NAMED])}."
        if fitting
        else "Neither one nor two inputs explain it: check `seq_len`, `gbs`, `gpus` and the model's shape."
    )
    return (
        f"The log prints {printed:.1f} TFLOP/s/GPU, the FLOPs formula gives {computed:.1f} ({signed(change)}). {hint} "
        f"The printed figure is shown."
    )


def _fitting(wanted: float, inputs: Inputs, tolerance: float) -> list[str]:
    """Return changes after which the computed figure is `wanted` times as large: single ones, else pairs."""
    base = _flops(inputs)
    groups = [list(group) for group in _groups(inputs)]

    def fits(changed: Inputs) -> bool:
        return abs(_flops(changed) / base / wanted - 1) <= tolerance

    single = [text for group in groups for text, change in group if fits(change(inputs))]
    if single:
        return single
    return [
        f"{variant} and {other}"
        for first, second in combinations(groups, 2)
        for variant, change in first
        for other, then in second
        if fits(then(change(inputs)))
    ]


def _flops(inputs: Inputs) -> float:
    """Return the FLOPs of a GPU's tokens in a step, in arbitrary units."""
    context = inputs.seq_len if inputs.masked else 2 * inputs.seq_len
    per_token = flops_per_token(inputs.shape, context, discount_window=inputs.discount_window)
    return inputs.times * inputs.seq_len * per_token


def _groups(inputs: Inputs) -> Iterator[Iterator[_Change]]:
    """Yield the inputs that may be wrong, each with the values to try."""
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
    return lambda inputs: replace(inputs, times=inputs.times * factor)


def _sequence(inputs: Inputs) -> Iterator[_Change]:
    lengths = (inputs.seq_len * factor for factor in _FACTORS)
    shorter = (inputs.seq_len // factor for factor in _FACTORS if inputs.seq_len % factor == 0)
    for length in (*lengths, *shorter):
        yield f"`seq_len` is {length}", _length(length)


def _length(seq_len: int) -> Callable[[Inputs], Inputs]:
    return lambda inputs: replace(inputs, seq_len=seq_len)


def _shape(**changes: Any) -> Callable[[Inputs], Inputs]:
    return lambda inputs: replace(inputs, shape=replace(inputs.shape, **changes))


def _multi_token_prediction(inputs: Inputs) -> Iterator[_Change]:
    for mtp in (0, 1, 2, 3):
        if mtp != inputs.shape.mtp_layers:
            yield f"`mtp` is {mtp}", _shape(mtp_layers=mtp)


def _vocabulary(inputs: Inputs) -> Iterator[_Change]:
    """Yield vocabularies: padded, unpadded, or not counted, as in trainers that skip the logits."""
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
            counted = "in full" if inputs.discount_window else "by their window"
            other = not inputs.discount_window
            yield f"sliding windows are counted {counted}", lambda changed: replace(changed, discount_window=other)
        if attention.query_groups != attention.heads:
            every = replace(attention, query_groups=attention.heads)
            yield "every head has its own keys and values (`num_query_groups` is unset)", _shape(attention=every)
    yield (
        "attention is counted without its causal half, as in older trainers",
        lambda changed: replace(changed, masked=False),
    )


def _hybrid(inputs: Inputs) -> Iterator[_Change]:
    """Yield a hybrid model counted as if all its layers were alike."""
    if inputs.shape.hybrid is not None:
        yield "the layers are counted as in a plain transformer (no `hybrid_layer_pattern`)", _shape(hybrid=None)


# --- Peak dense TFLOP/s of one GPU by precision, each with its source. Others stay unknown.

Format = Literal["BF16", "FP8", "NVFP4"]

SOURCE = 'NVIDIA/dgxc-benchmarking README.md, "Peak Theoretical Throughput" (841f546, 2026-07-30)'
AMD_SOURCE = "AMD Instinct data sheet of the product, dense"

PEAKS: dict[str, dict[Format, float]] = {
    "H100": {"BF16": 989, "FP8": 1979},
    "B200": {"BF16": 2250, "FP8": 4500, "NVFP4": 9000},
    "B300": {"BF16": 2250, "FP8": 4500, "NVFP4": 13500},
    "GB200": {"BF16": 2450, "FP8": 4900, "NVFP4": 9800},
    "GB300": {"BF16": 2450, "FP8": 4900, "NVFP4": 14700},
    "MI300X": {"BF16": 1307.4, "FP8": 2614.9},
    "MI325X": {"BF16": 1307.4, "FP8": 2614.9},
    "MI355X": {"BF16": 2516.6, "FP8": 5033.2},
}

_FORMATS: dict[str, Format] = {
    "bf16": "BF16",
    "fp16": "BF16",  # the same peak on every GPU of the table
    "fp8": "FP8",  # published without its recipe; the peak is that of any
    "fp8_ds": "FP8",
    "fp8_cs": "FP8",
    "fp8_sc": "FP8",
    "fp8_mx": "FP8",
    "nvfp4": "NVFP4",
}


@dataclass(frozen=True, slots=True)
class Peak:
    """A GPU's dense peak with its source."""

    tflops: float
    gpu: str
    format: Format

    @property
    def source(self) -> str:
        return AMD_SOURCE if self.gpu.startswith("MI") else SOURCE


def peak_flops(gpu: str, precision: str) -> Peak | None:
    """Return the peak of a GPU (SKU) at a precision (canonical value); None when the sources state none."""
    number_format = _FORMATS.get(precision)
    if number_format is None:
        return None
    peak = PEAKS.get(gpu, {}).get(number_format)
    return None if peak is None else Peak(peak, gpu, number_format)

"""What one token costs in each kind of layer: parameters, activations that are kept for the backward pass, and GEMMs.

All follow from the shape of the model. `memory.py` and `step_time.py` multiply them by the tokens of a layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from app.domain.performance.flops import flops_per_token
from app.domain.performance.model_shape import (
    Experts,
    GatedDeltaNet,
    GroupedQueryAttention,
    HybridLayers,
    LatentAttention,
    ModelShape,
)

Per = Literal["token", "dispatched"]
"""A dispatched token is a copy of a token for one expert: TOPK of them for each token."""

_MAMBA_HEAD = 64
"""Width of a Mamba head in the public hybrid models."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Activations that `layers` layers keep for the backward pass.

    `wide`: elements of 16 bits. `inputs`: elements that are the input of a GEMM, kept in its precision. `wide32`:
    elements of 32 bits. `released_by`: modules whose recomputation drops them.
    """

    layers: float
    per: Per
    wide: float = 0.0
    inputs: float = 0.0
    wide32: float = 0.0
    released_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product of tokens x `inner` by `inner` x `outer`, in `layers` layers. `split`: what TP divides."""

    layers: float
    per: Per
    inner: float
    outer: float
    split: Literal["inner", "outer", ""] = "outer"


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """Costs of one token. Parameters count all layers; `core_flops` are the FLOPs of attention scores."""

    hidden: int
    vocabulary: int
    layers: float
    moe_layers: float
    topk: int
    experts: int
    dispatch_width: int
    key_value_width: int
    expert_parameters: float
    other_parameters: float
    embedding_parameters: float
    mtp_layers: int
    mtp_expert_parameters: float
    mtp_other_parameters: float
    activations: tuple[Activations, ...]
    gemms: tuple[Gemm, ...]
    core_flops: float
    is_latent: bool
    has_dense: bool

    @property
    def parameters(self) -> float:
        """Return all parameters with multi-token prediction and both embeddings."""
        return (
            self.expert_parameters + self.other_parameters + 2 * self.embedding_parameters
            + self.mtp_expert_parameters + self.mtp_other_parameters
        )  # fmt: skip


@cache
def model_costs(shape: ModelShape, experts: int, seq_len: int, *, qk_norm: bool) -> ModelCosts:
    """Return the costs of one token in sequences of `seq_len` tokens."""
    counts = _counts(shape)
    activations = (*_attention_saved(shape, counts, qk_norm=qk_norm), *_feed_forward_saved(shape, counts, experts))
    gemms = (*_attention_gemms(shape, counts), *_feed_forward_gemms(shape, counts))
    moe, mtp = counts.moe, shape.mtp_layers
    expert = _expert_parameters(shape) * experts
    mtp_moe = mtp if moe else 0
    other = sum(gemm.layers * gemm.inner * gemm.outer for gemm in gemms if gemm.per == "token")
    other += moe * shape.hidden * experts
    mtp_other = other * mtp / (shape.layers + mtp)
    products = 6 * sum(gemm.layers * gemm.inner * gemm.outer * _copies(shape, gemm) for gemm in gemms)
    logits = 6 * shape.hidden * shape.vocabulary * (1 + shape.mtp_layers)
    core = flops_per_token(shape, seq_len, discount_window=True) - products - logits
    return ModelCosts(
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        layers=shape.layers + shape.mtp_layers,
        moe_layers=moe,
        topk=shape.experts.topk if shape.experts else 0,
        experts=experts if shape.experts else 0,
        dispatch_width=_dispatch_width(shape),
        key_value_width=_key_value_width(shape),
        expert_parameters=expert * (moe - mtp_moe),
        other_parameters=other - mtp_other,
        embedding_parameters=shape.hidden * shape.vocabulary,
        mtp_layers=shape.mtp_layers,
        mtp_expert_parameters=expert * mtp_moe,
        mtp_other_parameters=mtp_other + 2 * shape.hidden**2 * mtp,
        activations=activations,
        gemms=gemms,
        core_flops=max(core, 0.0),
        is_latent=isinstance(shape.attention, LatentAttention),
        has_dense=counts.dense > 0,
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Layers by kind, with multi-token prediction."""

    attention: float
    mamba: float
    delta: float
    moe: float
    dense: float


def _counts(shape: ModelShape) -> _Counts:
    if shape.hybrid is not None:
        hybrid = shape.hybrid
        return _Counts(hybrid.attention, hybrid.mamba, 0, hybrid.experts, hybrid.dense)
    layers = shape.layers + shape.mtp_layers
    delta = shape.linear.linear_layers if shape.linear else 0
    if shape.experts is None:
        return _Counts(layers - delta, 0, delta, 0, layers)
    moe = sum(shape.experts.pattern) + shape.mtp_layers * shape.experts.pattern[-1]
    return _Counts(layers - delta, 0, delta, moe, layers - moe)


def _copies(shape: ModelShape, gemm: Gemm) -> int:
    return shape.experts.topk if gemm.per == "dispatched" and shape.experts else 1


def _dispatch_width(shape: ModelShape) -> int:
    if shape.experts is None:
        return 0
    return shape.experts.latent_width or shape.hidden


def _key_value_width(shape: ModelShape) -> int:
    """Return the elements of keys and values of one token, which context parallelism passes on."""
    attention = shape.attention
    if isinstance(attention, LatentAttention):
        return attention.heads * (attention.head_width + attention.rotary_width + attention.value_width)
    return 2 * attention.query_groups * attention.head_width


def _gates(shape: ModelShape) -> int:
    """Return the matrices before the activation function: a gated block has two."""
    return 2 if shape.gated else 1


def _expert_parameters(shape: ModelShape) -> float:
    if shape.experts is None:
        return 0.0
    return (_gates(shape) + 1) * shape.experts.width * _dispatch_width(shape)


# --- Activations. Both norms of a layer keep their input; with recomputation of norms their output is not kept.

_NORM = frozenset({"layernorm", "full"})
_FULL = frozenset({"full"})
_MOE = frozenset({"moe", "full"})
_UP = frozenset({"mla_up_proj", "full"})


def _attention_saved(shape: ModelShape, counts: _Counts, *, qk_norm: bool) -> Iterator[Activations]:
    hidden = shape.hidden
    layers = counts.attention + counts.mamba + counts.delta
    yield Activations(layers, "token", wide=hidden)  # the input of the layer: all that full recomputation keeps
    yield Activations(layers, "token", inputs=hidden, released_by=_NORM)
    attention = shape.attention
    if isinstance(attention, LatentAttention):
        yield from _latent_saved(attention, counts.attention)
    else:
        yield from _grouped_saved(attention, counts.attention, qk_norm=qk_norm)
    if shape.hybrid is not None and shape.hybrid.mamba:
        yield _mamba_saved(shape.hybrid)
    if shape.linear is not None:
        yield _delta_saved(shape.linear)


def _grouped_saved(attention: GroupedQueryAttention, layers: float, *, qk_norm: bool) -> Iterator[Activations]:
    query, key = attention.heads * attention.head_width, attention.query_groups * attention.head_width
    gate = 2 * query if attention.output_gate else 0
    normed = query + key if qk_norm else 0
    yield Activations(layers, "token", wide=query + 2 * key + gate + normed, released_by=_FULL)
    yield Activations(layers, "token", wide=query, released_by=_FULL)
    yield Activations(layers, "token", wide32=attention.heads, released_by=_FULL)


def _latent_saved(attention: LatentAttention, layers: float) -> Iterator[Activations]:
    keys = attention.heads * (attention.head_width + attention.rotary_width)
    values = attention.heads * attention.value_width
    down = (attention.query_rank or 0) + attention.key_value_rank
    yield Activations(layers, "token", wide=down + attention.rotary_width, inputs=down, released_by=_FULL)
    yield Activations(layers, "token", wide=2 * keys + values, released_by=_UP)
    yield Activations(layers, "token", wide=values, wide32=attention.heads, released_by=_FULL)


def _mamba_saved(hybrid: HybridLayers) -> Activations:
    inner, state = hybrid.mamba_heads * _MAMBA_HEAD, hybrid.mamba_groups * hybrid.mamba_state
    into = 2 * inner + 2 * state + hybrid.mamba_heads
    return Activations(hybrid.mamba, "token", wide=into + inner, inputs=inner, released_by=_FULL)


def _delta_saved(net: GatedDeltaNet) -> Activations:
    key, value = net.key_width * net.key_heads, net.value_width * net.value_heads
    return Activations(
        net.linear_layers,
        "token",
        wide=2 * (2 * key + value) + 3 * value + 2 * net.value_heads,
        inputs=value,
        released_by=_FULL,
    )


def _feed_forward_saved(shape: ModelShape, counts: _Counts, experts: int) -> Iterator[Activations]:
    hidden, gates = shape.hidden, _gates(shape)
    layers = counts.moe + counts.dense
    yield Activations(layers, "token", wide=hidden, released_by=_FULL if shape.hybrid is None else frozenset())
    if counts.dense:
        mlp = frozenset({"mlp", "full"})
        yield Activations(counts.dense, "token", inputs=hidden, released_by=_NORM | mlp)
        yield Activations(counts.dense, "token", wide=gates * shape.ffn_width, inputs=shape.ffn_width, released_by=mlp)
    if counts.moe and shape.experts is not None:
        yield from _moe_saved(shape, shape.experts, counts.moe, experts)


def _moe_saved(shape: ModelShape, block: Experts, layers: float, experts: int) -> Iterator[Activations]:
    gates, width = _gates(shape), _dispatch_width(shape)
    yield Activations(layers, "token", wide=shape.hidden, released_by=_NORM | _MOE)
    yield Activations(
        layers, "token", wide32=3 * experts, released_by=_MOE
    )  # scores, probabilities and the map of tokens
    if block.latent_width:
        yield Activations(layers, "token", wide=2 * width, released_by=_MOE)
    yield Activations(layers, "dispatched", inputs=width, wide=gates * block.width, released_by=_MOE)
    yield Activations(layers, "dispatched", inputs=block.width, released_by=frozenset({"moe_act"}) | _MOE)
    if block.shared_width:
        shared = frozenset({"shared_experts"}) | _MOE
        yield Activations(
            layers, "token", wide=gates * block.shared_width, inputs=block.shared_width, released_by=shared
        )


# --- GEMMs. The router and other narrow products are left out, as in the FLOPs of a step.


def _attention_gemms(shape: ModelShape, counts: _Counts) -> Iterator[Gemm]:
    hidden, attention = shape.hidden, shape.attention
    if isinstance(attention, LatentAttention):
        yield from _latent_gemms(attention, hidden, counts.attention)
    else:
        query, key = attention.heads * attention.head_width, attention.query_groups * attention.head_width
        gate = query if attention.output_gate else 0
        yield Gemm(counts.attention, "token", hidden, query + 2 * key + gate)
        yield Gemm(counts.attention, "token", query, hidden, "inner")
    if shape.hybrid is not None and shape.hybrid.mamba:
        inner, state = 2 * hidden, shape.hybrid.mamba_groups * shape.hybrid.mamba_state
        yield Gemm(counts.mamba, "token", hidden, 2 * inner + 2 * state + shape.hybrid.mamba_heads)
        yield Gemm(counts.mamba, "token", inner, hidden, "inner")
    if shape.linear is not None:
        net = shape.linear
        keys, values = net.key_width * net.key_heads, net.value_width * net.value_heads
        yield Gemm(counts.delta, "token", hidden, 2 * keys + 2 * values + 2 * net.value_heads)
        yield Gemm(counts.delta, "token", values, hidden, "inner")


def _latent_gemms(attention: LatentAttention, hidden: int, layers: float) -> Iterator[Gemm]:
    query = attention.heads * (attention.head_width + attention.rotary_width)
    if attention.query_rank is None:
        yield Gemm(layers, "token", hidden, query)
    else:
        yield Gemm(layers, "token", hidden, attention.query_rank, "")
        yield Gemm(layers, "token", attention.query_rank, query)
    key_value = attention.heads * (attention.head_width + attention.value_width)
    yield Gemm(layers, "token", hidden, attention.key_value_rank + attention.rotary_width, "")
    yield Gemm(layers, "token", attention.key_value_rank, key_value)
    yield Gemm(layers, "token", attention.heads * attention.value_width, hidden, "inner")


def _feed_forward_gemms(shape: ModelShape, counts: _Counts) -> Iterator[Gemm]:
    hidden, gates = shape.hidden, _gates(shape)
    if counts.dense:
        yield Gemm(counts.dense, "token", hidden, gates * shape.ffn_width)
        yield Gemm(counts.dense, "token", shape.ffn_width, hidden, "inner")
    block = shape.experts
    if block is None:
        return
    width = _dispatch_width(shape)
    yield Gemm(counts.moe, "dispatched", width, gates * block.width)
    yield Gemm(counts.moe, "dispatched", block.width, width, "inner")
    if block.latent_width:
        yield Gemm(counts.moe, "token", hidden, width, "")
        yield Gemm(counts.moe, "token", width, hidden, "")
    if block.shared_width:
        yield Gemm(counts.moe, "token", hidden, gates * block.shared_width)
        yield Gemm(counts.moe, "token", block.shared_width, hidden, "inner")

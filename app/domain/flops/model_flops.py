"""Model FLOPs of one optimizer step, by the convention of Megatron-LM's `num_floating_point_operations`.

Counted are matrix products, forward and backward; router, norms and softmax are not, and recomputation adds nothing.
Full routing is assumed: dropped tokens do not reduce the figure. Sources: Megatron-LM `megatron/training/training.py`,
Megatron-Bridge `src/megatron/bridge/training/utils/flop_utils.py`; prose and test vectors in `docs/metrics.md`.
"""

from app.domain.flops.model_shape import (
    Experts,
    GatedDeltaNet,
    GroupedQueryAttention,
    HybridLayers,
    LatentAttention,
    ModelShape,
)

FORWARD_AND_BACKWARD = 3
"""The forward product, and one each for the gradients of data and weights."""
MULTIPLY_ADD = 2
FACTOR = FORWARD_AND_BACKWARD * MULTIPLY_ADD


def flops_per_step(shape: ModelShape, sequences: int, seq_len: int, *, discount_window: bool) -> float:
    """FLOPs of one step over `sequences` unpacked sequences of `seq_len` tokens.

    `discount_window`: windowed layers count only the tokens they see, as Megatron-Bridge does; Megatron-LM counts the
    full causal half for them too. Raises ValueError on a batch that is not positive.
    """
    if sequences <= 0 or seq_len <= 0:
        raise ValueError(f"a step needs sequences and tokens, got {sequences} x {seq_len}")
    return sequences * seq_len * flops_per_token(shape, seq_len, discount_window=discount_window)


def flops_per_token(shape: ModelShape, seq_len: int, *, discount_window: bool) -> float:
    """FLOPs of one token in unpacked sequences of `seq_len` tokens."""
    if shape.hybrid is not None:
        products = _hybrid_products(shape, shape.hybrid, seq_len)
    else:
        products = (
            _feed_forward_products(shape)
            + _attention_products(shape, seq_len, discount_window=discount_window)
            + shape.mtp_layers * (3 * shape.hidden + 2 * shape.hidden**2)  # two norms and the joining projection
        )
    return FACTOR * (products + _logit_products(shape))


def _logit_products(shape: ModelShape) -> float:
    return shape.hidden * shape.vocabulary * (1 + shape.mtp_layers)


def _matrices(shape: ModelShape) -> int:
    """Matrices of a feed-forward block: gated ones have a third."""
    return 3 if shape.gated else 2


def _moe_layer_products(shape: ModelShape, experts: Experts) -> float:
    inner = experts.width * experts.topk * _matrices(shape)
    routed = inner * shape.hidden
    if experts.latent_width is not None:  # routed experts work in the latent width; two projections lead there and back
        routed = inner * experts.latent_width + 2 * experts.latent_width * shape.hidden
    return routed + shape.hidden * experts.shared_width * _matrices(shape)


def _dense_layer_products(shape: ModelShape) -> float:
    return shape.hidden * shape.ffn_width * _matrices(shape)


def _feed_forward_products(shape: ModelShape) -> float:
    """All feed-forward blocks; a multi-token-prediction layer is of the kind of the last layer."""
    if shape.experts is None:
        return (shape.layers + shape.mtp_layers) * _dense_layer_products(shape)
    pattern = shape.experts.pattern
    moe_layers = sum(pattern) + shape.mtp_layers * pattern[-1]
    dense_layers = shape.layers + shape.mtp_layers - moe_layers
    return moe_layers * _moe_layer_products(shape, shape.experts) + dense_layers * _dense_layer_products(shape)


def _attention_products(shape: ModelShape, seq_len: int, *, discount_window: bool) -> float:
    """All attention layers, multi-token-prediction layers included."""
    layers = shape.layers + shape.mtp_layers
    attention = shape.attention
    if isinstance(attention, LatentAttention):
        one = _latent_projections(attention, shape.hidden) + _latent_core(attention, seq_len)
        everything = layers * one
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
    """Tokens that a token sees on average, summed over the layers: half the sequence, or what a window leaves of it."""
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
    """Layers by kind. The joining projection of multi-token prediction is not counted here, as upstream."""
    products = hybrid.mamba * _mamba_layer_products(hybrid, shape.hidden) if hybrid.mamba else 0.0
    products += hybrid.dense * _dense_layer_products(shape)
    if shape.experts is not None:
        products += hybrid.experts * _moe_layer_products(shape, shape.experts)
    if isinstance(shape.attention, GroupedQueryAttention):
        query = shape.attention.heads * shape.attention.head_width
        products += hybrid.attention * (_grouped_projections(shape.attention, shape.hidden) + query * seq_len)
    return products

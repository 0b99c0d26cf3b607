"""The model's shape: what the FLOPs of a step are computed from. Compared by nobody: `model` is the stack's member."""

from app.domain.contract.fields.field import ContractField, Kind

GROUP = "Model shape"


def _shape(name: str, kind: Kind, meaning: str, *, bridge: str = "", also: tuple[str, ...] = ()) -> ContractField:
    flag = "--" + name.replace("_", "-")
    path = f"model.{bridge or name}"
    return ContractField(name, GROUP, "info", kind, meaning, megatron_lm=f"{flag} ({name})", bridge=path, also=also)


FIELDS = (
    _shape("num_layers", "count", "Transformer layers, without multi-token-prediction layers.", also=("layers",)),
    _shape("hidden_size", "count", "Width of the residual stream."),
    _shape("ffn_hidden_size", "count", "Inner width of a dense feed-forward block."),
    _shape("num_attention_heads", "count", "Attention heads."),
    _shape("num_query_groups", "count", "Key and value heads. Unset: as many as attention heads."),
    _shape("kv_channels", "count", "Width of one head. Unset: hidden_size / num_attention_heads."),
    _shape("attention_output_gate", "flag", "Attention output is gated, one more projection."),
    _shape("vocab_size", "count", "Entries of the vocabulary, after padding.", also=("padded_vocab_size",)),
    _shape(
        "swiglu", "flag", "Feed-forward blocks are gated: three matrices instead of two.", bridge="gated_linear_unit"
    ),
    ContractField(
        "num_experts",
        GROUP,
        "info",
        "count",
        "Routed experts of an MoE layer. Unset: a dense model.",
        megatron_lm="--num-experts (num_experts)",
        bridge="model.num_moe_experts",
        also=("num_moe_experts", "experts"),
    ),
    ContractField(
        "topk",
        GROUP,
        "info",
        "count",
        "Experts that each token visits.",
        megatron_lm="--moe-router-topk (moe_router_topk)",
        bridge="model.moe_router_topk",
        also=("moe_router_topk", "top_k"),
    ),
    _shape("moe_ffn_hidden_size", "count", "Inner width of an expert. Unset: ffn_hidden_size.", also=("moe_ffn",)),
    _shape(
        "moe_shared_expert_intermediate_size",
        "whole",
        "Inner width of the shared experts together. Unset: none.",
        also=("moe_shared_ffn",),
    ),
    _shape("moe_layer_freq", "layers", "Which layers are MoE layers: every n-th, or a list of 0 and 1."),
    _shape("moe_latent_size", "count", "Width that routed experts work in, when it is not hidden_size."),
    _shape("multi_latent_attention", "flag", "Multi-head latent attention (MLA)."),
    _shape("q_lora_rank", "count", "MLA: rank of the query projection. Unset: a full projection."),
    _shape("kv_lora_rank", "count", "MLA: rank of the key and value projection."),
    _shape("qk_head_dim", "count", "MLA: width of a head without position."),
    _shape("qk_pos_emb_head_dim", "whole", "MLA: width of a head's rotary part."),
    _shape("v_head_dim", "count", "MLA: width of a value head."),
    ContractField(
        "window_size",
        GROUP,
        "info",
        "text",
        "Sliding-window attention: tokens to the left and to the right that a token sees, for instance 127,0.",
        megatron_lm="--window-size (window_size)",
        bridge="model.window_size",
    ),
    _shape("window_attn_skip_freq", "layers", "Which layers see everything: every n-th. Unset: none."),
    _shape("experimental_attention_variant", "name", "Another attention, for instance gated_delta_net."),
    _shape("linear_attention_freq", "layers", "Which layers have full attention in place of linear: every n-th."),
    _shape("linear_key_head_dim", "count", "Linear attention: width of a key head."),
    _shape("linear_num_key_heads", "count", "Linear attention: key heads."),
    _shape("linear_value_head_dim", "count", "Linear attention: width of a value head."),
    _shape("linear_num_value_heads", "count", "Linear attention: value heads."),
    _shape("linear_conv_kernel_dim", "count", "Linear attention: width of the convolution."),
    _shape(
        "hybrid_layer_pattern",
        "text",
        "Hybrid models, a letter a layer: M mamba, * attention, E experts, - dense.",
        bridge="hybrid_override_pattern",
    ),
    _shape("mamba_num_heads", "count", "Mamba heads."),
    _shape("mamba_state_dim", "count", "Mamba state width."),
    _shape("mamba_num_groups", "count", "Mamba groups."),
)

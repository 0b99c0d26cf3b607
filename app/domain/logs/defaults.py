"""Megatron Core's defaults, for Megatron-Bridge's summary, which leaves out what equals them.

From `megatron/core/transformer/transformer_config.py`, `megatron/core/model_parallel_config.py` and
`megatron/core/distributed/distributed_data_parallel_config.py`. Only settings that a contract field comes from.
"""

from app.domain.run import Value

DEFAULTS: dict[str, dict[str, Value]] = {
    "model": {
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "attention_backend": "auto",
        "context_parallel_size": 1,
        "cp_comm_type": None,
        "cpu_offloading": False,
        "cuda_graph_impl": "none",
        "cuda_graph_warmup_steps": 3,
        "delay_wgrad_compute": False,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": None,
        "fine_grained_activation_offloading": False,
        "gated_linear_unit": False,
        "hierarchical_context_parallel_sizes": None,
        "moe_expert_capacity_factor": None,
        "moe_ffn_hidden_size": None,
        "moe_grouped_gemm": False,
        "moe_layer_freq": 1,
        "moe_pad_expert_input_to_capacity": False,
        "moe_permute_fusion": False,
        "moe_router_dtype": None,
        "moe_router_enable_expert_bias": False,
        "moe_router_force_load_balancing": False,
        "moe_router_fusion": False,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_router_topk": 2,
        "moe_shared_expert_intermediate_size": None,
        "moe_shared_expert_overlap": False,
        "moe_token_dispatcher_type": "allgather",
        "mtp_num_layers": None,
        "multi_latent_attention": False,
        "num_moe_experts": None,
        "num_query_groups": None,
        "overlap_moe_expert_parallel_comm": False,
        "overlap_p2p_comm": False,
        "pipeline_model_parallel_layout": None,
        "pipeline_model_parallel_size": 1,
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_modules": None,
        "recompute_num_layers": None,
        "sequence_parallel": False,
        "tensor_model_parallel_size": 1,
        "tp_comm_overlap": False,
        "use_te_rng_tracker": False,
        "virtual_pipeline_model_parallel_size": None,
    },
    "ddp": {
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "use_distributed_optimizer": False,
        "use_megatron_fsdp": False,
    },
    "optimizer": {"optimizer_cpu_offload": False},
}
"""Section of the summary -> setting -> default."""

"""A demo job as Megatron-LM (core v0.16 and later) prints it: arguments, start-up, iterations, memory, end."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from app.demo.job import HEAD_CHANNELS, LATENT, DemoJob, Model, Workload, last_words, tflops_per_gpu

# --- The iteration line and the clock, shared with Megatron-Bridge.

PEAK_LEARNING_RATE = 1.2e-4
WARM_UP_ITERATIONS = 40


def iteration_line(job: DemoJob, index: int, stamp: str, *, elapsed_ms: float, lm_loss: float) -> str:
    """Return the line of iteration `index + 1`, with `elapsed_ms` and `lm_loss` as this trainer averages them."""
    recording, number = job.recording, index + 1
    batch = job.workload.global_batch_size
    fields = (
        f" [{stamp}] iteration {number:8d}/{job.workload.iterations:8d}",
        f" consumed samples: {number * batch:12d}",
        f" elapsed time per iteration (ms): {elapsed_ms:.1f}",
        f" throughput per GPU (TFLOP/s/GPU): {tflops_per_gpu(elapsed_ms, job.workload):.1f}",
        f" learning rate: {PEAK_LEARNING_RATE * min(number / WARM_UP_ITERATIONS, 1):.6E}",
        f" global batch size: {batch:5d}",
        f" lm loss: {lm_loss:.6E}",
        f" load_balancing_loss: {recording.load_balancing_loss[index]:.6E}",
        " loss scale: 1.0",
        f" grad norm: {recording.grad_norm[index]:.3f}",
        f" number of skipped iterations: {0:3d}",
        f" number of nan iterations: {0:3d}",
    )
    return " |".join(fields) + " |"


def clock(job: DemoJob, index: int) -> datetime:
    """Return when iteration `index + 1` ended, by true step times. Index -1 is the start of training."""
    return job.started + timedelta(seconds=95, milliseconds=float(job.recording.step_time_ms[: index + 1].sum()))


MIB = 1024**2
STAMP = "%Y-%m-%d %H:%M:%S.%f"


def render(job: DemoJob) -> str:
    """Return the complete log, as torchrun shows it."""
    lines = [*_start_up(job.workload), *_arguments(job.workload), *_building(job)]
    if job.recording.n:
        lines += [
            f"[before the start of training step] datetime: {clock(job, -1).strftime(STAMP)} ",
            *_iterations(job),
        ]
    end = clock(job, job.recording.n - 1)
    if job.recording.failure is not None:
        lines += last_words(job.recording.failure, end)
    else:
        lines.append(f"[after training is done] datetime: {end.strftime(STAMP)} ")
    return "\n".join(lines) + "\n"


def _start_up(workload: Workload) -> list[str]:
    return [
        "*****************************************",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being "
        "overloaded, please further tune the variable for optimal performance in your application as needed. ",
        "*****************************************",
        f"using world size: {workload.gpus}, data-parallel size: {workload.data_parallel}, "
        f"context-parallel size: {workload.context_parallel}, "
        f"hierarchical context-parallel sizes: None, tensor-model-parallel size: {workload.tensor_parallel}, "
        f"pipeline-model-parallel size: {workload.pipeline_parallel}",
        "using torch.bfloat16 for parameters ...",
    ]


def _building(job: DemoJob) -> list[str]:
    lines = [
        "INFO:megatron.core.num_microbatches_calculator:setting number of microbatches to constant "
        f"{job.workload.global_batch_size // job.workload.data_parallel // job.workload.micro_batch_size}",
        "> initializing torch distributed ...",
        f"> initialized tensor model parallel with size {job.workload.tensor_parallel}",
        f"> initialized pipeline model parallel with size {job.workload.pipeline_parallel}",
        "> setting random seeds to 1234 ...",
        f"[after megatron is initialized] datetime: {job.started.strftime(STAMP)} ",
        "building GPT model ...",
    ]
    if job.recording.n:
        lines += [
            f"[after model, optimizer, and learning rate scheduler are built] datetime: "
            f"{clock(job, -1).strftime(STAMP)} ",
            "training ...",
            "Setting rerun_state_machine.current_iteration to 0...",
        ]
    return lines


def _iterations(job: DemoJob) -> Iterator[str]:
    recording = job.recording
    for index in range(recording.n):
        # Since core v0.16 a line follows the first iteration without resetting timer and losses, so the second line
        # averages over both.
        since = 0 if index == 1 else index
        yield iteration_line(
            job,
            index,
            clock(job, index).strftime(STAMP),
            elapsed_ms=float(recording.step_time_ms[since : index + 1].mean()),
            lm_loss=float(recording.lm_loss[since : index + 1].mean()),
        )
        if index < 2:
            yield _memory(recording.max_allocated_bytes * (0.93 if index == 0 else 1), index + 1)


def _memory(max_allocated_bytes: float, iteration: int) -> str:
    most = max_allocated_bytes / MIB
    return (
        f"[Rank 0] (after {iteration} iterations) memory (MB) | allocated: {0.62 * most:.2f}"
        f" | max allocated: {most:.2f} | reserved: {most + 2600:.2f} | max reserved: {most + 2600:.2f}"
    )


def _arguments(workload: Workload) -> list[str]:
    lines = ["------------------------ arguments ------------------------"]
    values = {**_LAUNCH, **_shape(workload.model), **_knobs(workload)}
    for name in sorted(values, key=str.lower):
        lines.append(f"  {name} {'.' * (48 - len(name))} {values[name]}")
    return [*lines, "-------------------- end of arguments ---------------------"]


def _knobs(workload: Workload) -> Mapping[str, object]:
    flex = workload.dispatcher in ("deepep", "hybridep")
    return {
        "context_parallel_size": workload.context_parallel,
        "data_parallel_size": workload.data_parallel,
        "global_batch_size": workload.global_batch_size,
        "micro_batch_size": workload.micro_batch_size,
        "seq_length": workload.sequence_length,
        "train_iters": workload.iterations,
        "world_size": workload.gpus,
        "expert_model_parallel_size": workload.expert_parallel,
        "tensor_model_parallel_size": workload.tensor_parallel,
        "sequence_parallel": workload.tensor_parallel > 1,
        "pipeline_model_parallel_size": workload.pipeline_parallel,
        "virtual_pipeline_model_parallel_size": workload.virtual_stages,
        "pipeline_model_parallel_layout": workload.pipeline_layout,
        **(
            {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
            if workload.pipeline_layout is None and workload.model.layers % workload.pipeline_parallel
            else {}
        ),
        **(
            {"fp8": None}
            if workload.precision == "bf16"
            else {"fp8": "e4m3", "fp8_recipe": _RECIPES[workload.precision]}
        ),
        "recompute_granularity": "selective" if workload.recompute else None,
        "recompute_modules": list(workload.recompute) or None,
        "moe_token_dispatcher_type": "flex" if flex else workload.dispatcher,
        "moe_flex_dispatcher_backend": workload.dispatcher if flex else "deepep",
        "moe_flex_dispatcher_num_sms": 32 if workload.dispatcher == "hybridep" else None,
        "moe_permute_fusion": workload.permute_fusion,
        "overlap_moe_expert_parallel_comm": workload.ep_overlap,
        "delay_wgrad_compute": workload.delay_wgrad,
        "cuda_graph_impl": "transformer_engine" if workload.cuda_graphs else "none",
        "cuda_graph_modules": ["moe_router", "moe_preprocess"] if workload.cuda_graphs else [],
        "te_rng_tracker": workload.cuda_graphs,
    }


_RECIPES = {"fp8_sc": "blockwise", "fp8_mx": "mxfp8"}


def _shape(model: Model) -> Mapping[str, object]:
    latent = {
        "q_lora_rank": LATENT["query_rank"],
        "kv_lora_rank": LATENT["key_value_rank"],
        "qk_head_dim": LATENT["head_width"],
        "qk_pos_emb_head_dim": LATENT["rotary_width"],
        "v_head_dim": LATENT["value_width"],
    }
    return {
        "add_bias_linear": False,
        "ffn_hidden_size": model.ffn,
        "group_query_attention": model.kv_groups > 0,
        "hidden_size": model.hidden,
        "kv_channels": HEAD_CHANNELS,
        "max_position_embeddings": 40960,
        "moe_ffn_hidden_size": model.expert_ffn,
        "moe_layer_freq": list(model.moe_layers) if model.dense_layers else 1,
        "moe_router_topk": model.top_k,
        "moe_shared_expert_intermediate_size": model.shared_ffn or None,
        "mtp_num_layers": None,
        "multi_latent_attention": not model.kv_groups,
        "normalization": "RMSNorm",
        "num_attention_heads": model.heads,
        "num_experts": model.experts,
        "num_layers": model.layers,
        "num_query_groups": model.kv_groups or 1,
        "padded_vocab_size": model.vocabulary,
        "position_embedding_type": "rope",
        "qk_layernorm": True,
        "rotary_base": 1000000,
        "swiglu": True,
        "untie_embeddings_and_output_weights": True,
        "vocab_size": model.vocabulary,
        **({} if model.kv_groups else latent),
    }


_LAUNCH: Mapping[str, object] = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "attention_backend": "AttnBackend.auto",
    "bf16": True,
    "check_for_nan_in_loss_and_grad": False,
    "ckpt_format": "torch_dist",
    "clip_grad": 1.0,
    "cpu_offloading": False,
    "cuda_graph_warmup_steps": 3,
    "distributed_backend": "nccl",
    "eval_interval": 1000,
    "eval_iters": 0,
    "expert_tensor_parallel_size": 1,
    "fine_grained_activation_offloading": False,
    "fp16": False,
    "fp4": None,
    "log_interval": 1,
    "log_throughput": True,
    "lr": 0.00012,
    "lr_decay_style": "cosine",
    "lr_warmup_iters": 40,
    "manual_gc": True,
    "manual_gc_interval": 100,
    "min_lr": 1.2e-05,
    "mock_data": True,
    "moe_aux_loss_coeff": 0.001,
    "moe_expert_capacity_factor": None,
    "moe_grouped_gemm": True,
    "moe_pad_expert_input_to_capacity": False,
    "moe_router_dtype": "fp32",
    "moe_router_enable_expert_bias": False,
    "moe_router_force_load_balancing": True,
    "moe_router_fusion": False,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_shared_expert_overlap": False,
    "optimizer": "adam",
    "optimizer_cpu_offload": False,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "params_dtype": "torch.bfloat16",
    "rank": 0,
    "save": None,
    "seed": 1234,
    "tokenizer_type": "NullTokenizer",
    "tp_comm_overlap": False,
    "transformer_impl": "transformer_engine",
    "use_distributed_optimizer": True,
    "use_mcore_models": True,
    "use_megatron_fsdp": False,
    "weight_decay": 0.1,
}

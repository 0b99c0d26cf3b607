"""A demo job as Megatron-Bridge prints it: configuration summary, step lines, iterations, memory, end."""

from collections.abc import Iterator, Mapping

from app.demo.job import HEAD_CHANNELS, DemoJob, Workload, last_words, tflops_per_gpu
from app.demo.megatron_lm import PEAK_LEARNING_RATE, WARM_UP_ITERATIONS, clock, iteration_line

GB = 1e9
STAMP = "%Y-%m-%d %H:%M:%S"
RULE, THIN_RULE = "=" * 70, "-" * 70


def render(job: DemoJob) -> str:
    """Return the complete log, as torchrun shows it."""
    lines = [*_configuration(job.workload), "> initializing torch distributed ...", "> building the model ..."]
    if job.recording.n:
        lines += ["Starting training loop at iteration 0", *_iterations(job)]
    end = clock(job, job.recording.n - 1)
    if job.recording.failure is not None:
        lines += last_words(job.recording.failure, end)
    else:
        lines.append(f"[after training is done] datetime: {end.strftime(STAMP)} ")
    return "\n".join(lines) + "\n"


def _iterations(job: DemoJob) -> Iterator[str]:
    recording = job.recording
    for index, step_time_ms in enumerate(recording.step_time_ms):
        rate = f"{tflops_per_gpu(step_time_ms, job.workload):.1f}MODEL_TFLOP/s/GPU"
        yield f"Step Time : {step_time_ms / 1e3:.2f}s GPU utilization: {rate}"
        yield iteration_line(
            job,
            index,
            clock(job, index).strftime(STAMP),
            elapsed_ms=float(step_time_ms),
            lm_loss=float(recording.lm_loss[index]),
        )
        if index < 2:
            yield _memory(recording.max_allocated_bytes * (0.93 if index == 0 else 1), index + 1)


def _memory(max_allocated_bytes: float, iteration: int) -> str:
    most = max_allocated_bytes / GB
    values = {
        "mem-allocated-gigabytes": 0.62 * most,
        "mem-active-gigabytes": 0.62 * most,
        "mem-inactive-gigabytes": 0.4,
        "mem-reserved-gigabytes": most + 2.7,
        "mem-max-allocated-gigabytes": most,
        "mem-max-active-gigabytes": most,
        "mem-max-inactive-gigabytes": 1.9,
        "mem-max-reserved-gigabytes": most + 2.7,
    }
    amounts = " | ".join(f"{name}: {value:.5g}" for name, value in values.items())
    counts = "mem-alloc-retires: 0 | mem-allocated-count: 4121"
    return f"[Rank 0] (after {iteration} iterations) memory (GB) | {amounts} | {counts}"


def _configuration(workload: Workload) -> list[str]:
    lines = ["", RULE, "Configuration Summary (Non-Default Values vs Megatron Core)", RULE]
    for section, against, values in (
        ("optimizer", "OptimizerConfig", _OPTIMIZER),
        ("ddp", "DistributedDataParallelConfig", _DDP),
        ("model", "TransformerConfig", _model(workload)),
    ):
        lines += ["", f"[{section}] Non-default values (vs Mcore {against}):"]
        lines += [
            f"  {name}: {value!r}  (Mcore default: {default!r})" for name, (value, default) in sorted(values.items())
        ]
    lines += ["", THIN_RULE, "Other Configuration Values:", THIN_RULE]
    for section, others in _others(workload).items():
        lines += ["", f"[{section}]:", *(f"  {name}: {value!r}" for name, value in others.items())]
    return [*lines, "", RULE]


def _model(workload: Workload) -> dict[str, tuple[object, object]]:
    """Return value and Megatron Core default of each field that differs from its default, as the trainer does."""
    flex, model = workload.dispatcher in ("deepep", "hybridep"), workload.model
    values: dict[str, tuple[object, object]] = {
        "bf16": (True, False),
        "add_bias_linear": (False, True),
        "cuda_graph_impl": ("transformer_engine" if workload.cuda_graphs else "none", "none"),
        "cuda_graph_modules": (["moe_router", "moe_preprocess"] if workload.cuda_graphs else [], []),
        "delay_wgrad_compute": (workload.delay_wgrad, False),
        "expert_model_parallel_size": (workload.expert_parallel, 1),
        "ffn_hidden_size": (model.ffn, None),
        "gated_linear_unit": (True, False),
        "hidden_size": (model.hidden, 0),
        "kv_channels": (HEAD_CHANNELS, None),
        "moe_aux_loss_coeff": (0.001, 0.0),
        "moe_ffn_hidden_size": (model.expert_ffn, None),
        "moe_flex_dispatcher_backend": (workload.dispatcher if flex else "deepep", "deepep"),
        "moe_grouped_gemm": (True, False),
        "moe_permute_fusion": (workload.permute_fusion, False),
        "moe_router_dtype": ("fp32", None),
        "moe_router_force_load_balancing": (True, False),
        "moe_router_topk": (model.top_k, 2),
        "moe_token_dispatcher_type": ("flex" if flex else "alltoall", "allgather"),
        "normalization": ("RMSNorm", "LayerNorm"),
        "num_attention_heads": (model.heads, 0),
        "num_layers": (model.layers, 0),
        "num_moe_experts": (model.experts, None),
        "num_query_groups": (model.kv_groups, None),
        "overlap_moe_expert_parallel_comm": (workload.ep_overlap, False),
        "qk_layernorm": (True, False),
        "seq_length": (workload.sequence_length, None),
        "vocab_size": (model.vocabulary, None),
    }
    return {name: (value, default) for name, (value, default) in values.items() if value != default}


def _others(workload: Workload) -> Mapping[str, Mapping[str, object]]:
    return {
        "train": {
            "global_batch_size": workload.global_batch_size,
            "manual_gc": True,
            "manual_gc_interval": 100,
            "micro_batch_size": workload.micro_batch_size,
            "train_iters": workload.iterations,
        },
        "validation": {"eval_iters": 0},
        "scheduler": {"lr_decay_style": "cosine", "lr_warmup_iters": WARM_UP_ITERATIONS},
        "dataset": {"random_seed": 1234, "seq_length": workload.sequence_length},
        "checkpoint": {"load": None, "save": None},
        "logger": {"log_interval": 1, "log_throughput": True},
        "tokenizer": {"tokenizer_type": "NullTokenizer", "vocab_size": workload.model.vocabulary - 1},
        "rng": {"seed": 1234, "te_rng_tracker": workload.cuda_graphs},
    }


_OPTIMIZER: dict[str, tuple[object, object]] = {
    "adam_beta2": (0.95, 0.999),
    "bf16": (True, False),
    "lr": (PEAK_LEARNING_RATE, None),
    "min_lr": (PEAK_LEARNING_RATE / 10, None),
    "use_distributed_optimizer": (True, False),
}

_DDP: dict[str, tuple[object, object]] = {
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "use_distributed_optimizer": (True, False),
}

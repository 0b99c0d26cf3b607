"""Generate a realistic 256-rank Megatron-LM log of any size. Equal sizes give equal bytes.

The log has `srun -l` prefixes, NCCL INFO lines of all ranks at start-up, warnings of every rank, one arguments block,
memory lines of many ranks, and timer, loader and checkpoint lines between the iteration lines of the last rank.
"""

import random
from collections.abc import Iterator
from pathlib import Path

RANKS = 256
WIDTH = len(str(RANKS - 1))

MODEL_ARGUMENTS = {
    "bf16": True,
    "context_parallel_size": 1,
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_modules": "['attn', 'moe_router', 'moe_preprocess']",
    "data_parallel_size": 32,
    "data_path": "['/data/corpus/part_00_text_document']",
    "expert_model_parallel_size": 32,
    "expert_tensor_parallel_size": 1,
    "ffn_hidden_size": 18432,
    "fp8": "e4m3",
    "fp8_recipe": "blockwise",
    "global_batch_size": 8192,
    "hidden_size": 7168,
    "log_interval": 1,
    "micro_batch_size": 1,
    "moe_flex_dispatcher_backend": "deepep",
    "moe_grouped_gemm": True,
    "moe_layer_freq": "[0, 0, 0, " + ", ".join(["1"] * 58) + "]",
    "moe_router_dtype": "fp32",
    "moe_router_force_load_balancing": False,
    "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_router_topk": 8,
    "moe_token_dispatcher_type": "flex",
    "mtp_num_layers": 1,
    "num_experts": 256,
    "num_layers": 61,
    "params_dtype": "torch.bfloat16",
    "pipeline_model_parallel_layout": "Et*3|(tt|)*29m|L",
    "pipeline_model_parallel_size": 8,
    "recompute_granularity": "selective",
    "recompute_modules": "['mla_up_proj', 'mlp']",
    "seq_length": 4096,
    "sequence_parallel": False,
    "tensor_model_parallel_size": 1,
    "train_iters": 500000,
    "world_size": RANKS,
}


def _tag(rank: int) -> str:
    return f"{rank:>{WIDTH}}: "


def _start_up() -> Iterator[str]:
    tag = _tag(0)
    yield f"{tag}using world size: {RANKS}, data-parallel size: 32, context-parallel size: 1, "
    yield "tensor-model-parallel size: 1, pipeline-model-parallel size: 8\n"
    yield f"{tag}------------------------ arguments ------------------------\n"
    # Megatron-LM prints about 600 names; these placeholders replace the names that no reader uses
    names = dict.fromkeys((f"some_other_option_number_{i:03d}" for i in range(560)), None) | MODEL_ARGUMENTS
    for name in sorted(names, key=str.lower):
        yield f"{tag}  {name} {'.' * (48 - len(name))} {names[name]}\n"
    yield f"{tag}-------------------- end of arguments ---------------------\n"
    yield f"{tag}> initializing torch distributed ...\n"


def _nccl_line(draw: random.Random) -> str:
    rank = draw.randrange(RANKS)
    peer = (rank + draw.choice((1, 8, 32))) % RANKS
    head = f"{_tag(rank)}node-{rank // 8:03d}:{41000 + rank}:{42000 + rank} [{rank % 8}] NCCL INFO "
    kind = draw.randrange(5)
    if kind == 0:
        return (
            f"{head}Channel {draw.randrange(32):02d}/0 : {rank}[{rank % 8}] -> {peer}[{peer % 8}] via P2P/CUMEM/read\n"
        )
    if kind == 1:
        return (
            f"{head}Channel {draw.randrange(16):02d}/0 : {rank}[{rank % 8}] -> {peer}[{peer % 8}] [send] via "
            f"NET/IB/{rank % 8}/GDRDMA\n"
        )
    if kind == 2:
        return f"{head}Connected all rings, use ring PXN 0 GDR 1\n"
    if kind == 3:
        return (
            f"{head}ncclCommInitRankConfig comm 0x{draw.randrange(1 << 40):012x} rank {rank} nranks {RANKS} "
            f"cudaDev {rank % 8} nvmlDev {rank % 8} busId {draw.randrange(1 << 20):x} commId "
            f"0x{draw.randrange(1 << 60):016x} - Init COMPLETE\n"
        )
    return f"{head}Trees [0] {peer}/-1/-1->{rank}->{(rank + 3) % RANKS} [1] -1/-1/-1->{rank}->{peer}\n"


def _warning(draw: random.Random) -> str:
    rank = draw.randrange(RANKS)
    text = draw.choice(
        (
            "/usr/local/lib/python3.12/dist-packages/torch/autograd/graph.py:823: UserWarning: c10d::allreduce_: an "
            "autograd kernel was not registered to the Autograd key(s) but we are trying to backprop through it.",
            f"[rank{rank}]:[W ProcessGroupNCCL.cpp:4718] [PG ID 0 PG GUID 0 Rank {rank}]  using GPU {rank % 8} to "
            "perform barrier as devices used by this process are currently unknown.",
            f"INFO:megatron.core.distributed.param_and_grad_buffer:Number of buckets: {draw.randrange(1, 40)}",
            "  return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the pass",
        )
    )
    return f"{_tag(rank)}{text}\n"


def _memory(draw: random.Random, rank: int, iteration: int) -> str:
    allocated = 48000 + draw.random() * 900
    return (
        f"{_tag(rank)}[Rank {rank}] (after {iteration} iterations) memory (MB) | allocated: {allocated:.2f} | "
        f"max allocated: {allocated + 21000:.2f} | reserved: {allocated + 24000:.2f} | "
        f"max reserved: {allocated + 24000:.2f}\n"
    )


def _iteration(draw: random.Random, iteration: int) -> str:
    step = 60000.0 if iteration == 1 else 4800 + draw.random() * 150
    second = iteration * 5 % 60
    return (
        f"{_tag(RANKS - 1)} [2026-05-11 {iteration // 720 % 24:02d}:{iteration // 12 % 60:02d}:{second:02d}."
        f"{draw.randrange(10**6):06d}] iteration {iteration:8d}/  500000 | consumed samples: {iteration * 8192:12d} | "
        f"elapsed time per iteration (ms): {step:.1f} | throughput per GPU (TFLOP/s/GPU): {2.1e6 / step:.1f} | "
        f"learning rate: {1e-5 * draw.random():.6E} | global batch size:  8192 | lm loss: {2 + draw.random():.6E} | "
        f"seq_load_balancing_loss: {1 + draw.random() / 10:.6E} | mtp_1 loss: {2.2 + draw.random():.6E} | "
        f"loss scale: 1.0 | grad norm: {draw.random():.3f} | num zeros: {draw.randrange(10**9)}.0 | "
        f"number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def _timers(draw: random.Random) -> str:
    tag = _tag(RANKS - 1)
    low = 4000 + draw.random() * 100
    return f"{tag}(min, max) time across ranks (ms):\n" + "".join(
        f"{tag}    {name} {'.' * (47 - len(name))}: ({low:.2f}, {low + 20:.2f})\n"
        for name in ("forward-backward", "layernorm-grads-all-reduce", "optimizer", "all-grads-sync")
    )


def _checkpoint(iteration: int) -> str:
    return (
        f"{_tag(0)}saving checkpoint at iteration {iteration:8d} to /checkpoints/run in torch_dist format\n"
        f"{_tag(0)}  successfully saved checkpoint from iteration {iteration:8d} to /checkpoints/run [ t 1/1, p 1/8 ]\n"
    )


def lines(size: int, iterations: int, seed: int = 1) -> Iterator[str]:
    """Yield about `size` bytes of text with `iterations` steps; a fifth is start-up, the rest is between steps."""
    draw = random.Random(seed)
    yield from _start_up()
    # the noise is generated once and repeated, because generating a gigabyte line by line would take minutes
    flood = "".join(_nccl_line(draw) for _ in range(40_000 if size > 10**7 else 1_500))
    chatter = ["".join(draw.choice((_nccl_line, _warning))(draw) for _ in range(60)) for _ in range(50)]
    for _ in range(max(1, size // 5 // len(flood))):
        yield flood
    yield f"{_tag(0)}[before the start of training step] datetime: 2026-05-11 00:00:00.000001 \n"
    left = max(0, size - max(1, size // 5 // len(flood)) * len(flood) - iterations * 900)
    per_step = left // iterations
    owed = 0
    for iteration in range(1, iterations + 1):
        yield _iteration(draw, iteration)
        if iteration <= 2:
            yield from (_memory(draw, rank, iteration) for rank in range(0, RANKS, 1 if size > 10**7 else 32))
        yield _timers(draw)
        if iteration % 500 == 0:
            yield _checkpoint(iteration)
        owed += per_step
        while owed > 0:
            noise = draw.choice(chatter)
            owed -= len(noise)
            yield noise
    yield f"{_tag(0)}[after training is done] datetime: 2026-05-12 00:00:00.000001 \n"


def cached_log(folder: Path, size: int, iterations: int) -> Path:
    """Return the file in `folder` with a log of that size. The first call writes it."""
    path = folder / f"megatron-{RANKS}-ranks-{size}-{iterations}.log"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("w", encoding="ascii") as out:
            out.writelines(lines(size, iterations))
        partial.rename(path)
    return path

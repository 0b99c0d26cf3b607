"""How jobs end badly, in the words of Megatron-LM, PyTorch and torchrun."""

from datetime import datetime

from app.demo.recording import Failure
from app.demo.workload import GPUS, GPUS_PER_NODE

IMPORT_ERRORS: dict[Failure, str] = {
    "deepep missing": (
        "ImportError: DeepEP is not installed. Please install DeepEP package from "
        "https://github.com/deepseek-ai/deepep."
    ),
    "hybridep missing": (
        "ImportError: HybridEP is not installed. Please install HybridEP package from "
        "https://github.com/deepseek-ai/DeepEP/tree/hybrid-ep."
    ),
}
"""Raised by `megatron/core/transformer/moe/token_dispatcher.py` while the model is built, on every rank."""

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU {gpu} has a total capacity of 79.11 "
    "GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the "
    "allocated memory 74.61 GiB is allocated by PyTorch, and 1.57 GiB is reserved by PyTorch but unallocated."
)
OUT_OF_MEMORY_RANK = 11


def last_words(failure: Failure, when: datetime) -> list[str]:
    """The lines that such a job ends with: tracebacks of its ranks, then torchrun's summary."""
    if failure == "out of memory":
        rank = OUT_OF_MEMORY_RANK
        error = OUT_OF_MEMORY.format(gpu=rank % GPUS_PER_NODE)
        return [*_traceback(rank, "megatron/training/training.py", "train_step", error), *_torchrun(rank, when)]
    source = "megatron/core/transformer/moe/token_dispatcher.py"
    tracebacks = [_traceback(rank, source, "__init__", IMPORT_ERRORS[failure]) for rank in range(GPUS)]
    return [line for lines in tracebacks for line in lines] + _torchrun(0, when)


def _traceback(rank: int, source: str, function: str, error: str) -> list[str]:
    return [
        f"[rank{rank}]: {line}"
        for line in (
            "Traceback (most recent call last):",
            '  File "/opt/megatron-lm/megatron/training/training.py", in pretrain',
            f'  File "/opt/megatron-lm/{source}", in {function}',
            error,
        )
    ]


def _torchrun(rank: int, when: datetime) -> list[str]:
    node, local_rank = divmod(rank, GPUS_PER_NODE)
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "pretrain_gpt.py FAILED",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {when:%Y-%m-%d_%H:%M:%S}",
        f"  host      : demo-node-{node:02d}",
        f"  rank      : {rank} (local_rank: {local_rank})",
        f"  exitcode  : 1 (pid: {4100 + rank})",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "=" * 60,
    ]

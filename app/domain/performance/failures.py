"""Kinds of failures, the log lines that show each, and what to do about it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.run import Failure, LogEvent

_SAME_NAME = frozenset(
    {
        "out_of_memory",
        "not_finite",
        "deepep_missing",
        "hybridep_missing",
        "ncclep_missing",
        "dispatcher_refused",
        "deepep_timeout",
        "nccl_timeout",
        "nccl_error",
        "process_failed",
    }
)
"""Event kinds that are also failure kinds."""

PACKAGE_MISSING = frozenset({"deepep_missing", "hybridep_missing", "ncclep_missing"})
"""Kinds of failures that the container causes, so that all ranks have them."""

_IMPORT = re.compile(r"\b(?:ImportError|ModuleNotFoundError): ")
_OVERLAP = re.compile(r"overlap_moe_expert_parallel_comm|overlap-moe-expert-parallel-comm|EP A2A overlap|1F1B overlap")
_PERMUTE = re.compile(r"fused_(?:un)?permute|moe_(?:un)?permute|_(?:un)?permute_kernel")
_EXCEPTIONS = ((_IMPORT, "import_error"), (_PERMUTE, "permute_failed"), (_OVERLAP, "overlap_refused"))
_EXIT_CODE = re.compile(r"exitcode\s*: (-?\d+)")
FOLLOWERS = ("0", "-15")
"""Exit codes of processes that succeeded, or were terminated (SIGTERM) after another one had failed."""

_SCHEDULER = (
    (re.compile(r"TIME LIMIT|time limit|DUE TO TIMEOUT"), "time_limit"),
    (re.compile(r"PREEMPT|[Pp]reempt"), "preempted"),
    (re.compile(r"NODE FAILURE|NODE_FAIL|Node failure"), "node_failure"),
    (re.compile(r"oom[-_]kill|Out Of Memory|OUT_OF_MEMORY"), "host_out_of_memory"),
    (re.compile(r"CANCELLED|Job cancelled|SIGTERM|Terminated|got signal: 15"), "cancelled"),
)

FROM_OUTSIDE = frozenset({"time_limit", "preempted", "cancelled", "node_failure"})
"""Failures that ended the job from outside; later process errors are consequences."""


def failure_kind(event: LogEvent) -> str | None:
    """Return the key of KINDS for an event; None when the event is not a failure."""
    if event.kind in _SAME_NAME:
        return event.kind
    if event.kind == "error":
        return next((kind for pattern, kind in _EXCEPTIONS if pattern.search(event.text)), "exception")
    if event.kind == "exit_code":
        return "process_failed" if exit_code(event) not in (None, *FOLLOWERS) else None
    if event.kind == "scheduler":
        return next((kind for pattern, kind in _SCHEDULER if pattern.search(event.text)), "scheduler")
    return {"exit_duration": "time_limit", "exit_signal": "signal"}.get(event.kind)


def exit_code(event: LogEvent) -> str | None:
    """Return the exit code in a line of torchrun's report, or None."""
    code = _EXIT_CODE.search(event.text)
    return code[1] if code else None


# --- Details from the lines of a failure: ranks, sizes, exit codes, names.

_SIZE = r"(\d+(?:\.\d+)? [KMGT]?i?B)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_IN_USE = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated")
_IDLE = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_GIB = {"B": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}
_MODULE = re.compile(r"No module named '?([\w.]+)|cannot import name '?(\w+)'? from '?([\w.]+)")
_OPERATION = re.compile(r"OpType=(\w+).{0,200}?Timeout\(ms\)=(\d+)")
_MEANINGS = {
    "1": "Code 1 is usually a Python exception.",
    "-9": "SIGKILL usually means that the host ran out of memory.",
    "-11": "SIGSEGV is a crash inside a library.",
}
_SIGNALS = {"-9": "SIGKILL", "-6": "SIGABRT", "-11": "SIGSEGV", "-7": "SIGBUS"}


_REPEATED = {
    "First rerun: unexpected result is not reproducible": "The same GPU gave another result when it repeated the step.",
    "First rerun: unexpected result is reproducible": "The same GPU gave the same result when it repeated the step.",
    "Second rerun: unexpected result is not reproducible": "Another GPU gave another result: suspect the first one.",
    "Second rerun: unexpected result is reproducible": "Another GPU gave the same result: suspect data or settings.",
}
"""What Megatron-LM's rerun state machine printed (`megatron/core/rerun_state_machine.py`)."""


def detail_of(kind: str, events: Sequence[LogEvent]) -> Iterator[str]:
    """Yield sentences on the details in a failure's lines. `events`: those of its kind, most specific first."""
    text = events[0].text
    if kind == "out_of_memory":
        yield from _sizes(text)
    ranks = sorted({event.rank for event in events if event.rank is not None})
    if len(ranks) > 1:
        first, last = ranks[0], ranks[-1]
        if len(ranks) > 2 and len(ranks) == last - first + 1:
            yield f"Ranks {first} to {last} report it."
        else:
            listed = ", ".join(str(rank) for rank in ranks[:8])
            yield f"{len(ranks)} ranks report it: {listed}{' and more' if len(ranks) > 8 else ''}."
    if kind == "not_finite":
        texts = [event.text for event in events]
        yield from (sentence for text, sentence in _REPEATED.items() if any(text in line for line in texts))
    if kind == "import_error" and (module := _MODULE.search(text)):
        yield f"Missing: {module[1] or f'{module[2]} of {module[3]}'}."
    if kind == "nccl_timeout" and (operation := _OPERATION.search(text)):
        yield f"Operation: {operation[1]}; time limit: {int(operation[2]) / 1000:g} s."
    codes = dict.fromkeys(code for event in events if (code := exit_code(event)))
    if codes:
        yield f"Exit code {', '.join(f'{code} ({_SIGNALS[code]})' if code in _SIGNALS else code for code in codes)}."
        yield from (_MEANINGS[code] for code in codes if code in _MEANINGS)


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """Sizes that the line of a failed allocation states, in GiB.

    `allocated`: by PyTorch, `idle`: reserved by PyTorch but unallocated; None if not stated.
    """

    requested: float
    total: float
    free: float
    allocated: float | None
    idle: float | None = None


def failed_allocation(text: str) -> FailedAllocation | None:
    """Return the figures of the line; None unless it states request, size of the GPU, and free memory."""
    patterns = (_ASKED, _TOTAL, _FREE, _IN_USE, _IDLE)
    requested, total, free, allocated, idle = (_gib(pattern.search(text)) for pattern in patterns)
    if requested is None or total is None or free is None or not 0 <= free < total:
        return None
    return FailedAllocation(requested, total, free, allocated, idle)


def _gib(match: re.Match[str] | None) -> float | None:
    if match is None:
        return None
    value, _, unit = next(filter(None, match.groups())).partition(" ")
    return float(value) * _GIB[unit] if unit in _GIB else None


def _sizes(text: str) -> Iterator[str]:
    """Yield sizes of `Tried to allocate 1.50 GiB.

    GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free.`
    """
    asked, total, free = (pattern.search(text) for pattern in (_ASKED, _TOTAL, _FREE))
    if asked is None:
        return
    of = f" of {total[1] or total[2]}" if total else ""
    left = f" with {free[1] or free[2]}{of} free" if free else f" on a GPU{of}" if of else ""
    yield f"It requested {asked[1]}{left}."


# --- Explanation and advice for each kind; `docs/failures.md` describes them.

Outcome = Literal["completed", "truncated", "failed", "out_of_memory", "not_finite", "stopped", "unread", ""]
"""`unread`: the log's format is unknown. Empty: documents, and logs of some trainers, do not state how a run ended."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of failure. `outcome`: that of a run that ends with it; None when a run survives it."""

    title: str
    explanation: str
    advice: str
    outcome: Outcome | None = "failed"


KINDS: dict[str, Kind] = {
    "out_of_memory": Kind(
        "A GPU ran out of memory",
        "PyTorch could not get the memory that the model, its activations or a communication buffer needed.",
        "Compare the peak memory of the ranks first. Then recompute or offload on the rank that uses the most "
        "memory, lower `mbs`, or shard the model further (`tp`, `pp`, `ep`, `cp`). Dispatcher buffers and CUDA "
        "graphs also use memory.",
        "out_of_memory",
    ),
    "not_finite": Kind(
        "The NaN checks stopped the run",
        "The loss or a gradient became NaN or infinite, or differed when it was recomputed.",
        "If the same GPU gives another result when it repeats the step, or another GPU does, check the rank's GPU and "
        "node. If all GPUs give the same result, check the data of that step, the learning rate and the precision.",
        "not_finite",
    ),
    "loss_not_finite": Kind(
        "The loss is missing or not finite",
        "The log has no finite loss for some completed steps; Megatron-LM omits a NaN loss from the line.",
        "Do not use the run. Enable the NaN checks to find the rank, and compare with a bf16 run.",
        "not_finite",
    ),
    "deepep_missing": Kind(
        "DeepEP is not installed",
        "Megatron-LM could not import DeepEP from the package deep_ep. A build of that package may have HybridEP "
        "alone. This says nothing about speed.",
        "Install DeepEP in the container, or use another dispatcher.",
    ),
    "hybridep_missing": Kind(
        "HybridEP is not installed",
        "The container has no HybridEP (the hybrid-ep branch of DeepEP). This says nothing about speed.",
        "Install DeepEP's hybrid-ep branch in the container, or use another dispatcher.",
    ),
    "ncclep_missing": Kind(
        "Transformer Engine lacks NCCL EP",
        "This Transformer Engine was built without NCCL EP. This says nothing about speed.",
        "Build Transformer Engine with NVTE_BUILD_WITH_NCCL_EP=1, or use another dispatcher.",
    ),
    "import_error": Kind(
        "A package could not be imported",
        "The program stopped because Python did not find a module or a name in it.",
        "Check that the container has the package in the version that this commit needs.",
    ),
    "dispatcher_refused": Kind(
        "The dispatcher settings were rejected",
        "The trainer checks at start-up that dispatcher and GPU are compatible; these are not.",
        "Correct the setting in that line: backends need the flex dispatcher, a supported GPU, and tp x ep above 1.",
    ),
    "permute_failed": Kind(
        "The fused token permutation failed",
        "Transformer Engine's fused permutation of tokens is missing or does not work with this PyTorch and Triton.",
        "Disable `permute_fusion` for now, and try it again in the production container (Transformer Engine "
        "2.1 or newer). Figures without it say nothing about the fused path.",
    ),
    "overlap_refused": Kind(
        "The overlap of expert communication was rejected",
        "The trainer checks the requirements of `ep_overlap` at start-up, and one is not met.",
        "Correct the setting in that line, or disable `ep_overlap`. Common causes: full recomputation, "
        "recomputing the `moe` module, shared-expert overlap, or pp above 1 without a virtual pipeline.",
    ),
    "deepep_timeout": Kind(
        "DeepEP timed out waiting for tokens",
        "A rank did not receive tokens from another rank in time. The reporting rank is usually not the cause.",
        "Look for the missing or late rank: other errors, or its node's network. If there is none, check that all "
        "ranks have the same settings, and check NVSHMEM and IBGDA on the nodes.",
    ),
    "nccl_timeout": Kind(
        "A collective operation timed out",
        "NCCL's watchdog gave up waiting for all ranks. A rank hangs, has died, or waits in another operation.",
        "Find the rank that did not take part: look for the first error of any rank, or a slow start. If there is "
        "none, raise `--distributed-timeout-minutes`.",
    ),
    "nccl_error": Kind(
        "NCCL reported an error",
        "Communication failed. Often another rank died first and this one only noticed.",
        "Look for an earlier error on another rank. Without one, suspect the network or driver and set "
        "NCCL_DEBUG=INFO.",
    ),
    "exception": Kind(
        "The program raised an exception",
        "An unrecognised Python exception ended the program.",
        "Read the traceback in the lines before it.",
    ),
    "process_failed": Kind(
        "A process failed without a known reason",
        "torchrun reports a process that ended with an error; the process's own output is not in this log.",
        "Upload the output of the rank that torchrun names under Root Cause; `torchrun --log-dir logs --tee 3` writes "
        "a file for each rank.",
    ),
    "time_limit": Kind(
        "The time limit was reached",
        "The time limit of the job, or the trainer's --exit-duration-in-mins, ended it before the last planned "
        "iteration.",
        "The completed iterations count. Resume the job, or request more time.",
        "stopped",
    ),
    "preempted": Kind(
        "The job was pre-empted",
        "The scheduler took the nodes for a job of higher priority.",
        "The completed iterations count. Resubmit the job; it can resume from its last checkpoint.",
        "stopped",
    ),
    "cancelled": Kind(
        "The job was cancelled",
        "A user or the scheduler ended the job.",
        "The completed iterations count. If no user cancelled it, look for the first error of another task.",
        "stopped",
    ),
    "signal": Kind(
        "The trainer was stopped by a signal",
        "It received SIGTERM, for example before a pre-emption or at a time limit, and shut down cleanly.",
        "The completed iterations count. Resume the job.",
        "stopped",
    ),
    "node_failure": Kind(
        "A node failed",
        "The scheduler ended the job because one of its nodes stopped responding.",
        "Resubmit the job without that node, and report the node.",
    ),
    "host_out_of_memory": Kind(
        "A process was killed because the host ran out of memory",
        "The node, not the GPU, ran out of memory, or the job exceeded its memory request.",
        "Request more memory, use fewer data-loader workers, or pin and offload less.",
    ),
    "scheduler": Kind(
        "The scheduler reported an error",
        "Slurm reports a failed task, and no other line states why it failed.",
        "Upload the output of that task.",
    ),
    "crash_loop": Kind(
        "The job crashed repeatedly",
        "Several restarts began at the same point and made no progress.",
        "Do not restart it again. Find the first error of each start, and resume from an older checkpoint if the "
        "last one is damaged.",
        None,
    ),
    "skipped_iterations": Kind(
        "Optimizer steps were skipped",
        "A gradient was not finite, so the step was skipped. With fp16 the first steps are always skipped while the "
        "loss scale settles.",
        "Later skips indicate instability: compare the gradient norm around them.",
        None,
    ),
    "nan_iterations": Kind(
        "Losses of skipped steps were not finite",
        "The trainer counted iterations whose loss was NaN or infinite and skipped them.",
        "Compare the loss curve with a bf16 run before using the figures.",
        None,
    ),
    "truncated": Kind(
        "The log ends early",
        "The log does not show the end of training: it was copied while the job ran, or the job was killed without a "
        "message.",
        "Upload the complete file, or the scheduler's report on how the job ended.",
        "truncated",
    ),
}
"""Most specific first: a rank without memory causes NCCL errors on others and a failed process in torchrun."""


_OF_ITERATIONS = frozenset({"loss_not_finite", "skipped_iterations", "nan_iterations"})
"""Kinds of failures that iteration lines show; others follow the last printed iteration."""


def failure_lead(failure: Failure, last_iteration: int | None) -> str:
    """Return what ended the run, and where: `Rank 11 ran out of GPU memory after iteration 14.`"""
    rank, iteration = None if failure.kind in PACKAGE_MISSING else failure.rank, failure.iteration
    text = failure.title
    if rank is not None:
        out_of_memory = failure.kind == "out_of_memory"
        text = f"Rank {rank:,} ran out of GPU memory" if out_of_memory else f"{text} on rank {rank:,}"
    if iteration is not None:
        printed = last_iteration is not None and iteration <= last_iteration and failure.kind not in _OF_ITERATIONS
        text += f" {'after' if printed else 'at'} iteration {iteration:,}"
    return f"{text}."

"""Kinds of failures, the lines that tell of each, and what to do about it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.run import LogEvent

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
"""Kinds of events that are kinds of failures, too."""

_IMPORT = re.compile(r"\b(?:ImportError|ModuleNotFoundError): ")
_OVERLAP = re.compile(r"overlap_moe_expert_parallel_comm|overlap-moe-expert-parallel-comm|EP A2A overlap|1F1B overlap")
_EXIT_CODE = re.compile(r"exitcode\s*: (-?\d+)")
FOLLOWERS = ("0", "-15")
"""Exit codes of processes that ended well, or were ended (SIGTERM) because another one had failed."""

_SCHEDULER = (
    (re.compile(r"TIME LIMIT|time limit|DUE TO TIMEOUT"), "time_limit"),
    (re.compile(r"PREEMPT|[Pp]reempt"), "preempted"),
    (re.compile(r"NODE FAILURE|NODE_FAIL|Node failure"), "node_failure"),
    (re.compile(r"oom[-_]kill|Out Of Memory|OUT_OF_MEMORY"), "host_out_of_memory"),
    (re.compile(r"CANCELLED|Job cancelled|SIGTERM|Terminated|got signal: 15"), "cancelled"),
)

FROM_OUTSIDE = frozenset({"time_limit", "preempted", "cancelled", "node_failure"})
"""The job was ended; what its processes report after that is how they died, not why."""


def failure_kind(event: LogEvent) -> str | None:
    """The key of KINDS that an event tells of; None for events that are no failure."""
    if event.kind in _SAME_NAME:
        return event.kind
    if event.kind == "error":
        if _IMPORT.search(event.text):
            return "import_error"
        return "overlap_refused" if _OVERLAP.search(event.text) else "exception"
    if event.kind == "exit_code":
        return "process_failed" if exit_code(event) not in (None, *FOLLOWERS) else None
    if event.kind == "scheduler":
        return next((kind for pattern, kind in _SCHEDULER if pattern.search(event.text)), "scheduler")
    return {"exit_duration": "time_limit", "exit_signal": "signal"}.get(event.kind)


def exit_code(event: LogEvent) -> str | None:
    """The exit code that a line of torchrun's report names."""
    code = _EXIT_CODE.search(event.text)
    return code[1] if code else None


# --- What the lines of a failure say beyond its kind: ranks, sizes, exit codes, names. Nothing is added.

_SIZE = r"(\d+(?:\.\d+)? [KMGT]?i?B)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_MODULE = re.compile(r"No module named '?([\w.]+)|cannot import name '?(\w+)'? from '?([\w.]+)")
_OPERATION = re.compile(r"OpType=(\w+).{0,200}?Timeout\(ms\)=(\d+)")
_SIGNALS = {"-9": "SIGKILL", "-6": "SIGABRT", "-11": "SIGSEGV", "-7": "SIGBUS"}


def detail_of(kind: str, events: Sequence[LogEvent]) -> Iterator[str]:
    """Sentences on what this failure's own lines name. `events`: those of its kind, the most telling first."""
    text = events[0].text
    if kind == "out_of_memory":
        yield from _sizes(text)
    ranks = sorted({event.rank for event in events if event.rank is not None})
    if len(ranks) > 1:
        listed = ", ".join(str(rank) for rank in ranks[:8])
        yield f"{len(ranks)} ranks report it: {listed}{' and more' if len(ranks) > 8 else ''}."
    if kind == "import_error" and (module := _MODULE.search(text)):
        yield f"Missing: {module[1] or f'{module[2]} of {module[3]}'}."
    if kind == "nccl_timeout" and (operation := _OPERATION.search(text)):
        yield f"The operation was {operation[1]}, the limit {int(operation[2]) / 1000:g} s."
    codes = dict.fromkeys(code for event in events if (code := exit_code(event)))
    if codes:
        yield f"Exit code {', '.join(f'{code} ({_SIGNALS[code]})' if code in _SIGNALS else code for code in codes)}."


def _sizes(text: str) -> Iterator[str]:
    """`Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free.`"""
    asked, total, free = (pattern.search(text) for pattern in (_ASKED, _TOTAL, _FREE))
    if asked is None:
        return
    of = f" of {total[1] or total[2]}" if total else ""
    left = f" with {free[1] or free[2]}{of} free" if free else f" on a GPU{of}" if of else ""
    yield f"It asked for {asked[1]}{left}."


# --- The kinds of failures, what each means and what to do about it. `docs/failures.md` lists them in prose.

Outcome = Literal["completed", "truncated", "failed", "out_of_memory", "not_finite", "stopped", "unread", ""]
"""`unread`: no reader knows the log. Empty: a run of documents, which do not tell how it ended."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`outcome` of a run that ends with it; None for what a run survives."""

    title: str
    explanation: str
    advice: str
    outcome: Outcome | None = "failed"


KINDS: dict[str, Kind] = {
    "out_of_memory": Kind(
        "A GPU ran out of memory",
        "PyTorch could not get the memory that the model, its activations or a communication buffer needed.",
        "Compare the peak memory of the ranks first. Then recompute or offload what the busiest rank holds, lower "
        "`mbs`, or spread the model further (`tp`, `pp`, `ep`, `cp`); dispatchers' buffers and graphs need some, too.",
        "out_of_memory",
    ),
    "not_finite": Kind(
        "The NaN checks stopped the run",
        "The loss or a gradient became NaN or infinite, or was not the same when it was computed again.",
        "Run it again: `Possible transient error` points to hardware, and the rank's node is worth a check. If it "
        "comes back at the same iteration, look at the data of that step, the learning rate and the precision.",
        "not_finite",
    ),
    "loss_not_finite": Kind(
        "The loss was lost",
        "Iterations print no finite loss, though their steps were made: Megatron-LM leaves a NaN loss out of the line.",
        "Do not use the run. Switch the NaN checks on to find the rank, and compare with a run in bf16.",
        "not_finite",
    ),
    "deepep_missing": Kind(
        "DeepEP is not installed",
        "The container has no DeepEP package, which the flex dispatcher's backend deepep needs. This is a fact of the "
        "environment and says nothing about speed.",
        "Install DeepEP in the container, or set the dispatcher to alltoall.",
    ),
    "hybridep_missing": Kind(
        "HybridEP is not installed",
        "The container has no HybridEP (the hybrid-ep branch of DeepEP). This is a fact of the environment and says "
        "nothing about speed.",
        "Install DeepEP's hybrid-ep branch in the container, or use another dispatcher.",
    ),
    "ncclep_missing": Kind(
        "Transformer Engine has no NCCL EP",
        "This build of Transformer Engine was made without NCCL EP. This is a fact of the environment and says nothing "
        "about speed.",
        "Build Transformer Engine with NVTE_BUILD_WITH_NCCL_EP=1, or use another dispatcher.",
    ),
    "import_error": Kind(
        "A package could not be imported",
        "The program stopped because Python did not find a module, or not the name it wanted in it.",
        "Check that the container has the package in the version that this commit needs.",
    ),
    "dispatcher_refused": Kind(
        "The dispatcher's settings were refused",
        "The trainer checks dispatcher and GPU before it starts, and these do not go together.",
        "Correct the setting that the line names: backends need the flex dispatcher, a GPU that they support, and "
        "tp x ep above 1.",
    ),
    "overlap_refused": Kind(
        "The overlap of expert communication was refused",
        "The trainer checks before it starts what `ep_overlap` needs, and something of it is missing.",
        "Correct what the line names, or switch `ep_overlap` off. Common causes: full recomputation, the module `moe` "
        "recomputed, a shared-expert overlap, or pp above 1 without a virtual pipeline.",
    ),
    "deepep_timeout": Kind(
        "DeepEP waited too long for tokens",
        "A rank did not get the tokens of another one in time. The rank that reports it is usually not the cause.",
        "Look for the rank that is missing or late: other errors, its node's network. If none is, check that all ranks "
        "have the same settings, and NVSHMEM and IBGDA on the nodes.",
    ),
    "nccl_timeout": Kind(
        "A collective operation took too long",
        "NCCL's watchdog gave up waiting for all ranks. Some rank hangs, died, or waits in another operation.",
        "Look for the rank that did not take part: the first error of all ranks, or a slow start. Only when none is "
        "found raise `--distributed-timeout-minutes`.",
    ),
    "nccl_error": Kind(
        "NCCL reported an error",
        "A communication failed. Often another rank died first and this one only noticed.",
        "Look for an earlier error on another rank. Alone it is the network or the driver: NCCL_DEBUG=INFO tells more.",
    ),
    "exception": Kind(
        "The program raised an exception",
        "A Python exception that is not one of the known ones ended the program.",
        "Read the lines before it in the log: the traceback names the place.",
    ),
    "process_failed": Kind(
        "A process failed and nobody says why",
        "torchrun found a process that had ended with an error; its own output is not in this log.",
        "Upload the log of the rank that failed first, which torchrun names under Root Cause. Exit code -9 is a "
        "process that was killed, usually for the host's memory; -11 is a crash inside a library.",
    ),
    "time_limit": Kind(
        "The time limit was reached",
        "The job, or the trainer by --exit-duration-in-mins, ran out of its time before the last planned iteration.",
        "The iterations before it count. Resume the job, or ask for more time.",
        "stopped",
    ),
    "preempted": Kind(
        "The job was pre-empted",
        "The scheduler took the nodes for a job of higher priority.",
        "The iterations before it count. Submit the job again; it can resume from its last checkpoint.",
        "stopped",
    ),
    "cancelled": Kind(
        "The job was cancelled",
        "Somebody, or the scheduler, ended the job from outside.",
        "The iterations before it count. When nobody cancelled it, look for the first error of another task.",
        "stopped",
    ),
    "signal": Kind(
        "The trainer stopped because it was told to",
        "It received SIGTERM, as before a pre-emption or at a time limit, and ended in order.",
        "The iterations before it count. Resume the job.",
        "stopped",
    ),
    "node_failure": Kind(
        "A node failed",
        "The scheduler ended the job because one of its nodes stopped answering.",
        "Submit the job again without the node, and report the node.",
    ),
    "host_out_of_memory": Kind(
        "A process was killed for the host's memory",
        "The node, not the GPU, ran out of memory, or the job used more than it had asked for.",
        "Ask for more memory, use fewer data-loader workers, or pin and offload less.",
    ),
    "scheduler": Kind(
        "The scheduler reports an error",
        "Slurm tells of a failed task, and no other line says why it failed.",
        "Upload the output of that task.",
    ),
    "crash_loop": Kind(
        "The job crashed again and again",
        "Several starts began at the same point and nothing was kept of them.",
        "Do not restart it once more: find the first error of each start, and resume from an older checkpoint if the "
        "last one is damaged.",
        None,
    ),
    "skipped_iterations": Kind(
        "Optimizer steps were skipped",
        "A gradient was not finite, so the step was not made. While fp16 looks for its loss scale the first steps are "
        "always skipped.",
        "Skips after the first steps are a warning of instability: compare the gradient norm around them.",
        None,
    ),
    "nan_iterations": Kind(
        "Losses of skipped steps were not finite",
        "The trainer counted iterations whose loss was NaN or infinite and skipped them.",
        "Compare the loss curve with that of a run in bf16 before the figures are used.",
        None,
    ),
    "truncated": Kind(
        "The log ends early",
        "The log ends without saying that training ended: the file was copied while the job ran, or the job was killed "
        "without a word.",
        "Upload the complete file, or what the scheduler says of the job's end.",
        "truncated",
    ),
}
"""Most telling first: a rank that runs out of memory makes others report NCCL errors and torchrun a failed process."""

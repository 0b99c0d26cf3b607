"""The kinds of failures, what each means and what to do about it. `docs/failures.md` lists them in prose."""

from dataclasses import dataclass
from typing import Literal

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

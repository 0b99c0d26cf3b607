"""Which kind of failure a line tells of."""

import re

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

"""Recognises the lines that tell a run's life: starts, checkpoints, ends, and the failures that say what went wrong."""

import re
from collections.abc import Callable, Sequence

from app.domain.logs.lines import Notes, unwrap
from app.domain.run import LogEvent

MAX_A_KIND = 300
"""Events of one kind that are kept: one a rank of a large job. The rest are counted."""

MAX_TEXT = 500
"""Characters of a line that are kept."""

REACH = 2000
"""Bytes on either side of a key that are looked at, so that a line of any length costs the same."""

KINDS = {
    "training_started": "A process begins to train; a second one in a log is a restart.",
    "checkpoint_loaded": "Training goes on from a checkpoint; `iteration` is the one it was saved at.",
    "checkpoint_saved": "A checkpoint was saved.",
    "validation": "A validation loss was printed.",
    "training_done": "The trainer reached its end.",
    "exit_duration": "The trainer stopped at its time limit and expects to be resumed.",
    "exit_signal": "The trainer stopped because it was told to (SIGTERM).",
    "exit_iteration": "The trainer stopped at the iteration that it was told to stop at.",
    "deepep_missing": "DeepEP could not be imported.",
    "hybridep_missing": "HybridEP could not be imported.",
    "ncclep_missing": "Transformer Engine has no NCCL EP.",
    "dispatcher_refused": "The trainer refused the dispatcher's settings.",
    "dispatcher_fallback": "The trainer went on with another dispatcher than it was asked for.",
    "permute_fallback": "HybridEP went on without the fused permutation that it was asked for.",
    "optimizer_fallback": "The trainer went on with a slower optimizer, since a package is missing.",
    "router_dtype": "A dispatcher wants the router to compute in float32, and it does not.",
    "graph_captured": "CUDA graphs were captured; the text tells which implementation did it.",
    "out_of_memory": "A GPU ran out of memory.",
    "deepep_timeout": "DeepEP waited too long for tokens.",
    "nccl_timeout": "A collective operation took too long.",
    "nccl_error": "NCCL reported an error.",
    "not_finite": "The NaN checks found a value that is not finite, or not reproducible.",
    "process_failed": "torchrun found a process that had failed.",
    "exit_code": "The exit code that torchrun tells of a process.",
    "scheduler": "Slurm tells of an error or of an end from outside.",
    "error": "Another Python exception.",
}
"""What can happen, by the name that `LogEvent.kind` has."""

FAILURES = frozenset(
    {
        "deepep_missing",
        "hybridep_missing",
        "ncclep_missing",
        "dispatcher_refused",
        "out_of_memory",
        "deepep_timeout",
        "nccl_timeout",
        "nccl_error",
        "not_finite",
        "process_failed",
    }
)
"""Kinds after which a run does not go on. `error`, `exit_code` and `scheduler` tell more about them, or nothing."""

ENDS = frozenset({"training_done", "exit_duration", "exit_signal", "exit_iteration"})
"""Kinds by which the trainer itself says that it stops."""

_AT_ITERATION = re.compile(r"iteration[ #]{1,10}(\d{1,12})")
_RANK = re.compile(r"\b[Rr]ank (\d{1,7})\b")

# The first text found in the line decides; a text that is part of another comes after it
_TEXTS: tuple[tuple[str, str], ...] = (
    ("[before the start of training step]", "training_started"),
    ("successfully loaded checkpoint from", "checkpoint_loaded"),
    ("successfully saved checkpoint", "checkpoint_saved"),
    ("validation loss at iteration", "validation"),
    ("validation loss at the end", "validation"),
    ("[after training is done]", "training_done"),
    ("[exiting program after receiving", "exit_signal"),
    ("[exiting program after", "exit_duration"),
    ("[exiting program at iteration", "exit_iteration"),
    ("DeepEP is not installed", "deepep_missing"),
    ("HybridEP is not installed", "hybridep_missing"),
    ("NCCL EP is unavailable", "ncclep_missing"),
    ("transformer_engine.pytorch.ep is unavailable", "ncclep_missing"),
    ("Falling back to alltoall", "dispatcher_fallback"),
    ("Falling back to unfused HybridEP", "permute_fallback"),
    ("Apex are not installed. Falling back", "optimizer_fallback"),
    ("only supports float32 probs", "router_dtype"),
    ("CUDA graph capture done for training", "graph_captured"),
    ("Time spent in CUDA Graphs capture", "graph_captured"),
    ("cuda graph(s) in ", "graph_captured"),
    ("DeepEP error: timeout", "deepep_timeout"),
    ("DeepEP error: CPU recv timeout", "deepep_timeout"),
    ("DeepEP timeout", "deepep_timeout"),
    ("DeepEP dispatcher requires", "dispatcher_refused"),
    ("only supported with flex token dispatcher", "dispatcher_refused"),
    ("Only one backend is supported for flex token dispatcher", "dispatcher_refused"),
    ("requires moe_token_dispatcher_type='flex'", "dispatcher_refused"),
    ("DeepEP is supported for", "dispatcher_refused"),
    ("HybridEP is supported for", "dispatcher_refused"),
    ("Invalid backend: ", "dispatcher_refused"),
    ("out of memory", "out_of_memory"),
    ("OutOfMemoryError", "out_of_memory"),
    ("[OOM] rank ", "out_of_memory"),
    ("Watchdog caught collective operation timeout", "nccl_timeout"),
    ("DistBackendError", "nccl_error"),
    ("ncclInternalError", "nccl_error"),
    ("ncclUnhandledCudaError", "nccl_error"),
    ("ncclRemoteError", "nccl_error"),
    ("ncclSystemError", "nccl_error"),
    ("NCCL error", "nccl_error"),
    ("Unexpected result", "not_finite"),
    ("found NaN in local", "not_finite"),
    ("found Inf in local", "not_finite"),
    ("ChildFailedError", "process_failed"),
    ("exitcode  :", "exit_code"),
    ("srun: error:", "scheduler"),
    ("slurmstepd: error:", "scheduler"),
    ("srun: Force Terminated", "scheduler"),
    ("SignalException", "scheduler"),
    ("Memory access fault by GPU", "error"),
)
_ERROR = re.compile(r"(?:^|[\s:])([A-Za-z_][\w.]{0,80}(?:Error|Exception)): |^AssertionError\s*$")


class EventReader:
    """Collects events. Most failures are Python exceptions, so `rror: ` finds them (and Slurm's `error: `) at once."""

    keys: Sequence[bytes] = (
        b"] datetime:",
        b"successfully",
        b"validation loss at",
        b"rror: ",
        b"DeepEP t",
        b"Falling back t",
        b"Watchdog",
        b"Unexpected result ",
        b"exitcode  :",
        b"graph capture done for t",
        b"in CUDA Graphs capture",
        b"cuda graph(s) in ",
        b"[OOM] rank ",
        b"AssertionError",
        b"SignalExc",
        b"srun: Force T",
        b"access fault by GPU",
        b"float32 probs",
    )

    def __init__(self, notes: Notes, on_start: Callable[[int | None], None]) -> None:
        self.events: list[LogEvent] = []
        self._notes = notes
        self._on_start = on_start
        self._counts: dict[str, int] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        begin = max(start, hit - REACH)
        stop = min(end, hit + REACH)
        unwrapped = unwrap(data[begin:stop])
        kind = _kind(unwrapped.text)
        if kind is not None:
            at = _AT_ITERATION.search(unwrapped.text)
            event = LogEvent(
                kind,
                line,
                unwrapped.text.strip()[:MAX_TEXT],
                rank=_rank(unwrapped.text, unwrapped.rank),
                iteration=int(at[1]) if at else None,
            )
            if kind in ("training_started", "checkpoint_loaded"):
                self._on_start(event.iteration)
            self._keep(event)
        return stop

    def _keep(self, event: LogEvent) -> None:
        count = self._counts[event.kind] = self._counts.get(event.kind, 0) + 1
        if count <= MAX_A_KIND:
            self.events.append(event)
        else:
            self._notes.problem("many events", f"Only {MAX_A_KIND} lines of one kind of event were kept.", event.line)


def _kind(text: str) -> str | None:
    for wanted, kind in _TEXTS:
        if wanted in text:
            return kind
    return "error" if _ERROR.search(text) else None


def _rank(text: str, from_prefix: int | None) -> int | None:
    """The rank that the text names, else that of its prefix (which may be another rank's report of it)."""
    named = _RANK.search(text)
    return int(named[1]) if named else from_prefix

"""Recognises the events of a run in its log: starts, checkpoints, ends and failures."""

import re
from collections.abc import Callable, Sequence

from app.domain.logs.lines import Notes, unwrap
from app.domain.run import LogEvent

MAX_A_KIND = 300
"""Events kept of one kind: enough for one per rank of a large job."""

MAX_TEXT = 500
"""Characters of a line that are kept."""

REACH = 2000
"""Bytes inspected on either side of a key, so that the cost does not depend on the length of the line."""

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
"""Kinds that end a run. `error`, `exit_code` and `scheduler` only add detail."""

ENDS = frozenset({"training_done", "exit_duration", "exit_signal", "exit_iteration"})
"""Kinds with which the trainer announces its own end."""

_AT_ITERATION = re.compile(r"iteration[ #]{1,10}(\d{1,12})")
_RANK = re.compile(r"\b[Rr]ank (\d{1,7})\b")
_REPORTED_RANK = re.compile(rb"\brank {1,12}: (\d{1,7})\b")
_REPORT = 300
"""Bytes before an exit code in which torchrun's report names the host and rank of the process."""

# The first matching text decides, so a text that is part of another one comes after it.
_TEXTS: tuple[tuple[str, str], ...] = (
    ("[before the start of training step]", "training_started"),
    ("successfully loaded checkpoint from", "checkpoint_loaded"),
    ("successfully saved checkpoint", "checkpoint_saved"),
    ("validation loss at iteration", "validation"),
    ("validation loss at the end", "validation"),
    ("[after training is done]", "training_done"),
    ("`Trainer.fit` stopped: `max_", "training_done"),  # Lightning; other reasons are not an end of training
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
    ("nexpected result", "not_finite"),
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
    """Collects events. Most failures are Python exceptions, so the key `rror: ` covers them and Slurm's `error: `."""

    keys: Sequence[bytes] = (
        b"] datetime:",
        b"successfully",
        b"validation loss at",
        b"rror: ",
        b"DeepEP t",
        b"Falling back t",
        b"Watchdog",
        b"nexpected result ",
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
        b"`Trainer.fit` s",
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
                rank=_reported_rank(data, start) if kind == "exit_code" else _rank(unwrapped.text, unwrapped.rank),
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
            self._notes.problem("many events", f"Only the first {MAX_A_KIND} events of one kind were read.", event.line)


def _kind(text: str) -> str | None:
    for wanted, kind in _TEXTS:
        if wanted in text:
            return kind
    return "error" if _ERROR.search(text) else None


def _reported_rank(data: bytes, start: int) -> int | None:
    """Return the rank that torchrun's report names in the lines before an exit code."""
    ranks = _REPORTED_RANK.findall(data, max(0, start - _REPORT), start)
    return int(ranks[-1]) if ranks else None


def _rank(text: str, from_prefix: int | None) -> int | None:
    """Return the rank in the text, else the rank in its prefix (which may only report the event of another rank)."""
    named = _RANK.search(text)
    return int(named[1]) if named else from_prefix

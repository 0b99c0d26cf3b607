"""Which kernels waited for communication by a recorded dependency: a stream that waits for the event of another.

A gap without computation is resolved when the trace records what its ending kernel's stream waited for. It is blocked
by communication when the event follows a communication kernel that ended in the gap. Without records, exposed
communication says only what ran alone, not what delayed anything.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.domain.profiles.budget import Device
from app.domain.profiles.intervals import Times
from app.domain.profiles.kernels import CLASSES, group_of
from app.domain.profiles.trace import NO_LAUNCH, DeviceTrace

RESOLVED_SHARE = 0.80
"""From this share of resolved gaps on, the trace counts as having dependencies. Our choice."""
_WAITS_BACK = 4
"""Number of waits before a launch that are inspected; a kernel seldom waits for more streams."""
_NEVER = np.iinfo(np.int64).min
_IS_COMMUNICATION = np.array([group_of(name) == "communication" for name in CLASSES], np.bool_)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Gaps in which communication runs while nothing computes, how many are resolved, and the time blocked by it."""

    gaps: int
    resolved: int
    blocked_ns: int

    @property
    def is_traced(self) -> bool:
        return self.resolved >= RESOLVED_SHARE * self.gaps


def blocking_of(device: Device, windows: list[tuple[int, int]]) -> Blocking | None:
    """Resolve the gaps of the windows. None when the trace records no dependencies."""
    trace = device.trace
    if trace.waits is None or not trace.waits.moment.size:
        return None
    streams = _Streams(trace)
    gaps = resolved = blocked = 0
    for first, last in windows:
        start, kernel, waited = device.waiting_gaps(first, last)
        gaps += start.size
        launched = kernel >= 0
        launched[launched] = trace.launch[kernel[launched]] != NO_LAUNCH
        start, kernel, waited = start[launched], kernel[launched], waited[launched]
        is_resolved, is_blocked = streams.resolve(start, kernel)
        resolved += int(is_resolved.sum())
        blocked += int(waited[is_blocked].sum())
    return Blocking(gaps, resolved, blocked)


class _Streams:
    """Operations and waits of each stream in the order of their launches."""

    def __init__(self, trace: DeviceTrace) -> None:
        self._trace = trace
        self._ops: dict[int, tuple[Times, Times]] = {}
        self._waits: dict[int, tuple[Times, Times]] = {}

    def _ops_of(self, stream: int) -> tuple[Times, Times]:
        """Return operations of a stream and their launch moments, in this order."""
        if stream not in self._ops:
            trace = self._trace
            ops = np.flatnonzero((trace.stream == stream) & (trace.launch != NO_LAUNCH))
            moment = trace.calls.start[trace.launch[ops]]
            order = np.argsort(moment, kind="stable")
            self._ops[stream] = ops[order], moment[order]
        return self._ops[stream]

    def _waits_of(self, stream: int) -> tuple[Times, Times]:
        if stream not in self._waits:
            assert self._trace.waits is not None  # noqa: S101  the caller checked it
            own = np.flatnonzero(self._trace.waits.stream == stream)
            moment = self._trace.waits.moment[own]
            order = np.argsort(moment, kind="stable")
            self._waits[stream] = own[order], moment[order]
        return self._waits[stream]

    def resolve(self, start: Times, kernel: Times) -> tuple[Any, Any]:
        """Return for each gap whether a wait explains it, and whether that wait was for communication."""
        trace = self._trace
        is_resolved, is_blocked = np.zeros(start.size, np.bool_), np.zeros(start.size, np.bool_)
        for stream in np.unique(trace.stream[kernel]):
            own = np.flatnonzero(trace.stream[kernel] == stream)
            launched = trace.calls.start[trace.launch[kernel[own]]]
            _, moments = self._ops_of(int(stream))
            at = np.searchsorted(moments, launched, "left") - 1
            before = np.where(at >= 0, moments[np.maximum(at, 0)], _NEVER)
            waits, asked = self._waits_of(int(stream))
            if not waits.size:
                continue
            last = np.searchsorted(asked, launched, "right") - 1
            for back in range(_WAITS_BACK):
                place = last - back
                valid = place >= 0
                valid[valid] &= asked[place[valid]] > before[valid]
                for gap, wait in zip(own[valid].tolist(), waits[place[valid]].tolist(), strict=True):
                    producer = self._producer(wait)
                    if producer is None:
                        continue
                    is_resolved[gap] = True
                    if _IS_COMMUNICATION[trace.class_by_use[producer]] and trace.end[producer] > start[gap]:
                        is_blocked[gap] = True
        return is_resolved, is_blocked

    def _producer(self, wait: int) -> int | None:
        """Return the last operation that its stream got before the event was recorded."""
        waits = self._trace.waits
        assert waits is not None  # noqa: S101  the caller checked it
        ops, moments = self._ops_of(int(waits.source[wait]))
        at = int(np.searchsorted(moments, waits.recorded[wait], "right")) - 1
        return int(ops[at]) if at >= 0 else None

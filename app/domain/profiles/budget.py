"""Where the time of a window goes: computation, exposed communication, exposed copies, idle, and why nothing computes.

docs/profiles.md has the definitions. All sums are exact: the parts add up to the window to the nanosecond.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from app.domain.profiles.intervals import Coverage, Times
from app.domain.profiles.kernels import (
    CLASSES,
    EXPERT_COMMUNICATION,
    GRAPH,
    LOCAL_DISPATCH,
    NUMBER,
    base_name,
    group_of,
)
from app.domain.profiles.trace import NO_LAUNCH, DeviceTrace

LATE_LAUNCH_NS = 10_000
"""Launch latency that is attributed to a launch after the gap began. Our choice."""

_GAPS = 65_536
"""Gaps that are explained in one batch."""

REASONS = ("launch_starved", "host_sync", "wait_comm", "wait_copy", "issued_other", "unresolved")
"""Why nothing computes, also while the GPU communicates or copies."""
IDLE_REASONS = ("launch_starved", "host_sync", "issued_other", "unresolved")
"""Why the GPU is idle. A late launch that communication hides is exposed communication, so a moment counts once."""
SYNCHRONISES = re.compile(
    r"(Stream|Event|Device|Ctx)Synchronize(?![A-Za-z])|^(cuda|hip)Memcpy(_v\d+|_ptsz\w*)?$|^hipMemcpyWithStream"
)
"""Runtime calls that wait for the GPU."""
_ALLOCATES = re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc)|^cuMem(Alloc|Free|Create|Map)")
_LAUNCHES_GRAPH = re.compile("GraphLaunch")
STARVED_CAUSES = ("data_loader", "allocation", "graph_launch", "other")
"""What the host does while the GPU waits for a launch."""

_GROUPS = np.array([{"compute": 0, "communication": 1, "copy": 2}[group_of(name)] for name in CLASSES], np.int8)


@dataclass(frozen=True, slots=True)
class Budget:
    """The parts of one window in nanoseconds. None where it depends on the content of graphs traced as a whole."""

    first: int
    last: int
    compute: int
    comm: int
    exposed_comm: int
    copy: int
    exposed_copy: int
    idle: int
    dispatcher: int
    """Expert communication or token permutation (`dispatch.local`), by use."""
    dispatcher_by_name: int
    exposed_dispatcher: int
    copies_hide: int
    """Communication that only a copy hides; it counts as exposed."""
    reasons: Mapping[str, int]
    idle_reasons: Mapping[str, int]
    by_class: Mapping[str, int]
    """Time in which at least one kernel of the class runs, by the kernels' names."""
    step: int | None = None
    host_ns: int | None = None
    """Length of the host's range of the step."""
    is_regular: bool = True
    """False if it differs too much from the median step or contains a graph capture; then medians omit it."""
    has_whole_graphs: bool = False

    @property
    def window(self) -> int:
        return self.last - self.first

    @property
    def residual(self) -> int:
        """Return what the sums miss, 0 by construction."""
        parts = self.compute + self.exposed_comm + self.exposed_copy + self.idle
        absent = self.window - self.compute - sum(self.reasons.values())
        return abs(self.window - parts) + abs(absent) + abs(self.idle - sum(self.idle_reasons.values()))


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Times without computation, by column. -1 stands for no kernel, launch or thread."""

    start: Times
    end: Times
    kernel: Times
    launch: Times
    issued: Times
    """Until then, the kernel that ends the gap was not issued; the start of the gap if it was issued earlier."""
    thread: Times
    """The thread that launched the ending kernel."""
    parts: Mapping[str, Times]
    idle: Mapping[str, Times]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without computation. `reasons`: exposed communication and copies first, then why the rest is idle."""

    start: int
    end: int
    reasons: Mapping[str, int]
    kernel: int | None
    """The kernel that ended it."""
    launch: int | None

    @property
    def reason(self) -> str:
        return max(REASONS, key=lambda name: self.reasons[name])


class Device:
    """Measures windows of one GPU. Unions are computed once for all windows."""

    def __init__(self, trace: DeviceTrace) -> None:
        self.trace = trace
        groups = _GROUPS[trace.class_by_use]
        self.is_compute = groups == 0
        self.compute = self._of(self.is_compute)
        self.comm = self._of(groups == 1)
        self.copy = self._of(groups == 2)
        self.comm_copy = Coverage.join((self.comm, self.copy))
        self.exposed_comm = self.comm.minus(self.compute)
        self._exposed_copy = self.copy.minus(self.compute).minus(self.comm)
        local = trace.class_by_use == NUMBER[LOCAL_DISPATCH]
        expert = trace.class_by_use == NUMBER[EXPERT_COMMUNICATION]
        self._local, self._expert = local, expert
        self._kernels = np.flatnonzero(self.is_compute & (trace.end > trace.start)).astype(np.int32)
        self._kernel_start = trace.start[self._kernels]
        self._waits = self._synchronising_calls()
        self._idle_waits = {thread: waits.minus(self.comm_copy) for thread, waits in self._waits.items()}

    def _of(self, which: npt.NDArray[np.bool_]) -> Coverage:
        return Coverage.of(self.trace.start[which], self.trace.end[which])

    def _synchronising_calls(self) -> dict[int, Coverage]:
        calls = self.trace.calls
        table = np.array([bool(SYNCHRONISES.search(name)) for name in self.trace.names], np.bool_)
        waits = np.flatnonzero(table[calls.name]) if calls.name.size else np.zeros(0, np.int64)
        threads = calls.thread[waits]
        return {
            int(thread): Coverage.of(calls.start[waits[threads == thread]], calls.end[waits[threads == thread]])
            for thread in np.unique(threads)
        }

    def budget(self, first: int, last: int) -> Budget:
        """Return where the time of [first, last) goes."""
        return self.budgets([(first, last)])[0]

    def budgets(self, windows: Sequence[tuple[int, int]]) -> list[Budget]:
        """Return the budget of each window. Unions that serve nothing else are computed for all windows together."""
        if not windows:
            return []
        first, last = np.array(windows, np.int64).T

        def covered(coverage: Coverage) -> list[int]:
            times: list[int] = (coverage.before(last) - coverage.before(first)).tolist()
            return times

        trace, local = self.trace, self._local
        compute, comm, copy = covered(self.compute), covered(self.comm), covered(self.copy)
        exposed_comm, exposed_copy = covered(self.exposed_comm), covered(self._exposed_copy)
        without_copies = covered(self.exposed_comm.minus(self.copy))
        dispatcher = covered(self._of(local | self._expert))
        by_name = covered(self._of(local | (trace.class_by_name == NUMBER[EXPERT_COMMUNICATION])))
        exposed_dispatcher = exposed_comm
        if local.any():
            without = self._of(self.is_compute & ~local)
            both = covered(Coverage.join((without, self.comm, self._of(local))))
            exposed_dispatcher = [time - alone for time, alone in zip(both, covered(without), strict=True)]
        classes = {
            CLASSES[number]: covered(self._of(trace.class_by_name == number))
            for number in np.unique(trace.class_by_name)
        }
        reasons = [self.reasons(*window) for window in windows]
        return [
            Budget(
                first=windows[at][0],
                last=windows[at][1],
                compute=compute[at],
                comm=comm[at],
                exposed_comm=exposed_comm[at],
                copy=copy[at],
                exposed_copy=exposed_copy[at],
                idle=windows[at][1] - windows[at][0] - compute[at] - exposed_comm[at] - exposed_copy[at],
                dispatcher=dispatcher[at],
                dispatcher_by_name=by_name[at],
                exposed_dispatcher=exposed_dispatcher[at],
                copies_hide=exposed_comm[at] - without_copies[at],
                reasons=reasons[at][0],
                idle_reasons=reasons[at][1],
                by_class={name: times[at] for name, times in classes.items() if times[at]},
                has_whole_graphs=bool(classes.get(GRAPH, [0] * len(windows))[at]),
            )
            for at in range(len(windows))
        ]

    def reasons(self, first: int, last: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return why nothing computes in [first, last), and why the GPU is idle, in nanoseconds for each reason."""
        absent, idle = dict.fromkeys(REASONS, 0), dict.fromkeys(IDLE_REASONS, 0)
        for gaps in self._explained(first, last):
            for times, parts in ((absent, gaps.parts), (idle, gaps.idle)):
                for name, time in parts.items():
                    times[name] += int(time.sum())
        return absent, idle

    def gaps(self, first: int, last: int, count: int) -> list[Gap]:
        """Return the `count` longest times without computation in [first, last)."""
        start, end = self.compute.gaps(first, last)
        longest = np.argsort(start - end, kind="stable")[:count]
        gaps = self._explain(start[longest], end[longest], last)
        comm, busy = self.comm.between(gaps.start, gaps.end), self.comm_copy.between(gaps.start, gaps.end)
        reasons = {"wait_comm": comm, "wait_copy": busy - comm, **gaps.idle}
        return [
            Gap(
                int(gaps.start[at]),
                int(gaps.end[at]),
                {name: int(reasons[name][at]) for name in REASONS},
                int(gaps.kernel[at]) if gaps.kernel[at] >= 0 else None,
                int(gaps.launch[at]) if gaps.launch[at] >= 0 else None,
            )
            for at in range(longest.size)
        ]

    def waiting_gaps(self, first: int, last: int) -> tuple[Times, Times, Times]:
        """Return start, ending kernel (-1: none) and waiting time of the gaps that wait for communication."""
        gaps_of = []
        for gaps in self._explained(first, last):
            waited = gaps.parts["wait_comm"]
            gaps_of.append((gaps.start[waited > 0], gaps.kernel[waited > 0], waited[waited > 0]))
        start, kernel, time = (np.concatenate(column) for column in zip(*gaps_of, strict=True))
        return start, kernel, time

    def starved_split(self, first: int, last: int) -> dict[str, int]:
        """Return what the launching thread did while the idle GPU waited for a launch. Adds up to that time."""
        split = dict.fromkeys(STARVED_CAUSES, 0)
        for gaps in self._explained(first, last):
            starved = gaps.idle["launch_starved"]
            split["other"] += int(starved.sum())
            for thread in np.unique(gaps.thread[starved > 0]):
                own = gaps.thread == thread
                layers = [self._idle_waits[int(thread)]] if int(thread) in self._idle_waits else []
                before = gaps.idle["host_sync"][own]
                for cause, coverage in self._causes(int(thread)):
                    layers.append(coverage)
                    covered = Coverage.join(layers).between(gaps.start[own], gaps.issued[own])
                    split[cause] += int((covered - before).sum())
                    split["other"] -= int((covered - before).sum())
                    before = covered
        return split

    def _causes(self, thread: int) -> list[tuple[str, Coverage]]:
        trace, calls = self.trace, self.trace.calls
        loading = Coverage.of(
            np.array([item.start for item in trace.loading], np.int64),
            np.array([item.end for item in trace.loading], np.int64),
        )
        causes = [("data_loader", loading)]
        for cause, pattern in (("allocation", _ALLOCATES), ("graph_launch", _LAUNCHES_GRAPH)):
            table = np.array([bool(pattern.search(name)) for name in trace.names], np.bool_)
            own = table[calls.name] & (calls.thread == thread)
            causes.append((cause, Coverage.of(calls.start[own], calls.end[own])))
        return [(cause, coverage.minus(self.comm_copy)) for cause, coverage in causes]

    def _thread_of(self, launch: Times) -> Any:
        threads = self.trace.calls.thread
        return threads[np.maximum(launch, 0)] if threads.size else np.full(launch.size, -1)

    def _explained(self, first: int, last: int) -> Iterator["_Gaps"]:
        """Yield the gaps of [first, last) in blocks, at least one, so that millions of them need little memory."""
        start, end = self.compute.gaps(first, last)
        for at in range(0, max(start.size, 1), _GAPS):
            yield self._explain(start[at : at + _GAPS], end[at : at + _GAPS], last)

    def _explain(self, a: Times, b: Times, last: int) -> "_Gaps":
        trace = self.trace
        kernel = np.full(a.size, -1, np.int64)
        launch = np.full(a.size, NO_LAUNCH, np.int64)
        if self._kernels.size:
            at = np.searchsorted(self._kernel_start, b, "left")
            ends = (at < self._kernels.size) & (b < last)
            ends[ends] &= self._kernel_start[at[ends]] == b[ends]
            kernel[ends] = self._kernels[at[ends]]
            launch[ends] = trace.launch[kernel[ends]]
        resolved = launch != NO_LAUNCH
        q = a.copy()
        if resolved.any():
            begin, finish = trace.calls.start[launch[resolved]], trace.calls.end[launch[resolved]]
            to, since = b[resolved], a[resolved]
            issued = np.minimum(finish, to)
            q[resolved] = np.where(issued <= since, since, np.minimum(to, np.maximum(issued, begin + LATE_LAUNCH_NS)))
        host_sync, idle_sync = np.zeros((2, a.size), np.int64)
        threads = np.where(resolved, self._thread_of(launch), -1)
        for thread, waits in self._waits.items():
            own = threads == thread
            if own.any():
                host_sync[own] = waits.between(a[own], q[own])
                idle_sync[own] = self._idle_waits[thread].between(a[own], q[own])
        comm = np.where(resolved, self.comm.between(q, b), 0)
        copy = np.where(resolved, self.comm_copy.between(q, b), 0) - comm
        parts = {
            "launch_starved": np.where(resolved, q - a - host_sync, 0),
            "host_sync": host_sync,
            "wait_comm": comm,
            "wait_copy": copy,
            "issued_other": np.where(resolved, b - q - comm - copy, 0),
            "unresolved": np.where(resolved, 0, b - a),
        }
        idle = {
            "launch_starved": q - a - self.comm_copy.between(a, q) - idle_sync,
            "host_sync": idle_sync,
            "issued_other": parts["issued_other"],
            "unresolved": np.where(resolved, 0, b - a - self.comm_copy.between(a, b)),
        }
        return _Gaps(a, b, kernel, launch, q, threads, parts, idle)

    @property
    def span(self) -> tuple[int, int]:
        """Return the first start and the last end of any activity."""
        return int(self.trace.start[0]), int(self.trace.end.max())


# --- The breakdown credits every moment of a step once, so that two steps can be compared row by row.


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Launches of one kernel in a step. Work is the sum of kernel times, never wall time."""

    kernel_class: str
    name: str
    calls: float
    work_ns: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The credited time of each class or idle reason; the values add up to the window."""

    credited_ns: Mapping[str, float]
    kernels: tuple[KernelWork, ...]


class Crediting:
    """Credits windows of one device: first computation, then communication, copies, and the reason of idle time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        trace = device.trace
        self._classes: dict[str, list[tuple[str, Coverage]]] = {"compute": [], "communication": [], "copy": []}
        for number in np.unique(trace.class_by_use):
            name = CLASSES[number]
            which = trace.class_by_use == number
            self._classes[group_of(name)].append((name, Coverage.of(trace.start[which], trace.end[which])))
        bases: dict[str, int] = {}
        table = np.zeros(len(trace.names), np.int64)
        for name in np.unique(trace.name):
            table[name] = bases.setdefault(base_name(trace.names[name]), len(bases))
        self._base = table[trace.name]
        self._bases = list(bases)

    def breakdown(self, first: int, last: int) -> Breakdown:
        """Return the credited times and the kernels of [first, last)."""
        device = self._device
        edges = [np.array([first, last], np.int64)]
        for classes in self._classes.values():
            for _, coverage in classes:
                edges += coverage.within(first, last)
        points = np.unique(np.concatenate(edges))
        length, moments = np.diff(points).astype(np.float64), points[:-1]
        free = np.ones(moments.size, np.bool_)
        credited: dict[str, float] = {}
        for group in ("compute", "communication", "copy"):
            runs = [(name, coverage.contains(moments)) for name, coverage in self._classes[group]]
            if not runs:
                continue
            active = np.sum([flags for _, flags in runs], axis=0)
            here = free & (active > 0)
            share = np.where(here, length / np.maximum(active, 1), 0.0)
            for name, flags in runs:
                if (time := float(share[flags].sum())) > 0:
                    credited[name] = time
            free &= ~here
        _, reasons = device.reasons(first, last)
        credited |= {f"idle.{reason}": float(time) for reason, time in reasons.items() if time}
        return Breakdown(credited, self._kernels(first, last))

    def _kernels(self, first: int, last: int) -> tuple[KernelWork, ...]:
        trace = self._device.trace
        begin, end = np.searchsorted(trace.start, (first, last))
        if begin == end:
            return ()
        key = trace.class_by_use[begin:end].astype(np.int64) * len(self._bases) + self._base[begin:end]
        unique, inverse = np.unique(key, return_inverse=True)
        calls = np.bincount(inverse)
        work = np.bincount(inverse, weights=(trace.end[begin:end] - trace.start[begin:end]).astype(np.float64))
        return tuple(
            KernelWork(CLASSES[number // len(self._bases)], self._bases[number % len(self._bases)], int(n), float(time))
            for number, n, time in zip(unique.tolist(), calls, work, strict=True)
        )


# --- Which kernels waited for communication by a recorded dependency: a stream that waits for the event of another. A
# gap without computation is resolved when the trace records what its ending kernel's stream waited for. It is blocked
# by communication when the event follows a communication kernel that ended in the gap. Without records, exposed
# communication says only what ran alone, not what delayed anything.

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
        """Return the last operation launched on its stream before the event was recorded."""
        waits = self._trace.waits
        assert waits is not None  # noqa: S101  the caller checked it
        ops, moments = self._ops_of(int(waits.source[wait]))
        at = int(np.searchsorted(moments, waits.recorded[wait], "right")) - 1
        return int(ops[at]) if at >= 0 else None

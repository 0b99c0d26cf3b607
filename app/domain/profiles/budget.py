"""Where the time of a window goes: computation, exposed communication, exposed copies, idle, and why nothing computes.

The definitions are those of docs/profiles.md. All sums are exact: the parts add up to the window to the nanosecond.
"""

import re
from collections.abc import Mapping, Sequence
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
    group_of,
)
from app.domain.profiles.trace import NO_LAUNCH, DeviceTrace

LATE_LAUNCH_NS = 10_000
"""A launch after the gap began owns this much of its latency. Ours."""

REASONS = ("launch_starved", "host_sync", "wait_comm", "wait_copy", "issued_other", "unresolved")
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
    """The parts of one window in nanoseconds. With whole graphs, what depends on their content is None."""

    first: int
    last: int
    compute: int
    comm: int
    exposed_comm: int
    copy: int
    exposed_copy: int
    idle: int
    dispatcher: int
    """Expert communication or local dispatch, by use."""
    dispatcher_by_name: int
    exposed_dispatcher: int
    copies_hide: int
    """Communication that only a copy hides; it counts as exposed."""
    reasons: Mapping[str, int]
    by_class: Mapping[str, int]
    """Time in which at least one kernel of the class runs, by the kernels' names."""
    step: int | None = None
    host_ns: int | None = None
    """Length of the host's range of the step."""
    is_regular: bool = True
    """False: differs too much from the median step, or contains a graph capture. Left out of medians."""
    has_whole_graphs: bool = False

    @property
    def window(self) -> int:
        return self.last - self.first

    @property
    def residual(self) -> int:
        """Return what the sums miss, 0 by construction."""
        parts = self.compute + self.exposed_comm + self.exposed_copy + self.idle
        return abs(self.window - parts) + abs(self.window - self.compute - sum(self.reasons.values()))


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without computation."""

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
    """Measures windows of one GPU. Unions are taken once for all windows."""

    def __init__(self, trace: DeviceTrace) -> None:
        self.trace = trace
        groups = _GROUPS[trace.class_by_use]
        self.is_compute = groups == 0
        self.compute = self._of(self.is_compute)
        self.comm = self._of(groups == 1)
        self.copy = self._of(groups == 2)
        self.compute_comm = Coverage.join((self.compute, self.comm))
        self.comm_copy = Coverage.join((self.comm, self.copy))
        self.all = Coverage.join((self.compute_comm, self.copy))
        local = trace.class_by_use == NUMBER[LOCAL_DISPATCH]
        expert = trace.class_by_use == NUMBER[EXPERT_COMMUNICATION]
        self._local, self._expert = local, expert
        self._kernels = np.flatnonzero(self.is_compute & (trace.end > trace.start))
        self._kernel_start = trace.start[self._kernels]
        self._waits = self._synchronising_calls()

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
        """Return the budget of each window. Unions that serve nothing else are taken for all windows at once."""
        if not windows:
            return []
        first, last = np.array(windows, np.int64).T

        def covered(coverage: Coverage) -> list[int]:
            times: list[int] = (coverage.before(last) - coverage.before(first)).tolist()
            return times

        trace, local = self.trace, self._local
        compute, comm, copy = covered(self.compute), covered(self.comm), covered(self.copy)
        compute_comm, everything = covered(self.compute_comm), covered(self.all)
        compute_copy = covered(Coverage.join((self.compute, self.copy)))
        dispatcher = covered(self._of(local | self._expert))
        by_name = covered(self._of(local | (trace.class_by_name == NUMBER[EXPERT_COMMUNICATION])))
        exposed_dispatcher = [both - alone for both, alone in zip(compute_comm, compute, strict=True)]
        if local.any():
            without = self._of(self.is_compute & ~local)
            both = covered(Coverage.join((without, self.comm, self._of(local))))
            exposed_dispatcher = [time - alone for time, alone in zip(both, covered(without), strict=True)]
        classes = {
            CLASSES[number]: covered(self._of(trace.class_by_name == number))
            for number in np.unique(trace.class_by_name)
        }
        return [
            Budget(
                first=windows[at][0],
                last=windows[at][1],
                compute=compute[at],
                comm=comm[at],
                exposed_comm=compute_comm[at] - compute[at],
                copy=copy[at],
                exposed_copy=everything[at] - compute_comm[at],
                idle=windows[at][1] - windows[at][0] - everything[at],
                dispatcher=dispatcher[at],
                dispatcher_by_name=by_name[at],
                exposed_dispatcher=exposed_dispatcher[at],
                copies_hide=compute_comm[at] - compute[at] - (everything[at] - compute_copy[at]),
                reasons=self.reasons(*windows[at]),
                by_class={name: times[at] for name, times in classes.items() if times[at]},
                has_whole_graphs=bool(classes.get(GRAPH, [0] * len(windows))[at]),
            )
            for at in range(len(windows))
        ]

    def reasons(self, first: int, last: int) -> dict[str, int]:
        """Return why nothing computes in [first, last), in nanoseconds for each reason."""
        *_, parts = self._explained(first, last)
        return {name: int(parts[name].sum()) for name in REASONS}

    def gaps(self, first: int, last: int, count: int) -> list[Gap]:
        """Return the `count` longest times without computation in [first, last)."""
        start, end, kernel, launch, parts = self._explained(first, last)
        longest = np.argsort(start - end, kind="stable")[:count]
        return [
            Gap(
                int(start[at]),
                int(end[at]),
                {name: int(parts[name][at]) for name in REASONS},
                int(kernel[at]) if kernel[at] >= 0 else None,
                int(launch[at]) if launch[at] >= 0 else None,
            )
            for at in longest
        ]

    def waiting_gaps(self, first: int, last: int) -> tuple[Times, Times, Times]:
        """Return start, ending kernel (-1: none) and waiting time of the gaps that wait for communication."""
        start, _, kernel, _, parts = self._explained(first, last)
        waits = parts["wait_comm"] > 0
        return start[waits], kernel[waits], parts["wait_comm"][waits]

    def starved_split(self, first: int, last: int) -> dict[str, int]:
        """Return what the launching thread did while the GPU waited for a launch; the parts add up to that time."""
        a, _, _, launch, parts = self._explained(first, last)
        q = a + parts["launch_starved"] + parts["host_sync"]
        threads = np.where(launch != NO_LAUNCH, self._thread_of(launch), -1)
        split = dict.fromkeys(STARVED_CAUSES, 0)
        for thread in np.unique(threads[parts["launch_starved"] > 0]):
            own = threads == thread
            layers = [self._waits[int(thread)]] if int(thread) in self._waits else []
            before = layers[0].between(a[own], q[own]) if layers else np.zeros(int(own.sum()), np.int64)
            for cause, coverage in self._causes(int(thread)):
                layers.append(coverage)
                covered = Coverage.join(layers).between(a[own], q[own])
                split[cause] += int((covered - before).sum())
                before = covered
        split["other"] = int(parts["launch_starved"].sum()) - sum(split.values())
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
        return causes

    def idle_reasons(self, first: int, last: int) -> dict[str, int]:
        """Return why the GPU does nothing at all, without computation, communication and copies."""
        a, b, _, launch, parts = self._explained(first, last)
        issued = parts["launch_starved"] + parts["host_sync"]
        q = a + issued
        threads = np.where(launch != NO_LAUNCH, self._thread_of(launch), -1)
        busy = self.comm_copy
        sync = np.zeros(a.size, np.int64)
        for thread, waits in self._waits.items():
            own = threads == thread
            if own.any():
                both = Coverage.join((waits, busy))
                sync[own] = both.between(a[own], q[own]) - busy.between(a[own], q[own])
        unresolved = parts["unresolved"] > 0
        return {
            "launch_starved": int((issued - busy.between(a, q) - sync)[~unresolved].sum()),
            "host_sync": int(sync.sum()),
            "issued_other": int(parts["issued_other"].sum()),
            "unresolved": int((parts["unresolved"] - busy.between(a, b))[unresolved].sum()),
        }

    def _thread_of(self, launch: Times) -> Any:
        threads = self.trace.calls.thread
        return threads[np.maximum(launch, 0)] if threads.size else np.full(launch.size, -1)

    def _explained(self, first: int, last: int) -> tuple[Times, Times, Times, Times, dict[str, Times]]:
        """Return starts, ends, the ending kernel, its launch and the parts of each gap. -1 stands for none."""
        trace = self.trace
        a, b = self.compute.gaps(first, last)
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
        host_sync = np.zeros(a.size, np.int64)
        threads = np.where(resolved, self._thread_of(launch), -1)
        for thread, waits in self._waits.items():
            own = threads == thread
            if own.any():
                host_sync[own] = waits.between(a[own], q[own])
        length = b - a
        comm = np.where(resolved, self.comm.between(q, b), 0)
        copy = np.where(resolved, self.comm_copy.between(q, b), 0) - comm
        starved = np.where(resolved, q - a - host_sync, 0)
        parts = {
            "launch_starved": starved,
            "host_sync": host_sync,
            "wait_comm": comm,
            "wait_copy": copy,
            "issued_other": np.where(resolved, b - q - comm - copy, 0),
            "unresolved": np.where(resolved, 0, length),
        }
        return a, b, kernel, launch, parts

    @property
    def span(self) -> tuple[int, int]:
        """Return the first start and the last end of any activity."""
        return int(self.trace.start[0]), int(self.trace.end.max())

"""Credits every moment of a step once, so that two steps can be compared row by row."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.domain.profiles.budget import Device
from app.domain.profiles.intervals import Coverage
from app.domain.profiles.kernels import CLASSES, base_name, group_of


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
        for reason, time in device.idle_reasons(first, last).items():
            if time:
                credited[f"idle.{reason}"] = float(time)
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

"""Finds the training steps in a device's activities."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from app.domain.profiles.budget import Budget, Device
from app.domain.profiles.kernels import NUMBER
from app.domain.profiles.trace import NO_LAUNCH, DeviceTrace, HostRange

RANGES = "ranges"
OPTIMIZER = "optimizer"
ONE_WINDOW = "one window"
MAX_STEPS = 1_000
_IRREGULAR = 0.30
"""A step that differs from the median by more is not a usual one. Our choice."""
_STABLE = 1.05
"""An anchor is stable if its largest count exceeds the smallest by at most this. Our choice."""


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """The device's window of a step. `number` is None where only an anchor kernel separates the steps."""

    first: int
    last: int
    number: int | None
    host_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ProfiledSteps:
    """The steps of a device. `source` says what separates them: ranges, optimizer, or one window for all."""

    source: str
    numbers: tuple[int, ...]
    """Steps from the host's ranges, including those without an end on the device."""
    windows: tuple[ProfileWindow, ...]


def find_steps(trace: DeviceTrace) -> ProfiledSteps:
    """Return the windows of the steps; the last has no end on the device and is left out."""
    ranges = trace.steps[:MAX_STEPS]
    numbers = tuple(item.number for item in ranges if item.number is not None)
    windows = _of_ranges(trace, ranges)
    if windows:
        return ProfiledSteps(RANGES, numbers, windows)
    windows = _of_optimizer(trace) if not ranges else ()
    return ProfiledSteps(OPTIMIZER if windows else ONE_WINDOW, numbers, windows)


def _of_ranges(trace: DeviceTrace, ranges: Sequence[HostRange]) -> tuple[ProfileWindow, ...]:
    launched = np.flatnonzero(trace.launch != NO_LAUNCH)
    if not len(ranges) or not launched.size:
        return ()
    moment = trace.calls.start[trace.launch[launched]]
    begins = np.array([item.start for item in ranges], np.int64)
    ends = np.array([item.end for item in ranges], np.int64)
    at = np.searchsorted(begins, moment, "right") - 1
    inside = (at >= 0) & (moment < ends[at])
    far = np.iinfo(np.int64).max
    starts = np.full(len(ranges), far, np.int64)
    np.minimum.at(starts, at[inside], trace.start[launched[inside]])
    steps = [(int(start), item) for start, item in zip(starts, ranges, strict=True) if start != far]
    return tuple(
        ProfileWindow(start, following, item.number, item.end - item.start)
        for (start, item), (following, _) in pairwise(steps)
        if following > start
    )


def _of_optimizer(trace: DeviceTrace) -> tuple[ProfileWindow, ...]:
    """Cut after each series of optimizer kernels that matrix multiplications separate from the next."""
    optimizer = np.flatnonzero(trace.class_by_name == NUMBER["optimizer"])
    matrix = np.flatnonzero(
        np.isin(trace.class_by_name, [NUMBER[name] for name in ("gemm", "gemm.grouped", "attention")])
    )
    if optimizer.size < 2 or matrix.size < 2:
        return ()
    between = np.searchsorted(matrix, optimizer)
    ends_run = np.concatenate((between[1:] != between[:-1], [True]))
    last_of_run = optimizer[ends_run]
    counts = np.diff(np.concatenate(([-1], np.flatnonzero(ends_run))))
    if len(counts) < 2 or counts.max() > _STABLE * counts.min():
        return ()
    cuts: list[int] = []
    for kernel in last_of_run[:MAX_STEPS]:
        at = int(np.searchsorted(trace.start, trace.end[kernel], "left"))
        if at < trace.start.size:
            cuts.append(int(trace.start[at]))
    return tuple(ProfileWindow(first, last, None) for first, last in pairwise(cuts) if last > first)


def budgets(device: Device, steps: ProfiledSteps) -> list[Budget]:
    """Return the budget of each step, and mark the irregular ones."""
    capture = (
        [
            (int(start), int(end))
            for start, end, name in zip(
                device.trace.calls.start, device.trace.calls.end, device.trace.calls.name, strict=True
            )
            if "StreamBeginCapture" in device.trace.names[name]
        ]
        if any("StreamBeginCapture" in name for name in device.trace.names)
        else []
    )
    step_budgets = [
        replace(budget, step=window.number, host_ns=window.host_ns)
        for window, budget in zip(
            steps.windows, device.budgets([(window.first, window.last) for window in steps.windows]), strict=True
        )
    ]
    if not step_budgets:
        return []
    median = float(np.median([budget.window for budget in step_budgets]))
    return [
        replace(
            budget,
            is_regular=abs(budget.window - median) <= _IRREGULAR * median
            and not any(start < budget.last and end > budget.first for start, end in capture),
        )
        for budget in step_budgets
    ]

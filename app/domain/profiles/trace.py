"""The content of a profile before analysis: activities of GPUs, host calls, ranges, collectives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from app.domain.profiles.intervals import Times
from app.domain.profiles.kernels import CLASSES, EXPERT_COMMUNICATION, NUMBER, POINT_TO_POINT, ClassRow, kernel_class

Ids = npt.NDArray[np.int32]
NO_LAUNCH = -1
MAX_NAME = 1_000
"""Longer kernel names are cut."""


def unreported(_share: float) -> None:
    """Ignore the progress of reading."""


class UnusableProfile(Exception):  # noqa: N818
    """The file is not a profile or cannot be used. The message says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Runtime and driver calls of one process, sorted by start."""

    start: Times
    end: Times
    thread: Ids
    name: Ids


@dataclass(frozen=True, slots=True)
class StreamWaits:
    """Waits of streams for events of other streams. Moments: of the host's calls."""

    stream: Ids
    """The stream that waits."""
    moment: Times
    source: Ids
    """The stream that recorded the event."""
    recorded: Times


@dataclass(frozen=True, slots=True)
class Collective:
    """A communication kernel as the trace describes it; None where it does not."""

    kernel: int
    """Index of the kernel in the activities of its device."""
    name: str = ""
    group: str = ""
    """Name of the process group."""
    description: str = ""
    ranks: str = ""
    seq: int | None = None
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class HostRange:
    """A named range of the host: a training step, or a collective called by the trainer."""

    start: int
    end: int
    thread: int
    name: str
    number: int | None = None
    """Number of the step that the range marks."""


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """Activities of one GPU as one process used it, sorted by start. Times are nanoseconds of the trace's clock."""

    key: str
    """Device label in sidecars and pages: "0", or "process:device" if a file contains several processes."""
    start: Times
    end: Times
    name: Ids
    stream: Ids
    launch: Ids
    """Index in `calls` of the call that launched it, or NO_LAUNCH."""
    blocks: Ids
    """Thread blocks of the launch, 0 if the trace does not state them."""
    in_graph: npt.NDArray[np.bool_]
    class_by_name: npt.NDArray[np.int16]
    class_by_use: npt.NDArray[np.int16]
    """As `class_by_name`, but an all-to-all of NCCL counts as expert communication where the trace says that it is."""
    names: Sequence[str]
    streams: Sequence[str]
    calls: HostCalls
    steps: Sequence[HostRange] = ()
    collectives: Sequence[Collective] = ()
    loading: Sequence[HostRange] = ()
    """Time in which the host waited for the data loader."""
    waits: StreamWaits | None = None
    """None where the trace records no dependencies."""
    sms: int | None = None
    gpu: str = ""
    whole_graphs: int = 0
    """Graphs traced as one interval."""
    rank: int | None = None


@dataclass(slots=True)
class Trace:
    """One file, read."""

    format: str
    version: str = ""
    devices: list[DeviceTrace] = field(default_factory=list)
    rank: int | None = None
    rank_from: str = ""
    world_size: int | None = None
    backend: str = ""
    events: int = 0
    skipped: int = 0
    """Events whose times cannot be used."""
    clock_disorder: int = 0
    """Activities that begin before their launch."""
    incomplete: str = ""
    """Where a truncated file ends; empty for a complete one."""
    base_ns: int = 0
    """Origin of the clock since 1970."""
    whole_microseconds: bool = False
    sums: dict[str, int] = field(default_factory=dict)
    """For a table without times: nanoseconds by table and group, such as `kernels.communication`."""
    warnings: list[str] = field(default_factory=list)


def is_expert_collective(collective: str, description: str) -> bool:
    """Return whether a point-to-point kernel of NCCL is the all-to-all of expert parallelism."""
    text = description.lower()
    return collective.lower().replace("_", "").replace(":", "").removeprefix("nccl").startswith("alltoall") or (
        "expert" in text and "data" not in text
    )


def make_device(
    key: str,
    columns: dict[str, Any],
    *,
    names: Sequence[str],
    streams: Sequence[str],
    calls: HostCalls,
    collectives: dict[int, dict[str, Any]] | None = None,
    classes: dict[int, str] | None = None,
    ranges: Sequence[HostRange] = (),
    rows: tuple[ClassRow, ...] = (),
    **more: Any,
) -> DeviceTrace:
    """Sort the activities and give each its class.

    `collectives`: by index in the columns. `classes`: by name id, where a category decides and not the name. `rows`:
    classes of a team, before the table. `ranges`: named calls of collectives; a point-to-point kernel launched inside
    one of an all-to-all serves the experts.
    """
    order = np.lexsort((columns["end"], columns["start"]))
    sorted_columns = {name: columns.pop(name)[order] for name in list(columns)}  # each is freed once it is sorted
    table = np.full(len(names), -1, np.int16)
    for name in np.unique(sorted_columns["name"]):
        given = (classes or {}).get(int(name))
        table[name] = NUMBER[given if given is not None else kernel_class(names[name], rows)]
    by_name = table[sorted_columns["name"]]
    by_use = by_name.copy()
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    described = []
    for at, values in (collectives or {}).items():
        kernel = int(place[at])
        described.append(Collective(kernel, **values))
        if CLASSES[by_name[kernel]] == POINT_TO_POINT and is_expert_collective(
            values.get("name", ""), values.get("description", "")
        ):
            by_use[kernel] = NUMBER[EXPERT_COMMUNICATION]
    _mark_ranges(sorted_columns, by_use, calls, [item for item in ranges if is_expert_collective(item.name, "")])
    return DeviceTrace(
        key=key,
        **{name: sorted_columns[name] for name in ("start", "end", "name", "stream", "launch", "blocks", "in_graph")},
        class_by_name=by_name,
        class_by_use=by_use,
        names=names,
        streams=streams,
        calls=calls,
        collectives=tuple(sorted(described, key=lambda item: item.kernel)),
        **more,
    )


def _mark_ranges(
    columns: dict[str, Any], by_use: npt.NDArray[np.int16], calls: HostCalls, ranges: Sequence[HostRange]
) -> None:
    if not ranges or not calls.start.size:
        return
    for kernel in np.flatnonzero((by_use == NUMBER[POINT_TO_POINT]) & (columns["launch"] != NO_LAUNCH)):
        launch = columns["launch"][kernel]
        moment, thread = calls.start[launch], calls.thread[launch]
        if any(item.thread == thread and item.start <= moment < item.end for item in ranges):
            by_use[kernel] = NUMBER[EXPERT_COMMUNICATION]


def make_waits(
    rows: Sequence[tuple[int, int, int, int]], calls_correlation: Times, calls_start: Times
) -> StreamWaits | None:
    """Return waits by (stream, correlation of the waiting call, source stream, correlation of the recording call)."""
    if not rows:
        return None
    stream, waiting, source, recording = np.array(rows, np.int64).T
    asked, recorded = (join_launches(ids, calls_correlation, calls_start) for ids in (waiting, recording))
    joined = (asked != NO_LAUNCH) & (recorded != NO_LAUNCH)
    return StreamWaits(
        stream[joined].astype(np.int32),
        calls_start[asked[joined]],
        source[joined].astype(np.int32),
        calls_start[recorded[joined]],
    )


def join_launches(correlation: Times, calls_correlation: Times, calls_start: Times) -> Ids:
    """Return the index of the first call with each correlation, NO_LAUNCH if there is none."""
    result = np.full(correlation.size, NO_LAUNCH, np.int32)
    usable = np.flatnonzero(calls_correlation > 0)
    if not usable.size:
        return result
    keys, order = calls_correlation[usable], usable
    if (keys[1:] <= keys[:-1]).any():
        order = usable[np.lexsort((calls_start[usable], keys))]
        keys = calls_correlation[order]
    at = np.minimum(np.searchsorted(keys, correlation, "left"), keys.size - 1)
    matches = (keys[at] == correlation) & (correlation > 0)
    result[matches] = order[at[matches]]
    return result

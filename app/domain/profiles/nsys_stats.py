"""Reads tables of `nsys stats` as CSV: every activity with its start, or only sums of kernel times.

`cuda_gpu_trace` contains no launches, so gaps have no reason. `cuda_gpu_kern_sum` and `cuda_gpu_mem_time_sum` contain
no timestamps: shares of sums say nothing about the step, because kernels overlap.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from app.domain.profiles.kernels import (
    COPY_DEVICE,
    COPY_HOST,
    COPY_PEER,
    MEMSET,
    ClassRow,
    group_of,
    kernel_class,
)
from app.domain.profiles.trace import MAX_NAME, NO_LAUNCH, HostCalls, Trace, UnusableProfile, make_device

_HEADER_LINES = 40
"""`nsys stats` prints notes before its table."""
_MAX_LINE = 65_536
_MAX_ROWS = 20_000_000
_MAX_DEVICES = 64
_CONTROLS = dict.fromkeys(range(32), 32)
_TRACE = ("Start (ns)", "Duration (ns)", "Name")
_KERNEL_SUMS = ("Total Time (ns)", "Instances", "Name")
_MEMORY_SUMS = ("Total Time (ns)", "Operation")
_COPY_CLASSES = {
    "host-to-device": COPY_HOST,
    "htod": COPY_HOST,
    "device-to-host": COPY_HOST,
    "dtoh": COPY_HOST,
    "device-to-device": COPY_DEVICE,
    "dtod": COPY_DEVICE,
    "peer-to-peer": COPY_PEER,
    "ptop": COPY_PEER,
}


def is_table(head: bytes) -> bool:
    """Return whether the first bytes of a file are a table that this module reads."""
    lines = head.decode("utf-8", "replace").splitlines()[:_HEADER_LINES]
    return any(_kind(next(csv.reader([line]), [])) for line in lines)


def _kind(columns: Iterable[str]) -> str:
    names = {name.strip() for name in columns}
    for kind, wanted in (("trace", _TRACE), ("kernels", _KERNEL_SUMS), ("memory", _MEMORY_SUMS)):
        if names.issuperset(wanted):
            return kind
    return ""


def read_stats(chunks: Iterable[bytes], rows: tuple[ClassRow, ...] = ()) -> Trace:
    """Read the decompressed bytes of a table. `rows`: kernel classes of a team. Raises UnusableProfile."""
    reader = csv.reader(_lines(chunks))
    try:
        for number, row in enumerate(reader):
            columns = [name.strip() for name in row]
            if kind := _kind(columns):
                places = {name: at for at, name in reversed(list(enumerate(columns)))}
                return _activities(reader, places, rows) if kind == "trace" else _sums(reader, places, kind, rows)
            if number > _HEADER_LINES:
                break
    except csv.Error as error:
        raise UnusableProfile(f"The table cannot be read: {error}.") from None
    raise UnusableProfile("This is not a table from `nsys stats`. Export it with --format csv and --timeunit nsec.")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE:
            raise UnusableProfile(f"A line of the table is longer than {_MAX_LINE:,} bytes.")
        for line in lines:
            yield line.decode("utf-8", "replace").translate(_CONTROLS)
    if rest:
        yield rest.decode("utf-8", "replace").translate(_CONTROLS)


def _sums(rows: Iterable[list[str]], places: Mapping[str, int], kind: str, class_rows: tuple[ClassRow, ...]) -> Trace:
    trace = Trace("nsys stats", "sums of kernels" if kind == "kernels" else "sums of copies")
    sums = {"communication": 0, "copy": 0, "compute": 0}
    name = places["Name" if kind == "kernels" else "Operation"]
    for row in rows:
        time = _integer(row, places["Total Time (ns)"])
        if time is None or len(row) <= name:
            continue
        trace.events += 1
        sums[group_of(_class(row[name][:MAX_NAME], class_rows))] += time
    if not sum(sums.values()):
        raise UnusableProfile("The table contains no times.")
    trace.sums = {f"{kind}.{group}": time for group, time in sums.items()}
    trace.warnings.append(
        "Only sums of kernel times: kernels overlap, so they show neither exposed communication nor idle time. "
        "Export the whole report: nsys export --type sqlite."
    )
    return trace


def _class(name: str, rows: tuple[ClassRow, ...] = ()) -> str:
    """Return the class of a kernel or of an operation such as `[CUDA memcpy Host-to-Device]`."""
    text = name.lower()
    if not text.startswith("[cuda mem"):
        return kernel_class(name, rows)
    direction = text.strip("[]").rpartition(" ")[2]
    return MEMSET if text.startswith("[cuda memset") else _COPY_CLASSES.get(direction, COPY_HOST)


def _activities(rows: Iterable[list[str]], places: Mapping[str, int], class_rows: tuple[ClassRow, ...]) -> Trace:
    trace = Trace("nsys stats", "cuda_gpu_trace")
    names: dict[str, int] = {}
    devices: dict[str, list[tuple[int, int, int, int]]] = {}
    streams: dict[str, int] = {}
    begin, length, name = (places[column] for column in _TRACE)
    device, stream = places.get("Device", -1), places.get("Strm", -1)
    for row in rows:
        start, duration = _integer(row, begin), _integer(row, length)
        if start is None or duration is None or len(row) <= name:
            trace.skipped += bool(row)
            continue
        trace.events += 1
        if trace.events > _MAX_ROWS:
            raise UnusableProfile(f"The table has more than {_MAX_ROWS:,} rows. Export fewer steps.")
        where = row[device][:100] if 0 <= device < len(row) else "0"
        lane = row[stream][:64] if 0 <= stream < len(row) else "0"
        activity = (
            start,
            start + duration,
            names.setdefault(row[name][:MAX_NAME], len(names)),
            streams.setdefault(lane, len(streams)),
        )
        devices.setdefault(where, []).append(activity)
        if len(devices) > _MAX_DEVICES:
            raise UnusableProfile(f"The table has more than {_MAX_DEVICES} devices.")
    if not devices:
        raise UnusableProfile("The table contains no GPU activity. Was CUDA traced? Record with --trace=cuda,nvtx.")
    if trace.skipped > 0.01 * (trace.events + trace.skipped):
        raise UnusableProfile(f"{trace.skipped:,} rows of the table have no usable time. Export it again.")
    texts = list(names)
    classes = {at: _class(text) for at, text in enumerate(texts) if text.lower().startswith("[cuda mem")}
    for where, activities in devices.items():
        trace.devices.append(_device(where, activities, texts, list(streams), classes=classes, rows=class_rows))
    return trace


def _device(
    where: str,
    activities: list[tuple[int, int, int, int]],
    names: list[str],
    streams: list[str],
    **more: Any,
) -> Any:
    start, end, name, stream = np.array(activities, np.int64).T
    size = start.size
    empty, ids = np.zeros(0, np.int64), np.zeros(0, np.int32)
    gpu, _, number = where.rpartition(" (")
    return make_device(
        number.rstrip(")") or "0",
        {
            "start": start,
            "end": end,
            "name": name.astype(np.int32),
            "stream": stream.astype(np.int32),
            "launch": np.full(size, NO_LAUNCH, np.int32),
            "blocks": np.zeros(size, np.int32),
            "in_graph": np.zeros(size, np.bool_),
        },
        names=names,
        streams=streams,
        calls=HostCalls(empty, empty, ids, ids),
        gpu=gpu,
        **more,
    )


def _integer(row: list[str], place: int) -> int | None:
    """Return a whole number of nanoseconds; None if the text is not one."""
    text = row[place].strip().replace(",", "") if place < len(row) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

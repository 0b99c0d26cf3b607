"""Reads the exports of Nsight Systems: as SQLite, which the caller opens read-only and immutable, and as CSV.

Tables and columns differ by version: what a missing one would show is unknown. Rows may come in any order.
"""

import csv
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from app.domain.profiles.kernels import (
    COPY_DEVICE,
    COPY_HOST,
    COPY_PEER,
    GRAPH,
    MEMSET,
    ClassRow,
    group_of,
    kernel_class,
)
from app.domain.profiles.trace import (
    MAX_NAME,
    NO_LAUNCH,
    HostCalls,
    HostRange,
    Trace,
    UnusableProfile,
    join_launches,
    make_device,
    make_waits,
    unreported,
)

_ROWS = 20_000
_MAX_RANGES = 200_000
_MAX_ROOM = 8_000_000
"""Rows for which memory is allocated at the start; more rows extend it."""
_MAX_DEVICES = 64
_MAX_STREAMS = 10_000
_MAX_NAMES = 5_000
_PROCESS = 0x1000000
_STEP_INSTRUCTIONS = 1_000_000
_CONTROLS = dict.fromkeys(range(32), 32)
_STEP = re.compile(r"(?:ProfilerStep#|(?:iteration|step|train_step|iter)[ _#:]*)(\d{1,12})$", re.IGNORECASE)
_RANK = re.compile(r"\brank[ _=:#]*(\d{1,6})\b", re.IGNORECASE)
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_STREAM_WAITS_FOR_EVENT = 2
_MAX_WAITS = 1_000_000
_PUSH_POP, _START_END = 59, 60
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_NO_KERNELS = (
    "The export contains no table of GPU kernels. Was CUDA traced? Record with `nsys profile --trace=cuda,nvtx` and "
    "export with `nsys export --type sqlite`."
)


def read_nsight(
    connection: sqlite3.Connection,
    seconds: float = 600.0,
    progress: Callable[[float], None] = unreported,
    rows: tuple[ClassRow, ...] = (),
) -> Trace:
    """Read the export within `seconds` of processor time, reporting the share done. Raises UnusableProfile.

    `rows`: kernel classes of a team.
    """
    stop = time.process_time() + seconds
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.set_progress_handler(lambda: time.process_time() > stop, _STEP_INSTRUCTIONS)
    try:
        return _Export(connection, progress, rows).read()
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise UnusableProfile("Reading the export takes too long. Export fewer steps.") from None
        raise UnusableProfile(f"The SQLite file cannot be read: {error}.") from None
    except (sqlite3.DatabaseError, OverflowError, ValueError) as error:
        raise UnusableProfile(f"Not an SQLite export, or damaged: {error}.") from None


class _Export:
    def __init__(
        self, connection: sqlite3.Connection, progress: Callable[[float], None], rows: tuple[ClassRow, ...]
    ) -> None:
        self._connection = connection
        self._progress = progress
        self._class_rows = rows
        self._rows_read = 0
        schema = connection.execute("SELECT name, type FROM main.sqlite_schema WHERE type IN ('table', 'view')")
        kinds = dict(schema.fetchmany(10_000))
        self._tables = {name for name, kind in kinds.items() if kind == "table"}
        self._copies: dict[str, int] = {}
        self._streams: list[str] = []
        self._columns = {name: self._columns_of(name) for name in self._tables if name.isidentifier()}
        self._rows = sum(self._last_row(table) for table in (_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS))

    def _last_row(self, table: str) -> int:
        """Return about how many rows a table has, without counting them."""
        if table not in self._tables:
            return 0
        try:
            last = self._connection.execute(f'SELECT max(rowid) FROM main."{table}"').fetchone()[0]  # noqa: S608
        except sqlite3.OperationalError:  # a table without row numbers, which no export has
            return 0
        return last if isinstance(last, int) else 0

    def _columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")').fetchmany(1_000)}

    def _select(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows in blocks; a column that the table lacks is NULL."""
        own = self._columns.get(table, set())
        names = ", ".join(f'"{column}"' if column in own else "NULL" for column in columns)
        # Names come from this module, and tables from the file's own list.
        cursor = self._connection.execute(f'SELECT {names} FROM main."{table}" {where}')  # noqa: S608
        while rows := cursor.fetchmany(_ROWS):
            yield rows

    def read(self) -> Trace:
        if _KERNELS not in self._tables and _GRAPHS not in self._tables:
            raise UnusableProfile(_NO_KERNELS)
        result = Trace("nsight")
        result.version = self._version()
        result.base_ns = self._origin()
        result.warnings = self._diagnostics()
        self._texts, self._ids = self._strings()
        activities = self._activities()
        if not activities["start"].size:
            raise UnusableProfile(_NO_KERNELS)
        calls, calls_process, calls_correlation = self._calls()
        ranges, waits = self._ranges(), self._waits()
        result.events = int(activities["start"].size + calls.start.size)
        result.skipped = self._skipped
        if result.skipped > 0.01 * (result.events + result.skipped):
            raise UnusableProfile(
                f"{result.skipped:,} rows of the export have no usable time. Export the report again."
            )
        devices_of = {
            process: np.unique(activities["device"][activities["process"] == process]).tolist()
            for process in np.unique(activities["process"])[: _MAX_DEVICES + 1].tolist()
        }
        if sum(map(len, devices_of.values())) > _MAX_DEVICES:
            raise UnusableProfile(f"The export has more than {_MAX_DEVICES} devices.")
        gpus = self._gpus()
        for process, devices in devices_of.items():
            of_process = calls_process == process
            own = calls
            if not of_process.all():
                own = HostCalls(
                    calls.start[of_process], calls.end[of_process], calls.thread[of_process], calls.name[of_process]
                )
            steps, named = self._of_process(ranges, process)
            for device in devices:
                of_device = (activities["process"] == process) & (activities["device"] == device)
                columns = {
                    name: column if of_device.all() else column[of_device]
                    for name, column in activities.items()
                    if name not in ("process", "device")
                }
                if of_device.all():
                    activities = {name: activities[name][:0] for name in activities}
                columns["launch"] = join_launches(columns.pop("correlation"), calls_correlation[of_process], own.start)
                launched = columns["launch"] >= 0
                late = columns["start"][launched] < own.start[columns["launch"][launched]]
                result.clock_disorder += int(late.sum())
                whole_graphs = int(columns.pop("whole_graph").sum())
                sms, gpu = gpus.get(device, (None, ""))
                result.devices.append(
                    make_device(
                        f"{process}:{device}",
                        columns,
                        names=self._texts,
                        streams=self._streams,
                        calls=own,
                        classes=self._classes,
                        rows=self._class_rows,
                        ranges=named,
                        steps=steps,
                        waits=make_waits(waits.get(process, ()), calls_correlation[of_process], own.start),
                        sms=sms,
                        gpu=gpu,
                        whole_graphs=whole_graphs,
                        rank=self._rank(ranges, process),
                    )
                )
        return result

    # --- Tables

    def _version(self) -> str:
        if "META_DATA_EXPORT" not in self._tables:
            return ""
        values = dict(
            row
            for rows in self._select("META_DATA_EXPORT", ("name", "value"))
            for row in rows
            if row[0] in ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
        )
        product, schema = values.get("EXPORT_PRODUCT_VERSION", ""), values.get("EXPORT_SCHEMA_VERSION", "")
        return f"{product} (schema {schema})"[:100] if schema else str(product)[:100]

    def _origin(self) -> int:
        table = "TARGET_INFO_SESSION_START_TIME"
        if table not in self._tables:
            return 0
        for rows in self._select(table, ("utcEpochNs",), "LIMIT 1"):
            return rows[0][0] if isinstance(rows[0][0], int) else 0
        return 0

    def _diagnostics(self) -> list[str]:
        if "DIAGNOSTIC_EVENT" not in self._tables:
            return []
        texts = [
            str(row[0])[:300].translate(_CONTROLS)
            for rows in self._select("DIAGNOSTIC_EVENT", ("text", "severity"), "LIMIT 1000")
            for row in rows
            if isinstance(row[1], int) and row[1] >= 2
        ]
        return list(dict.fromkeys(texts))[:20]

    def _gpus(self) -> dict[int, tuple[int | None, str]]:
        if "TARGET_INFO_GPU" not in self._tables:
            return {}
        return {
            row[0]: (row[2] if isinstance(row[2], int) else None, str(row[1] or "")[:100].translate(_CONTROLS))
            for rows in self._select("TARGET_INFO_GPU", ("id", "name", "smCount"), "LIMIT 1000")
            for row in rows
            if isinstance(row[0], int)
        }

    def _strings(self) -> tuple[list[str], dict[int, int]]:
        """Return the texts in order, and the index of each by its id in the export."""
        texts: list[str] = []
        ids: dict[int, int] = {}
        if "StringIds" in self._tables:
            for rows in self._select("StringIds", ("id", "value"), "LIMIT 5000000"):
                for number, value in rows:
                    if not isinstance(number, int):
                        continue
                    ids[number] = len(texts)
                    texts.append(str(value)[:MAX_NAME].translate(_CONTROLS))
        return texts, ids

    def _text(self, value: str) -> int:
        self._texts.append(value)
        return len(self._texts) - 1

    def _integers(self, table: str, columns: Sequence[str], more: Sequence[str] = ()) -> Iterator[Any]:
        """Yield the rows in blocks of integers, a row for each column; other values become -1.

        `more`: expressions of integers.
        """
        own = self._columns.get(table, set())
        guarded = [
            f'CASE typeof("{column}") WHEN \'integer\' THEN "{column}" ELSE -1 END' if column in own else "-1"
            for column in columns
        ]
        # Names come from this module, and tables from the file's own list.
        cursor = self._connection.execute(f'SELECT {", ".join((*guarded, *more))} FROM main."{table}"')  # noqa: S608
        while rows := cursor.fetchmany(_ROWS):
            yield np.array(rows, np.int64).T
            self._rows_read += len(rows)
            self._progress(min(1.0, self._rows_read / max(self._rows, 1)))

    def _is_in_graph(self, table: str) -> str:
        parts = [f'"{name}" IS NOT NULL' for name in ("graphId", "graphNodeId") if name in self._columns[table]]
        return f"({' OR '.join(parts)})" if parts else "0"

    def _activities(self) -> dict[str, Any]:
        """Return the columns of all activities of GPUs."""
        self._classes: dict[int, str] = {}
        self._skipped = 0
        numbers = np.array(sorted(self._ids), np.int64)
        places = np.array([self._ids[number] for number in numbers.tolist()], np.int32)
        unknown = self._text("unknown kernel")
        activities = _Columns(self._rows)
        place = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        if _KERNELS in self._tables:
            name = "demangledName" if "demangledName" in self._columns[_KERNELS] else "shortName"
            more = (self._blocks(name), self._is_in_graph(_KERNELS))
            for rows in self._integers(_KERNELS, (*place, name), more):
                activities.add(**self._part(rows, _looked_up(rows[6], numbers, places, unknown), rows[7], rows[8]))
        if _COPIES in self._tables:
            for rows in self._integers(_COPIES, (*place, "copyKind"), (self._is_in_graph(_COPIES),)):
                kinds, inverse = np.unique(rows[6], return_inverse=True)
                names = np.array([self._copy(kind) for kind in kinds.tolist()], np.int32)[inverse]
                activities.add(**self._part(rows, names, None, rows[7]))
        for table, text, given in ((_SETS, "Memset (Device)", MEMSET), (_GRAPHS, "CUDA graph", GRAPH)):
            if table not in self._tables:
                continue
            number = self._text(text)
            self._classes[number] = given
            for rows in self._integers(table, place, (self._is_in_graph(table),)):
                names = np.full(rows.shape[1], number, np.int32)
                is_graph = given == GRAPH
                activities.add(**self._part(rows, names, None, rows[6] | is_graph, whole_graph=is_graph))
        columns = activities.taken()
        if not columns:
            return {"start": np.zeros(0, np.int64)}
        streams, columns["stream"] = np.unique(columns["stream"], return_inverse=True)
        columns["stream"] = columns["stream"].astype(np.int32)
        if streams.size > _MAX_STREAMS:
            raise UnusableProfile(f"The export has more than {_MAX_STREAMS:,} streams.")
        self._streams = [str(stream) for stream in streams.tolist()]
        return columns

    def _blocks(self, name: str) -> str:
        """Return an expression for the thread blocks of communication kernels; those of others are not needed."""
        if not {"gridX", "gridY", "gridZ"} <= self._columns[_KERNELS]:
            return "0"
        numbers = [
            number
            for number, place in self._ids.items()
            if isinstance(number, int) and kernel_class(self._texts[place], self._class_rows).startswith("comm.")
        ][:_MAX_NAMES]
        grid = " * ".join(f"CASE typeof({side}) WHEN 'integer' THEN min(max({side}, 0), 65536) ELSE 0 END" for side in (
            "gridX", "gridY", "gridZ"
        ))  # fmt: skip
        listed = ", ".join(map(str, numbers))
        return f'CASE WHEN "{name}" IN ({listed}) THEN {grid} ELSE 0 END' if numbers else "0"

    def _copy(self, kind: int) -> int:
        direction = _COPY_KINDS.get(kind, "other")
        name = self._copies.get(direction)
        if name is None:
            name = self._copies[direction] = self._text(f"Memcpy {direction}")
            self._classes[name] = {"DtoD": COPY_DEVICE, "PtoP": COPY_PEER}.get(direction, COPY_HOST)
        return name

    def _part(
        self, rows: Any, names: Any, blocks: Any = None, in_graph: Any = None, *, whole_graph: bool = False
    ) -> dict[str, Any]:
        start, end = rows[0], rows[1]
        fine = (end >= start) & (start >= 0) & (end < 2**62)
        if whole_graph:
            fine &= start > 0  # 0 means that no time could be taken
        else:
            self._skipped += int((~fine).sum())
        part = {
            "start": start,
            "end": end,
            "name": names,
            "device": np.clip(rows[2], 0, 2**31 - 1).astype(np.int32),
            "stream": _narrow(rows[3]),
            "correlation": _narrow(rows[4]),
            "process": _narrow(np.maximum(rows[5], 0) // _PROCESS),
            "blocks": np.zeros(start.size, np.int32)
            if blocks is None
            else np.clip(blocks, 0, 2**31 - 1).astype(np.int32),
            "in_graph": np.zeros(start.size, np.bool_) if in_graph is None else in_graph > 0,
            "whole_graph": np.full(start.size, whole_graph),
        }
        return {name: column[fine] for name, column in part.items()}

    def _calls(self) -> tuple[HostCalls, Any, Any]:
        """Return the runtime calls of all processes, the process and the correlation of each."""
        numbers = np.array(sorted(self._ids), np.int64)
        places = np.array([self._ids[number] for number in numbers.tolist()], np.int32)
        unknown = self._text("unknown call")
        table = _Columns(self._last_row(_CALLS))
        if _CALLS in self._tables:
            for rows in self._integers(_CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
                names = _looked_up(rows[4], numbers, places, unknown)
                table.add(start=rows[0], end=rows[1], thread=rows[2], correlation=_narrow(rows[3]), name=names)
        columns = table.taken()
        if not columns:
            empty = np.zeros(0, np.int64)
            return HostCalls(empty, empty, empty.astype(np.int32), empty.astype(np.int32)), empty, empty
        start, end, threads, correlation, name = columns.values()
        self._threads = np.unique(threads)
        thread = np.searchsorted(self._threads, threads).astype(np.int32)
        return HostCalls(start, end, thread, name), threads // _PROCESS, correlation

    def _waits(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """Return the waits of streams by process: stream, call, source stream and its call. See `make_waits`.

        Joined by `eventSyncId`, because `eventId` is reused.
        """
        if not {_SYNCHRONIZATION, _EVENTS} <= self._tables or "eventSyncId" not in self._columns[_EVENTS]:
            return {}
        streams = {text: at for at, text in enumerate(self._streams)}
        records: dict[tuple[int, int], tuple[int, int]] = {}
        for rows in self._integers(_EVENTS, ("globalPid", "eventSyncId", "streamId", "correlationId")):
            for process, event, stream, correlation in rows.T.tolist():
                if len(records) < _MAX_WAITS and str(stream) in streams:
                    records[process, event] = streams[str(stream)], correlation
        waits: dict[int, list[tuple[int, int, int, int]]] = {}
        columns = ("globalPid", "eventSyncId", "streamId", "correlationId", "syncType")
        count = 0
        for rows in self._integers(_SYNCHRONIZATION, columns):
            for process, event, stream, correlation, kind in rows.T.tolist():
                record = records.get((process, event))
                if kind != _STREAM_WAITS_FOR_EVENT or record is None or str(stream) not in streams:
                    continue
                count += 1
                if count <= _MAX_WAITS:
                    waits.setdefault(process // _PROCESS, []).append((streams[str(stream)], correlation, *record))
        return waits

    def _ranges(self) -> list[tuple[int, HostRange]]:
        """Return the process and the range of steps, collectives and ranks that NVTX names."""
        if "NVTX_EVENTS" not in self._tables:
            return []
        threads = getattr(self, "_threads", np.zeros(0, np.int64))
        ranges: list[tuple[int, HostRange]] = []
        where = f"WHERE eventType IN ({_PUSH_POP}, {_START_END})" if "eventType" in self._columns["NVTX_EVENTS"] else ""
        interesting: dict[object, tuple[str, int | None] | None] = {}
        for rows in self._select("NVTX_EVENTS", ("start", "end", "text", "textId", "globalTid"), where):
            for start, end, text, text_id, thread in rows:
                if not isinstance(start, int) or not isinstance(end, int) or not isinstance(thread, int):
                    continue
                key = text if text is not None else text_id
                if key not in interesting:
                    name = (
                        text
                        if isinstance(text, str)
                        else self._texts[self._ids[text_id]]
                        if text_id in self._ids
                        else ""
                    )
                    step = _STEP.match(name[:200].strip())
                    is_kept = step is not None or name.startswith("nccl:") or _RANK.search(name[:200])
                    interesting[key] = (name[:200], int(step[1]) if step else None) if is_kept else None
                event = interesting[key]
                if event is None or end < start or len(ranges) >= _MAX_RANGES:
                    continue
                at = int(np.searchsorted(threads, thread))
                is_known = at < threads.size and threads[at] == thread
                ranges.append((thread // _PROCESS, HostRange(start, end, at if is_known else -1, event[0], event[1])))
        return ranges

    def _of_process(
        self, ranges: list[tuple[int, HostRange]], process: int
    ) -> tuple[tuple[HostRange, ...], list[HostRange]]:
        """Return the steps of a process, when one kind of range recurs, and its named collectives."""
        own = [item for owner, item in ranges if owner == process]
        kinds: dict[str, list[HostRange]] = {}
        for item in own:
            if item.number is not None:
                kinds.setdefault(item.name.rstrip("0123456789"), []).append(item)
        steps = max(kinds.values(), key=len, default=[])
        return tuple(sorted(steps, key=lambda item: item.start)), [i for i in own if i.name.startswith("nccl:")]

    def _rank(self, ranges: list[tuple[int, HostRange]], process: int) -> int | None:
        ranks = {int(match[1]) for owner, item in ranges if owner == process and (match := _RANK.search(item.name))}
        return ranks.pop() if len(ranks) == 1 else None


class _Columns:
    """Columns that grow in place: joining parts at the end would need twice the memory."""

    def __init__(self, rows: int) -> None:
        self._room = min(max(rows, 1), _MAX_ROOM)
        self._size = 0
        self._columns: dict[str, Any] = {}

    def add(self, **part: Any) -> None:
        """Append a block. A column becomes wider when a block needs it."""
        count = len(part["start"])
        while self._size + count > self._room:
            self._room *= 2
        for name, values in part.items():
            column = self._columns.get(name)
            if column is None:
                column = np.empty(self._room, values.dtype)
            elif len(column) < self._room or column.dtype.itemsize < values.dtype.itemsize:
                wider = np.empty(self._room, np.promote_types(column.dtype, values.dtype))
                wider[: self._size] = column[: self._size]
                column = wider
            column[self._size : self._size + count] = values
            self._columns[name] = column
        self._size += count

    def taken(self) -> dict[str, Any]:
        """Return the columns and release them."""
        columns, self._columns = self._columns, {}
        return {name: column[: self._size] for name, column in columns.items()} if self._size else {}


def _narrow(column: Any) -> Any:
    """Return integers in half the memory where they fit; else the columns are widened."""
    fits = column.size and column.min() >= -(2**31) and column.max() < 2**31
    return column.astype(np.int32) if fits else column


def _looked_up(ids: Any, numbers: Any, places: Any, unknown: int) -> Any:
    """Return the index of each id among the texts, `unknown` if there is none."""
    if not numbers.size:
        return np.full(ids.size, unknown, np.int32)
    at = np.minimum(np.searchsorted(numbers, ids), numbers.size - 1)
    return np.where(numbers[at] == ids, places[at], unknown).astype(np.int32)


# --- Tables of `nsys stats` as CSV: every activity with its start, or only sums of kernel times.
#
# `cuda_gpu_trace` contains no launches, so gaps have no reason. `cuda_gpu_kern_sum` and `cuda_gpu_mem_time_sum` contain
# no timestamps: shares of sums say nothing about the step, because kernels overlap.

_HEADER_LINES = 40
"""`nsys stats` prints notes before its table."""
_MAX_LINE = 65_536
_MAX_ROWS = 20_000_000
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

"""Reads the SQLite export of Nsight Systems. The caller opens the file, read-only and immutable.

Tables and columns differ by version: a missing one means that nothing is known. Rows may come in any order.
"""

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from app.domain.profiles.kernels import COPY_DEVICE, COPY_HOST, COPY_PEER, GRAPH, MEMSET
from app.domain.profiles.trace import MAX_NAME, HostCalls, HostRange, Trace, UnusableProfile, join_launches, make_device

_ROWS = 50_000
_MAX_ROWS = 50_000_000
_MAX_RANGES = 200_000
_MAX_DEVICES = 64
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
_PUSH_POP, _START_END = 59, 60
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_NO_KERNELS = (
    "The export holds no table of GPU kernels. Was CUDA traced? Record with `nsys profile --trace=cuda,nvtx` and "
    "export with `nsys export --type sqlite`."
)


def read_nsight(connection: sqlite3.Connection, seconds: float = 600.0) -> Trace:
    """Read the export within `seconds` of processor time. Raises UnusableProfile."""
    stop = time.process_time() + seconds
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.set_progress_handler(lambda: time.process_time() > stop, _STEP_INSTRUCTIONS)
    try:
        return _Export(connection).read()
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise UnusableProfile("Reading the export takes too long. Export fewer steps.") from None
        raise UnusableProfile(f"The SQLite file cannot be read: {error}.") from None
    except (sqlite3.DatabaseError, OverflowError, ValueError) as error:
        raise UnusableProfile(f"This is no SQLite export, or a damaged one: {error}.") from None


class _Export:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT name, type FROM main.sqlite_schema WHERE type IN ('table', 'view')")
        kinds = dict(rows.fetchmany(10_000))
        self._tables = {name for name, kind in kinds.items() if kind == "table"}
        self._columns = {name: self._columns_of(name) for name in self._tables if name.isidentifier()}

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
        ranges = self._ranges()
        result.events = int(activities["start"].size + calls.start.size)
        result.skipped = self._skipped
        if result.skipped > 0.01 * (result.events + result.skipped):
            raise UnusableProfile(
                f"{result.skipped:,} rows of the export have no usable time. Export the report again."
            )
        processes = np.unique(activities["process"])
        pairs = np.unique(np.stack((activities["process"], activities["device"])), axis=1).T
        if len(pairs) > _MAX_DEVICES:
            raise UnusableProfile(f"The export names more than {_MAX_DEVICES} devices.")
        gpus = self._gpus()
        for process in processes:
            of_process = np.flatnonzero(calls_process == process)
            own = HostCalls(
                calls.start[of_process], calls.end[of_process], calls.thread[of_process], calls.name[of_process]
            )
            steps, named = self._of_process(ranges, int(process))
            for device in (int(pair[1]) for pair in pairs if pair[0] == process):
                places = np.flatnonzero((activities["process"] == process) & (activities["device"] == device))
                columns = {name: column[places] for name, column in activities.items()}
                columns["launch"] = join_launches(columns["correlation"], calls_correlation[of_process], own.start)
                launched = columns["launch"] >= 0
                late = columns["start"][launched] < own.start[columns["launch"][launched]]
                result.clock_disorder += int(late.sum())
                sms, gpu = gpus.get(device, (None, ""))
                result.devices.append(
                    make_device(
                        f"{process}:{device}",
                        columns,
                        names=self._texts,
                        streams=self._streams,
                        calls=own,
                        classes=self._classes,
                        ranges=named,
                        steps=steps,
                        sms=sms,
                        gpu=gpu,
                        whole_graphs=int(columns["whole_graph"].sum()),
                        rank=self._rank(ranges, int(process)),
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
        """Return the texts in order, and the place of each by its id in the export."""
        texts: list[str] = []
        ids: dict[int, int] = {}
        if "StringIds" in self._tables:
            for rows in self._select("StringIds", ("id", "value"), "LIMIT 5000000"):
                for number, value in rows:
                    ids[number] = len(texts)
                    texts.append(str(value)[:MAX_NAME].translate(_CONTROLS))
        return texts, ids

    def _text(self, value: str) -> int:
        self._texts.append(value)
        return len(self._texts) - 1

    def _activities(self) -> dict[str, Any]:
        """Return the columns of all activities of GPUs."""
        self._classes: dict[int, str] = {}
        self._streams: list[str] = []
        self._stream_ids: dict[int, int] = {}
        self._skipped = 0
        unknown = self._text("unknown kernel")
        parts: list[dict[str, Any]] = []
        place = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        kernel = (*place, "demangledName", "shortName", "gridX", "gridY", "gridZ", "graphId", "graphNodeId")
        if _KERNELS in self._tables:
            for rows in self._select(_KERNELS, kernel):
                columns = list(zip(*rows, strict=True))
                names = [
                    self._ids.get(full if full is not None else short, unknown)
                    for full, short in zip(columns[6], columns[7], strict=True)
                ]
                grid = np.prod([_numbers(columns[at], 0) for at in (8, 9, 10)], axis=0)
                graph = [a is not None or b is not None for a, b in zip(columns[11], columns[12], strict=True)]
                parts.append(self._part(columns, names, blocks=grid, in_graph=graph))
        if _COPIES in self._tables:
            kinds: dict[object, int] = {}
            for rows in self._select(_COPIES, (*place, "copyKind", "graphNodeId")):
                columns = list(zip(*rows, strict=True))
                names = [kinds[kind] if kind in kinds else self._copy(kind, kinds) for kind in columns[6]]
                parts.append(self._part(columns, names, in_graph=[node is not None for node in columns[7]]))
        if _SETS in self._tables:
            name = self._text("Memset (Device)")
            self._classes[name] = MEMSET
            for rows in self._select(_SETS, (*place, "graphNodeId")):
                columns = list(zip(*rows, strict=True))
                graph = [node is not None for node in columns[6]]
                parts.append(self._part(columns, [name] * len(rows), in_graph=graph))
        if _GRAPHS in self._tables:
            name = self._text("CUDA graph")
            self._classes[name] = GRAPH
            for rows in self._select(_GRAPHS, place):
                columns = list(zip(*rows, strict=True))
                parts.append(self._part(columns, [name] * len(rows), in_graph=[True] * len(rows), whole_graph=True))
        if not parts:
            return {"start": np.zeros(0, np.int64)}
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _copy(self, kind: object, kinds: dict[object, int]) -> int:
        direction = _COPY_KINDS.get(kind if isinstance(kind, int) else 0, "other")
        name = kinds[kind] = self._text(f"Memcpy {direction}")
        self._classes[name] = {"DtoD": COPY_DEVICE, "PtoP": COPY_PEER}.get(direction, COPY_HOST)
        return name

    def _part(
        self,
        columns: list[Any],
        names: list[int],
        *,
        blocks: Any = None,
        in_graph: Any = None,
        whole_graph: bool = False,
    ) -> dict[str, Any]:
        start, end = _numbers(columns[0], -1), _numbers(columns[1], -2)
        fine = (end >= start) & (start >= 0) & (end < 2**62)
        if whole_graph:
            fine &= start > 0  # 0 means that no time could be taken
        else:
            self._skipped += int((~fine).sum())
        size = start.size
        part = {
            "start": start,
            "end": end,
            "name": np.array(names, np.int32),
            "device": _numbers(columns[2], 0).astype(np.int32),
            "stream": np.array([self._stream(stream) for stream in columns[3]], np.int32),
            "correlation": _numbers(columns[4], 0),
            "process": _numbers(columns[5], 0) // _PROCESS,
            "blocks": np.zeros(size, np.int32) if blocks is None else np.clip(blocks, 0, 2**31 - 1).astype(np.int32),
            "in_graph": np.array(in_graph, np.bool_),
            "whole_graph": np.full(size, whole_graph),
        }
        return part if fine.all() else {name: column[fine] for name, column in part.items()}

    def _stream(self, stream: Any) -> int:
        number = self._stream_ids.get(stream)
        if number is None:
            number = self._stream_ids[stream] = len(self._streams)
            if number >= 10_000:
                raise UnusableProfile("The export names more than 10,000 streams.")
            self._streams.append(str(stream))
        return number

    def _calls(self) -> tuple[HostCalls, Any, Any]:
        """Return the runtime calls of all processes, the process and the correlation of each."""
        parts: list[tuple[Any, ...]] = []
        unknown = self._text("unknown call")
        if _CALLS in self._tables:
            for rows in self._select(_CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
                starts, ends, tids, correlations, ids = zip(*rows, strict=True)
                names = np.array([self._ids.get(number, unknown) for number in ids], np.int32)
                parts.append(
                    (_numbers(starts, 0), _numbers(ends, 0), _numbers(tids, 0), _numbers(correlations, 0), names)
                )
        if not parts:
            empty = np.zeros(0, np.int64)
            return HostCalls(empty, empty, empty.astype(np.int32), empty.astype(np.int32)), empty, empty
        start, end, threads, correlation, name = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._threads = np.unique(threads)
        thread = np.searchsorted(self._threads, threads).astype(np.int32)
        return HostCalls(start, end, thread, name), threads // _PROCESS, correlation

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
                kept = interesting[key]
                if kept is None or end < start or len(ranges) >= _MAX_RANGES:
                    continue
                at = int(np.searchsorted(threads, thread))
                is_known = at < threads.size and threads[at] == thread
                ranges.append((thread // _PROCESS, HostRange(start, end, at if is_known else -1, kept[0], kept[1])))
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


def _numbers(values: Sequence[Any], missing: int) -> Any:
    """Return the values of a column as integers."""
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array(
            [v if isinstance(v, int) and abs(v) < 2**62 else missing for v in values],
            np.int64,
        )

"""Reads Kineto traces (PyTorch profiler, CUDA and ROCm) as a stream of bytes, in blocks that end between two events.

A block is decoded into typed structures that lack the unwanted fields. Where that fails (a broken event, another
writer, a cut file), a scanner finds the events of the block and each is decoded alone.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from app.domain.profiles.kernels import EXPERT_COMMUNICATION, ClassRow, kernel_class
from app.domain.profiles.trace import (
    MAX_NAME,
    HostCalls,
    HostRange,
    Trace,
    UnusableProfile,
    join_launches,
    make_device,
    make_waits,
)

_BLOCK = 2 << 20
_LARGEST_EVENT = 8 << 20
_LARGEST_HEAD = 32 << 20
_DEEPEST = 64
_MAX_EVENTS = 1_000_000_000
_MAX_SKIPPED_SHARE = 0.01
_EXACT_BELOW_US = 8.9e12
"""A double represents nanoseconds exactly below this many microseconds."""
_MAX_US = 9.2e15
_MAX_RANGES = 100_000
_MAX_WAITS = 1_000_000
_MAX_STREAMS = 10_000
_MAX_DEVICES = 64

_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_BORDER = re.compile(rb"\}\s*,\s*\{")
_CLOSING = re.compile(rb"\}\s*\]")
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|"|[{}\[\]]', re.DOTALL)
_LONG_FRACTION = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.\d*[1-9]')
_CONTROLS = dict.fromkeys(range(32), 32)
_STEP = re.compile(r"ProfilerStep#(\d{1,12})$")
_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"))
_HOST = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime", "Driver"))
_OTHERS = frozenset(("user_annotation", "cuda_sync"))
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_TWO_RANKS = (
    "Two ranks wrote to this file: it contains a second trace. Let each rank write its own file, for example "
    "rank-0.json.gz."
)


class _Args(msgspec.Struct, gc=False, frozen=True):
    correlation: Any = None
    device: Any = None
    stream: Any = None
    grid: Any = None
    graph_id: Any = msgspec.field(default=None, name="graph id")
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=None, name="Seq")
    wait_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    wait_record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    """Without `ph`: of the wanted categories only complete events exist."""

    cat: str | None = None
    name: Any = None
    ts: float | None = None
    dur: float | None = None
    pid: Any = None
    tid: Any = None
    args: _Args = _NO_ARGS


class _ExactEvent(msgspec.Struct, gc=False):
    cat: str | None = None
    name: Any = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    pid: Any = None
    tid: Any = None
    args: _Args = _NO_ARGS


_decode = msgspec.json.Decoder(list[_Event]).decode
_decode_exactly = msgspec.json.Decoder(list[_ExactEvent]).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def read_kineto(chunks: Iterable[bytes], rows: tuple[ClassRow, ...] = ()) -> Trace:
    """Read the decompressed bytes of a trace. `rows`: kernel classes of a team. Raises UnusableProfile."""
    reader = _TraceReader(rows)
    chunks = iter(chunks)
    rest, array = _skip_head(reader, chunks)
    parts, size = [rest], len(rest)
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= _BLOCK or reader.closed:
            joined = b"".join(parts)
            rest = reader.tail(joined) if reader.closed else reader.block(joined)
            parts, size = [rest], len(rest)
    reader.finish(b"".join(parts), array=array)
    return reader.trace()


def _skip_head(reader: "_TraceReader", chunks: Iterator[bytes]) -> tuple[bytes, bool]:
    """Read up to the first event. Return what follows, and whether the file is the bare array of events."""
    head = b""
    for chunk in chunks:
        head = (head + chunk).lstrip(b"\xef\xbb\xbf \t\r\n\0" if len(head) < 4 else b"")
        if head.startswith(b"["):
            reader.begin(1)
            return head[1:], True
        if head and not head.startswith(b"{"):
            raise UnusableProfile("Not a trace: not JSON. Upload the .json or .json.gz file of the profiler.")
        if match := _HEAD.search(head, max(0, len(head) - len(chunk) - 64)):
            reader.begin(match.end())
            reader.metadata(head[: match.end()] + b"]}")
            return head[match.end() :], False
        if len(head) > _LARGEST_HEAD:
            break
    if not head:
        raise UnusableProfile("The file is empty. Check that the profiler wrote it: the job may have ended before.")
    raise UnusableProfile('Not a trace: JSON without "traceEvents". Upload the file that the profiler wrote.')


def _sanitised(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").translate(_CONTROLS).encode()


class _TraceReader:
    def __init__(self, rows: tuple[ClassRow, ...]) -> None:
        self._rows = rows
        self.closed = False
        self._tail = b""
        self._events = self._timed = self._skipped = 0
        self._cut_after = -1
        self._bytes = 0
        self._names: dict[Any, int] = {}
        self._texts: list[str] = []
        self._streams: dict[str, int] = {}
        self._devices: dict[str, int] = {}
        self._threads: dict[Any, int] = {}
        self._places: dict[Any, tuple[int, int]] = {}
        self._thread_keys: dict[Any, int] = {}
        self._device_columns: list[tuple[Any, ...]] = []
        self._call_columns: list[tuple[Any, ...]] = []
        self._collectives: dict[int, dict[str, Any]] = {}
        self._ranges: list[HostRange] = []
        self._waits: list[tuple[int, int, int, int]] = []
        self._device_events = 0
        self._fraction = False
        self._metadata: dict[str, Any] = {}

    # --- From bytes to events

    def begin(self, position: int) -> None:
        """State at which byte the events begin."""
        self._bytes = position

    def metadata(self, text: bytes) -> None:
        for data in (text, _sanitised(text)):
            try:
                document = msgspec.json.decode(data)
            except _UNDECODABLE:
                continue
            if isinstance(document, dict):
                document.pop("traceEvents", None)
                self._metadata |= document
            return

    def block(self, data: bytes) -> bytes:
        """Read the whole events of `data` and return the rest."""
        cut = len(data)
        for _ in range(64):
            cut = data.rfind(b"}", 0, cut)
            if cut <= 0:
                break
            if _BORDER.match(data, cut) and self._take(b"[" + data[: cut + 1] + b"]"):
                begin = data.index(b"{", cut)
                self._bytes += begin
                return data[begin:]
        return self._scan(data)

    def finish(self, data: bytes, *, array: bool) -> None:
        """Read the last events and the metadata behind them."""
        if not self.closed:
            cut = len(data)
            for _ in range(64):
                cut = data.rfind(b"]", 0, cut)
                at = data.rfind(b"}", 0, cut)
                if cut <= 0 or at < 0:
                    break
                if _CLOSING.match(data, at) and self._take(b"[" + data[:cut] + b"]"):
                    self.closed, data = True, data[cut + 1 :]
                    break
            else:
                cut = -1
            if not self.closed:
                data = self._scan(data)
                while not self.closed and data and (rest := self._scan(data)) != data:
                    data = rest
        if self.closed:
            self.tail(data)
            if not array and self._tail.strip():
                self._read_tail()
        else:
            if _HEAD.search(data):
                raise UnusableProfile(_TWO_RANKS)
            self._cut_after = self._bytes

    def tail(self, data: bytes) -> bytes:
        self._tail += data
        if _HEAD.search(self._tail):
            raise UnusableProfile(_TWO_RANKS)
        if len(self._tail) > _LARGEST_HEAD:
            raise UnusableProfile("The file continues for more than 32 MiB after its events. Upload the trace alone.")
        return b""

    def _read_tail(self) -> None:
        text = self._tail.strip()
        if text.startswith(b","):
            self.metadata(b"{" + text[1:])

    def _take(self, text: bytes) -> bool:
        """Decode an array of events. False when it is not valid as a whole."""
        try:
            events: list[Any] = _decode(text)
        except _UNDECODABLE:
            return False
        if _needs_exact(events, text):
            try:
                events = _decode_exactly(text)
            except (msgspec.DecodeError, UnicodeDecodeError, ArithmeticError):
                return False
        self._add(events)
        return True

    def _scan(self, data: bytes) -> bytes:
        """Find the events of a block that does not decode as a whole; read what is whole and return the rest."""
        depth, begin, last = 0, -1, 0
        spans: list[tuple[int, int]] = []
        for token in _TOKEN.finditer(data):
            mark = data[token.start()]
            if mark in b"{[":
                if depth == 0:
                    begin = token.start()
                depth += 1
                if depth > _DEEPEST:
                    raise UnusableProfile(f"Not a trace: nested deeper than {_DEEPEST} levels.")
            elif mark in b"}]":
                if depth == 0:
                    if mark == ord("]"):
                        self.closed = True
                        last = token.end()
                    break
                depth -= 1
                if depth == 0:
                    spans.append((begin, token.end()))
                    last = token.end()
            elif token.end() == token.start() + 1:  # a text without an end
                break
        if not spans and not self.closed and _HEAD.search(data):
            raise UnusableProfile(_TWO_RANKS)
        self._take_each(data, spans)
        rest = data[last:].lstrip(b" \t\r\n,") if not self.closed else data[last:]
        self._bytes += len(data) - len(rest)
        if len(rest) > _LARGEST_EVENT and not self.closed:
            raise UnusableProfile("Not a trace: an event is larger than 8 MiB.")
        return rest

    def _take_each(self, data: bytes, spans: list[tuple[int, int]]) -> None:
        if not spans:
            return
        whole = b"[" + data[spans[0][0] : spans[-1][1]] + b"]"
        if self._take(whole) or self._take(_sanitised(whole)):
            return
        events = []
        for first, end in spans:
            text = data[first:end]
            try:
                events.append(_decode_event(text))
            except _UNDECODABLE:
                try:
                    events.append(_decode_event(_sanitised(text)))
                except _UNDECODABLE:
                    if _HEAD.search(text):
                        raise UnusableProfile(_TWO_RANKS) from None
                    self._timed += 1
                    self._skipped += 1
        self._add(events)

    # --- From events to columns

    def _add(self, events: list[Any]) -> None:
        self._events += len(events)
        if self._events > _MAX_EVENTS:
            raise UnusableProfile("The trace contains more than a billion events. Profile fewer steps.")
        of_device, of_host = [], []
        for event in events:
            category = event.cat
            if category in _HOST:
                of_host.append(event)
            elif category in _DEVICE:
                of_device.append(event)
            elif category in _OTHERS:
                self._add_other(event)
        self._timed += len(of_device) + len(of_host)
        device, host = self._with_times(of_device), self._with_times(of_host)
        if device[0]:
            self._add_device(*device)
        if host[0]:
            self._add_calls(*host)

    def _with_times(self, events: list[Any]) -> tuple[list[Any], Any, Any]:
        """Return the events with usable times, and their starts and ends in nanoseconds."""
        if not events:
            return events, None, None
        usable = [event for event in events if event.ts is not None and event.dur is not None]
        if not usable:
            self._skipped += len(events)
            return [], None, None
        exact = isinstance(usable[0], _ExactEvent)
        ts = np.array([event.ts for event in usable], np.float64)
        dur = np.array([event.dur for event in usable], np.float64)
        fine = (np.abs(ts) < _MAX_US) & (dur >= 0) & (dur < _MAX_US)  # false for NaN
        if not fine.all():
            usable = [event for event, is_fine in zip(usable, fine, strict=True) if is_fine]
            ts, dur = ts[fine], dur[fine]
        self._skipped += len(events) - len(usable)
        if exact:
            start = np.array([int(event.ts * 1000) for event in usable], np.int64)
            length = np.array([int(event.dur * 1000) for event in usable], np.int64)
        else:
            start, length = _nanoseconds(ts), _nanoseconds(dur)
        self._fraction = self._fraction or bool((start % 1000).any())
        return usable, start, start + length

    def _names_of(self, events: list[Any]) -> Any:
        names = self._names
        try:
            return np.array([names[event.name] for event in events], np.int32)
        except (KeyError, TypeError):
            return np.array([self._name(event.name) for event in events], np.int32)

    def _add_device(self, events: list[Any], start: Any, end: Any) -> None:
        name, args = self._names_of(events), [event.args for event in events]
        places = self._of_each(self._places, [(arg.device, arg.stream) for arg in args], events, self._place)
        devices, streams = (np.array(column, np.int32) for column in zip(*places, strict=True))
        correlation = _integers([arg.correlation for arg in args])
        blocks = np.zeros(len(events), np.int32)
        for at, arg in enumerate(args):
            if arg.collective is not None or "nccl" in self._texts[name[at]][:8]:
                blocks[at] = _blocks(arg.grid)
                if arg.collective is not None:
                    self._collectives[self._device_events + at] = {
                        "name": str(arg.collective)[:100],
                        "group": _text(arg.group),
                        "description": _text(arg.description),
                        "ranks": _text(arg.ranks),
                        "seq": _integer(arg.seq),
                        "elements_in": _integer(arg.elements_in),
                        "elements_out": _integer(arg.elements_out),
                        "dtype": _text(arg.dtype),
                    }
            elif arg.grid is not None and kernel_class(self._texts[name[at]], self._rows) == EXPERT_COMMUNICATION:
                blocks[at] = _blocks(arg.grid)
        graph = np.array([arg.graph_id is not None or arg.graph_node is not None for arg in args], np.bool_)
        self._device_columns.append((start, end, name, devices, streams, correlation, blocks, graph))
        self._device_events += len(events)

    def _add_calls(self, events: list[Any], start: Any, end: Any) -> None:
        name = self._names_of(events)
        keys = [(event.pid, event.tid) for event in events]
        thread = np.array(self._of_each(self._thread_keys, keys, events, self._thread), np.int32)
        correlation = _integers([event.args.correlation for event in events])
        self._call_columns.append((start, end, name, thread, correlation))

    def _add_range(self, event: Any) -> None:
        if event.ts is None or event.dur is None or not isinstance(event.name, str):
            return
        step = _STEP.match(event.name)
        if step is None and not event.name.startswith(("nccl:", "enumerate(DataLoader)")):
            return
        usable, start, end = self._with_times([event])
        if usable:
            self._ranges.append(
                HostRange(int(start[0]), int(end[0]), self._thread(event), event.name, int(step[1]) if step else None)
            )

    def _add_other(self, event: Any) -> None:
        if event.cat == "user_annotation" and len(self._ranges) < _MAX_RANGES:
            self._add_range(event)
        elif event.cat == "cuda_sync" and len(self._waits) < _MAX_WAITS:
            self._add_wait(event)

    def _add_wait(self, event: Any) -> None:
        """Note that a stream waits for an event of another stream."""
        waiting, recording = _integer(event.args.correlation), _integer(event.args.wait_record)
        if event.args.wait_stream is None or event.args.stream is None or waiting is None or recording is None:
            return
        source = self._streams.setdefault(str(event.args.wait_stream)[:64], len(self._streams))
        self._waits.append((self._stream(event), waiting, source, recording))

    def _name(self, name: object) -> int:
        text = name if isinstance(name, str) else ""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._texts)
            self._texts.append(text[:MAX_NAME].translate(_CONTROLS))
        return number

    def _of_each(
        self, seen: dict[Any, Any], keys: list[Any], events: list[Any], make: Callable[[Any], Any]
    ) -> list[Any]:
        """Return what each event's key stands for; `make` finds it from an event whose key is new."""
        try:
            return [seen[key] for key in keys]
        except (KeyError, TypeError):  # TypeError: a key of a broken trace may be a list
            pass
        values = []
        for key, event in zip(keys, events, strict=True):
            value = make(event)
            if None not in key and all(isinstance(part, int | str) for part in key):
                seen[key] = value
            values.append(value)
        return values

    def _place(self, event: Any) -> tuple[int, int]:
        return self._device(event), self._stream(event)

    def _device(self, event: Any) -> int:
        device = event.args.device
        text = str(event.pid if device is None else device)[:64]
        number = self._devices.setdefault(text, len(self._devices))
        if number >= _MAX_DEVICES:
            raise UnusableProfile(f"The trace has more than {_MAX_DEVICES} devices.")
        return number

    def _stream(self, event: Any) -> int:
        stream = event.args.stream
        text = str(event.tid if stream is None else stream)[:64]
        number = self._streams.setdefault(text, len(self._streams))
        if number >= _MAX_STREAMS:
            raise UnusableProfile(f"The trace has more than {_MAX_STREAMS:,} streams.")
        return number

    def _thread(self, event: Any) -> int:
        key = f"{event.pid}/{event.tid}"
        return self._threads.setdefault(key, len(self._threads))

    # --- From columns to the trace

    def trace(self) -> Trace:
        if self._timed and self._skipped > _MAX_SKIPPED_SHARE * self._timed:
            raise UnusableProfile(
                f"{self._skipped:,} of {self._timed:,} events have no usable time (missing, negative, infinite or "
                "text). The trace is damaged; record it again."
            )
        if not self._device_events and self._cut_after >= 0:
            raise UnusableProfile(
                f"The file ends early, after byte {self._cut_after:,} of its text, before any GPU activity. "
                "Copy the complete file again."
            )
        if not self._device_events:
            raise UnusableProfile(
                "The trace contains no GPU activity. Was CUDA activity traced? Use "
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
                if self._events
                else "The trace contains no events. Check that the profiled steps ran before the profiler was stopped."
            )
        result = Trace("kineto")
        self._describe(result)
        start, end, name, device, stream, correlation, blocks, graph = _joined(self._device_columns)
        calls, calls_correlation = self._calls()
        launch = join_launches(correlation, calls_correlation, calls.start)
        streams = list(self._streams)
        waits = make_waits(self._waits, calls_correlation, calls.start)
        for text, number in self._devices.items():
            places = np.flatnonzero(device == number)
            if not places.size:
                continue
            columns = {
                "start": start,
                "end": end,
                "name": name,
                "stream": stream,
                "launch": launch,
                "blocks": blocks,
                "in_graph": graph,
            }
            if places.size < device.size:
                columns = {column: values[places] for column, values in columns.items()}
            own = dict(zip(places.tolist(), range(places.size), strict=True)) if self._collectives else {}
            info = self._gpu(text)
            result.devices.append(
                make_device(
                    text,
                    columns,
                    names=self._texts,
                    streams=streams,
                    calls=calls,
                    collectives={own[at]: values for at, values in self._collectives.items() if at in own},
                    ranges=[item for item in self._ranges if item.name.startswith("nccl:")],
                    steps=tuple(sorted((r for r in self._ranges if r.number is not None), key=lambda r: r.start)),
                    loading=tuple(r for r in self._ranges if r.name.startswith("enumerate")),
                    rows=self._rows,
                    waits=waits,
                    sms=info[0],
                    gpu=info[1],
                    rank=result.rank,
                )
            )
        launched = launch >= 0
        result.clock_disorder = int((start[launched] < calls.start[launch[launched]]).sum())
        return result

    def _describe(self, result: Trace) -> None:
        info = self._metadata.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        result.rank = _integer(info.get("rank"))
        result.rank_from = "trace" if result.rank is not None else ""
        result.world_size = _integer(info.get("world_size"))
        result.backend = str(info.get("backend") or "")[:64]
        result.version = str(self._metadata.get("schemaVersion") or "")[:32]
        result.base_ns = _integer(self._metadata.get("baseTimeNanoseconds")) or 0
        result.events, result.skipped = self._events, self._skipped
        result.whole_microseconds = not self._fraction
        if self._cut_after >= 0:
            result.incomplete = f"The file ends early, after byte {self._cut_after:,} of its text."

    def _gpu(self, device: str) -> tuple[int | None, str]:
        properties = self._metadata.get("deviceProperties")
        for item in properties if isinstance(properties, list) else ():
            if isinstance(item, dict) and str(item.get("id")) == device:
                return _integer(item.get("numSms")), str(item.get("name") or "")[:100].translate(_CONTROLS)
        return None, ""

    def _calls(self) -> tuple[HostCalls, Any]:
        if not self._call_columns:
            empty = np.zeros(0, np.int64)
            ids = np.zeros(0, np.int32)
            return HostCalls(empty, empty, ids, ids), empty
        start, end, name, thread, correlation = _joined(self._call_columns)
        return HostCalls(start, end, thread, name), correlation


def _joined(blocks: list[tuple[Any, ...]]) -> list[Any]:
    """Join the columns of all blocks; each block's part is freed as soon as its column is joined."""
    columns = [list(parts) for parts in zip(*blocks, strict=True)]
    blocks.clear()
    joined = []
    while columns:
        joined.append(np.concatenate(columns.pop(0)))
    return joined


def _needs_exact(events: list[Any], text: bytes) -> bool:
    largest = max((abs(event.ts) for event in events[:8] if event.ts is not None), default=0.0)
    return largest > _EXACT_BELOW_US and _LONG_FRACTION.search(text) is not None


def _nanoseconds(microseconds: Any) -> Any:
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def _integers(values: list[Any]) -> Any:
    """Return the values as integers, 0 where there is none."""
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) or 0 for value in values], np.int64)


def _integer(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**62:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**62:
        return None
    return value


def _blocks(grid: object) -> int:
    """Return the number of thread blocks of a launch, 0 when unknown."""
    if not isinstance(grid, list) or not grid:
        return 0
    product = 1
    for size in grid:
        product *= _integer(size) or 0
    return product if 0 < product < 2**31 else 0


def _text(value: object) -> str:
    return "" if value is None else str(value)[:500]

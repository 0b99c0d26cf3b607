"""Reads the memory lines of Megatron-LM (MiB, called MB) and of Megatron-Bridge (10^9 bytes, GB) into bytes.

Several ranks print concurrently without a lock, so a line can contain two reports, and a report can be split.
"""

import re
from collections.abc import Sequence

from app.domain.logs.iterations import number
from app.domain.logs.lines import Notes, without_colours
from app.domain.run import MemoryReport

MAX_REPORTS = 20_000
"""Reports kept; after that, only the highest of each rank. Trainers print one or two per process."""

_HEAD_LENGTH = 60
"""Bytes before the key that hold rank and iteration."""

MAX_REPORT = 2000
"""Bytes of one report. Real ones have up to 400."""

UNITS = {b"MB": 2**20, b"GB": 10**9}
_HEAD = re.compile(rb"(?:\[Rank (\d{1,7})\] ?)?\(after (\d{1,12}) iterations\) memory \((MB|GB)\) ?\|")
_NAMES = {
    b"allocated": "allocated_bytes",
    b"max allocated": "max_allocated_bytes",
    b"reserved": "reserved_bytes",
    b"max reserved": "max_reserved_bytes",
    b"mem-allocated-gigabytes": "allocated_bytes",
    b"mem-max-allocated-gigabytes": "max_allocated_bytes",
    b"mem-reserved-gigabytes": "reserved_bytes",
    b"mem-max-reserved-gigabytes": "max_reserved_bytes",
    b"mem-alloc-retires": "alloc_retries",  # the program's spelling
    b"mem-alloc-retries": "alloc_retries",
}
_LEADING_NUMBER = re.compile(rb" *([-+.0-9eE]{1,40})")


class MemoryReader:
    keys: Sequence[bytes] = (b") memory (",)

    def __init__(self, notes: Notes) -> None:
        self.is_bridge = False
        """True once one of Megatron-Bridge's names was read."""
        self._notes = notes
        self._reports: list[MemoryReport] = []
        self._tops: dict[int | None, MemoryReport] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        head = self._head(data, start, end, hit)
        if head is None:
            return hit  # "memory (" is ordinary English too
        stop = min(end, hit + MAX_REPORT)
        following = data.find(self.keys[0], hit, stop)
        text = without_colours(data[head.end() : following if following >= 0 else stop])
        values = _values(text, UNITS[head[3]])
        if "max_allocated_bytes" not in values:
            if stop == len(data):
                self._notes.cut_off(line, data[head.start() : stop])
            else:
                self._notes.unreadable("a memory line", line, data[head.start() : stop])
            return hit
        self.is_bridge = self.is_bridge or b"mem-" in text
        self._keep(_report(line, head, values))
        return hit

    def _head(self, data: bytes, start: int, end: int, hit: int) -> re.Match[bytes] | None:
        """Match the start of the report: rank and iteration precede the key, the unit follows it."""
        key = hit - len(self.keys[0])
        for word in (b"[Rank ", b"(after "):
            begin = data.rfind(word, max(start, key - _HEAD_LENGTH), key)
            head = _HEAD.match(data, begin, end) if begin >= 0 else None
            if head and head.start(3) == hit:
                return head
        return None

    def _keep(self, report: MemoryReport) -> None:
        if len(self._reports) < MAX_REPORTS:
            self._reports.append(report)
            return
        self._notes.problem(
            "many memory lines", f"After {MAX_REPORTS} memory lines, only the highest value of each rank is kept."
        )
        top = self._tops.get(report.rank)
        if top.max_allocated_bytes < report.max_allocated_bytes if top else len(self._tops) < MAX_REPORTS:
            self._tops[report.rank] = report

    @property
    def reports(self) -> tuple[MemoryReport, ...]:
        """Return all kept reports in the order of the log."""
        return (*self._reports, *sorted(self._tops.values(), key=lambda report: report.line))


def _report(line: int, head: re.Match[bytes], values: dict[str, float]) -> MemoryReport:
    retries = values.get("alloc_retries")
    return MemoryReport(
        line=line,
        rank=int(head[1]) if head[1] else None,
        iteration=int(head[2]) if head[2] else None,
        max_allocated_bytes=values["max_allocated_bytes"],
        max_reserved_bytes=values.get("max_reserved_bytes"),
        allocated_bytes=values.get("allocated_bytes"),
        reserved_bytes=values.get("reserved_bytes"),
        alloc_retries=None if retries is None else int(retries),
    )


def _values(text: bytes, unit: int) -> dict[str, float]:
    """Return the fields of one report in bytes. Ignores text directly after a number."""
    values: dict[str, float] = {}
    for part in text.split(b"|"):
        label, colon, rest = part.partition(b":")
        name = _NAMES.get(label.strip())
        leading = _LEADING_NUMBER.match(rest)
        value = number(leading[1]) if leading and colon else None
        if name is None or value is None or not 0 <= value < 1e9:
            continue
        values.setdefault(name, value if name == "alloc_retries" else value * unit)
    return values

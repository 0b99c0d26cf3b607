"""Collects the trainers' configuration dumps: Megatron-LM's arguments block and Megatron-Bridge's summary.

Both are many lines that other processes may print into, so the text from the start line to the end line is kept, and
taken apart once it is whole.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from app.domain.logs.literals import read_literal
from app.domain.logs.notes import Notes
from app.domain.logs.prefixes import unwrap, unwrap_json, without_colours
from app.domain.logs.setting import Setting

MAX_DUMP = 1 << 20
"""Bytes kept of one dump with what was printed into it. Real dumps have 30 to 150 kB."""

MAX_NAMES = 3000
"""Names kept of one dump. Real dumps have up to 900."""

MAX_DUMPS = 8
"""Dumps kept of one log; every restart prints one. The last one always stays."""

ARGUMENTS_START = b" arguments --"
ARGUMENTS_END = b"end of arguments"
SUMMARY_START = b"Configuration Summary"
RULE = b"=" * 70

_ARGUMENT = re.compile(r"  ([A-Za-z_]\w{0,100}) (?:\.{1,48} |(?<=\w{47} ) )([^\r\n]*)", re.ASCII)
_SECTION = re.compile(r"\[(\w{1,40})\](?: Non-default values \(vs Mcore \w{1,60}\))?: {0,4}\Z")
# Two spaces; one of them may have been taken for part of a prefix, some of which end in one
_ITEM = re.compile(r" {1,2}([A-Za-z_]\w{0,100}): ")
_DEFAULT = "  (Mcore default: "


@dataclass(frozen=True, slots=True)
class Dump:
    """One dump, as far as it was printed. `is_summary`: it lists only what differs from Megatron Core's defaults.

    `sections` are those whose end was printed: what a cut one leaves out is unknown, not a default.
    """

    line: int
    is_summary: bool
    settings: tuple[Setting, ...]
    sections: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Open:
    """A dump whose end has not come yet: its first line and the text behind it."""

    line: int
    is_summary: bool
    tags: tuple[str, ...]
    text: bytearray = field(default_factory=bytearray)
    rules: int = 0


class DumpReader:
    keys: Sequence[bytes] = (ARGUMENTS_START, SUMMARY_START)

    def __init__(self, notes: Notes, on_start: Callable[[], None]) -> None:
        self._dumps: list[Dump] = []
        self._notes = notes
        self._on_start = on_start
        self._open: _Open | None = None
        self._at = 0
        """Offset in the current block from which on the text belongs to the open dump."""

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        self._take(data, start)
        is_summary = data.startswith(SUMMARY_START, hit - len(SUMMARY_START))
        if not is_summary and data.find(ARGUMENTS_END, max(start, hit - 60), hit) >= 0:
            self._close()
            return end
        self._close(whole=False)
        tags = unwrap(data[start : min(end, start + 2000)]).tags
        self._open = _Open(line, is_summary, tags)
        self._at = end + 1
        self._on_start()
        return end

    def block(self, data: bytes) -> None:
        self._take(data, len(data))
        self._at = 0

    def dumps(self) -> tuple[Dump, ...]:
        """All dumps in the order of the log; call it when the log was read."""
        self._close(whole=False)
        return tuple(self._dumps)

    def _take(self, data: bytes, stop: int) -> None:
        """Move what `data` has of the open dump, up to `stop`, to its text."""
        now = self._open
        if now is None or stop <= self._at:
            return
        searched = len(now.text)
        now.text += data[self._at : min(stop, self._at + MAX_DUMP + 1 - searched)]
        self._at = stop
        if now.is_summary:
            # One rule closes the title, the next the whole summary
            while now.rules < 2 and (rule := now.text.find(RULE, searched)) >= 0:
                now.rules += 1
                line_end = now.text.find(b"\n", rule)
                searched = line_end if line_end >= 0 else len(now.text)
        if now.rules == 2:
            del now.text[searched:]
            self._close()
        elif len(now.text) > MAX_DUMP:
            self._close(whole=False)

    def _close(self, *, whole: bool = True) -> None:
        now, self._open = self._open, None
        if now is None:
            return
        dump = _read_summary(now, whole=whole) if now.is_summary else _read_arguments(now)
        if not whole:
            self._notes.problem(
                "unfinished dump", "This configuration dump has no end; what it has was read.", now.line
            )
        if len(self._dumps) >= MAX_DUMPS:
            self._dumps.pop()
        self._dumps.append(dump)


def _plain(text: bytes) -> bytes:
    """The same lines without colours and JSON wrapping."""
    if b'{"' in text:
        text = b"\n".join(map(unwrap_json, text.split(b"\n")))
    return without_colours(text)


def _read_arguments(source: _Open) -> Dump:
    """`  name ..... value`, whatever stands in front of it. Names of 48 letters and more have no dots."""
    text = _plain(bytes(source.text)).decode("utf-8", "replace")
    settings: list[Setting] = []
    line, counted = source.line + 1, 0
    for match in islice(_ARGUMENT.finditer(text), MAX_NAMES):
        start = match.start()
        line += text.count("\n", counted, start)
        counted = start
        name, value = match.groups()
        settings.append(Setting(name, read_literal(value), "arguments", line))
    return Dump(source.line, False, tuple(settings))


def _read_summary(source: _Open, *, whole: bool) -> Dump:
    """`[section]` lines and `  name: value  (Mcore default: ...)` lines, of the process that printed the title."""
    section = ""
    sections: set[str] = set()
    settings: list[Setting] = []
    for offset, raw in enumerate(source.text.split(b"\n"), start=1):
        line = unwrap(bytes(raw))
        if line.tags != source.tags:
            continue
        header = _SECTION.match(line.text)
        item = _ITEM.match(line.text)
        if header:
            sections.add(section)
            section = header[1]
        elif item and section and len(settings) < MAX_NAMES:
            value = line.text[item.end() :].partition(_DEFAULT)[0]
            settings.append(Setting(item[1], read_literal(value), "arguments", source.line + offset, section))
    if whole:
        sections.add(section)
    return Dump(source.line, True, tuple(settings), frozenset(sections - {""}))

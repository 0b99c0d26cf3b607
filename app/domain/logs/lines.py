"""Prepares lines for the readers: removes prefixes, joins split lines and records what was skipped."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from app.domain.run import UNKNOWN_STEP, LineExample, LogProblem
from app.domain.text import clean

MAX_PREFIXES = 8
"""More than real logs stack. Bounds the work for a line of nothing but prefixes."""

_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,30}[A-Za-z]")
_JSON_START = b'{"'

_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # Kubernetes (CRI): 2026-04-14T17:50:00.281177123Z stdout F
        rb"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] ?",
        # A log shipper's ISO time with offset: [2026-01-02T03:04:05+08:00]
        rb"\[\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d)\] ?",
        # nemo-run: the last 12 characters of the task's name and its replica
        rb"(?P<tag>[\w.-]{1,12}/\d{1,5}) ",
        # torchrun --tee: local rank
        rb"(?P<tag>\[default\d{1,5}\]): ?",
        # Python's failure handler: global rank
        rb"(?P<tag>\[rank(?P<rank>\d{1,7})\]): ?",
        # Site scripts: host and local rank
        rb"(?P<tag>\[[A-Za-z][\w.-]{0,63}:\d{1,5}\]) ",
        # srun --label: task number, right-aligned
        rb"(?P<tag> {0,6}(?P<rank>\d{1,7})): ",
        # pdsh: host name, which contains a digit (a plain word with a colon would be ordinary text)
        rb"(?P<tag>(?=[a-z.-]{0,30}\d)[a-z][a-z0-9.-]{1,63}): ",
        # AMD Primus' logger: [20260511 02:59:23][rank-7/8][DEBUG]    [---utils.py:425] :
        rb"\[\d{8} [\d:]{8}\]\[(?P<tag>rank-(?P<rank>\d{1,7})/\d{1,7})\]\[[A-Z]{3,8} ?\] {0,8}\[[^\]\n]{1,80}\] : ?",
        # Text quoted in an issue or a shell script
        rb"(?P<tag>[#>]) ",
    )
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its wrapping. `tags` identify the process that printed it; `rank`: its global rank, if known."""

    text: str
    tags: tuple[str, ...] = ()
    rank: int | None = None


def without_colours(data: bytes) -> bytes:
    """Return `data` without ANSI control sequences."""
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


def unwrap_json(line: bytes) -> bytes:
    """Return the `log` text of a line in Docker's JSON format without its line break; other lines unchanged.

    A JSON line that is cut off returns the available part of its text.
    """
    if not line.lstrip().startswith(_JSON_START):
        return line
    try:
        document = json.loads(line)
        text = document["log"]
        return text.rstrip("\r\n").encode("utf-8", "replace") if isinstance(text, str) else line
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    head, quote, rest = line.partition(b'"log":')
    if not quote or head.strip() != b"{":
        return line
    return rest.strip().lstrip(b'"').replace(b"\\t", b"\t").replace(b"\\u001b", b"\x1b").split(b"\\n", 1)[0]


def last_overwrite(line: bytes) -> bytes:
    """Return the text that a terminal would show of a line that a progress bar overwrites with carriage returns."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def unwrap(line: bytes) -> Line:
    """Remove every prefix, colour and wrapping from one line (without its line break)."""
    line = without_colours(unwrap_json(last_overwrite(line)))
    tags: list[str] = []
    rank: int | None = None
    at = 0
    for _ in range(MAX_PREFIXES):
        for pattern in _PREFIXES:
            match = pattern.match(line, at)
            if match:
                break
        else:
            break
        at = match.end()
        groups = match.groupdict()
        if groups.get("tag"):
            tags.append(groups["tag"].decode("ascii", "replace").strip())
        if groups.get("rank"):
            rank = int(groups["rank"])
    return Line(clean(line[at:].decode("utf-8", "replace")), tuple(tags), rank)


# --- Joins lines that a container runtime splits after 16 kB.
#
# Kubernetes (CRI) marks a part with `P` and the last one with `F`: `2026-04-14T17:50:00.281177123Z stdout P text`. In
# Docker's JSON the text of a part does not end with a line break. The joined line replaces its last part, and the
# other parts become blank lines, so that line numbers stay those of the file.

MAX_JOINED = 1 << 20
"""Bytes of one joined line."""

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) (std(?:out|err)) )([FP]) ?([^\n]*)")
_JSON = re.compile(rb'(\{"log": ?")([^\n]*)(", ?"stream": ?"(std(?:out|err))"[^\n]*)')


def whole_lines(blocks: Iterable[bytes], on_lost: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the blocks with split lines joined. The first line identifies the runtime.

    `on_lost` receives each part whose end is missing although other lines follow it.
    """
    rest = iter(blocks)
    first = next(rest, b"")
    line = first[: first.find(b"\n")].lstrip()
    joiner = _Cri() if _CRI.match(line) else _Json() if _JSON.match(line) else None
    if joiner is None:
        yield first
        yield from rest
        return
    yield joiner.join(first)
    yield from map(joiner.join, rest)
    parts = list(joiner.parts.values())
    if parts and joiner.ends_in_part:
        yield parts.pop() + (b"\n" if joiner.owes_break else b"")
    for part in parts:
        on_lost(part)


class _Joiner:
    """Holds parts of lines until their end arrives, by stream."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        """Ordered by the last part of each stream."""
        self.ends_in_part = False
        self.owes_break = False
        """True when the line break of the last line is withheld: that line is a part and may be the log's last."""

    def join(self, block: bytes) -> bytes:
        """Return `block` with all lines joined that end in it."""
        before = b"\n" if self.owes_break else b""
        self.ends_in_part = self.owes_break = False
        if not self.parts and not self.has_parts(block):
            return before + block
        lines = [self.line(line) for line in block.split(b"\n")]
        has_break = block.endswith(b"\n")
        self.ends_in_part = bool(self.parts) and not any(lines[-2:] if has_break else lines[-1:])
        if self.ends_in_part and has_break:
            self.owes_break = True
            lines.pop()
        return before + b"\n".join(lines)

    def has_parts(self, block: bytes) -> bool:
        raise NotImplementedError

    def line(self, line: bytes) -> bytes:
        raise NotImplementedError

    def _add(self, stream: bytes, text: bytes, *, ends: bool) -> bytes | None:
        """Return the whole text when it ends here or becomes too long; None for a part."""
        text = self.parts.pop(stream, b"") + text
        if ends or len(text) > MAX_JOINED:
            return text
        self.parts[stream] = text
        return None


class _Cri(_Joiner):
    def has_parts(self, block: bytes) -> bool:
        return b" stdout P " in block or b" stderr P " in block

    def line(self, line: bytes) -> bytes:
        part = _CRI.match(line)
        if part is None:
            return line
        text = self._add(part[2], part[4], ends=part[3] == b"F")
        return b"" if text is None else part[1] + b"F " + text


class _Json(_Joiner):
    def has_parts(self, block: bytes) -> bool:
        whole = block.count(b'\\n","stream":"') + block.count(b'\\n", "stream": "')
        return whole != block.count(b"\n")

    def line(self, line: bytes) -> bytes:
        part = _JSON.match(line)
        if part is None:
            return line
        text = self._add(part[4], part[2], ends=part[2].endswith(b"\\n"))
        return b"" if text is None else part[1] + text + part[3]


# --- Skips and counts NUL bytes before lines, which network file systems and crashed writers leave behind.

_BEFORE_A_LINE = re.compile(rb"\n\0+")
_HEAD_BYTES = 64 * 1024
_DECODER = codecs.getincrementaldecoder("utf-8")


class WithoutHoles:
    """Iterates over the chunks of a log without the NUL bytes before its lines.

    NULs inside a line stay because they show that it is torn. `skipped` is the number of removed bytes once all chunks
    are read.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.skipped = 0
        self._head = b""
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        at_line_start, chunk = True, b""
        for chunk in self._chunks:
            text = chunk
            if b"\0" in chunk:
                text = _BEFORE_A_LINE.sub(b"\n", chunk.lstrip(b"\0") if at_line_start else chunk)
                self.skipped += len(chunk) - len(text)
            if len(self._head) < _HEAD_BYTES:
                self._head += text[: _HEAD_BYTES - len(self._head)]
            if text:
                at_line_start = text.endswith(b"\n")
                yield text
        if at_line_start and chunk.endswith(b"\0"):
            yield b"\0"  # the hole counts as a line, so that line numbers stay those of the file

    @property
    def invalid(self) -> int:
        """Number of places in the first 64 KiB that are not UTF-8, without a last character that is cut."""
        text = _DECODER("replace").decode(self._head)
        return text.count("\ufffd") - self._head.count("\ufffd".encode())


# --- Collects what was skipped or looks wrong, so that nothing is dropped silently.

MAX_A_KIND = 5
"""Problems of one kind that are kept with their line; further ones are only counted."""

MAX_KINDS = 50
"""Kinds of lines that were not understood. Real logs have few."""

MAX_EXAMPLE = 200
"""Characters of a quoted line."""


class Notes:
    """Collects problems. `unread`: number of lines with a known key that could not be read. `cut`: the log ends
    inside a line."""

    def __init__(self) -> None:
        self.unread = 0
        self.cut = False
        self._problems: list[LogProblem] = []
        self._counts: dict[str, int] = {}
        self._last_unread = 0
        self._examples: dict[str, LineExample] = {}
        self._steps: list[LineExample] = []

    def problem(self, kind: str, message: str, line: int = 0, example: bytes | str = b"") -> None:
        """Record a problem. `kind` groups equal problems; `message` is a sentence for users."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= MAX_A_KIND:
            self._problems.append(LogProblem(kind, message, line, quote(example)))

    def unreadable(self, what: str, line: int, example: bytes) -> None:
        """Count a line that looks like a known kind but could not be read."""
        if line != self._last_unread:
            self.unread += 1
            self._last_unread = line
            self.not_understood(what, line, example)
        self.problem("unreadable line", f"This looks like {what}, but it could not be read.", line, example)

    def torn(self, line: int, example: bytes) -> None:
        """Count an iteration line that another process printed into; its other half may be anywhere."""
        self.not_understood("half of an iteration line", line, example)

    def not_understood(self, kind: str, line: int, example: bytes | str, count: int = 1) -> None:
        """Count lines of a kind that users may want to report. The first one is the example."""
        earlier = self._examples.get(kind)
        if earlier is not None:
            self._examples[kind] = replace(earlier, count=earlier.count + count)
        elif len(self._examples) < MAX_KINDS:
            self._examples[kind] = LineExample(kind, count, quote(example), line)

    def like_a_step(self, line: int, example: bytes) -> None:
        """Record a line that looks like a step of an unknown trainer."""
        self._steps.append(LineExample(UNKNOWN_STEP, 1, quote(example), line))

    def examples(self) -> tuple[LineExample, ...]:
        """Return the lines that were not understood, the most frequent kind first."""
        return (*self._steps, *sorted(self._examples.values(), key=lambda example: (-example.count, example.line)))

    def cut_off(self, line: int, example: bytes) -> None:
        """Record that the log ends in the middle of this line."""
        self.cut = True
        self.problem("cut off", "The log ends in the middle of this line; truncated fields are omitted.", line, example)

    def problems(self) -> tuple[LogProblem, ...]:
        """Return all problems in the order of the log, then one per kind for those that were only counted."""
        more = (
            LogProblem(kind, f"{count - MAX_A_KIND} more of this kind are not listed.")
            for kind, count in self._counts.items()
            if count > MAX_A_KIND
        )
        return (*self._problems, *more)


def quote(line: bytes | str) -> str:
    """Return the start of a line, safe for pages and databases."""
    text = line[: 4 * MAX_EXAMPLE].decode("utf-8", "replace") if isinstance(line, bytes) else line
    return clean(text).strip()[:MAX_EXAMPLE]

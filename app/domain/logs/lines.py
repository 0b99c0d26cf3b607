"""Prepares lines for the readers: prefixes taken off, broken lines joined, skipped bytes noted."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from app.domain.run import UNKNOWN_STEP, LineExample, Problem
from app.domain.text import clean

MAX_PREFIXES = 8
"""More than anybody stacks; a line of nothing but prefixes ends here."""

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
        # pdsh: host name, which has a digit in it (a word with a colon would be ordinary text)
        rb"(?P<tag>(?=[a-z.-]{0,30}\d)[a-z][a-z0-9.-]{1,63}): ",
        # AMD Primus' logger: [20260511 02:59:23][rank-7/8][DEBUG]    [---utils.py:425] :
        rb"\[\d{8} [\d:]{8}\]\[(?P<tag>rank-(?P<rank>\d{1,7})/\d{1,7})\]\[[A-Z]{3,8} ?\] {0,8}\[[^\]\n]{1,80}\] : ?",
        # Text quoted in an issue or a shell script
        rb"(?P<tag>[#>]) ",
    )
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its wrapping. `tags` say which process printed it, `rank` is its global rank where they tell."""

    text: str
    tags: tuple[str, ...] = ()
    rank: int | None = None


def without_colours(data: bytes) -> bytes:
    """`data` without ANSI control sequences."""
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


def unwrap_json(line: bytes) -> bytes:
    """The `log` text of a line in Docker's JSON format, without its line break; any other line as it is.

    A JSON line that was cut off gives what there is of its text.
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
    """What a terminal would show of a line that a progress bar wrote over with carriage returns."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def unwrap(line: bytes) -> Line:
    """Take off every prefix, colour and wrapping of one line (without its line break)."""
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
        found = match.groupdict()
        if found.get("tag"):
            tags.append(found["tag"].decode("ascii", "replace").strip())
        if found.get("rank"):
            rank = int(found["rank"])
    return Line(clean(line[at:].decode("utf-8", "replace")), tuple(tags), rank)


# --- Joins the lines that a container's runtime broke in two: it does so after 16 kB.
#
# Kubernetes (CRI) marks a part with `P` and the last one with `F`: `2026-04-14T17:50:00.281177123Z stdout P text`. In
# Docker's JSON the text of a part has no line break at its end. The joined line stands where its last part stood, and
# the others are left blank, so that line numbers stay what they are in the file.

MAX_JOINED = 1 << 20
"""Bytes of one joined line."""

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) (std(?:out|err)) )([FP]) ?([^\n]*)")
_JSON = re.compile(rb'(\{"log": ?")([^\n]*)(", ?"stream": ?"(std(?:out|err))"[^\n]*)')


def whole_lines(blocks: Iterable[bytes], on_lost: Callable[[bytes], None]) -> Iterator[bytes]:
    """The same blocks with broken lines joined. Which runtime wrote the log is told by its first line.

    `on_lost` gets a part whose end never came although other lines follow it.
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
    """Parts of lines that wait for their end, by stream."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        """In the order in which they were met last."""
        self.ends_in_part = False
        self.owes_break = False
        """Whether the line break of the last line is held back: that line is a part, and may be the log's last."""

    def join(self, block: bytes) -> bytes:
        """`block` with the lines joined that end in it."""
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
        """The whole text when it ends here, or when it becomes too long; None for a part."""
        text = self.parts.pop(stream, b"") + text
        if ends or len(text) > MAX_JOINED:
            return text
        self.parts[stream] = text
        return None


class _Cri(_Joiner):
    def has_parts(self, block: bytes) -> bool:
        return b" stdout P " in block or b" stderr P " in block

    def line(self, line: bytes) -> bytes:
        found = _CRI.match(line)
        if found is None:
            return line
        text = self._add(found[2], found[4], ends=found[3] == b"F")
        return b"" if text is None else found[1] + b"F " + text


class _Json(_Joiner):
    def has_parts(self, block: bytes) -> bool:
        whole = block.count(b'\\n","stream":"') + block.count(b'\\n", "stream": "')
        return whole != block.count(b"\n")

    def line(self, line: bytes) -> bytes:
        found = _JSON.match(line)
        if found is None:
            return line
        text = self._add(found[4], found[2], ends=found[2].endswith(b"\\n"))
        return b"" if text is None else found[1] + text + found[3]


# --- NUL bytes in front of lines, as network file systems and crashed writers leave them: skipped and counted.

_BEFORE_A_LINE = re.compile(rb"\n\0+")
_HEAD_BYTES = 64 * 1024
_DECODER = codecs.getincrementaldecoder("utf-8")


class WithoutHoles:
    """The chunks of a log without the NUL bytes in front of its lines.

    NULs inside a line stay: they tell that it is torn. `skipped` counts them once all chunks were read.
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
            yield b"\0"  # the line that the hole is, so that lines are counted as they stand in the file

    @property
    def invalid(self) -> int:
        """Places in the first 64 KiB that are no UTF-8; a last character that is cut is none."""
        text = _DECODER("replace").decode(self._head)
        return text.count("\ufffd") - self._head.count("\ufffd".encode())


# --- Collects what was skipped or is strange while a log is read, so that nothing is dropped in silence.

MAX_A_KIND = 5
"""Problems of one kind kept with their line; of the others only the number is told."""

MAX_KINDS = 50
"""Kinds of lines that were not understood; a trainer's lines have few."""

MAX_EXAMPLE = 200
"""Characters of a line that are quoted."""


class Notes:
    """`unread`: lines with the key of a line we know that could not be read. `cut`: the log ends inside a line."""

    def __init__(self) -> None:
        self.unread = 0
        self.cut = False
        self._kept: list[Problem] = []
        self._counts: dict[str, int] = {}
        self._last_unread = 0
        self._examples: dict[str, LineExample] = {}
        self._steps: list[LineExample] = []

    def problem(self, kind: str, message: str, line: int = 0, example: bytes | str = b"") -> None:
        """Remember that something is strange. `kind` groups equal problems, `message` is a sentence for people."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= MAX_A_KIND:
            self._kept.append(Problem(kind, message, line, quote(example)))

    def unreadable(self, what: str, line: int, example: bytes) -> None:
        """Count a line that looks like a known one but could not be read."""
        if line != self._last_unread:
            self.unread += 1
            self._last_unread = line
            self.not_understood(what, line, example)
        self.problem("unreadable line", f"This looks like {what}, but it could not be read.", line, example)

    def torn(self, line: int, example: bytes) -> None:
        """Another process printed into this iteration line; the rest of it may be anywhere."""
        self.not_understood("half of an iteration line", line, example)

    def not_understood(self, kind: str, line: int, example: bytes | str, count: int = 1) -> None:
        """Count lines of a kind that a person may want to report; the first one is the example."""
        known = self._examples.get(kind)
        if known is not None:
            self._examples[kind] = replace(known, count=known.count + count)
        elif len(self._examples) < MAX_KINDS:
            self._examples[kind] = LineExample(kind, count, quote(example), line)

    def like_a_step(self, line: int, example: bytes) -> None:
        """Remember a line that looks like a step of an unknown trainer: each is an example of its own."""
        self._steps.append(LineExample(UNKNOWN_STEP, 1, quote(example), line))

    def examples(self) -> tuple[LineExample, ...]:
        """What was not understood, the most frequent kind first."""
        return (*self._steps, *sorted(self._examples.values(), key=lambda one: (-one.count, one.line)))

    def cut_off(self, line: int, example: bytes) -> None:
        """The log ends in the middle of this line."""
        self.cut = True
        self.problem(
            "cut off", "The log ends in the middle of this line; fields that were cut are left out.", line, example
        )

    def problems(self) -> tuple[Problem, ...]:
        """All problems in the order in which they were met, with a line for those that were only counted."""
        more = (
            Problem(kind, f"{count - MAX_A_KIND} more of this kind are not listed.")
            for kind, count in self._counts.items()
            if count > MAX_A_KIND
        )
        return (*self._kept, *more)


def quote(line: bytes | str) -> str:
    """The start of a line, fit for a page and a database."""
    text = line[: 4 * MAX_EXAMPLE].decode("utf-8", "replace") if isinstance(line, bytes) else line
    return clean(text).strip()[:MAX_EXAMPLE]

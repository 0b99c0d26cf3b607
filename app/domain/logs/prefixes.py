"""Takes off what launchers, loggers and log shippers put around a line, so that what the trainer printed is left.

Prefixes stack up (`retraining/0 [default0]:`), so they are taken off one after the other. Every pattern is anchored and
bounded: a hostile line costs no more than its length.
"""

import json
import re
from dataclasses import dataclass

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

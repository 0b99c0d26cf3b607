"""Time stamps of a log, as far as its first and last lines and its events show them."""

import calendar
import re
from collections.abc import Iterable, Iterator

from app.domain.run import ParsedLog

_STAMP = re.compile(r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)[T _]([0-2]\d):([0-5]\d):([0-5]\d)(\.\d{1,6})?")
"""Of iteration lines, life-cycle lines, Primus (no dashes), torchrun's reports (`_`) and log shippers (`T`)."""


_PRECISE = re.compile(r":\d\d\.\d{1,6}\] iteration ")


def has_microseconds(log: ParsedLog) -> bool:
    """True when the iteration lines known here have stamps as Megatron Core 0.16 and later print them."""
    return any(_PRECISE.search(text) for text in (*log.first_lines, *log.last_lines))


def first_stamp(log: ParsedLog) -> float | None:
    """Seconds since 1970 (node's local time) of the first stamp that is known; None without any."""
    return next(_stamps((*log.first_lines, *(event.text for event in log.events), *log.last_lines)), None)


def last_stamp(log: ParsedLog) -> float | None:
    """Seconds since 1970 (node's local time) of the last stamp that is known; None without any."""
    texts = (*log.first_lines, *(event.text for event in log.events), *log.last_lines)
    return next(_stamps(reversed(texts), last=True), None)


def _stamps(texts: Iterable[str], *, last: bool = False) -> Iterator[float]:
    for text in texts:
        found = list(_STAMP.finditer(text))
        for match in reversed(found) if last else found:
            year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
            if 1 <= month <= 12 and 1 <= day <= 31 and hour <= 23:
                whole = calendar.timegm((year, month, day, hour, minute, second))
                yield whole + float(match[7] or 0)

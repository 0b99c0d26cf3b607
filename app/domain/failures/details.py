"""What the lines of a failure say beyond its kind: ranks, sizes, exit codes, names. Nothing is added."""

import re
from collections.abc import Iterator, Sequence

from app.domain.failures.classify import exit_code
from app.domain.run import LogEvent

_SIZE = r"(\d+(?:\.\d+)? [KMGT]?i?B)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_MODULE = re.compile(r"No module named '?([\w.]+)|cannot import name '?(\w+)'? from '?([\w.]+)")
_OPERATION = re.compile(r"OpType=(\w+).{0,200}?Timeout\(ms\)=(\d+)")
_SIGNALS = {"-9": "SIGKILL", "-6": "SIGABRT", "-11": "SIGSEGV", "-7": "SIGBUS"}


def detail_of(kind: str, events: Sequence[LogEvent]) -> Iterator[str]:
    """Sentences on what this failure's own lines name. `events`: those of its kind, the most telling first."""
    text = events[0].text
    if kind == "out_of_memory":
        yield from _sizes(text)
    ranks = sorted({event.rank for event in events if event.rank is not None})
    if len(ranks) > 1:
        listed = ", ".join(str(rank) for rank in ranks[:8])
        yield f"{len(ranks)} ranks report it: {listed}{' and more' if len(ranks) > 8 else ''}."
    if kind == "import_error" and (module := _MODULE.search(text)):
        yield f"Missing: {module[1] or f'{module[2]} of {module[3]}'}."
    if kind == "nccl_timeout" and (operation := _OPERATION.search(text)):
        yield f"The operation was {operation[1]}, the limit {int(operation[2]) / 1000:g} s."
    codes = dict.fromkeys(code for event in events if (code := exit_code(event)))
    if codes:
        yield f"Exit code {', '.join(f'{code} ({_SIGNALS[code]})' if code in _SIGNALS else code for code in codes)}."


def _sizes(text: str) -> Iterator[str]:
    """`Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free.`"""
    asked, total, free = (pattern.search(text) for pattern in (_ASKED, _TOTAL, _FREE))
    if asked is None:
        return
    of = f" of {total[1] or total[2]}" if total else ""
    left = f" with {free[1] or free[2]}{of} free" if free else f" on a GPU{of}" if of else ""
    yield f"It asked for {asked[1]}{left}."

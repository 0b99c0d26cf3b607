"""Counts the nodes of a Slurm node list, for instance `gb-nvl-[001-004,007],login1`.

https://slurm.schedmd.com/scontrol.html#OPT_hostnames describes the notation.
"""

import re

MAX_LENGTH = 100_000
MAX_NODES = 1_000_000

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def count_nodes(nodelist: str) -> int | None:
    """How many nodes the list names; None when it is empty or not such a list."""
    text = nodelist.strip()
    if not text or len(text) > MAX_LENGTH or text.startswith("("):
        return None
    total = 0
    for item in _split(text):
        count = 1
        for ranges in _BRACKET.findall(item):
            count *= _count_ranges(ranges)
        if not item or not count or total + count > MAX_NODES:
            return None
        total += count
    return total


def _split(text: str) -> list[str]:
    """The items between commas that stand outside brackets."""
    items, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    return [*items, text[start:]]


def _count_ranges(ranges: str) -> int:
    """Members of `001-004,007`; 0 when it is no such list."""
    total = 0
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            return 0
        size = int(match[2]) - int(match[1]) + 1 if match[2] else 1
        if size < 1:
            return 0
        total += size
    return total

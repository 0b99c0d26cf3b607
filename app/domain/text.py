"""Cleans text that came from outside: what a database refuses or a page cannot show is taken out."""

import re
from collections.abc import Sequence

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Control characters, lone surrogates (no UTF-8 exists for them) and direction overrides (they disguise names)."""


def clean(text: str) -> str:
    """`text` without control characters; line breaks and tabs stay."""
    return _UNPRINTABLE.sub("", text)


def one_line(text: str) -> str:
    """`text` without control characters, its white space folded to single blanks, trimmed."""
    return " ".join(clean(text).split())


def some_of(names: Sequence[str], most: int = 3, last: str = "and") -> str:
    """`a, b and c`, or `a, b, c and 4 more`; empty for none."""
    shown = [*names[:most], *([f"{len(names) - most:,} more"] if len(names) > most else [])]
    return f"{', '.join(shown[:-1])} {last} {shown[-1]}" if len(shown) > 1 else "".join(shown)

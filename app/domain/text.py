"""Cleans text that came from outside: what a database refuses or a page cannot show is taken out."""

import re

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Control characters, lone surrogates (no UTF-8 exists for them) and direction overrides (they disguise names)."""


def clean(text: str) -> str:
    """`text` without control characters; line breaks and tabs stay."""
    return _UNPRINTABLE.sub("", text)


def one_line(text: str) -> str:
    """`text` without control characters, its white space folded to single blanks, trimmed."""
    return " ".join(clean(text).split())

"""Texts that stand where a value is still to come. As values they would make a false stack of their own."""

import re

from app.domain.text import one_line

PLACEHOLDERS = frozenset(
    {
        *("...", "\u2026", "?", "??", "???", "-", "--", "x", "xx", "xxx", "n/a", "na", "n.a.", "unknown", "undefined"),
        *("todo", "tbd", "fixme", "placeholder", "changeme", "change me", "change-me", "fill me in", "not known"),
    }
)
"""In lower case."""

_TEMPLATE = re.compile(r"<[^<>:.]*>|\$\{[^{}]*\}|\$[A-Za-z_]\w*|\{\{.*\}\}", re.DOTALL)
"""`<gpu>`, `${GPU}`, `$GPU`, `{{ gpu }}`, never filled in. A colon or dot is Python's `<AttnBackend.flash: 1>`."""


def refuse_placeholders(raw: object) -> None:
    """Raises ValueError when a text, or one of a list, is a placeholder."""
    for text in raw if isinstance(raw, list | tuple) else [raw]:
        if isinstance(text, str) and (text.strip().casefold() in PLACEHOLDERS or _TEMPLATE.fullmatch(text.strip())):
            raise ValueError(f"is the placeholder {one_line(text)[:50]!r}; state the value, or leave the field out")

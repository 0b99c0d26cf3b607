"""Fills the facts of a run into the texts of a rule: `{gpus} GPUs`, `{exposed_comm_frac:.0%} of the step`."""

import re
from collections.abc import Callable, Mapping

from app.domain.contract.values import shown

_PLACE = re.compile(r"\{(?P<name>[A-Za-z_][\w.]*)(?::(?P<form>[^{}]*))?\}")
_MARKS = re.compile("[\ue000-\ue002]")


def marked(name: str, value: str) -> str:
    """A fact of a text between marks that no text holds, so that a page can find it again."""
    return f"\ue000{name}\ue001{_MARKS.sub('', value)}\ue002"


def filled(text: str, values: Mapping[str, object], mark: Callable[[str, str], str] | None = None) -> str:
    """The text with its facts; a fact that nobody stated reads `unknown`. `mark`: what to write for name and value."""

    def place(match: re.Match[str]) -> str:
        if match["name"] not in values:
            return "unknown"
        value = fact_text(values[match["name"]], match["form"] or "")
        return value if mark is None else mark(match["name"], value)

    return _PLACE.sub(place, text)


def with_names(text: str) -> str:
    """The text of a rule without a run: the names of its facts, in backticks, in their places."""
    return _PLACE.sub(lambda match: f"`{match['name']}`", text)


def fact_text(value: object, form: str = "") -> str:
    """A fact as a person reads it; `form` as in Python's format, for numbers."""
    if isinstance(value, bool) or value is None:
        return shown(value)
    if isinstance(value, float):
        try:
            return format(value, form or ".4g")
        except ValueError:
            return format(value, ".4g")
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)

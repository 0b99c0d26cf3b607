"""What the list of stacks can be asked for. The query string is its whole state, so it is checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.errors import FieldError, InvalidQuery
from app.history.words import VERDICTS

UNKNOWN = "unknown"
"""A value of the model, gpu and dispatcher filters: the stacks of which it is not known."""
_MAX_TEXT = 300
_REFUSED = "The address of this list asks for what there is not."


@dataclass(frozen=True, slots=True)
class StackFilters:
    """Empty text means "any". `q` is words that must all occur; `verdict` is that of the run that was judged last."""

    q: str = ""
    project: str = ""
    model: str = ""
    gpu: str = ""
    dispatcher: str = ""
    verdict: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming each bad field."""
        given = {f.name: params.get(f.name, "").strip() for f in fields(cls)}
        errors = tuple(error for name, value in given.items() if (error := _check(name, value)))
        if errors:
            raise InvalidQuery(_REFUSED, errors)
        return cls(**given)

    @property
    def active(self) -> dict[str, str]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name))}

    def query(self, page: int = 1) -> str:
        return urlencode(self.active | ({"page": str(page)} if page > 1 else {}))

    def without(self, name: str) -> str:
        return replace(self, **{name: ""}).query()


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
        raise InvalidQuery(_REFUSED, (error,))
    return int(text)


def _check(name: str, value: str) -> FieldError | None:
    if name == "verdict" and value and value not in VERDICTS:
        return FieldError(name, f"must be one of {', '.join(VERDICTS)}, not {value[:40]!r}")
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    # PostgreSQL refuses NUL in a text; no name holds any control character.
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    return None

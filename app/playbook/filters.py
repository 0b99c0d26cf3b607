"""What the playbook can be asked for. Its query string is its whole state, so it is checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.domain.rules.rule import CONFIDENCES, KINDS, PHASES, WALLS
from app.errors import FieldError, InvalidQuery

ORIGINS: Mapping[str, str] = {"built-in": "this service", "team": "a team"}
ORDERS: Mapping[str, str] = {
    "workflow": "as in the workflow",
    "fired": "fired most often",
    "tried": "tried most often",
    "paid_off": "paid off most often",
    "newest": "newest source first",
}
STANDINGS: Mapping[str, str] = {
    "fired": "fired here",
    "tried": "tried here",
    "paid_off": "paid off here",
    "disputed": "its sources disagree",
}
_CHOICES: Mapping[str, Sequence[str]] = {
    "phase": PHASES,
    "wall": WALLS,
    "kind": KINDS,
    "confidence": CONFIDENCES,
    "origin": tuple(ORIGINS),
    "only": tuple(STANDINGS),
    "sort": tuple(ORDERS),
}
_MAX_TEXT = 300
_REFUSED = "The address of the playbook asks for what there is not."


@dataclass(frozen=True, slots=True)
class RuleFilters:
    """Empty: any. `q`: words that must all occur. `project`: whose runs are counted. `only`: rules of that standing."""

    q: str = ""
    phase: str = ""
    wall: str = ""
    kind: str = ""
    confidence: str = ""
    origin: str = ""
    only: str = ""
    project: str = ""
    sort: str = ""

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

    @property
    def chips(self) -> dict[str, str]:
        """What narrows the list; the order does not."""
        return {name: value for name, value in self.active.items() if name != "sort"}

    def query(self, page: int = 1) -> str:
        return urlencode(self.active | ({"page": str(page)} if page > 1 else {}))

    def without(self, name: str) -> str:
        return replace(self, **{name: ""}).query()


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        raise InvalidQuery(_REFUSED, (FieldError("page", f"must be a whole number from 1, not {text[:40]!r}"),))
    return int(text)


def _check(name: str, value: str) -> FieldError | None:
    choices = _CHOICES.get(name)
    if choices and value and value not in choices:
        return FieldError(name, f"must be one of {', '.join(choices)}, not {value[:40]!r}")
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    return None

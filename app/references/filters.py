"""What the list of published figures can be asked for. Its query string is its whole state, so it is checked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Self, get_args
from urllib.parse import urlencode

from app.domain.contract.values import shown
from app.domain.reference_points.point import Kind
from app.errors import FieldError, InvalidQuery
from app.storage.references import Reference

KINDS: Mapping[str, str] = {
    "release_table": "release table",
    "verification_card": "verification card",
    "model_zoo": "model zoo",
    "guide": "tuning guide",
    "founding_document": "short run of a guide",
    "own": "added by a team",
}
"""Where a figure comes from, in words."""
assert set(KINDS) == set(get_args(Kind))  # noqa: S101  # told when the module is loaded, not on some page
_MAX_TEXT = 300
_REFUSED = "The address of this list asks for what there is not."


@dataclass(frozen=True, slots=True)
class ReferenceFilters:
    """Empty: any. `q`: words that must all occur. `project`: what is offered to it, of those that teams added."""

    q: str = ""
    model: str = ""
    gpu: str = ""
    precision: str = ""
    routing: str = ""
    kind: str = ""
    project: str = ""

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

    def keep(self, found: Iterable[Reference]) -> tuple[Reference, ...]:
        """Those that match, in their order."""
        words = self.q.casefold().split()
        return tuple(one for one in found if self._matches(one) and all(word in _text(one) for word in words))

    def _matches(self, one: Reference) -> bool:
        contract = one.point.contract
        asked = (
            (self.model, one.point.family.name),
            (self.gpu, contract["gpu"]),
            (self.precision, contract["precision"]),
            (self.routing, contract.get("routing_mode")),
            (self.kind, one.point.kind),
        )
        return all(not wanted or wanted == has for wanted, has in asked)


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
        raise InvalidQuery(_REFUSED, (error,))
    return int(text)


def _text(one: Reference) -> str:
    point = one.point
    said = [
        point.measured_by,
        point.source,
        point.note,
        point.date,
        KINDS[point.kind],
        *map(shown, point.contract.values()),
    ]
    return " ".join(said).casefold()


def _check(name: str, value: str) -> FieldError | None:
    if name == "kind" and value and value not in KINDS:
        return FieldError(name, f"must be one of {', '.join(KINDS)}, not {value[:40]!r}")
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    return None

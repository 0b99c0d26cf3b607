"""What the list of regressions can be asked for. The query string is its whole state, so it is checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.domain.matching import AXES
from app.domain.triage import STATES
from app.errors import FieldError, InvalidQuery

ACTIVE_STATES, ANY_STATE = "active", "any"
METRICS = {"step_time_ms": "step time", "peak_memory_gib": "peak memory", "lm_loss": "loss"}
KINDS = {"run": "a run", "upgrade": "an upgrade"}
SORTS = {"cost": "cost", "age": "age", "size": "size"}
WORST_FIRST = "-cost"
NOBODY = "nobody"
"""A value of the assignee filter: the regressions that nobody has."""
UNKNOWN = "unknown"
"""A value of the GPU and model filters."""

_CHOICES = {
    "state": (ACTIVE_STATES, *STATES, ANY_STATE),
    "metric": tuple(METRICS),
    "kind": tuple(KINDS),
    "axis": AXES,
    "sort": tuple(sign + name for name in SORTS for sign in ("-", "")),
}
_MAX_TEXT = 300
_REFUSED = "The address of this list asks for what there is not."


@dataclass(frozen=True, slots=True)
class RegressionFilters:
    """Empty text means "any". `state` is a state, `active` (open or acknowledged) or `any`.

    `axis` is where the cause lies, `q` words that must all occur; `sort` is a name of SORTS, `-` first for descending.
    """

    q: str = ""
    state: str = ANY_STATE
    project: str = ""
    assignee: str = ""
    metric: str = ""
    kind: str = ""
    axis: str = ""
    gpu: str = ""
    model: str = ""
    sort: str = WORST_FIRST

    @classmethod
    def from_params(cls, params: Mapping[str, str], state: str = ANY_STATE) -> Self:
        """Filters of a query string; `state` is meant by one that names none. Raises InvalidQuery naming each field."""
        given = {f.name: params.get(f.name, "").strip() for f in fields(cls)}
        errors = tuple(error for name, value in given.items() if (error := _check(name, value)))
        if errors:
            raise InvalidQuery(_REFUSED, errors)
        return cls(**({"state": state} | {name: value for name, value in given.items() if value}))

    @property
    def active(self) -> dict[str, str]:
        """The filters that narrow the list, by name: sorting does not, and the state is shown as tabs."""
        left_out = ("sort", "state")
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) and f.name not in left_out}

    def query(self, page: int = 1, **changes: str) -> str:
        """The query string of the page with `changes` applied; defaults are left out, so that addresses stay short."""
        changed = replace(self, **changes)
        pairs = changed.active
        if changed.state != ACTIVE_STATES:
            pairs["state"] = changed.state
        if changed.sort != WORST_FIRST:
            pairs["sort"] = changed.sort
        if page > 1:
            pairs["page"] = str(page)
        return urlencode(pairs)

    def without(self, name: str) -> str:
        """The query string of the page with one filter taken away."""
        return replace(self, **{name: ""}).query()

    def sorted_by(self, name: str) -> str:
        """The value of `sort` that a click on the column `name` asks for: the largest first."""
        return name if self.sort == f"-{name}" else f"-{name}"


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
        raise InvalidQuery(_REFUSED, (error,))
    return int(text)


def _check(name: str, value: str) -> FieldError | None:
    if name in _CHOICES and value and value not in _CHOICES[name]:
        return FieldError(name, f"must be one of {', '.join(_CHOICES[name])}, not {value[:40]!r}")
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    # PostgreSQL refuses NUL in a text; no name holds any control character.
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    return None

"""What the run list can be asked for. The query string is the whole state of the list, so it is checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.errors import FieldError, InvalidQuery
from app.web.outcomes import OUTCOMES

STATUSES = ("received", "processing", "ready", "failed", "unread")
PURPOSES = ("ci", "experiment", "release")
VERDICTS = ("regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed", "none")
"""`none`: not judged."""
EVIDENCE_LEVELS = ("smoke", "screen", "matched_ab", "validated")
SORTS = ("created", "name", "step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib")
NEWEST_FIRST = "-created"
UNKNOWN = "unknown"
"""A value of the model, gpu and dispatcher filters: the runs of which it is not known."""

_CHOICES = {
    "status": STATUSES,
    "outcome": tuple(OUTCOMES),
    "verdict": VERDICTS,
    "purpose": PURPOSES,
    "evidence": EVIDENCE_LEVELS,
    "sort": tuple(sign + name for name in SORTS for sign in ("", "-")),
}
_MAX_TEXT = 300


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Empty text means "any". `q` is words that must all occur; `sort` is a name of SORTS, `-` first for descending."""

    q: str = ""
    project: str = ""
    model: str = ""
    gpu: str = ""
    dispatcher: str = ""
    status: str = ""
    outcome: str = ""
    verdict: str = ""
    purpose: str = ""
    branch: str = ""
    evidence: str = ""
    sort: str = NEWEST_FIRST

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Filters of a query string; other names are left alone. Raises InvalidQuery naming each bad field."""
        given = {f.name: params.get(f.name, "").strip() for f in fields(cls)}
        errors = tuple(error for name, value in given.items() if (error := _check(name, value)))
        if errors:
            raise InvalidQuery("The address of this list asks for what there is not.", errors)
        return cls(**{name: value for name, value in given.items() if value})

    @property
    def active(self) -> dict[str, str]:
        """The filters that narrow the list, by name: sorting does not."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) and f.name != "sort"}

    def query(self, page: int = 1, **changes: str) -> str:
        """The query string of this list with `changes` applied; defaults are left out, so that addresses stay short."""
        changed = replace(self, **changes)
        pairs = changed.active
        if changed.sort != NEWEST_FIRST:
            pairs["sort"] = changed.sort
        if page > 1:
            pairs["page"] = str(page)
        return urlencode(pairs)

    def without(self, name: str) -> str:
        """The query string of this list with one filter taken away."""
        return replace(self, **{name: ""}).query()

    def sorted_by(self, name: str, descending_first: bool) -> str:
        """The value of `sort` that a click on the column `name` asks for."""
        first, second = (f"-{name}", name) if descending_first else (name, f"-{name}")
        return second if self.sort == first else first


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
        raise InvalidQuery("The address of this list asks for what there is not.", (error,))
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

"""What the list of experiments can be asked for. The query string is its whole state, so it is checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.domain.experiments.values import STATES
from app.errors import FieldError, InvalidQuery
from app.storage.experiments import ExperimentFilter

_MAX_TEXT = 100
_REFUSED = "The address of this list asks for what there is not."


@dataclass(frozen=True, slots=True)
class ExperimentFilters:
    """Empty text means "any". `run` is the number of a run that belongs to them."""

    project: str = ""
    state: str = ""
    rule: str = ""
    run: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming each field."""
        given = {f.name: params.get(f.name, "").strip() for f in fields(cls)}
        errors = tuple(error for name, value in given.items() if (error := _check(name, value)))
        if errors:
            raise InvalidQuery(_REFUSED, errors)
        return cls(**given)

    @property
    def active(self) -> dict[str, str]:
        """The filters that narrow the list, by name; the state is shown as tabs."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) and f.name != "state"}

    @property
    def wanted(self) -> ExperimentFilter:
        run_id = int(self.run) if self.run else None
        return ExperimentFilter(project=self.project, state=self.state, rule=self.rule, run_id=run_id)

    def query(self, page: int = 1, **changes: str) -> str:
        """The query string of the page with `changes` applied; defaults are left out."""
        changed = replace(self, **changes)
        pairs = changed.active | ({"state": changed.state} if changed.state else {})
        return urlencode(pairs | ({"page": str(page)} if page > 1 else {}))

    def without(self, name: str) -> str:
        """The query string of the page with one filter taken away."""
        return replace(self, **{name: ""}).query()


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
        raise InvalidQuery(_REFUSED, (error,))
    return int(text)


def _check(name: str, value: str) -> FieldError | None:
    if name == "state" and value and value not in STATES:
        return FieldError(name, f"must be one of {', '.join(STATES)}, not {value[:40]!r}")
    if name == "run" and value and not (value.isascii() and value.isdigit() and 0 < len(value) < 19):
        return FieldError(name, f"must be the number of a run, not {value[:40]!r}")
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    return None

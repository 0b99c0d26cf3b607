"""What the scaling view can be asked for. Its query string is its whole state, so it is checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from sqlmodel import Session

from app.domain.ranking import DISPATCHERS
from app.domain.ranking.scaling import KINDS
from app.errors import FieldError, InvalidQuery
from app.storage.leaderboard_names import check_project, leaderboards_named
from app.storage.standings import hardware_and_families

_CHOICES = {"kind": KINDS, "dispatcher": (*DISPATCHERS, "unknown")}
_MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class ScalingQuery:
    """Empty: any. `hardware` and `family` are the words of addresses, as on the leaderboards.

    `container` empty: the one with the most sizes, of several the one that ran last; `unknown`: runs whose container
    nobody states.
    """

    project: str = ""
    hardware: str = ""
    family: str = ""
    container: str = ""
    kind: str = ""
    dispatcher: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming each bad field."""
        given = {f.name: params.get(f.name, "").strip() for f in fields(cls)}
        errors = tuple(error for name, value in given.items() if (error := _check(name, value)))
        if errors:
            raise InvalidQuery("The address of this page asks for what there is not.", errors)
        return cls(**given)

    def query(self, **changes: str) -> str:
        changed = replace(self, **changes)
        return urlencode({f.name: value for f in fields(self) if (value := getattr(changed, f.name))})


def check_names(session: Session, query: ScalingQuery) -> None:
    """Raises NotFound, naming what there is: an empty answer would look like a workload without results."""
    check_project(session, query.project)
    leaderboards_named(hardware_and_families(session, query.project), query.hardware, query.family)


def _check(name: str, value: str) -> FieldError | None:
    if name in _CHOICES and value and value not in _CHOICES[name]:
        return FieldError(name, f"must be one of {', '.join(_CHOICES[name])}, not {value[:40]!r}")
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    return None

"""What was asked for beside what ran, field by field: agrees, differs, or nobody proves it."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.run import Activity, Stated
from app.runs.log_view import stated_at
from app.web.numbers import contract_value

_ORDER = {False: 0, True: 1, None: 2}
WORDS = {False: "differs", True: "agrees", None: "not proven"}


@dataclass(frozen=True, slots=True)
class Said:
    """One side of the comparison. `line` of log file `file` says so, 0 when no line does."""

    value: str
    source: str
    detail: str
    file: int
    line: int


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """`word` is agrees, differs or not proven; a side is None when nobody says."""

    field: str
    requested: Said | None
    active: Said | None
    word: str


def activity_rows(activity: Mapping[str, Activity]) -> tuple[ActivityRow, ...]:
    """Those that differ first."""
    ordered = sorted(activity.items(), key=lambda item: _ORDER[item[1].agrees])
    return tuple(
        ActivityRow(name, _said(entry.requested), _said(entry.active), WORDS[entry.agrees]) for name, entry in ordered
    )


def differing(activity: Mapping[str, Activity]) -> tuple[str, ...]:
    """A few words for each field that ran otherwise: `dispatcher: asked for deepep, ran alltoall`."""
    return tuple(
        f"{name}: asked for {_value(entry.requested)}, ran {_value(entry.active)}"
        for name, entry in activity.items()
        if entry.agrees is False
    )


def _value(stated: Stated | None) -> str:
    return contract_value(stated.value) if stated else "unknown"


def _said(stated: Stated | None) -> Said | None:
    if stated is None:
        return None
    file, line = stated_at(stated) or (0, 0)
    return Said(contract_value(stated.value), stated.source, stated.detail, file, line)

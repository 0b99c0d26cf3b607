"""What the reading of a run found beside its figures, to and from the JSON columns of its row."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from app.domain.run import (
    Activity,
    DispatcherAvailability,
    Evidence,
    Failure,
    LineExample,
    RunSummary,
    Slice,
    Stated,
    Timer,
)
from app.storage.tables import RunRow


def write(summary: RunSummary) -> dict[str, Any]:
    """The columns, by name."""
    lists = {name: [asdict(entry) for entry in getattr(summary, name)] for name in _LISTS}
    activity = {name: asdict(entry) for name, entry in summary.activity.items()}
    return lists | {"activity": activity, "fair_for_timing": summary.fair_for_timing}


def read(row: RunRow) -> dict[str, Any]:
    """The values of RunDetail, by name."""
    lists: dict[str, Any] = {
        name: tuple(make(entry) for entry in getattr(row, name) or ()) for name, make in _LISTS.items()
    }
    # What is no number is stored as null (`json_column.py`): such a timer says nothing.
    lists["timers"] = tuple(t for t in lists["timers"] if t.share_of_step is not None and t.median_ms is not None)
    return lists | {"activity": activities(row.activity)}


def activities(stored: Mapping[str, Any] | None) -> dict[str, Activity]:
    """The column `activity`."""
    return {name: _activity(entry) for name, entry in (stored or {}).items()}


def stated(entry: Mapping[str, Any]) -> Stated:
    return Stated(frozen(entry["value"]), entry["source"], entry.get("detail", ""), entry.get("file", 0))


def known(kind: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that `kind` has a field for: a row of an older or newer definition may hold others."""
    return {f.name: stored[f.name] for f in fields(kind) if f.name in stored}


def frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _with_evidence(kind: type[Any]) -> Callable[[Mapping[str, Any]], Any]:
    def make(stored: Mapping[str, Any]) -> Any:
        evidence = tuple(Evidence(**known(Evidence, line)) for line in stored.get("evidence", ()))
        return kind(**(known(kind, stored) | {"evidence": evidence}))

    return make


def _plain(kind: type[Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda stored: kind(**known(kind, stored))


def _activity(stored: Mapping[str, Any]) -> Activity:
    requested, active = stored.get("requested"), stored.get("active")
    return Activity(
        requested=stated(requested) if requested else None,
        active=stated(active) if active else None,
        agrees=stored.get("agrees"),
    )


_LISTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "failures": _with_evidence(Failure),
    "availability": _with_evidence(DispatcherAvailability),
    "timers": _plain(Timer),
    "not_understood": _plain(LineExample),
    "slices": _plain(Slice),
}

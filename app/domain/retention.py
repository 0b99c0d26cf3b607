"""How long a project keeps its data: figures forever by default."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from app.errors import FieldError, InvalidChange

MOST_DAYS = 36_500
FEWEST_DAYS = 1
UNDO_DAYS = 7
"""Days in which a deletion can be undone."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Days after the upload; None: forever.

    `logs_days`: raw logs and other uploaded files; figures are kept. `failed_days`: runs without figures, failed and
    unread. `runs_days`: all runs. Golden runs, pinned or baselines of experiments, are never deleted by age.
    """

    logs_days: int | None = None
    failed_days: int | None = None
    runs_days: int | None = None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "Retention":
        """Return what a project stored, or what a user sent. Raises InvalidChange naming the fields."""
        names = {field.name for field in fields(cls)}
        errors = [FieldError(name[:40], f"is not one of {', '.join(sorted(names))}") for name in stored.keys() - names]
        errors += [
            FieldError(
                name,
                f"must be a whole number of days from {FEWEST_DAYS} to {MOST_DAYS:,}, or null for unlimited retention",
            )
            for name in names & stored.keys()
            if not _is_days(stored[name])
        ]
        if errors:
            raise InvalidChange("The retention is invalid. Nothing was changed.", tuple(errors))
        return cls(**stored)

    def to_json(self) -> dict[str, int]:
        return {name: days for name, days in asdict(self).items() if days is not None}

    @property
    def rules(self) -> tuple[tuple[str, int], ...]:
        """Return the kinds of selections with their days, those first that make others unnecessary."""
        days = (("runs", self.runs_days), ("failed", self.failed_days), ("logs", self.logs_days))
        return tuple((kind, number) for kind, number in days if number is not None)


def before(days: int, now: datetime) -> datetime:
    return now - timedelta(days=days)


def _is_days(value: Any) -> bool:
    return value is None or (
        isinstance(value, int) and not isinstance(value, bool) and FEWEST_DAYS <= value <= MOST_DAYS
    )

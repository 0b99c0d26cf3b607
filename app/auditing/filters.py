"""The filter of the audit, as its address has it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query

from app.domain.text import one_line
from app.errors import FieldError, InvalidQuery
from app.storage.audit_log import SUBJECTS, AuditFilter
from app.web.query_checks import one_of

LARGEST_ID = 2**63 - 1
NAMES = ("project", "who", "subject", "since", "until")


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """As typed. `since` and `until` are dates or times of ISO 8601, in UTC unless they say otherwise."""

    project: Annotated[str, Query(max_length=100, description="Only what belongs to it.")] = ""
    who: Annotated[str, Query(max_length=100, description="Only what this person or `token NAME` did.")] = ""
    subject: Annotated[str, Query(description="Only changes of these."), *one_of(SUBJECTS)] = ""
    since: Annotated[str, Query(max_length=40, description="From this date or time on.")] = ""
    until: Annotated[str, Query(max_length=40, description="Up to this time, or to the end of this day.")] = ""

    def read(self) -> AuditFilter:
        """Raises InvalidQuery."""
        return AuditFilter(
            one_line(self.project),
            one_line(self.who),
            self.subject,
            _time("since", self.since),
            _time("until", self.until, whole_day=True),
        )

    @property
    def active(self) -> dict[str, str]:
        return {name: value for name in NAMES if (value := getattr(self, name))}

    def query(self, **more: Any) -> str:
        return urlencode(self.active | more)


def _time(name: str, text: str, *, whole_day: bool = False) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        return found + timedelta(days=1) if whole_day and len(text) == len("2026-01-31") else found
    except (ValueError, OverflowError):
        why = "must be a date like 2026-01-31 or a time like 2026-01-31T10:00:00Z"
        raise InvalidQuery(f"The filter {name} {why}.", (FieldError(name, why),)) from None

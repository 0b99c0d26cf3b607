"""What the first page can be asked for: a period and a branch. The query string is its whole state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

from app.errors import FieldError, InvalidQuery

PERIODS = {1: "24 hours", 7: "7 days", 30: "30 days", 90: "90 days"}
DAYS = 7
_MAX_BRANCH = 300


@dataclass(frozen=True, slots=True)
class OverviewFilters:
    """`branch` empty means any."""

    days: int = DAYS
    branch: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming the field that means nothing."""
        days, branch = params.get("days", "").strip() or str(DAYS), params.get("branch", "").strip()
        errors = []
        if days not in map(str, PERIODS):
            errors.append(FieldError("days", f"must be one of {', '.join(map(str, PERIODS))}, not {days[:40]!r}"))
        if len(branch) > _MAX_BRANCH or any(ord(c) < 32 for c in branch):
            errors.append(FieldError("branch", f"must have at most {_MAX_BRANCH} characters, none of control"))
        if errors:
            raise InvalidQuery("The address of this page asks for what there is not.", tuple(errors))
        return cls(int(days), branch)

    @property
    def period(self) -> str:
        return PERIODS[self.days]

    def runs_query(self, **more: str) -> str:
        """The query string of the list of runs, with this branch."""
        return urlencode(({"branch": self.branch} if self.branch else {}) | more)

"""What the first page can be asked for: a period, a project and a branch. The query string is its whole state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

from app.errors import FieldError, InvalidQuery
from app.storage.projects import MAX_SLUG

PERIODS = {1: "24 hours", 7: "7 days", 30: "30 days", 90: "90 days"}
DAYS = 7
_MAX_BRANCH = 300


@dataclass(frozen=True, slots=True)
class OverviewFilters:
    """`branch` and `project` empty mean any."""

    days: int = DAYS
    branch: str = ""
    project: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming the field that means nothing."""
        days, branch = params.get("days", "").strip() or str(DAYS), params.get("branch", "").strip()
        project = params.get("project", "").strip()
        errors = []
        if days not in map(str, PERIODS):
            errors.append(FieldError("days", f"must be one of {', '.join(map(str, PERIODS))}, not {days[:40]!r}"))
        for name, value, most in (("branch", branch, _MAX_BRANCH), ("project", project, MAX_SLUG)):
            if len(value) > most or any(ord(c) < 32 for c in value):
                errors.append(FieldError(name, f"must have at most {most} characters, none of control"))
        if errors:
            raise InvalidQuery("The address of this page asks for what there is not.", tuple(errors))
        return cls(int(days), branch, project)

    @property
    def period(self) -> str:
        return PERIODS[self.days]

    def runs_query(self, **more: str) -> str:
        """The query string of the list of runs, with this project and branch."""
        return urlencode(self.of_project() | ({"branch": self.branch} if self.branch else {}) | more)

    def of_project(self) -> dict[str, str]:
        return {"project": self.project} if self.project else {}

    def project_query(self, **more: str) -> str:
        """That of a list which knows no branches."""
        return urlencode(self.of_project() | more)

    @property
    def where(self) -> str:
        """As a part of a sentence; empty for everywhere."""
        on = f" on {self.branch}" if self.branch else ""
        return on + (f" in {self.project}" if self.project else "")

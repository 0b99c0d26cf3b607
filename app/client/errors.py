"""What can go wrong between a client and its service.

ThreewallsError
├── UsageError      options or settings that mean nothing; exit code 2
├── Unreachable     no answer after all attempts: the upload is kept for later
└── Refused         the service answered, and said no
"""

from collections.abc import Mapping
from typing import Any

from app.errors import FieldError, ThreewallsError


class UsageError(ThreewallsError):
    title = "This command line cannot be understood"


class Unreachable(ThreewallsError):
    title = "The service cannot be reached"


class Refused(ThreewallsError):
    """`status` is that of HTTP; `problem` the whole answer, where it was a problem document."""

    title = "The service refused this"

    def __init__(self, status: int, detail: str, problem: Mapping[str, Any] | None = None) -> None:
        problem = problem or {}
        fields = problem.get("errors") or ()
        super().__init__(detail, tuple(FieldError(str(one.get("field")), str(one.get("message"))) for one in fields))
        self.status = status
        self.problem = problem

    @property
    def offset(self) -> int | None:
        """The byte at which a piece of a log must begin, where that is what was wrong."""
        offset = self.problem.get("offset")
        return offset if isinstance(offset, int) and not isinstance(offset, bool) else None

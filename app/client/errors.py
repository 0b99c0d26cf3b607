"""What can go wrong between a client and its service.

ThreewallsError
├── UsageError      options or settings that mean nothing; exit code 2
├── Unreachable     no answer after all attempts: the upload is kept for later
│   └── Strange     whoever answers there is not Threewalls
└── Refused         the service answered, and said no
"""

from collections.abc import Mapping
from typing import Any

from app.errors import FieldError, OverQuota, ThreewallsError


class UsageError(ThreewallsError):
    title = "This command line cannot be understood"


class Unreachable(ThreewallsError):
    title = "The service cannot be reached"


class Strange(Unreachable):
    title = "This address does not answer as Threewalls"

    def __init__(self, url: str, said: str) -> None:
        super().__init__(
            f"{url} does not answer as Threewalls: {said}. Look at THREEWALLS_URL, and at what stands between: a "
            "proxy, a log-in page, another port."
        )


class Refused(ThreewallsError):
    """`status` is that of HTTP; `problem` the whole answer, where it was a problem document."""

    title = "The service refused this"

    def __init__(self, status: int, detail: str, problem: Mapping[str, Any] | None = None) -> None:
        self.problem = problem or {}
        super().__init__(detail, _fields(self.problem.get("errors")))
        self.status = status

    @property
    def offset(self) -> int | None:
        """The byte at which a piece of a log must begin, where that is what was wrong."""
        offset = self.problem.get("offset")
        return offset if isinstance(offset, int) and not isinstance(offset, bool) else None

    @property
    def may_pass(self) -> bool:
        """Whether the same upload may be taken later: after another token, a raised quota, room on the disk (507), or
        another word of a proxy, which writes no problem document. What the service refuses for what it is, it will
        refuse again."""
        is_ours = isinstance(self.problem.get("title"), str)
        return not is_ours or self.status in (401, 403, 507) or self.problem["title"] == OverQuota.title


def _fields(errors: object) -> tuple[FieldError, ...]:
    known = [one for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    return tuple(FieldError(str(one.get("field")), str(one.get("message"))) for one in known)

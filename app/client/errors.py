"""What can go wrong between a client and its service.

ThreewallsError
├── UsageError      options or settings that mean nothing; exit code 2
├── Unreachable     no answer after all attempts: the upload is kept for later
│   └── Strange     whoever answers there is not Threewalls
└── Refused         the service answered, and said no
"""

import argparse
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from app.client.terminal import one_line, plain, surprise
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


# --- Exit codes of a client command, and `--allow`. The service sends the code of a verdict, from the same list.

FINE = 0
USAGE = 2
SERVICE = 3
"""Nothing was uploaded, or no verdict came: the service could not be reached, refused, or took too long."""
CRASH = 70
"""An unexpected error or a broken installation: EX_SOFTWARE of sysexits.h."""

NO_VERDICT = "no-verdict"
OUTCOME_OF_CODE = {0: "fine", 1: "regression", SERVICE: "failed", 4: "no-baseline", 5: "inconclusive", 6: "unread"}
ALLOWABLE = (*list(OUTCOME_OF_CODE.values())[1:], NO_VERDICT)
"""`no-verdict` shares its code with `failed`: the service is away, or has not judged the run yet."""


def add_allow(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--allow", type=_outcomes, action="extend", default=[], metavar="OUTCOME[,...]",
        help=f"exit with 0 on these outcomes, too: {', '.join(ALLOWABLE)}",
    )  # fmt: skip


def allowing(allowed: Collection[str], outcome: str, code: int) -> int:
    """Return 0 in place of `code` when the outcome is allowed, and say so on standard error."""
    if code == FINE or outcome not in allowed:
        return code
    print(f"threewalls: the exit code is 0 in place of {code}: --allow {outcome}", file=sys.stderr, flush=True)
    return FINE


def _outcomes(text: str) -> list[str]:
    outcomes = [word.strip() for word in text.split(",") if word.strip()]
    unknown = ", ".join(word for word in outcomes if word not in ALLOWABLE)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown outcome {unknown}; there are {', '.join(ALLOWABLE)}")
    return outcomes


# --- How a command ends that could not do what it was for: exit code, sentence, and the same for a machine.


@dataclass(frozen=True, slots=True)
class Failure:
    exit_code: int
    said: str
    errors: tuple[FieldError, ...] = ()

    @property
    def lines(self) -> str:
        return plain(self.said) + "".join(f"\n  {one_line(one.field)}: {plain(one.message)}" for one in self.errors)

    def as_json(self) -> dict[str, Any]:
        fields = [{"field": one.field, "message": one.message} for one in self.errors]
        return {"exit_code": self.exit_code, "error": self.said, "errors": fields}


def failure(error: Exception, url: str, *, of_upload: bool = False) -> Failure:
    """Of any error. `url`: the service's, that a refusal does not name itself.

    A refusal is a matter of the command line where it names what was stated there; a log that holds nothing is not.
    """
    match error:
        case UsageError():
            return Failure(USAGE, error.detail)
        case Refused():
            of_usage = error.status == 422 and (bool(error.errors) or not of_upload)
            return Failure(USAGE if of_usage else SERVICE, f"{url} {error.detail}", error.errors)
        case ThreewallsError():
            return Failure(SERVICE, error.detail, error.errors)
    return Failure(SERVICE if isinstance(error, OSError) else CRASH, surprise(error))

"""The errors of the client, its exit codes, and `--allow`.

ThreewallsError
├── UsageError           invalid options or files (app/errors.py); exit code 2
├── Unreachable          no answer after all attempts: the upload is kept for later
│   └── NotThreewalls    another server answers at this address
└── Refused              the service answered with an error
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from app.client.terminal import describe_unexpected, one_line, plain
from app.errors import FieldError, OverQuota, ThreewallsError, UsageError


class Unreachable(ThreewallsError):
    title = "The service is unreachable"


class NotThreewalls(Unreachable):
    title = "The server at this address is not Threewalls"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"The server at {url} is not Threewalls: {reason}. Check THREEWALLS_URL, the port, and any proxy or log-in "
            "page in front of it."
        )


class Refused(ThreewallsError):
    """`status` is the HTTP status. `problem` is the problem document, empty if the answer was none."""

    title = "The service refused the request"

    def __init__(self, status: int, detail: str, problem: Mapping[str, Any] | None = None) -> None:
        self.problem = problem or {}
        super().__init__(detail, _fields(self.problem.get("errors")))
        self.status = status

    @property
    def offset(self) -> int | None:
        """Return the byte offset that the service expects next, if the offset was the error."""
        offset = self.problem.get("offset")
        return offset if isinstance(offset, int) and not isinstance(offset, bool) else None

    @property
    def may_pass(self) -> bool:
        """Return whether the service may accept the same upload later.

        True after a rejected token, an exhausted quota, a full disk (507), or the error of a proxy, which sends no
        problem document. An upload that is invalid stays invalid.
        """
        is_ours = isinstance(self.problem.get("title"), str)
        return not is_ours or self.status in (401, 403, 507) or self.problem["title"] == OverQuota.title


def _fields(errors: object) -> tuple[FieldError, ...]:
    entries = [entry for entry in errors if isinstance(entry, dict)] if isinstance(errors, list) else []
    return tuple(FieldError(str(entry.get("field")), str(entry.get("message"))) for entry in entries)


# --- Exit codes and `--allow`. The service sends the exit code of a verdict, from the same list.

FINE = 0
REGRESSION = 1
USAGE = 2
SERVICE = 3
"""Nothing was uploaded or there is no verdict: the service was unreachable, refused the request or took too long."""
CRASH = 70
"""An unexpected error or a broken installation: EX_SOFTWARE of sysexits.h."""

NO_VERDICT = "no-verdict"
OUTCOME_OF_CODE = {0: "fine", 1: "regression", SERVICE: "failed", 4: "no-baseline", 5: "inconclusive", 6: "unread"}
ALLOWABLE = (*list(OUTCOME_OF_CODE.values())[1:], NO_VERDICT)
"""`no-verdict` shares its code with `failed`: the service is unreachable, or has not judged the run yet."""


def add_allow(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--allow", type=_outcomes, action="extend", default=[], metavar="OUTCOME[,...]",
        help=f"also exit with 0 on these outcomes: {', '.join(ALLOWABLE)}",
    )  # fmt: skip


def apply_allow(allowed: Collection[str], outcome: str, code: int) -> int:
    """Return 0 instead of `code` if the outcome is allowed, and print that on standard error."""
    if code == FINE or outcome not in allowed:
        return code
    print(f"threewalls: exit code 0 instead of {code} (--allow {outcome})", file=sys.stderr, flush=True)
    return FINE


def _outcomes(text: str) -> list[str]:
    outcomes = [word.strip() for word in text.split(",") if word.strip()]
    unknown = ", ".join(word for word in outcomes if word not in ALLOWABLE)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown outcome {unknown}; choose from {', '.join(ALLOWABLE)}")
    return outcomes


# --- The result of a failed command.


@dataclass(frozen=True)
class CommandFailure:
    """`message` may contain text of the service; `lines` and `as_json` are what the command prints."""

    exit_code: int
    message: str
    errors: tuple[FieldError, ...] = ()

    @property
    def lines(self) -> str:
        fields = "".join(f"\n  {one_line(error.field)}: {plain(error.message)}" for error in self.errors)
        return plain(self.message) + fields

    def as_json(self) -> dict[str, Any]:
        fields = [{"field": error.field, "message": error.message} for error in self.errors]
        return {"exit_code": self.exit_code, "error": self.message, "errors": fields}


def failure(error: Exception, url: str, *, of_upload: bool) -> CommandFailure:
    """Return how a command ends after this error. `url` is the address of the service.

    A refusal has exit code 2 if it names a field of the command line; a refused log has exit code 3.
    """
    if isinstance(error, UsageError):
        return CommandFailure(USAGE, error.detail)
    if isinstance(error, Refused):
        of_usage = error.status == 422 and (bool(error.errors) or not of_upload)
        return CommandFailure(USAGE if of_usage else SERVICE, f"{url} {error.detail}", error.errors)
    if isinstance(error, ThreewallsError):
        return CommandFailure(SERVICE, error.detail, error.errors)
    return CommandFailure(SERVICE if isinstance(error, OSError) else CRASH, describe_unexpected(error))

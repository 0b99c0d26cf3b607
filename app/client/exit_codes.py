"""Exit codes of a client command, and `--allow`. The service sends the code of a verdict, from the same list."""

import argparse
import sys
from collections.abc import Collection

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

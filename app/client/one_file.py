"""The one-file client: the commands of this package, started from `threewalls.pyz` (`app/web/assets.py`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from app.client import options
from app.client.commands import run
from app.client.errors import CRASH, SERVICE
from app.client.service import client_version
from app.client.terminal import describe_unexpected, fault_tolerant_output

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the client and return its exit code (docs/cli.md)."""
    with fault_tolerant_output() as output:
        try:
            words = list(sys.argv[1:] if arguments is None else arguments)
            code = run(options.parse_words(_parser(), words))
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:  # Python would exit with 1, which means a regression
            print(f"threewalls: {describe_unexpected(error)}", file=sys.stderr)
            code = CRASH
        sys.stdout.flush()
        if output.lost_because:
            print(f"threewalls: the output could not be written: {output.lost_because}.", file=sys.stderr)
            return code or SERVICE
        return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="threewalls", description="The client of a Threewalls service.")
    parser.add_argument("--version", action="version", version=f"threewalls {client_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    options.add_commands(commands)
    options.describe_commands(commands)
    return parser

"""Options and exit codes of `threewalls analyze` and `threewalls compare`.

Imports no package of the service, because the client builds the parser too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Exit codes. Those of a verdict are in `app/domain/report/values.py`. They never change; new ones may be added.

FINE = 0
USAGE = 2
UNREAD = 6
"""No reader supports the log. The job has not necessarily failed."""
UNREADABLE = 3
"""A file or the service could not be read, or the run to judge failed."""

_STATEMENT = "KEY=VALUE"
_META = "FILE|JSON"


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    analyze = commands.add_parser("analyze", help="print the figures of a log, without a server")
    analyze.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="log files of one run; - for standard input")
    _add_statements(analyze, "", "the run")
    analyze.add_argument(
        "--read-as", default="", metavar="LINE",
        help="a step line of an unknown trainer with placeholders: 'step {iteration}: {step_time_s} s'",
    )  # fmt: skip
    compare = commands.add_parser(
        "compare",
        help="judge a log against earlier ones, without a server",
        usage="threewalls compare --baseline LOG... [options] -- LOG [RERUN...] [options]",
    )
    log: dict[str, Any] = {"nargs": "+", "type": Path, "metavar": "LOG", "required": True}
    compare.add_argument("--baseline", **log, help="earlier runs, oldest first; a folder is one run")
    compare.add_argument("--candidate", **log, help="the run to judge and its reruns; same as --")
    _add_statements(compare, "", "all runs")
    _add_statements(compare, "baseline-", "the baseline runs")
    _add_statements(compare, "candidate-", "the run to judge")
    compare.add_argument(
        "--looks", type=_looks, default=1, metavar="N", help="how often this commit was judged, including now"
    )
    profile = commands.add_parser("profile", help="print where the steps of a GPU trace go, without a server")
    profile.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="traces of PyTorch or exports of Nsight Systems, one per rank",
    )
    profile.add_argument("--json", action="store_true", help="print JSON, one object per file (docs/profiles.md)")
    check = commands.add_parser("check", help="check a launch script or configuration before it runs, without a server")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="launch script, command or YAML")
    check.add_argument(
        "--set", metavar=_STATEMENT, action="append", default=[], help="a fact that the file does not show: gpu=H100"
    )
    check.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")
    for command in (analyze, compare):
        command.add_argument("--lenient", action="store_true", help="accept --set with unknown fields")
        command.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")


def with_candidate(arguments: Sequence[str]) -> list[str]:
    """Replace `--` of `compare` by `--candidate`, so that options may follow the logs."""
    words = list(arguments)
    if words[:1] == ["compare"] and "--" in words:
        words[words.index("--")] = "--candidate"
    return words


def _add_statements(command: argparse.ArgumentParser, prefix: str, whose: str) -> None:
    command.add_argument(f"--{prefix}meta", metavar=_META, default="", help=f"metadata of {whose}, as for an upload")
    command.add_argument(
        f"--{prefix}set", metavar=_STATEMENT, action="append", default=[], help=f"one field of the metadata of {whose}"
    )


def _looks(text: str) -> int:
    looks = int(text)
    if looks < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return looks

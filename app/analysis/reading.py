"""Reads runs from local files, with the options of `analyze` and `compare`."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.domain.documents.metadata import read_metadata
from app.domain.logs.merge import merge_logs
from app.domain.performance.summary import summarise
from app.domain.run import LogPart, Metadata, ParsedLog, RunSummary
from app.domain.verdict.record import RunRecord, shared_losses
from app.errors import ThreewallsError

# --- The options of `analyze` and `compare`.

_STATEMENT = "KEY=VALUE"
_META = "FILE|JSON"


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    analyze = commands.add_parser("analyze", help="print the figures of a log, without a server")
    analyze.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="log files of one run; - for standard input")
    _add_statements(analyze, "", "the run")
    compare = commands.add_parser(
        "compare",
        help="judge a log against earlier ones, without a server",
        usage="threewalls compare --baseline LOG... [options] -- LOG [RERUN...] [options]",
    )
    log = {"nargs": "+", "type": Path, "metavar": "LOG", "required": True}
    compare.add_argument("--baseline", **log, help="earlier runs, oldest first; a folder is one run")  # type: ignore[arg-type]
    compare.add_argument("--candidate", **log, help="the run to judge and its reruns; same as --")  # type: ignore[arg-type]
    _add_statements(compare, "", "all runs")
    _add_statements(compare, "baseline-", "the baseline runs")
    _add_statements(compare, "candidate-", "the run to judge")
    compare.add_argument("--looks", type=_looks, default=1, help="how often this commit was judged, including now")
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


class UsageError(ThreewallsError):
    """Invalid or contradicting options or files. The message says what to change."""

    title = "Invalid command line"


ReadLog = Callable[[Path], tuple[ParsedLog, str]]
"""Reads one file. The text is the compression of a truncated file, else empty."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """A run as read. `name` is the name of its file or folder, unique in one command."""

    name: str
    metadata: Metadata
    summary: RunSummary


def analyse(name: str, paths: Sequence[Path], metadata: Metadata, read_log: ReadLog) -> Analysis:
    """Read the files of one run; a folder stands for its files. Raises what `read_log` raises."""
    files = [file for path in paths for file in _files(path)]
    parts, cut = [], []
    for file in files:
        log, ends_early = read_log(file)
        parts.append(LogPart(file.name, log))
        if ends_early:
            cut.append(
                f"{file.name} is a truncated {ends_early} file. The {log.n:,} iterations before its end were read."
            )
    summary = summarise(merge_logs(parts), metadata)
    return Analysis(name, metadata, replace(summary, warnings=(*cut, *summary.warnings)))


def names_of(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the name of each run: its file name, or its path if two names are equal."""
    names = [path.name for path in paths]
    return {path: path.name if names.count(path.name) == 1 else str(path) for path in paths}


def records(runs: Sequence[Analysis]) -> list[RunRecord]:
    """Return the runs of one comparison in order, with losses over the iterations that all of them have."""
    losses = shared_losses([run.summary.series for run in runs])
    return [
        RunRecord.from_summary(run.name, run.metadata, run.summary, loss=loss)
        for run, loss in zip(runs, losses, strict=True)
    ]


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    inside = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not inside:
        raise UsageError(f"The folder {path} contains no files. Name the folder of the logs.")
    yield from inside


# --- Metadata from `--meta` and `--set`, as in an upload.

_WINDOW = re.compile(r"(\d+)-(\d+)")


def read_statements(documents: Iterable[str], settings: Iterable[str], *, lenient: bool = False) -> Metadata:
    """Merge the `--meta` documents (later ones win), overridden by `--set KEY=VALUE`.

    Raises UsageError for unreadable input, InvalidMetadata for an invalid value and, unless `lenient`, an unknown KEY.
    """
    stated: dict[str, object] = {}
    for document in documents:
        stated |= _document(document) if document else {}
    named = [_setting(setting) for setting in settings]
    return read_metadata(stated | dict(named), () if lenient else [name for name, _ in named])


def _document(text: str) -> dict[str, object]:
    source = "--meta"
    if not text.lstrip().startswith("{"):
        source = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The metadata file {source} cannot be read: {error}.") from None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{source} is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise UsageError(f'{source} must be a JSON object, for example {{"gpu": "H100", "gpus": 64}}.')
    return document


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: expected KEY=VALUE, for example --set gpu=H100.")
    if name == "window" and (window := _WINDOW.fullmatch(value)):
        return name, {"first": int(window[1]), "last": int(window[2])}
    if value.startswith(("{", "[")):
        try:
            return name, json.loads(value)
        except ValueError as error:
            raise UsageError(f"--set {name}: the value is not valid JSON: {error}.") from None
    return name, value


# --- Exit codes. Those of a verdict are in `app/domain/report/exit_codes.py`. They never change; new ones may be added.

FINE = 0
USAGE = 2
UNREAD = 6
"""No reader supports the log. The job has not necessarily failed."""
UNREADABLE = 3
"""A file or the service could not be read, or the run to judge failed."""

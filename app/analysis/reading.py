"""Local files become the run that they are."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

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
    analyze = commands.add_parser("analyze", help="read a log and print its figures, without a server")
    analyze.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="log files of one run; - for standard input")
    _add_statements(analyze, "", "the run")
    compare = commands.add_parser(
        "compare",
        help="judge a log against earlier ones, without a server",
        usage="threewalls compare --baseline LOG... [options] -- LOG [RERUN...] [options]",
    )
    log = {"nargs": "+", "type": Path, "metavar": "LOG", "required": True}
    compare.add_argument("--baseline", **log, help="earlier runs, oldest first; a folder is one run of several files")  # type: ignore[arg-type]
    compare.add_argument("--candidate", **log, help="the run to judge, and reruns of it; the same as --")  # type: ignore[arg-type]
    _add_statements(compare, "", "all runs")
    _add_statements(compare, "baseline-", "the baseline runs")
    _add_statements(compare, "candidate-", "the run to judge")
    compare.add_argument("--looks", type=_looks, default=1, help="how many times this commit was judged, this included")
    for command in (analyze, compare):
        command.add_argument("--lenient", action="store_true", help="keep what --set names and no field is")
        command.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")


def with_candidate(arguments: Sequence[str]) -> list[str]:
    """`compare --baseline A -- B --json` with the option that `--` stands for, so that options may follow the logs."""
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
        raise argparse.ArgumentTypeError("a number of looks is at least 1")
    return looks


# --- A command line that means nothing.


class UsageError(ThreewallsError):
    """Options or files that contradict each other; the detail says what to write instead."""

    title = "This command line cannot be understood"


ReadLog = Callable[[Path], tuple[ParsedLog, str]]
"""Reads one file, decompressed; and the kind of its compression when that ends early, else empty."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """One run as read: `name` is that of its file or folder, unique among the runs of one command."""

    name: str
    metadata: Metadata
    summary: RunSummary


def analyse(name: str, paths: Sequence[Path], metadata: Metadata, read_log: ReadLog) -> Analysis:
    """The run that the files are together. A folder stands for its files. What `read_log` raises passes through."""
    files = [file for path in paths for file in _files(path)]
    parts, cut = [], []
    for file in files:
        log, ends_early = read_log(file)
        parts.append(LogPart(file.name, log))
        if ends_early:
            cut.append(
                f"{file.name} is {ends_early}, but ends early. The {log.n:,} iterations before the cut were read."
            )
    summary = summarise(merge_logs(parts), metadata)
    return Analysis(name, metadata, replace(summary, warnings=(*cut, *summary.warnings)))


def names_of(paths: Sequence[Path]) -> dict[Path, str]:
    """What each run is called: its file's name, or its whole path where two are called the same."""
    names = [path.name for path in paths]
    return {path: path.name if names.count(path.name) == 1 else str(path) for path in paths}


def records(runs: Sequence[Analysis]) -> list[RunRecord]:
    """The runs of one comparison, in the same order, with their losses over iterations that all of them have."""
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
        raise UsageError(f"The folder {path} holds no files.")
    yield from inside


# --- What the options state about a run becomes its metadata, as an upload's `meta` would.

_WINDOW = re.compile(r"(\d+)-(\d+)")


def read_statements(documents: Iterable[str], settings: Iterable[str], *, lenient: bool = False) -> Metadata:
    """Metadata of the `--meta` documents (later ones win) and, over them, of `--set KEY=VALUE`.

    Raises UsageError on what cannot be read, InvalidMetadata on a wrong value and, unless `lenient`, on an unknown KEY.
    """
    stated: dict[str, object] = {}
    for document in documents:
        stated |= _document(document) if document else {}
    named = [_setting(setting) for setting in settings]
    return read_metadata(stated | dict(named), () if lenient else [name for name, _ in named])


def _document(text: str) -> dict[str, object]:
    where = "--meta"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The metadata file {where} cannot be read: {error}.") from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}.") from None
    if not isinstance(found, Mapping):
        raise UsageError(f'{where} must be a JSON object, for instance {{"gpu": "H100", "gpus": 64}}.')
    return dict(cast(Mapping[str, object], found))


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: write KEY=VALUE, for instance --set gpu=H100.")
    if name == "window" and (window := _WINDOW.fullmatch(value)):
        return name, {"first": int(window[1]), "last": int(window[2])}
    if value.startswith(("{", "[")):
        try:
            return name, json.loads(value)
        except ValueError as error:
            raise UsageError(f"--set {name}: {error}.") from None
    return name, value


# --- What the command line's exit code says; those of a verdict are in `app/domain/report/exit_codes.py`.
#
# They are a promise: additions are welcome, changes are not.

FINE = 0
USAGE = 2
UNREAD = 6
"""No reader knows the log; a job of an unknown trainer has not failed."""
UNREADABLE = 3
"""Upload or service: what was to be read, or reached, could not be. Of a comparison: the run itself failed."""

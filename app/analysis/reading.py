"""Local files become the run that they are."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.analysis.usage_error import UsageError
from app.domain.matching import RunRecord, shared_losses
from app.domain.merge import merge_logs
from app.domain.run import LogPart, Metadata, ParsedLog, RunSummary
from app.domain.summary import summarise

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

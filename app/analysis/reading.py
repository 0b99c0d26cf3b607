"""Read runs from local files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.client.upload import metadata_document, metadata_setting
from app.domain.documents.metadata import read_metadata
from app.domain.logs.line_template import LineTemplate, read_template
from app.domain.logs.merge import merge_logs
from app.domain.performance.summary import summarise
from app.domain.run import LogPart, Metadata, ParsedLog, RunSummary
from app.domain.verdict.record import RunRecord, shared_losses
from app.errors import UsageError

ReadLog = Callable[[Path, LineTemplate | None], tuple[ParsedLog, str]]
"""Reads one file, with the stated description of its step lines. The text is the compression of a truncated file."""


@dataclass(frozen=True, slots=True)
class LogAnalysis:
    """A run as read. `name` is the name of its file or folder, unique in one command."""

    name: str
    metadata: Metadata
    summary: RunSummary


def analyse(name: str, paths: Sequence[Path], metadata: Metadata, read_log: ReadLog) -> LogAnalysis:
    """Read the files of one run; a folder stands for its files. Raises what `read_log` raises."""
    files = [file for path in paths for file in _files(path)]
    parts, cut = [], []
    template = read_template(metadata.read_as) if metadata.read_as else None
    for file in files:
        log, ends_early = read_log(file, template)
        parts.append(LogPart(file.name, log))
        if ends_early:
            cut.append(
                f"{file.name} is a truncated {ends_early} file. The {log.n:,} iterations before its end were read."
            )
    summary = summarise(merge_logs(parts), metadata)
    return LogAnalysis(name, metadata, replace(summary, warnings=(*cut, *summary.warnings)))


def names_of(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the name of each run: its file name, or its path if two names are equal."""
    names = [path.name for path in paths]
    return {path: path.name if names.count(path.name) == 1 else str(path) for path in paths}


def records(runs: Sequence[LogAnalysis]) -> list[RunRecord]:
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


def read_statements(documents: Iterable[str], settings: Iterable[str], *, lenient: bool = False) -> Metadata:
    """Merge the `--meta` documents (later ones win), overridden by `--set KEY=VALUE`.

    Raises UsageError for unreadable input, InvalidMetadata for an invalid value and, unless `lenient`, an unknown KEY.
    """
    stated: dict[str, object] = {}
    for document in documents:
        stated |= metadata_document(document) if document else {}
    named = [metadata_setting(setting) for setting in settings]
    return read_metadata(stated | dict(named), () if lenient else [name for name, _ in named])

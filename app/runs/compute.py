"""The figures of a run out of its files, or out of what was found in them before: then no log is read again."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from app.domain.document_series import with_documents
from app.domain.documents import Document, DocumentKind, read_document
from app.domain.logs import parse_log
from app.domain.merge import merge_logs
from app.domain.run import LogPart, RunSummary
from app.domain.summary import summarise
from app.runs.run_inputs import RunInputs
from app.runs.sizes import size
from app.storage.log_files import LogFiles
from app.storage.readings import Reading
from app.storage.run_records import RunFile


@dataclass(frozen=True, slots=True)
class Computed:
    """`found`: what the files say, when they were read just now. `seconds`: how long it all took."""

    inputs: RunInputs
    summary: RunSummary
    warnings: tuple[str, ...]
    found: Reading | None
    seconds: float


def compute(log_files: LogFiles, inputs: RunInputs) -> Computed:
    began = time.monotonic()
    found = None if inputs.kept else read_files(log_files, inputs)
    reading = inputs.kept or found
    assert reading is not None  # noqa: S101  # it is one of the two
    warnings = list(reading.warnings)
    warnings += [
        f"{file.name} ({file.kind}) is kept and can be downloaded, but its values are not read: it is no document "
        "that is known (docs/documents.md lists them)."
        for file in inputs.unread
    ]
    summary = _summary(reading, inputs)
    if inputs.reception == "receiving":
        summary = _still_receiving(summary)
    if inputs.reception == "incomplete":
        warnings.append(
            "No more of the log came for a long time, so the run was closed as incomplete. What came was read. "
            "Sending the rest opens it again."
        )
    return Computed(inputs, summary, tuple(warnings), found, time.monotonic() - began)


def read_files(log_files: LogFiles, inputs: RunInputs) -> Reading:
    """What logs and documents say, whatever people and the project state beside them."""
    parts = [LogPart(file.name, parse_log(log_files.stream(file.keys))) for file in inputs.logs]
    warnings: list[str] = []
    documents = list(_documents(log_files, inputs.documents, warnings))
    log = with_documents(merge_logs(parts) if parts else parse_log([]), documents)
    warnings += [_cut_short(file, part.log.n) for file, part in zip(inputs.logs, parts, strict=True) if file.cut]
    # Their series and problems are in the log now.
    stripped = tuple(replace(document, columns={}, problems=()) for document in documents)
    return Reading(log, stripped, tuple(warnings))


def _documents(log_files: LogFiles, files: Sequence[RunFile], warnings: list[str]) -> Iterator[Document]:
    for file in files:
        try:
            kind = next(known for known in get_args(DocumentKind) if known == file.document)
            document = read_document(kind, log_files.stream(file.keys))
        except ValueError as error:
            warnings.append(f"{file.name} looks like {file.document}, but could not be read: {error}")
            continue
        warnings += [f"{file.name}: {problem}" for problem in document.problems]
        yield document


def _summary(reading: Reading, inputs: RunInputs) -> RunSummary:
    defaults = inputs.defaults
    log = replace(reading.log, stated=defaults.completed(reading.log.stated))
    documents = [replace(one, stated=defaults.completed(one.stated)) for one in reading.documents]
    metadata = replace(inputs.metadata, fields=defaults.completed(inputs.metadata.fields))
    return summarise(log, metadata, documents, defaults.fields)


def _cut_short(file: RunFile, iterations: int) -> str:
    return (
        f"{file.name} is {file.cut}, but ends early at {size(file.size_bytes)}. The {iterations:,} iterations before "
        "the cut were read. Upload it again to complete the run."
    )


def _still_receiving(summary: RunSummary) -> RunSummary:
    """A log that has no end yet was not cut off, and one without iterations has not failed."""
    health = dict(summary.health)
    if health.get("outcome") in ("truncated", "unread"):
        health["outcome"] = "running"
    failures = tuple(failure for failure in summary.failures if failure.kind != "truncated")
    summary = replace(summary, health=health, failures=failures)
    if summary.error is None:
        return summary
    first = "No iteration line was read yet; more of the log is to come."
    return replace(summary, error=None, warnings=(first, *summary.warnings))

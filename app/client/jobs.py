"""Separates the jobs in a folder, so that each becomes its own run.

The service reads the beginning of each file, and the end of a long one. Logs whose facts contradict each other, such as
the seed or the number of GPUs, are of different jobs, and so are two logs with all iterations, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.client.errors import NotThreewalls, Refused
from app.client.service import Service

_PREVIEW = "/api/v1/uploads/preview"
_PREVIEW_BYTES, _END_BYTES = 1 << 20, 1 << 16
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
MOST_FILES = 200
"""Files of a folder that are previewed; the ranks of a larger job are not read twice."""


@dataclass
class Job:
    """The logs of one job, their common facts, the spans of those with all iterations, and the documents with them."""

    logs: list[Path] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    spans: list[tuple[float, float]] = field(default_factory=list)
    documents: list[Path] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        return [*self.logs, *self.documents]


def split_jobs(service: Service, files: Sequence[Path]) -> list[Job]:
    """Return the jobs that wrote these files, in the order of the files. One job if the service cannot tell.

    A log without facts, such as the output of another rank, joins the job whose files have the most similar name. A
    document also joins such a job, or all jobs if none is more similar than the others. Raises Unreachable.
    """
    everything = [Job(list(files))]
    if not 1 < len(files) <= MOST_FILES:
        return everything
    previews = {}
    for path in files:
        try:
            previews[path] = _preview(service, path)
        except (Refused, NotThreewalls, OSError):  # an earlier service, or a file that the upload will report
            return everything
    jobs: list[Job] = []
    for path, preview in previews.items():
        if facts := preview.get("job"):
            spans = [tuple(preview["whole_job"])] if preview.get("whole_job") else []
            job = next((job for job in jobs if _agree(job.facts, facts) and _overlap(job.spans + spans)), None)
            if job is None:
                job = Job()
                jobs.append(job)
            job.logs.append(path)
            job.facts = {**facts, **job.facts}
            job.spans += spans
    if len(jobs) < 2:
        return everything
    for path, preview in previews.items():
        if not preview.get("job"):
            _join(path, jobs, is_document=preview.get("is_document") is True)
    return jobs


def describe(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield a line for each job: its logs, and the facts in which the jobs differ."""
    differing = [name for name in jobs[0].facts if len({str(job.facts.get(name)) for job in jobs}) > 1]
    for number, job in enumerate(jobs, start=1):
        facts = ", ".join(f"{name} {job.facts[name]}" for name in differing if name in job.facts)
        names = ", ".join(path.name for path in job.logs[:3]) + (
            f" and {len(job.logs) - 3} more" if job.logs[3:] else ""
        )
        yield f"  {number}. {names}" + (f" ({facts})" if facts else "")


def _preview(service: Service, path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        text = file.read(_PREVIEW_BYTES)
        if len(text) == _PREVIEW_BYTES and not text.startswith(_COMPRESSED):
            file.seek(max(file.tell(), path.stat().st_size - _END_BYTES))
            text += b"\n" + file.read(_END_BYTES)
    name = path.name.encode("utf-8", "replace").decode()[:300]
    answer: Mapping[str, Any] = service.post(_PREVIEW, params={"name": name}, content=text).json()
    return answer


def _agree(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(b[name] == value for name, value in a.items() if name in b)


def _overlap(spans: Sequence[tuple[float, float]]) -> bool:
    return not spans or max(begins for begins, _ in spans) <= min(ends for _, ends in spans)


def _join(path: Path, jobs: Sequence[Job], *, is_document: bool) -> None:
    likeness = [max(_common_letters(path.name, log.name) for log in job.logs) for job in jobs]
    best = [job for job, length in zip(jobs, likeness) if length == max(likeness)]
    if not is_document:
        best[0].logs.append(path)
        return
    for job in best:
        job.documents.append(path)


def _common_letters(a: str, b: str) -> int:
    """Return how many letters two names have in common at their beginning."""
    return next((place for place, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

"""Preview of a file before its upload: what its beginning shows, and which fields only the user can state."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from app.domain.contract.values import values_in_name
from app.domain.documents.read import recognise
from app.domain.logs import parse_text
from app.domain.logs.merge import job_facts, merge_logs, span_of_whole_job
from app.domain.numbers import grouped, plural
from app.domain.performance.steady_state import MIN_VALUES
from app.domain.performance.summary import summarise
from app.domain.run import Failure, LogPart, Metadata, Value
from app.errors import InvalidUpload
from app.pipeline.profile_files import is_profile
from app.pipeline.uploaded_file import Decompressed, Limits, checked

PREVIEW_BYTES = 2 << 20
"""The part of a file that a browser sends."""
MOST_TEXT_BYTES = 4 << 20
"""Decompressed text that is read: a small file that expands must not cost more than a plain one."""
_ANY_RATIO = 10_000
"""Compressed logs of many equal lines are small; the text is bounded anyway."""
ASKED = ("model", "gpu", "gpus", "cluster", "container")
"""Fields that the form requests if the file does not show them."""


@dataclass(frozen=True, slots=True)
class Preview:
    """`sentence`: the recognised format and facts. `recognised`: the values of ASKED that the file shows; `missing`:
    the others. `proposed`: those of `missing` that the file name shows, for the user to confirm.

    `is_refused`: an upload of this file would be refused. `is_log`: False for a document that goes with a log, and for
    a file that no reader supports. `is_profile`: it goes with the log as a profile. `job`: what all logs of one job
    agree on, as far as the file shows it. `whole_job`: the seconds since 1970 of the beginning and end of a log with
    all iterations of its job; those of one job overlap. Empty for any other.
    """

    sentence: str
    is_log: bool
    recognised: Mapping[str, str]
    missing: tuple[str, ...]
    is_profile: bool = False
    is_document: bool = False
    job: Mapping[str, Value] = field(default_factory=dict)
    whole_job: tuple[float, ...] = ()
    proposed: Mapping[str, str] = field(default_factory=dict)
    is_refused: bool = False


_UNREAD = "No step times found. Choose another file, or upload this one and mark a line with a step time."


def preview(file_name: str, data: bytes) -> Preview:
    if is_profile(file_name, BytesIO(data)):
        return Preview("Profile.", False, {}, (), is_profile=True)
    try:
        chunks = checked(
            Decompressed(BytesIO(data), file_name, Limits(4 * MOST_TEXT_BYTES, _ANY_RATIO)), "log", file_name
        )
        text = b"".join(_beginning(chunks))
    except InvalidUpload as error:
        return Preview(error.detail, False, {}, (), is_refused=True)
    kind = recognise(file_name, text)
    if kind is not None:
        return Preview(f"{kind.capitalize()}.", False, {}, (), is_document=True)
    log = parse_text(text)
    summary = summarise(merge_logs([LogPart(file_name, log)]), Metadata())
    in_name = values_in_name(file_name)
    if summary.status == "unread":
        return Preview(_UNREAD, False, {}, (), proposed=in_name)
    values = {
        name: entry.value
        for name, entry in summary.contract.items()
        if entry.value is not None and not isinstance(entry.value, tuple)
    }
    iterations = len(summary.line_numbers)
    cut = " or more" if len(data) >= PREVIEW_BYTES else ""
    parts = [
        summary.trainer,
        f"{plural(iterations, 'iteration')}{cut}" if iterations else "no iteration yet",
        str(values.get("model", "")),
        f"{grouped(float(gpus))} GPUs" if isinstance(gpus := values.get("gpus"), int) else "",
        str(values.get("gpu", "")),
        str(values.get("dispatcher", "")),
    ]
    recognised = {name: str(values[name]) for name in ASKED if name in values}
    missing = tuple(name for name in ASKED if name not in recognised)
    job = {fact: value for fact, value in job_facts(log).items() if value is not None}
    few = "" if cut or iterations >= MIN_VALUES else f" A step time needs at least {MIN_VALUES} iterations."
    has_failed = not cut and summary.health.get("outcome") in _FAILED and bool(summary.failures)
    failed = _failure_text(summary.failures[0]) if has_failed else ""
    sentence = f"{', '.join(part for part in parts if part)}.{failed}{few}"
    return Preview(
        sentence, True, recognised, missing, job=job, whole_job=span_of_whole_job(log) or (),
        proposed={name: value for name, value in in_name.items() if name in missing},
    )  # fmt: skip


_FAILED = ("failed", "out_of_memory", "not_finite")
"""Outcomes of jobs that failed. The end of a longer file than the preview is unknown."""


def _failure_text(failure: Failure) -> str:
    """Return how the job of a log failed, where, and what an upload records."""
    after = f" after iteration {grouped(failure.iteration)}" if failure.iteration else ""
    line = f", line {grouped(failure.evidence[0].line)}" if failure.evidence else ""
    return f" The job failed{after}{line}: {failure.title}. An upload records the failure, without a comparison."


async def preview_body(request: Request, name: str) -> Preview:
    """Read the body of a request. Few at a time, so that previews never take all threads of a process."""
    data = await request.body()
    return await to_thread.run_sync(preview, name, data, limiter=_at_a_time())


@cache
def _at_a_time() -> CapacityLimiter:
    return CapacityLimiter(2)


def _beginning(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the first MOST_TEXT_BYTES."""
    length = 0
    for chunk in chunks:
        yield chunk[: MOST_TEXT_BYTES - length]
        length += len(chunk)
        if length >= MOST_TEXT_BYTES:
            return

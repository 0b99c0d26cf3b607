"""An upload becomes a run: checked, stored, acknowledged, and a worker rung for (`summarise.py` is what it does).

The row is committed before the bell is rung and before the uploader is answered: what was acknowledged is kept.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Literal

import structlog
from sqlalchemy import Engine, or_, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.metadata import read_metadata
from app.domain.run import Metadata
from app.errors import Conflict, EmptyUpload, FieldError, InvalidMetadata, InvalidUpload
from app.queue import PROCESS_RUN, enqueue
from app.runs.json_text import read_json, sorted_json
from app.runs.upload import Limits, raw_chunks, text_chunks
from app.settings import Settings
from app.storage.database import transaction
from app.storage.log_files import LogFiles, StagedFile
from app.storage.tables import ProjectRow, RunFileRow, RunRow, utc_now

log = structlog.get_logger(__name__)

Kind = Literal["log", "config", "events"]
MAX_KEY_LENGTH = 255
_MAX_FILE_NAME = 200
_COMPRESSED_SUFFIXES = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file as it was sent. `file` is read from its start; whoever opened it closes it."""

    kind: Kind
    name: str
    file: BinaryIO


@dataclass(frozen=True, slots=True)
class Accepted:
    """`created` is False when the same upload was there already."""

    run_id: int
    status: str
    created: bool


_Staged = tuple[UploadedFile, StagedFile]


def accept_upload(
    engine: Engine,
    log_files: LogFiles,
    settings: Settings,
    *,
    files: Sequence[UploadedFile],
    meta: bytes | None = None,
    idempotency_key: str | None = None,
) -> Accepted:
    """Check, store and acknowledge one upload. Raises InvalidUpload, Conflict or Unavailable, and then nothing is kept.

    The same content in the same project is the same run, and so is the same `idempotency_key`; that key with another
    content is a Conflict.
    """
    document = _read_meta(meta)
    metadata = read_metadata(document)
    _check_key(idempotency_key)
    if not any(upload.kind == "log" for upload in files):
        raise EmptyUpload("There is no log in this upload. Send at least one file as the form field `log`.")
    with ExitStack() as staging:
        staged = [(upload, staging.enter_context(_stage(upload, settings))) for upload in files]
        content_key = _content_key(document, staged)
        with transaction(engine) as session:
            known = _find(session, metadata.project, content_key, idempotency_key)
        if known is None:
            for _, file in staged:
                log_files.keep(file)
            row = _row(metadata, document, staged)
            row.content_key, row.idempotency_key = content_key, idempotency_key
            row.lease_until = utc_now() + timedelta(seconds=settings.sweep_seconds)
            known = _insert(engine, metadata.project, row, staged)
    if known.created:
        log.info("run_received", run_id=known.run_id, project=metadata.project, files=len(files))
        enqueue(PROCESS_RUN, known.run_id)
    return known


def _read_meta(meta: bytes | None) -> dict[str, Any]:
    if meta is None or not meta.strip():
        return {}
    document = read_json(meta)
    if not isinstance(document, dict):
        raise InvalidMetadata(
            "The metadata is JSON, but not an object. Send `{...}` with one entry a field.",
            (FieldError("meta", "must be a JSON object"),),
        )
    return document


def _check_key(key: str | None) -> None:
    if key is not None and not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise InvalidUpload(
            f"The Idempotency-Key must be 1 to {MAX_KEY_LENGTH} printable ASCII characters.",
            (FieldError("Idempotency-Key", "is empty, too long, or not printable ASCII"),),
        )


def _stage(upload: UploadedFile, settings: Settings) -> StagedFile:
    name, limits = _file_name(upload), Limits.from_settings(settings)
    read = raw_chunks if upload.kind == "events" else text_chunks
    return StagedFile(read(upload.file, name, limits))


def _file_name(upload: UploadedFile) -> str:
    """The last part of the name, without what no file system or header should see."""
    name = PurePosixPath(upload.name.replace("\\", "/")).name
    name = "".join(c for c in name if c.isprintable()).strip()
    return name[-_MAX_FILE_NAME:] or f"{upload.kind}.txt"


def _content_key(document: dict[str, Any], staged: Sequence[_Staged]) -> str:
    parts = [[upload.kind, file.stored.sha256] for upload, file in staged]
    return hashlib.sha256(sorted_json([document, parts])).hexdigest()


def _find(session: Session, project: str, content_key: str, idempotency_key: str | None) -> Accepted | None:
    """The run that this upload already is. Raises Conflict when its key stands for another content."""
    same = [col(RunRow.content_key) == content_key]
    if idempotency_key is not None:
        same.append(col(RunRow.idempotency_key) == idempotency_key)
    rows = session.execute(
        select(RunRow.id, RunRow.status, RunRow.content_key, RunRow.idempotency_key)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(ProjectRow.slug) == project, or_(*same))
    ).all()
    for row in rows:
        if idempotency_key is not None and row.idempotency_key == idempotency_key and row.content_key != content_key:
            raise Conflict(
                f"The Idempotency-Key {idempotency_key!r} was used for another upload, run {row.id}. "
                "Nothing was kept. Use a new key for a new upload, and the same key only to repeat one."
            )
    return next((Accepted(row.id, row.status, created=False) for row in rows), None)


def _row(metadata: Metadata, document: dict[str, Any], staged: Sequence[_Staged]) -> RunRow:
    return RunRow(
        project_id=0,
        content_key="",
        name=metadata.name or _name_from_files([upload for upload, _ in staged]),
        purpose=metadata.purpose,
        branch=metadata.branch,
        commit=metadata.commit,
        ci_url=metadata.ci_url,
        tags=list(metadata.tags),
        metadata_stated=document,
        warnings=list(metadata.warnings),
    )


def _name_from_files(files: Sequence[UploadedFile]) -> str:
    name = next(_file_name(upload) for upload in files if upload.kind == "log")
    for suffix in (*_COMPRESSED_SUFFIXES, ".log", ".txt"):
        name = name.removesuffix(suffix)
    return name or "run"


def _insert(engine: Engine, project: str, row: RunRow, staged: Sequence[_Staged]) -> Accepted:
    """Commit the run and its files, or find the one that another request committed in the same moment."""
    with transaction(engine) as session:
        row.project_id = _project_id(session, project)
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:
            known = _find(session, project, row.content_key, row.idempotency_key)
            if known is None:
                raise
            return known
        run_id = _known(row.id)
        session.add_all(_file_rows(run_id, staged))
        return Accepted(run_id, row.status, created=True)


def _project_id(session: Session, slug: str) -> int:
    chosen = select(ProjectRow.id).where(col(ProjectRow.slug) == slug)  # type: ignore[call-overload]
    found: int | None = session.execute(chosen).scalar_one_or_none()
    if found is not None:
        return found
    try:
        with session.begin_nested():
            project = ProjectRow(slug=slug)
            session.add(project)
    except IntegrityError:  # another upload made it in the same moment
        return int(session.execute(chosen).scalar_one())
    return _known(project.id)


def _file_rows(run_id: int, staged: Sequence[_Staged]) -> Iterator[RunFileRow]:
    for position, (upload, file) in enumerate(staged):
        yield RunFileRow(
            run_id=run_id,
            kind=upload.kind,
            name=_file_name(upload),
            position=position,
            size_bytes=file.stored.size_bytes,
            sha256=file.stored.sha256,
            object_key=file.stored.key,
        )


def _known(key: int | None) -> int:
    if key is None:
        raise RuntimeError("a row that was flushed has its key")
    return key

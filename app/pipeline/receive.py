"""An upload becomes a run: checked, stored, acknowledged, and a worker rung for (`summarise.py` is what it does).

The row is committed before the bell is rung and before the uploader is answered: what was acknowledged is kept.
"""

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

import structlog
from sqlalchemy import Engine, or_, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.access.principal import NOBODY, Uploader
from app.domain.documents.metadata import DEFAULT_PROJECT, read_metadata
from app.domain.numbers import size
from app.domain.run import Metadata
from app.errors import Conflict, EmptyUpload, FieldError, InvalidMetadata, InvalidUpload
from app.pipeline.stored_logs import restore
from app.pipeline.uploaded_file import UNNAMED, Decompressed, Kind, Limits, checked, document_kind, file_name, run_name
from app.queue import PROCESS_RUN, enqueue
from app.settings import Settings
from app.storage import audit, objects
from app.storage.database import transaction
from app.storage.json_text import read_json, sorted_json
from app.storage.log_files import LogFiles, StagedFile
from app.storage.projects import check_room, check_room_in
from app.storage.tables import ProjectRow, RunFileRow, RunRow, SegmentRow, utc_now

# --- When an upload is one that came before: by its content, or by the Idempotency-Key of its sender.

MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class Accepted:
    """`created` is False when the same upload was there already, `own` when another sender brought that one.

    `warnings` are known before anything is read.
    """

    run_id: int
    status: str
    created: bool
    own: bool = True
    warnings: tuple[str, ...] = ()


def check_key(key: str | None) -> None:
    if key is not None and not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise InvalidUpload(
            f"The Idempotency-Key must be 1 to {MAX_KEY_LENGTH} printable ASCII characters.",
            (FieldError("Idempotency-Key", "is empty, too long, or not printable ASCII"),),
        )


def sent_key(uploader: Uploader, key: str) -> str:
    """Return what is stored of an Idempotency-Key: it belongs to the token or person that sent it."""
    sender = f"person {uploader.name}" if uploader.token_id is None else f"token {uploader.token_id}"
    return hashlib.sha256(f"{sender}\n{key}".encode()).hexdigest()


def content_key(document: dict[str, Any], files: Sequence[tuple[Kind, str]], is_open: bool, key: str | None) -> str:
    """`files`: the form field and the SHA-256 of each. `key`: as stored."""
    parts: list[Any] = [list(file) for file in files]
    if is_open:
        # Two jobs may well begin with the same lines.
        parts.append(["open", key or uuid.uuid4().hex])
    return hashlib.sha256(sorted_json([document, parts])).hexdigest()


def find_same(session: Session, project: str, upload: RunRow, key: str | None) -> Accepted | None:
    """Return the run that this upload already is. Raises Conflict when its key stands for another content."""
    same = [col(RunRow.content_key) == upload.content_key]
    if upload.idempotency_key is not None:
        same.append(col(RunRow.idempotency_key) == upload.idempotency_key)
    rows = session.execute(
        select(
            RunRow.id, RunRow.status, RunRow.content_key, RunRow.idempotency_key, RunRow.token_id, RunRow.uploaded_by
        )  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(ProjectRow.slug_lower) == project.lower(), or_(*same))
    ).all()
    for row in rows:
        if key is not None and row.idempotency_key == upload.idempotency_key and row.content_key != upload.content_key:
            raise Conflict(
                f"The Idempotency-Key {key!r} was used for another upload, run {row.id}. "
                "Nothing was kept. Use a new key for a new upload, and the same key only to repeat one."
            )
    if not rows:
        return None
    own = (rows[0].token_id, rows[0].uploaded_by) == (upload.token_id, upload.uploaded_by)
    return Accepted(rows[0].id, rows[0].status, created=False, own=own)


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file as it was sent. `file` is read from its start; whoever opened it closes it."""

    kind: Kind
    name: str
    file: BinaryIO


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that was read to its end and may be kept. `sent_as` is its form field, `kind` what it turned out to be."""

    sent_as: Kind
    kind: Kind
    document: str
    name: str
    cut: str
    file: StagedFile

    @property
    def key(self) -> str:
        return self.file.stored.key


IntoProject = Callable[[str | None], str]
"""The slug of the project that an upload goes to, of the one that its metadata state; raises for one that may not."""


def as_stated(project: str | None) -> str:
    return project or DEFAULT_PROJECT


def accept_upload(
    engine: Engine,
    log_files: LogFiles,
    settings: Settings,
    *,
    files: Sequence[UploadedFile],
    meta: bytes | None = None,
    idempotency_key: str | None = None,
    complete: bool | None = None,
    expects: int = 0,
    strict: Collection[str] = (),
    into: IntoProject = as_stated,
    uploader: Uploader = NOBODY,
) -> Accepted:
    """Check, store and acknowledge one upload.

    Raises InvalidUpload, TooManyRuns, Conflict or Unavailable, and then nothing is kept.

    The same content in the same project is the same run, and so is the same `idempotency_key` of the same sender; that
    key with another content is a Conflict. With `complete` False, here or in `meta`, more of the logs is to come
    (`append.py`): such a run may begin without a file, and is told from others by its key only. `expects`: bytes that
    are to come then; where the project has no room for them, or for one, the run does not begin. `strict`: names in
    `meta` that must be fields. `into` says which project it goes to.
    """
    document = _read_meta(meta)
    is_open = _is_open(document, complete)
    metadata = read_metadata(document, strict)
    project = into(metadata.project if str(document.get("project") or "").strip() else None)
    check_key(idempotency_key)
    if not files and not is_open:
        raise EmptyUpload("There is no file in this upload. Send at least one, as the form field `log`.")
    with ExitStack() as staging:
        staged = [staging.enter_context(staged_upload(upload, settings)) for upload in files]
        _check_something_is_read(staged, is_open)
        row = _row(metadata, document, staged, is_open)
        row.token_id, row.uploaded_by = uploader.token_id, uploader.name
        row.idempotency_key = None if idempotency_key is None else sent_key(uploader, idempotency_key)
        files_sent = [(file.sent_as, file.file.stored.sha256) for file in staged]
        row.content_key = content_key(document, files_sent, is_open, row.idempotency_key)
        row.lease_until = utc_now()
        keys = [file.key for file in staged]
        room = _bytes_of(staged) + (max(expects, 1) if is_open else 0)
        with transaction(engine) as session:
            known = find_same(session, project, row, idempotency_key)
            if known is None:
                check_room_in(session, settings, project, room)
            noted = objects.about_to_put(session, keys) if known is None else utc_now()
        if known is not None:
            restore(engine, log_files, [file.file for file in staged])
        else:
            with forgotten_on_failure(engine, log_files, keys, noted):
                for file in staged:
                    log_files.keep(file.file)
                known = _insert(engine, settings, project, row, staged, key=idempotency_key, room=room)
    if known.created:
        log.info("run_received", run_id=known.run_id, project=project, files=len(files), open=is_open)
        enqueue(PROCESS_RUN, known.run_id)
    return known


@contextmanager
def staged_upload(upload: UploadedFile, settings: Settings) -> Iterator[Staged]:
    """Read a file to its end and see what it is. Raises InvalidUpload when it can be nothing of a run."""
    name = file_name(upload.name, upload.kind)
    chunks = Decompressed(upload.file, name, Limits.from_settings(settings))
    with StagedFile(checked(chunks, upload.kind, name)) as file:
        document = document_kind(upload.kind, name, file)
        kind: Kind = upload.kind if not document else "events" if document == "tensorboard" else "config"
        yield Staged(upload.kind, kind, document, name, chunks.cut, file)


@contextmanager
def forgotten_on_failure(engine: Engine, log_files: LogFiles, keys: Sequence[str], noted: datetime) -> Iterator[None]:
    """Delete the objects that the block put when it raises; what cannot be deleted now, the sweep deletes later."""
    try:
        yield
    except Exception:
        try:
            objects.forget(engine, log_files, keys, noted)
        except Exception as error:  # the error that led here is the one to tell
            log.warning("objects_left", objects=len(keys), error=str(error))
        raise


def _is_open(document: dict[str, Any], complete: bool | None) -> bool:
    stated = document.pop("complete", None)
    if stated is not None and not isinstance(stated, bool):
        raise InvalidMetadata(
            "meta.complete must be true or false. Nothing was kept.",
            (FieldError("meta.complete", "must be a boolean"),),
        )
    return complete is False or (complete is None and stated is False)


def _check_something_is_read(staged: Sequence[Staged], is_open: bool) -> None:
    if is_open or any(file.kind == "log" or file.document for file in staged):
        return
    names = ", ".join(file.name for file in staged)
    raise EmptyUpload(
        f"There is no log in this upload, and {names} is no document that can be read (docs/documents.md lists them). "
        "Nothing was kept. Send a log as the form field `log`."
    )


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


def _row(metadata: Metadata, document: dict[str, Any], staged: Sequence[Staged], is_open: bool) -> RunRow:
    now = utc_now()
    return RunRow(
        project_id=0,
        created_at=now,
        ordered_at=metadata.commit_time or now,
        content_key="",
        name=metadata.name or _name_from_files(staged),
        purpose=metadata.purpose,
        branch=metadata.branch,
        commit=metadata.commit,
        ci_url=metadata.ci_url,
        tags=list(metadata.tags),
        metadata_stated=document,
        warnings=[*metadata.warnings, *cut_warnings(staged)],
        reception="receiving" if is_open else "whole",
        heard_at=now,
        work="waiting",
    )


def cut_warnings(staged: Sequence[Staged]) -> list[str]:
    return [
        f"{file.name} is {file.cut}, but ends early at {size(file.file.stored.size_bytes)}. What came before the cut "
        "was kept and is read. Upload it again to complete the run."
        for file in staged
        if file.cut
    ]


def _name_from_files(staged: Sequence[Staged]) -> str:
    names = [file.name for file in staged if file.kind == "log"] or [file.name for file in staged]
    return run_name(names[0]) if names else UNNAMED


def _bytes_of(staged: Sequence[Staged]) -> int:
    return sum(file.file.stored.size_bytes for file in staged)


def _insert(
    engine: Engine,
    settings: Settings,
    project: str,
    row: RunRow,
    staged: Sequence[Staged],
    *,
    key: str | None,
    room: int,
) -> Accepted:
    """Commit the run and its files, or find the one that another request committed in the same moment."""
    with transaction(engine, durable=True) as session:
        row.project_id = project_id(session, project, row.uploaded_by)
        if known := find_same(session, project, row, key):
            return known  # another request was faster: what is there needs no room
        check_room(session, settings, row.project_id, room, new_run=True)
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:
            known = find_same(session, project, row, key)
            if known is None:
                raise
            return known
        run_id = _known(row.id)
        for position, file in enumerate(staged):
            add_file(session, run_id, position, file)
        return Accepted(run_id, row.status, created=True, warnings=tuple(row.warnings))


def project_id(session: Session, slug: str, by: str) -> int:
    chosen = select(ProjectRow.id).where(col(ProjectRow.slug_lower) == slug.lower())  # type: ignore[call-overload]
    found: int | None = session.execute(chosen).scalar_one_or_none()
    if found is not None:
        return found
    try:
        with session.begin_nested():
            project = ProjectRow(slug=slug)
            session.add(project)
            session.flush()
            audit.record(
                session, who=by or audit.SERVICE, subject="project", subject_id=_known(project.id),
                action="created", project_id=project.id, after={"slug": slug, "public": False},
                note="It began with its first upload.",
            )  # fmt: skip
    except IntegrityError:  # another upload made it in the same moment
        return int(session.execute(chosen).scalar_one())
    return _known(project.id)


def add_file(session: Session, run_id: int, position: int, staged: Staged) -> RunFileRow:
    """A file of a run, held by one object."""
    stored = staged.file.stored
    row = RunFileRow(
        run_id=run_id,
        kind=staged.kind,
        document=staged.document,
        name=staged.name,
        position=position,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256,
        cut=staged.cut,
    )
    session.add(row)
    session.flush()
    session.add(SegmentRow(file_id=_known(row.id), position=0, size_bytes=stored.size_bytes, object_key=stored.key))
    return row


def _known(key: int | None) -> int:
    if key is None:
        raise RuntimeError("a row that was flushed has its key")
    return key

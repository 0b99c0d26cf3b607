"""Turn an upload into a run: check it, store it, enqueue its processing (`process.py`) and acknowledge it.

The row is committed before the message is enqueued and before the request is answered, so an acknowledged upload is
never lost.
"""

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, BinaryIO

import structlog
from sqlalchemy import Engine, Select, and_, bindparam, insert, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.access.principal import NOBODY, Uploader
from app.domain.documents.metadata import DEFAULT_PROJECT, read_metadata
from app.domain.numbers import plural, size
from app.domain.run import Metadata
from app.errors import (
    Conflict,
    DamagedObject,
    EmptyUpload,
    FieldError,
    InvalidMetadata,
    InvalidUpload,
)
from app.pipeline.uploaded_file import (
    UNNAMED,
    Decompressed,
    Kind,
    Limits,
    checked,
    document_kind,
    file_name,
    run_name,
    stated_document,
)
from app.pipeline.work import run_queue
from app.queue import PROCESS_RUN, enqueue
from app.settings import Settings
from app.storage import audit, backup, objects
from app.storage.database import make_engine, read_session, require_migrated, transaction
from app.storage.json_text import read_json, sorted_json
from app.storage.log_files import LogFiles, StagedFile
from app.storage.projects import check_room, quota_of
from app.storage.tables import (
    RESULT_COLUMNS,
    ProjectRow,
    RunFileRow,
    RunResultRow,
    RunRow,
    SegmentRow,
    select_any,
    table_of,
    utc_now,
)
from app.storage.visible import seeing

# --- Recognition of repeated uploads, by their content or by the Idempotency-Key of the sender.

MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class AcceptedUpload:
    """The run of an upload. `created`: False if it existed already. `own`: False if another sender created it.

    `run_id`: 0 for a dry run that would create a run. `warnings` are about the upload itself, before any file is read.
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
    """Return the stored form of an Idempotency-Key, which includes the token or user that sent it."""
    sender = f"person {uploader.name}" if uploader.token_id is None else f"token {uploader.token_id}"
    return hashlib.sha256(f"{sender}\n{key}".encode()).hexdigest()


def content_key(document: dict[str, Any], files: Sequence[tuple[Kind, str]], is_open: bool, key: str | None) -> str:
    """Return the key that identifies equal uploads. `files`: form field and SHA-256 of each. `key`: as stored."""
    parts: list[Any] = [list(file) for file in files]
    if is_open:
        # Logs of two jobs may begin with the same lines, so the key distinguishes growing runs.
        parts.append(["open", key or uuid.uuid4().hex])
    return hashlib.sha256(sorted_json([document, parts])).hexdigest()


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """The destination of an upload. `project_id`: None if the project does not exist yet. `same`: the run of an earlier
    equal upload."""

    project_id: int | None
    has_quota: bool
    same: AcceptedUpload | None


# Built once, because building it takes as long as running it.
_TARGET: Select[Any] = (
    select_any(
        col(ProjectRow.id).label("project_id"), ProjectRow.quota_bytes, ProjectRow.quota_runs_a_day,
        ProjectRow.archived_at,
        RunRow.id, RunRow.status, RunRow.content_key, RunRow.idempotency_key, RunRow.token_id, RunRow.uploaded_by,
    )
    .outerjoin(
        RunRow,
        and_(
            col(RunRow.project_id) == ProjectRow.id,
            or_(
                col(RunRow.content_key) == bindparam("content_key"),
                col(RunRow.idempotency_key) == bindparam("idempotency_key"),
            ),
        ),
    )
    .where(col(ProjectRow.slug_lower) == bindparam("slug"))
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UploadIdentity:
    """The values that identify an upload in its project. `key`: Idempotency-Key as sent. `stored_key`: as stored."""

    content_key: str
    key: str | None
    stored_key: str | None
    uploader: Uploader
    project: str

    @property
    def columns(self) -> dict[str, Any]:
        return {
            "content_key": self.content_key,
            "idempotency_key": self.stored_key,
            "token_id": self.uploader.token_id,
            "uploaded_by": self.uploader.name,
        }


def find_target(session: Session, settings: Settings, upload: UploadIdentity) -> UploadTarget:
    """Return the project and any earlier equal upload. Raises Conflict if the key was used for different content."""
    stated = {"content_key": upload.content_key, "idempotency_key": upload.stored_key, "slug": upload.project.lower()}
    rows = session.execute(_TARGET, stated).all()
    if not rows:
        return UploadTarget(None, has_quota=True, same=None)
    first, quota = rows[0], quota_of(rows[0], settings)
    if first.archived_at is not None:
        raise Conflict(
            f"Project {upload.project} is archived. Nothing was saved. A maintainer can restore it in its settings."
        )
    for row in rows:
        has_same_key = upload.stored_key is not None and row.idempotency_key == upload.stored_key
        if has_same_key and row.content_key != upload.content_key:
            raise Conflict(
                f"The Idempotency-Key {upload.key!r} was used for another upload, run {row.id}. "
                "Nothing was saved. Use a new key for a new upload, and the same key only to repeat one."
            )
    own = (first.token_id, first.uploaded_by) == (upload.uploader.token_id, upload.uploader.name)
    same = None if first.id is None else AcceptedUpload(first.id, first.status, created=False, own=own)
    return UploadTarget(first.project_id, bool(quota.bytes or quota.runs_a_day), same)


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """An uploaded file. `file` is read from its start; the caller closes it."""

    kind: Kind
    name: str
    file: BinaryIO


@dataclass(frozen=True, slots=True)
class Staged:
    """A completely read file, ready to be stored. `sent_as`: its form field. `kind`: its recognised kind."""

    sent_as: Kind
    kind: Kind
    document: str
    name: str
    cut: str
    file: StagedFile


IntoProject = Callable[[str | None], str]
"""Maps the stated project (or None) to the slug of the upload's project; raises if the sender may not use it."""


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
    dry_run: bool = False,
) -> AcceptedUpload:
    """Check, store and acknowledge one upload; with `dry_run`, only check it.

    Raises InvalidUpload, TooManyRuns, Conflict or Unavailable, with nothing stored.

    Equal content in the same project is the same run. So is an equal `idempotency_key` of the same sender; with
    different content, it is a Conflict. `complete` False, here or in `meta`: more of the logs will follow
    (`append.py`); such a run may begin without a file and is identified only by its key. `expects`: number of bytes
    that will follow; the upload is refused if the project has no room for them. `strict`: names in `meta` that must be
    known fields. `into` selects the project.
    """
    document = _read_meta(meta)
    is_open = _is_open(document, complete)
    metadata = read_metadata(document, strict)
    project = into(metadata.project if str(document.get("project") or "").strip() else None)
    check_key(idempotency_key)
    if not files and not is_open:
        raise EmptyUpload("This upload contains no file. Send at least one as the form field `log`.")
    with ExitStack() as staging:
        staged = [staging.enter_context(staged_upload(upload, settings, metadata.format)) for upload in files]
        _check_something_is_read(staged, is_open)
        stored_key = None if idempotency_key is None else sent_key(uploader, idempotency_key)
        files_sent = [(file.sent_as, file.file.stored.sha256) for file in staged]
        upload = UploadIdentity(
            content_key(document, files_sent, is_open, stored_key), idempotency_key, stored_key, uploader, project
        )
        keys = [file.file.stored.key for file in staged]
        room = sum(file.file.stored.size_bytes for file in staged) + (max(expects, 1) if is_open else 0)
        with transaction(engine) as session:
            target = find_target(session, settings, upload)
            accepted = target.same
            if accepted is None and target.project_id is not None and target.has_quota:
                # Checked early, so that no files are stored if there is no room for them.
                check_room(session, settings, target.project_id, room, new_run=True)
            warnings = [*metadata.warnings, *cut_warnings(staged)]
            if dry_run:
                return accepted or AcceptedUpload(0, "received", created=False, warnings=tuple(warnings))
            noted = objects.about_to_put(session, keys) if accepted is None else utc_now()
        if accepted is not None:
            restore(engine, log_files, [file.file for file in staged])
        else:
            with deleted_on_failure(engine, log_files, keys, noted):
                for file in staged:
                    log_files.keep(file.file)
                run = _run_columns(metadata, staged, is_open) | upload.columns
                result = {"metadata_stated": document, "warnings": warnings}
                accepted = _insert(engine, settings, upload, target, NewRun(run, result, staged, room))
    if accepted.created:
        log.info("run_received", run_id=accepted.run_id, project=project, files=len(files), open=is_open)
        enqueue(PROCESS_RUN, accepted.run_id)
    return accepted


@contextmanager
def staged_upload(upload: UploadedFile, settings: Settings, stated: str = "") -> Iterator[Staged]:
    """Read a file to its end and recognise its kind. Raises InvalidUpload if it cannot belong to a run.

    `stated`: the format of logs that the upload states.
    """
    name = file_name(upload.name, upload.kind)
    chunks = Decompressed(upload.file, name, Limits.from_settings(settings))
    with StagedFile(checked(chunks, upload.kind, name)) as file:
        if stated and upload.kind == "log":
            document = stated_document(stated, name, file)
        else:
            document = document_kind(upload.kind, name, file)
        kind: Kind = upload.kind if not document else "events" if document == "tensorboard" else "config"
        yield Staged(upload.kind, kind, document, name, chunks.cut, file)


@contextmanager
def deleted_on_failure(engine: Engine, log_files: LogFiles, keys: Sequence[str], noted: datetime) -> Iterator[None]:
    """If the block raises, delete the objects that it stored. If that fails, the sweep deletes them later."""
    try:
        yield
    except Exception:
        try:
            objects.forget(engine, log_files, keys, noted)
        except Exception as error:  # the caller must see the first error, not this one
            log.warning("objects_left", objects=len(keys), error=str(error))
        raise


def _is_open(document: dict[str, Any], complete: bool | None) -> bool:
    stated = document.pop("complete", None)
    if stated is not None and not isinstance(stated, bool):
        raise InvalidMetadata(
            "meta.complete must be true or false. Nothing was saved.",
            (FieldError("meta.complete", "must be true or false"),),
        )
    return complete is False or (complete is None and stated is False)


def _check_something_is_read(staged: Sequence[Staged], is_open: bool) -> None:
    if is_open or any(file.kind == "log" or file.document for file in staged):
        return
    names = ", ".join(file.name for file in staged)
    raise EmptyUpload(
        f"This upload contains no log, and {names} is not a readable document (docs/documents.md lists them). "
        "Nothing was saved. Send a log as the form field `log`."
    )


def _read_meta(meta: bytes | None) -> dict[str, Any]:
    if meta is None or not meta.strip():
        return {}
    document = read_json(meta)
    if not isinstance(document, dict):
        raise InvalidMetadata(
            "The metadata is JSON, but not an object. Send `{...}` with one entry per field.",
            (FieldError("meta", "must be a JSON object"),),
        )
    return document


def _run_columns(metadata: Metadata, staged: Sequence[Staged], is_open: bool) -> dict[str, Any]:
    """Return the columns of RunRow that the upload states. The other columns keep their defaults."""
    now = utc_now()
    return {
        "created_at": now,
        "ordered_at": metadata.commit_time or now,
        "name": metadata.name or _name_from_files(staged),
        "purpose": metadata.purpose,
        "branch": metadata.branch,
        "commit": metadata.commit,
        "commit_time": metadata.commit_time,
        "merge_base": metadata.merge_base,
        "merge_base_time": metadata.merge_base_time,
        "ci_url": metadata.ci_url,
        "tags": list(metadata.tags),
        "reception": "receiving" if is_open else "whole",
        "heard_at": now,
        "work": "waiting",
        "lease_until": now,
    }


def cut_warnings(staged: Sequence[Staged]) -> list[str]:
    return [
        f"{file.name} is {file.cut}, but ends early at {size(file.file.stored.size_bytes)}. The text before the cut is "
        "stored and read. Upload the file again to complete the run."
        for file in staged
        if file.cut
    ]


def _name_from_files(staged: Sequence[Staged]) -> str:
    names = [file.name for file in staged if file.kind == "log"] or [file.name for file in staged]
    return run_name(names[0]) if names else UNNAMED


@dataclass(frozen=True, slots=True)
class NewRun:
    """A new run: columns of the run and of its result, its files, and the bytes that they need."""

    run: dict[str, Any]
    result: dict[str, Any]
    staged: Sequence[Staged]
    room: int


def _insert(
    engine: Engine, settings: Settings, upload: UploadIdentity, target: UploadTarget, new: NewRun
) -> AcceptedUpload:
    """Commit the run and its files, or return the equal run that another request committed concurrently."""
    with transaction(engine, durable=True) as session:
        if target.has_quota:
            target = find_target(session, settings, upload)
            if target.same is not None:
                return target.same  # another request was faster, and this one needs no additional space
        project = target.project_id or project_id(session, upload.project, upload.uploader.name)
        if target.has_quota:
            check_room(session, settings, project, new.room, new_run=True)
        run_id = _insert_run(session, project, new)
        if run_id is None:  # another request committed it concurrently
            return _same(find_target(session, settings, upload))
        for position, file in enumerate(new.staged):
            _insert_file(session, run_id, position, file)
        return AcceptedUpload(run_id, "received", created=True, warnings=tuple(new.result["warnings"]))


def _same(target: UploadTarget) -> AcceptedUpload:
    if target.same is None:
        raise RuntimeError("a run that could not be inserted exists already")
    return target.same


# Core tables, because session objects cost more than these inserts.
_RUNS, _RESULTS, _FILES, _SEGMENTS = (table_of(kind) for kind in (RunRow, RunResultRow, RunFileRow, SegmentRow))
_INSERT_RUN = {
    name: dialect.insert(_RUNS).on_conflict_do_nothing().returning(_RUNS.c.id)
    for name, dialect in (("sqlite", sqlite), ("postgresql", postgresql))
}
_INSERT_FILE = insert(_FILES).returning(_FILES.c.id)


@cache
def _defaults() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the default columns of a new run and of its result."""
    run = RunRow(project_id=0, name="", purpose="", content_key="")
    result = RunResultRow()
    columns = {column.name: getattr(run, column.name) for column in _RUNS.columns if column.name != "id"}
    return columns, {name: getattr(result, name) for name in RESULT_COLUMNS}


def _insert_run(session: Session, project: int, new: NewRun) -> int | None:
    """Insert a run and its result. Return its id; None if the project has a run with this content or key."""
    run, result = _defaults()
    statement = _INSERT_RUN[session.get_bind().dialect.name]
    run_id: int | None = session.execute(statement, {**run, **new.run, "project_id": project}).scalar_one_or_none()
    if run_id is not None:
        session.execute(insert(_RESULTS), {**result, **new.result, "run_id": run_id})
    return run_id


def _insert_file(session: Session, run_id: int, position: int, staged: Staged) -> None:
    """Insert a file of a run, with the one object that stores it."""
    stored = staged.file.stored
    values = {
        "run_id": run_id, "kind": staged.kind, "document": staged.document, "name": staged.name, "position": position,
        "size_bytes": stored.size_bytes, "sha256": stored.sha256, "cut": staged.cut,
    }  # fmt: skip
    file_id = session.execute(_INSERT_FILE, values).scalar_one()
    segment = {"file_id": file_id, "position": 0, "size_bytes": stored.size_bytes, "object_key": stored.key}
    session.execute(insert(_SEGMENTS), segment)


def project_id(session: Session, slug: str, by: str) -> int:
    chosen = select_any(ProjectRow.id).where(col(ProjectRow.slug_lower) == slug.lower())
    existing: int | None = session.execute(chosen).scalar_one_or_none()
    if existing is not None:
        return existing
    try:
        with session.begin_nested():
            project = ProjectRow(slug=slug)
            session.add(project)
            session.flush()
            audit.record_project(
                session, project.id, "created", who=by or audit.SERVICE, after={"slug": slug, "public": False},
                note="Created by its first upload.",
            )  # fmt: skip
    except IntegrityError:  # another upload created it concurrently
        return int(session.execute(chosen).scalar_one())
    return _id_of(project.id)


def _id_of(key: int | None) -> int:
    if key is None:
        raise RuntimeError("a flushed row has a key")
    return key


# --- Missing or damaged stored files: `threewalls verify` names their runs, and a new upload of the file restores it.


def verify(settings: Settings) -> int:
    """Print the problems of the database and of stored objects. Return their number.

    Raises Unavailable if a service does not answer.
    """
    require_migrated(settings)
    engine = make_engine(settings)
    try:
        problems = backup.database_problems(engine)
        with engine.connect() as connection:
            orphans, orphan_bytes = backup.orphans(settings, connection)
    finally:
        engine.dispose()
    for problem in problems:
        print(f"The database: {problem}. Restore a backup.")
    log_files = LogFiles.from_settings(settings)
    objects = _objects(settings)
    damaged = 0
    for key, files in objects.items():
        try:
            log_files.check_object(key)
        except DamagedObject as error:
            damaged += 1
            print(f"{', '.join(files)}: {error.detail}")
    print(f"{plural(len(objects), 'stored object')} read, {damaged:,} of them missing or damaged.")
    print(f"The database has {plural(len(problems), 'problem')}.")
    if orphans:
        print(
            f"{plural(orphans, 'object')} of {orphan_bytes:,} bytes belong to no run. Failed uploads and deleted runs "
            "leave such objects; a worker deletes them within hours."
        )
    return damaged + len(problems)


def restore(engine: Engine, log_files: LogFiles, files: Sequence[StagedFile]) -> None:
    """Restore missing or damaged files of runs, and request that runs which failed because of them are read again."""
    needed = select_any(SegmentRow.object_key).where(
        col(SegmentRow.object_key).in_({file.stored.key for file in files})
    )
    with seeing(None), read_session(engine) as session:
        stored = set(session.execute(needed).scalars())
    restored = {file.stored.key for file in files if file.stored.key in stored and log_files.keep(file)}
    if not restored:
        return
    holders = select_any(RunFileRow.run_id).join(SegmentRow, col(SegmentRow.file_id) == RunFileRow.id)
    failed = (
        col(RunRow.id).in_(holders.where(col(SegmentRow.object_key).in_(restored))),
        or_(col(RunRow.status) == "failed", col(RunRow.recompute_failed) > 0),
    )
    with seeing(None), transaction(engine) as session:
        run_ids = session.execute(select_any(RunRow.id).where(*failed)).scalars().all()
        run_queue.request(session, *failed)
    for run_id in run_ids:
        enqueue(PROCESS_RUN, run_id)


def _objects(settings: Settings) -> dict[str, list[str]]:
    """Return, by object key, descriptions of the runs' files that the object contains in full or in part."""
    chosen = (
        select_any(SegmentRow.object_key, RunFileRow.run_id, RunFileRow.name)
        .join(RunFileRow, col(RunFileRow.id) == SegmentRow.file_id)
        .where(col(SegmentRow.removed_at).is_(None))
        .order_by(col(RunFileRow.run_id), col(RunFileRow.position), col(SegmentRow.position))
    )
    engine = make_engine(settings)
    objects: dict[str, list[str]] = {}
    try:
        with read_session(engine) as session:
            for key, run_id, name in session.execute(chosen):
                objects.setdefault(key, []).append(f"run {run_id}, {name}")
    finally:
        engine.dispose()
    return objects

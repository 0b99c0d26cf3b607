"""Profiles of runs: store the uploaded files, read them in the background, and keep the reduced profile with its facts.

The files are deleted after reading, because an export of Nsight Systems contains the environment and command line of
its job. A setting keeps PyTorch traces.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import structlog
from billiard.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.access.principal import NOBODY, Uploader
from app.domain.profiles.profile import Document, ProfileFile, describe_profile
from app.errors import EmptyUpload, InvalidUpload, NotFound, Unavailable, new_error_id
from app.pipeline.profile_files import MAX_FILES, InvalidProfile, OpenedFile, read_profile
from app.pipeline.receive import deleted_on_failure
from app.pipeline.uploaded_file import CHUNK_BYTES, file_name
from app.pipeline.work import Claim, profile_queue
from app.queue import PROCESS_PROFILE, enqueue
from app.settings import Settings
from app.storage import audit, objects
from app.storage.database import fault_of, read_session, transaction
from app.storage.json_text import storable
from app.storage.log_files import LogFiles, StagedFile
from app.storage.profiles import StoredProfileFile, identity_of, pack, request_rules
from app.storage.projects import check_room
from app.storage.tables import ProfileFileRow, ProfileRow, RunRow, from_row, select_any, utc_now
from app.storage.worker_activity import timed

log = structlog.get_logger(__name__)

MAX_PROFILES = 50
"""Maximum profiles of one run."""
_RETRY_SECONDS = 1
_PROGRESS_SECONDS = 1
_READING_SHARE = 0.9
"""Share of the progress that reading the files takes; the rest is computing figures."""


@dataclass(frozen=True, slots=True)
class SentProfileFile:
    """An uploaded file; the caller closes it. `rank` and `stage`: as the sender stated them."""

    name: str
    file: BinaryIO
    rank: int | None = None
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class AcceptedProfile:
    """The profile of an upload. `created`: False if the run already had these files."""

    id: int
    status: str
    created: bool


def accept_profile(
    engine: Engine,
    log_files: LogFiles,
    settings: Settings,
    *,
    run_id: int,
    files: Sequence[SentProfileFile],
    uploader: Uploader = NOBODY,
) -> AcceptedProfile:
    """Store the files of a profile and request that they are read. Equal files are the same profile.

    Raises NotFound, EmptyUpload, InvalidUpload, OverQuota or Unavailable, with nothing stored.
    """
    if not files:
        raise EmptyUpload("This upload contains no file. Send at least one trace as the form field `profile`.")
    with ExitStack() as staging:
        staged = [staging.enter_context(StagedFile(_checked(file))) for file in files]
        stored = [item.stored for item in staged]
        key = hashlib.sha256("\n".join(sorted(item.sha256 for item in stored)).encode()).hexdigest()
        keys = [item.key for item in stored]
        with transaction(engine) as session:
            project_id = session.execute(
                select_any(RunRow.project_id).where(col(RunRow.id) == run_id)
            ).scalar_one_or_none()
            if project_id is None:
                raise NotFound.of(f"Run {run_id}")
            if accepted := _same(session, run_id, key):
                return accepted
            _check_count(session, run_id)
            check_room(session, settings, project_id, sum(item.size_bytes for item in stored), new_run=False)
            noted = objects.about_to_put(session, keys)
        with deleted_on_failure(engine, log_files, keys, noted):
            for item in staged:
                log_files.keep(item)
            accepted = _insert(
                engine, ProfileRow(run_id=run_id, content_key=key, uploaded_by=uploader.name), files, staged
            )
    if accepted.created:
        log.info("profile_received", run_id=run_id, profile_id=accepted.id, files=len(files))
        enqueue(PROCESS_PROFILE, accepted.id)
    return accepted


def _checked(file: SentProfileFile) -> Iterator[bytes]:
    file.file.seek(0)
    empty = True
    while chunk := file.file.read(CHUNK_BYTES):
        empty = False
        yield chunk
    if empty:
        raise EmptyUpload(f"{file_name(file.name)} is empty. Nothing was saved. Check that the profiler wrote it.")


def _same(session: Session, run_id: int, key: str) -> AcceptedProfile | None:
    row = session.execute(
        select_any(ProfileRow.id, ProfileRow.status).where(
            col(ProfileRow.run_id) == run_id, col(ProfileRow.content_key) == key
        )
    ).one_or_none()
    return None if row is None else AcceptedProfile(row.id, row.status, created=False)


def _check_count(session: Session, run_id: int) -> None:
    count = len(session.execute(select_any(ProfileRow.id).where(col(ProfileRow.run_id) == run_id)).all())
    if count >= MAX_PROFILES:
        raise InvalidUpload(f"Run {run_id} has {count} profiles, the most that a run may have. Remove one first.")


def _insert(
    engine: Engine, row: ProfileRow, files: Sequence[SentProfileFile], staged: Sequence[StagedFile]
) -> AcceptedProfile:
    row.work, row.lease_until = "waiting", utc_now()
    run_id, key = row.run_id, row.content_key
    with transaction(engine, durable=True) as session:
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:  # another request stored the same files concurrently
            same = _same(session, run_id, key)
            if same is None:
                raise
            return same
        for position, (file, item) in enumerate(zip(files, staged, strict=True)):
            session.add(
                ProfileFileRow(
                    profile_id=row.id or 0,
                    position=position,
                    name=file_name(file.name)[:500],
                    size_bytes=item.stored.size_bytes,
                    sha256=item.stored.sha256,
                    rank=file.rank,
                    stage=file.stage,
                    object_key=item.stored.key,
                )
            )
        project_id = session.execute(select_any(RunRow.project_id).where(col(RunRow.id) == run_id)).scalar_one()
        audit.record(
            session, who=row.uploaded_by or audit.SERVICE, subject="run", subject_id=run_id, project_id=project_id,
            action="profile_attached", after={"profile": row.id, "files": [file_name(file.name) for file in files]},
        )  # fmt: skip
        return AcceptedProfile(row.id or 0, row.status, created=True)


# --- Reading, by a worker.


@timed("profile")
def read_profile_of_run(engine: Engine, log_files: LogFiles, settings: Settings, profile_id: int) -> int | None:
    """Read one profile. Return its run; None if another worker has it, or it is done or removed.

    Any number of workers may call this any number of times; the result is stored once.
    """
    with transaction(engine) as session:
        claim = profile_queue.claim(session, profile_id, settings)
        if claim is None:
            _park(session, settings, profile_id)
            return None
    began = time.monotonic()
    try:
        with profile_queue.renewed(engine, claim, settings.lease_seconds):
            document, keep = _read(engine, log_files, settings, profile_id)
        columns = {
            "status": "ready",
            "progress": 1.0,
            "error": None,
            "document": pack(document),
            "facts": storable(document["facts"]),
            "identity": storable(identity_of(document)),
        }
    except InvalidProfile as error:
        keep = ()
        columns = {"status": "failed", "error": storable(error.detail)}
    except SoftTimeLimitExceeded:
        keep, limit = (), settings.task_soft_limit_seconds
        columns = {
            "status": "failed",
            "error": f"Reading this profile took longer than {limit} s, the limit. Profile fewer steps.",
        }
    except Exception as error:
        _end_without_result(engine, settings, claim, error)
        return None
    return _finish(engine, log_files, claim, keep, read_seconds=time.monotonic() - began, **columns)


class _Progress:
    """Stores how much of a profile was read, at most once a second."""

    def __init__(self, engine: Engine, profile_id: int, total_bytes: int) -> None:
        self._engine, self._profile_id, self._total = engine, profile_id, total_bytes or 1
        self._done = self._size = 0
        self._written_at = time.monotonic()

    def begin(self, size_bytes: int) -> None:
        """Begin the next file."""
        self._done += self._size
        self._size = size_bytes

    def report(self, share: float) -> None:
        """Store the progress. `share`: of the current file, 0 to 1."""
        if time.monotonic() - self._written_at < _PROGRESS_SECONDS:
            return
        done = _READING_SHARE * (self._done + share * self._size) / self._total
        with transaction(self._engine) as session:
            session.execute(update(ProfileRow).where(col(ProfileRow.id) == self._profile_id).values(progress=done))
        self._written_at = time.monotonic()


def _read(engine: Engine, log_files: LogFiles, settings: Settings, profile_id: int) -> tuple[Document, tuple[int, ...]]:
    """Return the document and the positions of the files to keep."""
    with read_session(engine) as session:
        files = [
            from_row(StoredProfileFile, row, key=row.object_key)
            for row in session.execute(
                select(ProfileFileRow)
                .where(col(ProfileFileRow.profile_id) == profile_id)
                .order_by(col(ProfileFileRow.position))
            ).scalars()
        ]
    result: list[ProfileFile] = []
    positions: list[int] = []
    progress = _Progress(engine, profile_id, sum(file.size_bytes for file in files))
    with tempfile.TemporaryDirectory(prefix="threewalls-profile-") as folder:
        for file in files:
            progress.begin(file.size_bytes)
            path = Path(folder) / "file"
            with path.open("wb") as copy:
                for chunk in log_files.stream([file.key]):
                    copy.write(chunk)
            parts = read_profile([OpenedFile(file.name, path)], settings, progress.report)
            if settings.keep_profiles and all(part.trace.format == "kineto" for part in parts):
                positions.append(file.position)
            is_single = len(parts) == 1
            result += [replace(part, rank=file.rank if is_single else None, stage=file.stage) for part in parts]
            path.unlink()
    if len(result) > MAX_FILES:
        raise InvalidProfile(f"A profile may have at most {MAX_FILES} files.")
    return describe_profile(result), tuple(positions)


def _finish(engine: Engine, log_files: LogFiles, claim: Claim, keep: Sequence[int] = (), **columns: Any) -> int | None:
    """Store the result and delete the files, except those at the positions `keep`. Return the run."""
    with transaction(engine) as session:
        run_id: int | None = session.execute(
            select_any(ProfileRow.run_id).where(col(ProfileRow.id) == claim.row_id)
        ).scalar_one_or_none()
        if run_id is None or not profile_queue.finish(session, claim, **columns):
            log.warning("profile_dropped", profile_id=claim.row_id, claim=claim.number)
            return None
        of_profile = col(ProfileFileRow.profile_id) == claim.row_id, col(ProfileFileRow.position).not_in(keep)
        keys = session.execute(select_any(ProfileFileRow.object_key).where(*of_profile)).scalars().all()
        session.execute(update(ProfileFileRow).where(*of_profile).values(object_key=""))
        request_rules(session, run_id)
    try:
        objects.forget(engine, log_files, [key for key in keys if key], utc_now())
    except Unavailable as error:  # the sweep deletes them later
        log.warning("profile_files_left", profile_id=claim.row_id, error=error.detail)
    log.info("profile_read", profile_id=claim.row_id, run_id=run_id, status=columns["status"])
    return run_id


def _park(session: Session, settings: Settings, profile_id: int) -> None:
    reason = (
        f"Reading this profile was interrupted {settings.max_attempts} times, so it is not tried again. Too little "
        "memory is the usual cause: profile fewer steps."
    )
    if profile_queue.park(session, profile_id, profile_queue.times(settings), status="failed", error=reason):
        log.error("profile_parked", profile_id=profile_id)


def _end_without_result(engine: Engine, settings: Settings, claim: Claim, error: Exception) -> None:
    """Postpone or fail the profile, so that an internal error never leaves it in processing."""
    fault = error if isinstance(error, Unavailable) else fault_of(error)
    if fault is not None and claim.attempt < settings.max_attempts:
        log.warning("profile_postponed", profile_id=claim.row_id, error=fault.detail)
        seconds: float = settings.lease_seconds
    else:
        error_id = new_error_id()
        log.exception("profile_not_read", profile_id=claim.row_id, error_id=error_id)
        seconds = _RETRY_SECONDS
        if claim.attempt >= settings.max_attempts:
            reason = f"Unexpected error (id {error_id}). The worker's log has the details under this id."
            with transaction(engine) as session:
                profile_queue.finish(session, claim, status="failed", error=reason)
            return
    with transaction(engine) as session:
        profile_queue.give_back(session, claim, again_at=utc_now() + timedelta(seconds=seconds), counts=True)

"""Back up and restore a service: a consistent copy of its database, and every stored object that this copy names.

A backup is a folder, a prefix of an S3-compatible store, or one `.tar` file. Folders and prefixes hold any number of
backups, which share their objects, so that a further backup copies only new ones:

    objects/ab/ab12....zst
    snapshots/20261123T061500Z/database.sqlite (or database.dump, of pg_dump), objects.txt, manifest.json

The manifest is written last: a snapshot without one is unfinished and ignored. The database is copied before the
objects, which never change, so that each object that the copy names was stored before.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import ObjectStore
from sqlalchemy import Connection, Engine, make_url, text, update
from sqlalchemy.pool import NullPool
from sqlmodel import col

from app.domain.numbers import plural
from app.errors import DamagedObject, Unavailable
from app.settings import Settings
from app.storage.database import make_engine, migrate, read_session, require_migrated, transaction
from app.storage.log_files import checked_object, open_store
from app.storage.tables import HeartbeatRow, select_any, utc_now

log = structlog.get_logger(__name__)

FORMAT = 1
MANIFEST, OBJECT_LIST = "manifest.json", "objects.txt"
_DATABASES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}
_SNAPSHOTS, _OBJECTS = "snapshots", "objects"
_PIECE = 1 << 20

OBJECTS_IN_USE = (
    "SELECT object_key FROM segment WHERE removed_at IS NULL "
    "UNION SELECT object_key FROM profile_file WHERE object_key <> '' "
    "UNION SELECT object_key FROM deletion_object ORDER BY 1"
)
"""SQL of the keys of all stored objects that rows name."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup. `revision`: of the tables. `missing`: objects that the store had lost before."""

    id: str
    created_at: str
    version: str
    revision: str
    database: str
    database_bytes: int
    database_sha256: str
    objects: int
    objects_sha256: str
    missing: tuple[str, ...] = ()
    format: int = FORMAT

    @classmethod
    def read(cls, content: bytes, where: str) -> "Manifest":
        try:
            stored = json.loads(content)
            manifest = cls(**stored | {"missing": tuple(stored["missing"])})
        except (ValueError, TypeError, KeyError) as error:
            raise Unavailable(f"{where} has a damaged manifest: {error}. Choose another backup.") from error
        if manifest.format > FORMAT:
            raise Unavailable(f"{where} was made by a later version of Threewalls. Restore it with that version.")
        return manifest


@dataclass(frozen=True, slots=True)
class Copied:
    """A finished backup. `new_objects` and `new_bytes`: what it added to the objects of earlier ones."""

    manifest: Manifest
    new_objects: int
    new_bytes: int


# --- Where backups are stored.


class Repository:
    """A folder or an S3 prefix with any number of backups. `snapshot`: the one to write, or to read."""

    def __init__(self, store: ObjectStore, where: str, snapshot: str = "") -> None:
        self.store, self.where, self.snapshot = store, where, snapshot

    def stored_objects(self) -> set[str]:
        return {entry["path"].removeprefix(f"{_OBJECTS}/") for page in obstore.list(self.store, _OBJECTS)
                for entry in page}  # fmt: skip

    def put(self, name: str, size: int, pieces: Iterable[bytes]) -> None:  # noqa: ARG002  a tar file needs the size
        path = name if name.startswith(f"{_OBJECTS}/") else f"{_SNAPSHOTS}/{self.snapshot}/{name}"
        with _spooled(pieces) as file:  # a store cannot be read while another one is written
            obstore.put(self.store, path, file)

    def manifest(self) -> Manifest:
        path = f"{_SNAPSHOTS}/{self.snapshot}/{MANIFEST}"
        try:
            return Manifest.read(bytes(obstore.get(self.store, path).bytes()), f"Backup {self.snapshot}")
        except FileNotFoundError:
            backups = ", ".join(self.snapshots()[-5:]) or "none"
            raise Unavailable(
                f"{self.where} has no finished backup {self.snapshot or ''}. Its newest are: {backups}."
            ) from None

    def entries(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        self.snapshot = self.snapshot or (self.snapshots() or [""])[-1]
        manifest = self.manifest()
        for name in (_DATABASES[manifest.database], OBJECT_LIST):
            yield name, self._read(f"{_SNAPSHOTS}/{self.snapshot}/{name}")
        missing = set(manifest.missing)
        for key in self.object_keys(self.snapshot):
            if key not in missing:
                yield f"{_OBJECTS}/{key}", self._read(f"{_OBJECTS}/{key}")
        yield MANIFEST, self._read(f"{_SNAPSHOTS}/{self.snapshot}/{MANIFEST}")

    def snapshots(self) -> list[str]:
        """Return the ids of the finished backups, oldest first."""
        paths = [PurePosixPath(entry["path"]) for page in obstore.list(self.store, _SNAPSHOTS) for entry in page]
        return sorted(path.parent.name for path in paths if path.name == MANIFEST)

    def object_keys(self, snapshot: str) -> list[str]:
        return b"".join(self._read(f"{_SNAPSHOTS}/{snapshot}/{OBJECT_LIST}")).decode().split()

    def prune(self, keep: int) -> int:
        """Delete all but the newest `keep` backups, and the objects that only those named. Return how many backups."""
        finished = self.snapshots()
        old = finished[:-keep]
        if not old:
            return 0
        for snapshot in old:
            for name in (MANIFEST, OBJECT_LIST, *_DATABASES.values()):  # without its manifest it is not a backup
                self._delete(f"{_SNAPSHOTS}/{snapshot}/{name}")
        needed = {key for snapshot in finished[-keep:] for key in self.object_keys(snapshot)}
        for key in self.stored_objects() - needed:
            self._delete(f"{_OBJECTS}/{key}")
        return len(old)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self.store, path)

    def _read(self, path: str) -> Iterator[bytes]:
        try:
            for piece in obstore.get(self.store, path).stream(_PIECE):
                yield bytes(piece)
        except FileNotFoundError:
            raise DamagedObject(f"The backup {self.where} has no {path}. Choose another backup.") from None


class TarFile:
    """One backup in one file, which gets its name when it is complete."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        self._out: tarfile.TarFile | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        part = self.path.with_name(f"{self.path.name}.part")
        try:
            with part.open("wb") as file, tarfile.open(fileobj=file, mode="w") as self._out:
                yield
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(self.path)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def stored_objects(self) -> set[str]:
        return set()

    def put(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        assert self._out is not None  # noqa: S101  inside `writing`
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = size, 0o600, int(utc_now().timestamp())
        with _spooled(pieces) as file:
            self._out.addfile(entry, file)

    def entries(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        with tarfile.open(self.path, "r:") as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                if file is not None:
                    yield entry.name, iter(partial(file.read, _PIECE), b"")


def _place(settings: Settings, where: str, snapshot: str = "") -> Repository | TarFile:
    if where.endswith(".tar"):
        return TarFile(Path(where))
    try:
        return Repository(open_store(settings, where), where, snapshot)
    except (BaseError, OSError) as error:
        raise Unavailable(f"{where} is not a usable folder or store ({type(error).__name__}).") from error


# --- Backing up.


def back_up(settings: Settings, where: str, *, keep: int = 0) -> Copied:
    """Copy the database and its objects to `where`, while the service runs. `keep`: backups to keep; 0: all.

    Raises Unavailable if the database, a store or pg_dump does not work.
    """
    require_migrated(settings)
    snapshot = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    place = _place(settings, where, snapshot)
    engine = make_engine(settings)
    try:
        with _explained(where):
            if isinstance(place, TarFile):
                with place.writing():
                    copied = _copy(engine, settings, place, snapshot)
            else:
                copied = _copy(engine, settings, place, snapshot)
                if keep:
                    place.prune(keep)
        _note_backup(engine)
    finally:
        engine.dispose()
    return copied


def _copy(engine: Engine, settings: Settings, place: Repository | TarFile, snapshot: str) -> Copied:
    with tempfile.TemporaryDirectory(prefix="threewalls-backup-") as folder:
        kind = engine.dialect.name
        database, listed = Path(folder) / _DATABASES[kind], Path(folder) / OBJECT_LIST
        revision = _copy_sqlite(engine, database, listed) if kind == "sqlite" else _dump(engine, database, listed)
        for path in (database, listed):
            with path.open("rb") as file:
                place.put(path.name, path.stat().st_size, iter(partial(file.read, _PIECE), b""))
        source = open_store(settings, settings.resolved_artifact_url)
        there, new, size, missing, count = place.stored_objects(), 0, 0, [], 0
        with listed.open() as keys:
            for key in (line.strip() for line in keys):
                count += 1
                if key in there:
                    continue
                try:
                    answer = obstore.get(source, key)
                except FileNotFoundError:
                    missing.append(key)
                    continue
                place.put(f"{_OBJECTS}/{key}", answer.meta["size"], (bytes(piece) for piece in answer.stream(_PIECE)))
                new, size = new + 1, size + answer.meta["size"]
        manifest = Manifest(
            snapshot, utc_now().isoformat(timespec="seconds"), version("threewalls"), revision, kind,
            database.stat().st_size, _sha256(database), count, _sha256(listed),
            tuple(sorted(set(missing) & _still_in_use(engine, missing))),
        )  # fmt: skip
        content = json.dumps(asdict(manifest), indent=1).encode()
        place.put(MANIFEST, len(content), [content])
    return Copied(manifest, new, size)


def _copy_sqlite(engine: Engine, database: Path, listed: Path) -> str:
    with (
        closing(sqlite3.connect(f"file:{quote(engine.url.database or '')}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(database)) as copy,
    ):
        source.backup(copy)  # in one step: with a write-ahead log, readers and writers go on meanwhile
        copy.execute("PRAGMA journal_mode=DELETE")  # so that the copy is one file
        with listed.open("w") as out:
            out.writelines(f"{key}\n" for (key,) in copy.execute(OBJECTS_IN_USE))
        (revision,) = copy.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(revision)


def _dump(engine: Engine, database: Path, listed: Path) -> str:
    """Run pg_dump in a snapshot, from which the list of objects is read, too."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET {name} = 0"))
        snapshot = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
        _run_postgres(engine, "pg_dump", "--format=custom", f"--snapshot={snapshot}", f"--file={database}")
        rows = connection.execution_options(yield_per=10_000).execute(text(OBJECTS_IN_USE))
        with listed.open("w") as out:
            out.writelines(f"{key}\n" for (key,) in rows)
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        connection.invalidate()  # its timeouts are off
    return str(revision)


def _run_postgres(engine: Engine, program: str, *options: str) -> None:
    url = engine.url.set(drivername="postgresql", password=None)
    environment = os.environ | ({"PGPASSWORD": str(engine.url.password)} if engine.url.password else {})
    try:
        subprocess.run(
            [program, "--no-owner", "--no-privileges", f"--dbname={url.render_as_string()}", *options],
            env=environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise Unavailable(f"{program} is not installed. Install the client programs of PostgreSQL.") from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{program} failed: {error.stderr.strip()[-500:]}") from error


def _still_in_use(engine: Engine, keys: list[str]) -> set[str]:
    """Return the objects that rows name now; what was deleted during the backup is not missing."""
    if not keys:
        return set()
    with engine.connect() as connection:
        return set(keys) & set(connection.execute(text(OBJECTS_IN_USE)).scalars())


# --- When the last backup was made: a row of the heartbeats. `CLAIM` prevents two concurrent backups.

LAST, CLAIM = "backup", "backup claim"
_CLAIMED = timedelta(hours=6)


def _note_backup(engine: Engine) -> None:
    with transaction(engine) as session:
        row = session.get(HeartbeatRow, LAST) or HeartbeatRow(name=LAST)
        row.seen_at = utc_now()
        session.add(row)


def last_backup(engine: Engine) -> datetime | None:
    """Return when the last backup was finished; None if there was none."""
    with read_session(engine) as session:
        chosen = select_any(HeartbeatRow.seen_at).where(col(HeartbeatRow.name) == LAST)
        at: datetime | None = session.execute(chosen).scalar_one_or_none()
    return at


def back_up_if_due(engine: Engine, settings: Settings) -> Copied | None:
    """Back up to THREEWALLS_BACKUP_URL when the last backup is old enough, unless another worker does."""
    if not settings.backup_url:
        return None
    last, now = last_backup(engine), utc_now()
    if last is not None and timedelta() <= now - last < timedelta(hours=settings.backup_hours):
        return None
    with transaction(engine) as session:
        if session.get(HeartbeatRow, CLAIM) is None:
            session.add(HeartbeatRow(name=CLAIM, seen_at=now - 2 * _CLAIMED))
            session.flush()
        claimed = update(HeartbeatRow).where(
            col(HeartbeatRow.name) == CLAIM, col(HeartbeatRow.seen_at) < now - _CLAIMED
        )
        if session.execute(claimed.values(seen_at=now).returning(col(HeartbeatRow.name))).first() is None:
            return None
    try:
        copied = back_up(settings, settings.backup_url, keep=settings.backup_keep)
        manifest = copied.manifest
        log.info("backed_up", id=manifest.id, objects=manifest.objects, new_bytes=copied.new_bytes)
        return copied
    finally:
        with transaction(engine) as session:
            free = update(HeartbeatRow).where(col(HeartbeatRow.name) == CLAIM)
            session.execute(free.values(seen_at=utc_now() - 2 * _CLAIMED))


# --- Restoring, and checking a backup.


def restore(settings: Settings, where: str, *, snapshot: str = "") -> Manifest:
    """Restore a backup into an empty database and store, and migrate it to this version.

    Nothing is put in place before the whole backup was read and compared with its hashes. Raises Unavailable if the
    database has tables already, and DamagedObject.
    """
    engine = make_engine(settings)
    try:
        kind = engine.dialect.name
        _require_empty(engine)
        target = open_store(settings, settings.resolved_artifact_url)
        folder = Path(engine.url.database or "").parent if kind == "sqlite" else None
        with _explained(where), tempfile.TemporaryDirectory(prefix="threewalls-restore-", dir=folder) as staged:
            database = Path(staged) / "database"
            manifest = _read_backup(_place(settings, where, snapshot), database, target)
            if manifest.database != kind:
                raise Unavailable(
                    f"The backup is of {manifest.database}, and this service uses {kind}. Restore it as a service with "
                    f"{manifest.database}; to change the database, export its projects and import them."
                )
            if kind == "sqlite":
                shutil.move(database, str(engine.url.database))
            else:
                _run_postgres(engine, "pg_restore", "--exit-on-error", "--single-transaction", str(database))
    finally:
        engine.dispose()
    migrate(settings)
    return manifest


def check_backup(settings: Settings, where: str, *, snapshot: str) -> Manifest:
    """Read a whole backup and compare it with its hashes. Raises DamagedObject, Unavailable."""
    with _explained(where), tempfile.TemporaryDirectory(prefix="threewalls-verify-") as staged:
        database = Path(staged) / "database"
        manifest = _read_backup(_place(settings, where, snapshot), database, None)
        if manifest.database == "sqlite" and (problems := sqlite_problems(database)):
            raise DamagedObject(f"The database of the backup is damaged: {problems[0]}. Choose another backup.")
    return manifest


def _read_backup(place: Repository | TarFile, database: Path, target: ObjectStore | None) -> Manifest:
    """Write the database to `database` and the objects to `target`; None only checks them."""
    manifest: Manifest | None = None
    database_sha256 = keys_sha256 = ""
    objects = 0
    for name, pieces in place.entries():
        if name in _DATABASES.values():
            with database.open("wb") as copy:
                copy.writelines(pieces)
            database_sha256 = _sha256(database)
        elif name == OBJECT_LIST:
            keys_sha256 = hashlib.sha256(b"".join(pieces)).hexdigest()
        elif name == MANIFEST:
            manifest = Manifest.read(b"".join(pieces), place.where)
        else:
            objects += 1
            key = name.removeprefix(f"{_OBJECTS}/")
            with checked_object(key, pieces) as file:
                if target is not None:
                    obstore.put(target, key, file)
    if manifest is None:
        raise DamagedObject(f"{place.where} is incomplete: it has no manifest. Choose another backup.")
    if (database_sha256, keys_sha256) != (manifest.database_sha256, manifest.objects_sha256):
        raise DamagedObject(f"{place.where} is damaged: its database differs from its manifest. Choose another backup.")
    gone = manifest.objects - objects
    if gone > len(manifest.missing) and isinstance(place, Repository):
        raise DamagedObject(f"{place.where} lacks {plural(gone, 'object')}. Choose another backup.")
    return manifest


def _require_empty(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        path = Path(engine.url.database or "")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise Unavailable(f"{path} exists. Restore into an empty data folder (--data DIR); nothing was changed.")
        return
    empty = engine.execution_options(poolclass=NullPool)
    with empty.connect() as connection:
        tables = connection.execute(
            text("SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema()")
        ).scalar_one()
    if tables:
        raise Unavailable(
            f"The database {make_url(engine.url).render_as_string()} has tables. Restore into a new, empty database; "
            "nothing was changed."
        )


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn the errors of a store, an archive or a disk into ours."""
    try:
        yield
    except tarfile.TarError as error:  # also while a member is read
        raise DamagedObject(f"{where} is damaged or not a backup: {error}. Choose another backup.") from error
    except OSError as error:
        raise Unavailable(f"{error.filename or where}: {error.strerror or error}.") from error
    except BaseError as error:
        raise Unavailable(f"The store of {where} did not answer ({type(error).__name__}).") from error


# --- The state of a service: its database and its store.


def sqlite_problems(database: Path) -> list[str]:
    """Return what SQLite finds wrong with a database file."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as connection:
            problems = [row[0] for row in connection.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
            broken = connection.execute("PRAGMA foreign_key_check").fetchmany(10)
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return problems + [f"row {row} of {table} refers to a missing row of {parent}" for table, row, parent, _ in broken]


def database_problems(engine: Engine) -> list[str]:
    """Return what is wrong with the database. PostgreSQL checks its own pages and keys."""
    if engine.dialect.name == "sqlite":
        return sqlite_problems(Path(engine.url.database or ""))
    with engine.connect() as connection:
        return [
            f"the constraint {name} of {table} was never checked"
            for name, table in connection.execute(
                text("SELECT conname, conrelid::regclass::text FROM pg_constraint WHERE NOT convalidated")
            )
        ]


def orphans(settings: Settings, connection: Connection) -> tuple[int, int]:
    """Return number and bytes of stored objects that no row names. Uploads in progress are among them."""
    used = set(connection.execute(text(OBJECTS_IN_USE)).scalars())
    store = open_store(settings, settings.resolved_artifact_url)
    sizes = [
        entry["size"]
        for page in obstore.list(store)
        for entry in page
        if entry["path"] not in used and entry["path"].endswith(".zst")
    ]
    return len(sizes), sum(sizes)


@contextmanager
def _spooled(pieces: Iterable[bytes]) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.writelines(pieces)
        file.seek(0)
        yield file


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

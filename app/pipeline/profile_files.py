"""Open the files of a profile: recognise them by content, decompress them, unpack archives, and read them.

This module imports no database, because `threewalls profile` uses it for local files.
"""

import re
import sqlite3
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO
from urllib.parse import quote

from app.domain.numbers import size
from app.domain.profiles.kernels import ClassRow, class_rows
from app.domain.profiles.kineto import read_kineto
from app.domain.profiles.nsight import is_table, read_nsight, read_stats
from app.domain.profiles.profile import ProfileFile
from app.domain.profiles.trace import Trace, UnusableProfile, unreported
from app.errors import InvalidUpload
from app.pipeline.uploaded_file import CHUNK_BYTES, GZIP, ZSTD, Decompressed, Limits
from app.settings import Settings

# --- Exports of Nsight Systems with one file per table (parquet or Arrow): converted to the SQLite export.

SUFFIXES = (".parquet", ".arrow", ".feather")
_ROWS = 20_000
_MAX_ROWS = 50_000_000
_WANTED = (
    "StringIds",
    "META_DATA_EXPORT",
    "NVTX_EVENTS",
    "DIAGNOSTIC_EVENT",
    "TARGET_INFO_GPU",
    "TARGET_INFO_SESSION_START_TIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
)
"""The tables that we read. Some of the others contain the command line and environment of the job."""


def is_wanted(name: str) -> bool:
    """Return whether the file `TABLE.parquet` is a table that we read."""
    stem, dot, suffix = name.rpartition(".")
    return f"{dot}{suffix.lower()}" in SUFFIXES and stem in _WANTED


def write_export(tables: Mapping[str, Path], target: Path) -> None:
    """Write the tables (by file name) to an SQLite file. Raises UnusableProfile, also if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: PLC0415  an extra
    except ImportError:
        raise UnusableProfile(
            "Tables as parquet or Arrow need the package pyarrow on the server: pip install 'threewalls[parquet]'. "
            "Or export the report with nsys export --type sqlite."
        ) from None
    connection = sqlite3.connect(target)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for name, path in tables.items():
            try:
                _copy(connection, name.rpartition(".")[0], path)
            except (pyarrow.ArrowException, OSError, ValueError, OverflowError, sqlite3.Error) as error:
                raise UnusableProfile(f"{name} cannot be read: {str(error)[:200]}.") from None
        connection.commit()
    finally:
        connection.close()


def _copy(connection: sqlite3.Connection, table: str, path: Path) -> None:
    columns, batches = _batches(path)
    columns = [column for column in columns if column.isidentifier()]
    if not columns:
        return
    listed = ", ".join(f'"{column}"' for column in columns)
    connection.execute(f'CREATE TABLE "{table}" ({listed})')
    marks = ", ".join("?" * len(columns))
    written = 0
    for batch in batches:
        batch.validate(full=True)  # offsets in a damaged file may point outside the buffers
        written += batch.num_rows
        if written > _MAX_ROWS:
            raise UnusableProfile(f"{table} has more than {_MAX_ROWS:,} rows. Export fewer steps.")
        values = (batch.column(column).to_pylist() for column in columns)
        rows = zip(*values, strict=True)
        connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', map(_storable, rows))  # noqa: S608  our tables


def _storable(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return values that SQLite accepts; integers beyond 64 bits and nested values become NULL."""
    return tuple(
        value
        if isinstance(value, str | bytes | float) or (isinstance(value, int) and -(2**63) <= value < 2**63)
        else None
        for value in row
    )


def _batches(path: Path) -> tuple[list[str], Iterator[Any]]:
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415

        file = parquet.ParquetFile(path)
        return list(file.schema_arrow.names), file.iter_batches(_ROWS)
    from pyarrow import ipc  # noqa: PLC0415

    reader = ipc.open_file(str(path))
    return list(reader.schema.names), (reader.get_batch(at) for at in range(reader.num_record_batches))


# --- Opening the files of a profile.

SQLITE = b"SQLite format 3\0"
_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_TAR_AT = 257
_TABLE_HEAD = 8_192
_PEEK_BYTES = 64 << 20
"""Larger than any first chunk of decompressed text."""
_EVENT = re.compile(rb'"ph": ?"[XMisf]"')
"""Pattern of an event, for traces without an object around their events."""
MAX_FILES = 256
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_DAMAGED = sqlite3.DatabaseError


class InvalidProfile(InvalidUpload):
    """Raised for a file that is not a profile or cannot be used."""

    title = "The profile cannot be used"


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file to read. `name`: for messages."""

    name: str
    path: Path


Progress = Callable[[float], None]
"""Called with the share of a file that was read, 0 to 1."""


def read_profile(files: Sequence[OpenedFile], settings: Settings, progress: Progress = unreported) -> list[ProfileFile]:
    """Read all files, including those in archives. Raises InvalidProfile, which names the file."""
    result: list[ProfileFile] = []
    with tempfile.TemporaryDirectory(prefix="threewalls-profile-") as folder:
        for file in files:
            result += _FileReader(Path(folder), settings, progress).read(file)
    if len(result) > MAX_FILES:
        raise InvalidProfile(f"A profile may have at most {MAX_FILES} files.")
    return result


class _FileReader:
    """Reads one uploaded file; of an archive, the files in it."""

    def __init__(self, folder: Path, settings: Settings, progress: Progress) -> None:
        self._folder = folder
        self._seconds = settings.profile_seconds
        self._limits = Limits(settings.max_profile_bytes, settings.max_compression_ratio)
        self._progress = progress
        self._rows = _class_rows(settings.kernel_classes)

    def read(self, file: OpenedFile) -> list[ProfileFile]:
        try:
            return self._read(file)
        except UnusableProfile as error:
            raise InvalidProfile(f"{file.name}: {error}") from None
        except InvalidProfile:
            raise
        except InvalidUpload as error:
            raise InvalidProfile(error.problem or error.detail) from None

    def _read(self, file: OpenedFile) -> list[ProfileFile]:
        head = _head(file.path)
        if head.startswith((_ZIP, _EMPTY_ZIP)):
            return self._archive(file, self._members_of_zip(file))
        if _is_tar(head):
            return self._archive(file, self._members_of_tar(file.path))
        if head.startswith((GZIP, ZSTD)):
            with file.path.open("rb") as opened:
                if _is_tar(next(iter(Decompressed(opened, file.name, self._limits)), b"")):
                    return self._archive(file, self._members_of_tar(self._decompressed(file)))
        return [ProfileFile(file.name, self._trace(file, head, self._progress))]

    def _trace(self, file: OpenedFile, head: bytes, progress: Progress) -> Trace:
        if head.startswith(SQLITE):
            return self._sqlite(file.path, progress)
        if not head.startswith((GZIP, ZSTD)) and file.name.lower().endswith(_REPORTS):
            raise UnusableProfile(_export_command(file.name))
        with file.path.open("rb") as opened:
            chunks = Decompressed(opened, file.name, self._limits)
            stream = _counted(iter(chunks), opened, file.path.stat().st_size, progress)
            first = next(stream, b"")
            if first.startswith(SQLITE):
                plain = self._folder / "export.sqlite"
                _write(plain, _chain(first, stream))
                if chunks.cut:
                    raise UnusableProfile("The compressed export is truncated. Copy and upload the complete file.")
                return self._sqlite(plain, progress)
            is_json = first.lstrip().startswith((b"{", b"["))
            if first and b"\0" in first[:64].rstrip(b"\0") and not is_json:
                raise UnusableProfile(
                    "This is binary data, not a trace. A report of Nsight Systems needs an export first: "
                    + _export_command("report.nsys-rep")
                )
            is_stats = not is_json and is_table(first[:_TABLE_HEAD])
            trace = (read_stats if is_stats else read_kineto)(_chain(first, stream), self._rows)
        if chunks.cut and not trace.incomplete:
            trace.incomplete = f"The {chunks.cut} file ends early, after {size(chunks.size_bytes)} of text."
        return trace

    def _sqlite(self, path: Path, progress: Progress) -> Trace:
        """Read an export without running its views, triggers and functions."""
        try:
            connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
            try:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA query_only = ON")
                connection.execute("PRAGMA cache_size = -16000")
                return read_nsight(connection, self._seconds, progress, self._rows)
            finally:
                connection.close()
        except _DAMAGED as error:
            raise UnusableProfile(f"Not an SQLite export, or damaged: {error}.") from None

    # --- Archives

    def _archive(self, file: OpenedFile, members: Iterator[tuple[OpenedFile, float]]) -> list[ProfileFile]:
        """Read the members; each comes with the share of the archive up to its end. Tables together form one export."""
        result, tables, count = [], {}, 0
        for member, done in members:
            count += 1
            if count > MAX_FILES:
                raise UnusableProfile(f"The archive contains more than {MAX_FILES} files.")
            self._progress(done)
            if member.name.lower().endswith(SUFFIXES):
                if is_wanted(member.name):
                    tables[member.name] = member.path.replace(self._folder / f"table-{count}{member.path.suffix}")
                continue
            trace = self._trace(member, _head(member.path), unreported)
            result.append(ProfileFile(f"{file.name}/{member.name}", trace))
        if tables:
            export = self._folder / "tables.sqlite"
            export.unlink(missing_ok=True)
            write_export(tables, export)
            result.append(ProfileFile(file.name, self._sqlite(export, self._progress)))
        if not result:
            raise UnusableProfile("The archive contains no trace." if count else "The archive contains no file.")
        return result

    def _members_of_zip(self, file: OpenedFile) -> Iterator[tuple[OpenedFile, float]]:
        try:
            with zipfile.ZipFile(file.path) as archive:
                entries = [item for item in archive.infolist() if not item.is_dir() and not _is_hidden(item.filename)]
                for at, entry in enumerate(entries):
                    with archive.open(entry) as source:
                        yield self._unpacked(PurePosixPath(entry.filename).name, source), at / len(entries)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise UnusableProfile(f"The zip archive cannot be read: {error}.") from None

    def _members_of_tar(self, path: Path) -> Iterator[tuple[OpenedFile, float]]:
        length = path.stat().st_size
        try:
            with tarfile.open(path, "r:") as archive:
                for entry in archive:
                    source = archive.extractfile(entry) if entry.isreg() and not _is_hidden(entry.name) else None
                    if source is not None:
                        yield self._unpacked(PurePosixPath(entry.name).name, source), entry.offset / length
        except (tarfile.TarError, EOFError) as error:
            raise UnusableProfile(f"The tar archive cannot be read: {error}.") from None

    def _unpacked(self, name: str, source: IO[bytes]) -> OpenedFile:
        """Copy a member to a new file. Its own path is never used."""
        suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
        target = self._folder / f"member{suffix}"
        written = 0
        with target.open("wb") as copy:
            while chunk := source.read(CHUNK_BYTES):
                written += len(chunk)
                if written > self._limits.decompressed_bytes:
                    raise UnusableProfile(f"{name} is larger than {size(self._limits.decompressed_bytes)}.")
                copy.write(chunk)
        return OpenedFile(name, target)

    def _decompressed(self, file: OpenedFile) -> Path:
        target = self._folder / "archive.tar"
        with file.path.open("rb") as opened:
            _write(target, Decompressed(opened, file.name, self._limits))
        return target


def is_profile(name: str, file: BinaryIO) -> bool:
    """Return whether a file starts like a profile, not a training log. Archives count as profiles."""
    file.seek(0)
    head = file.read(512)
    if head.startswith((SQLITE, _ZIP, _EMPTY_ZIP)) or _is_tar(head) or name.lower().endswith(_REPORTS):
        return True
    try:
        text = next(iter(Decompressed(file, name, Limits(_PEEK_BYTES, _PEEK_BYTES))), b"")
    except InvalidUpload:
        return False
    finally:
        file.seek(0)
    if text.startswith(SQLITE) or _is_tar(text):
        return True
    if text.lstrip().startswith((b"{", b"[")):
        return b'"traceEvents"' in text or bool(_EVENT.search(text))
    return is_table(text[:_TABLE_HEAD])


def _class_rows(path: str) -> tuple[ClassRow, ...]:
    try:
        return class_rows(Path(path).read_text("utf-8")) if path else ()
    except (OSError, ValueError) as error:
        raise InvalidProfile(f"THREEWALLS_KERNEL_CLASSES cannot be read: {error}.") from None


def _head(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(512)


def _is_tar(head: bytes) -> bool:
    return head[_TAR_AT : _TAR_AT + 5] == b"ustar"


def _write(target: Path, chunks: Iterable[bytes]) -> None:
    with target.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)


def _counted(chunks: Iterator[bytes], file: BinaryIO, length: int, progress: Progress) -> Iterator[bytes]:
    """Yield the chunks and report how much of the file was read."""
    for chunk in chunks:
        yield chunk
        progress(file.tell() / (length or 1))


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _export_command(name: str) -> str:
    stem = PurePosixPath(name).stem
    return (
        "Only NVIDIA's tools can read this report. Export it and upload the export: "
        f"nsys export --type sqlite --output {stem}.sqlite {PurePosixPath(name).name}"
    )


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)

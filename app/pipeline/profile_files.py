"""Open the files of a profile: recognise them by content, decompress, unpack archives, and read each.

Imports no database, because `threewalls profile` reads local files with it.
"""

import sqlite3
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

from app.domain.numbers import size
from app.domain.profiles.kineto import read_kineto
from app.domain.profiles.nsight import read_nsight
from app.domain.profiles.profile import ProfileFile
from app.domain.profiles.trace import Trace, UnusableProfile
from app.errors import InvalidUpload
from app.pipeline.uploaded_file import CHUNK_BYTES, GZIP, ZSTD, Decompressed, Limits
from app.settings import Settings

SQLITE = b"SQLite format 3\0"
_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_TAR_AT = 257
MAX_FILES = 256
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_DAMAGED = sqlite3.DatabaseError
_MESSAGE_END = " Nothing was saved."


class InvalidProfile(InvalidUpload):
    """The file is no profile or cannot be used."""

    title = "The profile cannot be used"


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file to read. `name` is shown."""

    name: str
    path: Path


def read_profile(files: Sequence[OpenedFile], settings: Settings) -> list[ProfileFile]:
    """Read all files, and those in archives. Raises InvalidProfile, which names the file."""
    result: list[ProfileFile] = []
    with tempfile.TemporaryDirectory(prefix="threewalls-profile-") as folder:
        for file in files:
            result += _read(file, Path(folder), settings)
    if len(result) > MAX_FILES:
        raise InvalidProfile(f"A profile may have at most {MAX_FILES} files.")
    return result


def _read(file: OpenedFile, folder: Path, settings: Settings) -> Iterator[ProfileFile]:
    limits = Limits(settings.max_profile_bytes, settings.max_compression_ratio)
    with file.path.open("rb") as opened:
        head = opened.read(512)
    try:
        if head.startswith((_ZIP, _EMPTY_ZIP)):
            yield from _archive(file, _members_of_zip(file, folder, limits), folder, settings)
        elif head[_TAR_AT : _TAR_AT + 5] == b"ustar":
            yield from _archive(file, _members_of_tar(file, folder, limits), folder, settings)
        else:
            yield ProfileFile(file.name, _read_trace(file, head, folder, limits, settings.profile_seconds))
    except UnusableProfile as error:
        raise InvalidProfile(f"{file.name}: {error}") from None
    except InvalidProfile:
        raise
    except InvalidUpload as error:
        raise InvalidProfile(error.detail.partition(_MESSAGE_END)[0]) from None


def _read_trace(file: OpenedFile, head: bytes, folder: Path, limits: Limits, seconds: float) -> Trace:
    if head.startswith(SQLITE):
        return _read_sqlite(file.path, seconds)
    if not head.startswith((GZIP, ZSTD)) and file.name.lower().endswith(_REPORTS):
        raise UnusableProfile(_export_command(file.name))
    with file.path.open("rb") as opened:
        chunks = Decompressed(opened, file.name, limits)
        stream = iter(chunks)
        first = next(stream, b"")
        if first.startswith(SQLITE):
            plain = folder / "export.sqlite"
            with plain.open("wb") as target:
                target.write(first)
                for chunk in stream:
                    target.write(chunk)
            if chunks.cut:
                raise UnusableProfile("The compressed export ends early. Copy it again whole.")
            return _read_sqlite(plain, seconds)
        if first and b"\0" in first[:64].rstrip(b"\0") and not first.lstrip().startswith((b"{", b"[")):
            raise UnusableProfile(
                "This is binary data, not a trace. A report of Nsight Systems needs an export first: "
                + _export_command("report.nsys-rep")
            )
        trace = read_kineto(_chain(first, stream))
    if chunks.cut and not trace.incomplete:
        trace.incomplete = f"The {chunks.cut} file ends early, after {size(chunks.size_bytes)} of text."
    return trace


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _export_command(name: str) -> str:
    stem = PurePosixPath(name).stem
    return (
        "Only NVIDIA's program reads this report. Export it and upload the export: "
        f"nsys export --type sqlite --output {stem}.sqlite {PurePosixPath(name).name}"
    )


def _read_sqlite(path: Path, seconds: float) -> Trace:
    """Read an export without running anything that it brings: views, triggers and functions stay unused."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA cache_size = -16000")
            return read_nsight(connection, seconds)
        finally:
            connection.close()
    except _DAMAGED as error:
        raise UnusableProfile(f"Not an SQLite export, or damaged: {error}.") from None


# --- Archives


def _archive(
    file: OpenedFile, members: Iterator[OpenedFile], folder: Path, settings: Settings
) -> Iterator[ProfileFile]:
    count = 0
    for member in members:
        if member.name.lower().endswith(".parquet"):
            raise UnusableProfile("Parquet tables are not supported yet. Export with nsys export --type sqlite.")
        count += 1
        if count > MAX_FILES:
            raise UnusableProfile(f"The archive contains more than {MAX_FILES} files.")
        with member.path.open("rb") as opened:
            head = opened.read(512)
        limits = Limits(settings.max_profile_bytes, settings.max_compression_ratio)
        trace = _read_trace(member, head, folder, limits, settings.profile_seconds)
        yield ProfileFile(f"{file.name}/{member.name}", trace)
    if not count:
        raise UnusableProfile("The archive contains no file.")


def _members_of_zip(file: OpenedFile, folder: Path, limits: Limits) -> Iterator[OpenedFile]:
    try:
        with zipfile.ZipFile(file.path) as archive:
            for entry in archive.infolist():
                if entry.is_dir() or _is_hidden(entry.filename):
                    continue
                with archive.open(entry) as source:
                    yield _unpacked(PurePosixPath(entry.filename).name, source, folder, limits)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UnusableProfile(f"The zip archive cannot be read: {error}.") from None


def _members_of_tar(file: OpenedFile, folder: Path, limits: Limits) -> Iterator[OpenedFile]:
    try:
        with tarfile.open(file.path, "r:") as archive:
            for entry in archive:
                source = archive.extractfile(entry) if entry.isreg() and not _is_hidden(entry.name) else None
                if source is not None:
                    yield _unpacked(PurePosixPath(entry.name).name, source, folder, limits)
    except (tarfile.TarError, EOFError) as error:
        raise UnusableProfile(f"The tar archive cannot be read: {error}.") from None


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def _unpacked(name: str, source: BinaryIO | object, folder: Path, limits: Limits) -> OpenedFile:
    """Copy a member to a file of ours; its own path is never used."""
    target = folder / "member"
    written = 0
    with target.open("wb") as copy:
        while chunk := source.read(CHUNK_BYTES):  # type: ignore[union-attr]
            written += len(chunk)
            if written > limits.decompressed_bytes:
                raise UnusableProfile(f"{name} is larger than {size(limits.decompressed_bytes)}.")
            copy.write(chunk)
    return OpenedFile(name, target)

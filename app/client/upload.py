"""An upload as a value: metadata and files, read from the command line, the CI job and the disk."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from app.client.ci import CiJob
from app.errors import ThreewallsError, UsageError

# --- Metadata: the CI job, overridden by metadata documents, overridden by options.

_WINDOW = re.compile(r"(\d+)-(\d+)")


def upload_metadata(
    *,
    job: CiJob | None,
    documents: Iterable[str],
    settings: Iterable[str],
    stated: Mapping[str, str],
    tags: Sequence[str] = (),
) -> dict[str, object]:
    """Merge the metadata of an upload, from low to high priority: `job`, `documents`, `settings`, `stated`.

    `documents` are paths or JSON texts, `settings` are KEY=VALUE. Tags of all sources are combined. Raises UsageError
    for unreadable input; the service validates the fields.
    """
    layers: list[Mapping[str, object]] = [metadata_document(document) for document in documents if document]
    layers += [dict([metadata_setting(setting)]) for setting in settings]
    layers.append({name: value for name, value in stated.items() if value})
    by_job = {} if job is None else job.metadata()
    merged = by_job | {name: value for layer in layers for name, value in layer.items()}
    if merged.get("commit") != by_job.get("commit") and merged.get("commit_time") == by_job.get("commit_time"):
        merged.pop("commit_time", None)  # it belongs to another commit
    if merged.get("commit") != by_job.get("commit") and merged.get("merge_base") == by_job.get("merge_base"):
        merged = {name: value for name, value in merged.items() if not name.startswith("merge_base")}
    all_tags = [tag for layer in (by_job, *layers) for tag in _tags(layer.get("tags"))] + list(tags)
    if all_tags:
        merged["tags"] = [tag for index, tag in enumerate(all_tags) if tag not in all_tags[:index]]
    return merged


def _tags(value: object) -> list[object]:
    if value is None:
        return []
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    return list(value) if isinstance(value, list) else [value]


def metadata_document(text: str) -> dict[str, object]:
    """Read a `--meta` option: a JSON object, or the path of a file with one. Raises UsageError."""
    source = "--meta"
    if not text.lstrip().startswith("{"):
        source = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The metadata file {source} cannot be read: {error}.") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise UsageError(f'{source} must be a JSON object, for example {{"gpu": "H100", "gpus": 64}}.')
    return document


def metadata_setting(text: str) -> tuple[str, object]:
    """Return the name and the value of a `--set KEY=VALUE`, which may be JSON. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: expected KEY=VALUE, for example --set gpu=H100.")
    if name == "window" and (window := _WINDOW.fullmatch(value)):
        return name, {"first": int(window[1]), "last": int(window[2])}
    if value.startswith(("{", "[")):
        try:
            return name, json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--set {name}: the value is not valid JSON: {error}.") from None
    return name, value


# --- The decompressed text of a log file. Byte offsets of the API count this text.

CHUNK_BYTES = 1 << 20
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
COMPRESSED_SUFFIXES = (".gz", ".zst")
_MAX_WINDOW = 128 << 20
_ZSTD_INPUT_BYTES = 1024
"""A block of 4 bytes can expand to 128 KiB and the decoder has no output limit, so it gets small pieces."""


class UnreadableLogError(ThreewallsError):
    title = "The file cannot be read"


def plain_name(name: str) -> str:
    """Return the file name without the suffix of a compression."""
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return _is_packed(file.read(4))


def _is_packed(head: bytes) -> bool:
    """Recognise gzip and zstd, including the skippable frame that pzstd writes first."""
    skippable = head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50
    return skippable or head.startswith((GZIP, ZSTD))


class LogText:
    """Iterates over the decompressed text of a log from byte `begin`.

    A truncated compressed file, as a killed job leaves it, is read up to its end; `cut` then names the compression.
    Raises UnreadableLogError if the file is damaged or unreadable.
    """

    def __init__(self, path: Path, begin: int = 0) -> None:
        self.path, self.begin, self.cut = path, begin, ""

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                yield from self._chunks(file)
        except OSError as error:
            raise UnreadableLogError(f"{self.path} cannot be read: {error.strerror or error}.") from error

    def _chunks(self, file: BinaryIO) -> Iterator[bytes]:
        head = file.read(4)
        file.seek(0)
        if not _is_packed(head):
            file.seek(self.begin)
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")
            return
        skip = self.begin
        for chunk in self._gunzip(file) if head.startswith(GZIP) else self._unzstd(file):
            if skip < len(chunk):
                yield chunk[skip:] if skip else chunk
            skip = max(0, skip - len(chunk))

    def _gunzip(self, file: BinaryIO) -> Iterator[bytes]:
        """Decompress all members; zero bytes after the last one are padding."""
        decoder = zlib.decompressobj(wbits=31)
        while data := file.read(64 * 1024):
            while data:
                if decoder.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    decoder = zlib.decompressobj(wbits=31)
                try:
                    chunk = decoder.decompress(data, CHUNK_BYTES)
                except zlib.error as error:
                    raise _damaged(self.path, str(error)) from error
                if chunk:
                    yield chunk
                data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        if tail := decoder.flush():
            yield tail
        if not decoder.eof:
            self.cut = "gzip"

    def _unzstd(self, file: BinaryIO) -> Iterator[bytes]:
        try:
            import zstandard  # noqa: PLC0415  a slow import that few files need
        except ImportError:  # the one-file client installs nothing
            raise UnreadableLogError(
                f"{self.path} is compressed with zstd, and the Python package zstandard is not installed. Install it, "
                "or decompress the file first: zstd -d"
            ) from None

        context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        decoder, begun = context.decompressobj(), False
        data = file.read(_ZSTD_INPUT_BYTES)
        while data:
            try:
                chunk = decoder.decompress(data)
            except zstandard.ZstdError as error:
                raise _damaged(self.path, str(error)) from error
            begun = not decoder.eof
            if chunk:
                yield chunk
            data = (decoder.unused_data if decoder.eof else b"") or file.read(_ZSTD_INPUT_BYTES)
            if decoder.eof:
                decoder = context.decompressobj()
        if begun:
            self.cut = "zstd"


def _damaged(path: Path, why: str) -> UnreadableLogError:
    return UnreadableLogError(f"The compressed file {path} is damaged ({why}). Compress the log again.")


Field = Literal["log", "config", "events"]
PIECE_BYTES = 8 << 20
"""A longer log is sent in pieces of this size, so that an interrupted upload can resume."""
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")
"""Tables of iterations. They are sent whole, because the service recognises documents as a whole only."""
FORM_FILES = 64
"""Limit of the service for one form. The logs of an upload with more files are sent in pieces."""


@dataclass(frozen=True)
class SentFile:
    """`name` is unique in the upload. `size_bytes` and `sha256` refer to the decompressed text. `cut` names the
    compression of a truncated file and is empty otherwise."""

    field: Field
    name: str
    path: Path
    size_bytes: int
    sha256: str
    in_pieces: bool = False
    cut: str = ""


@dataclass(frozen=True)
class Upload:
    """`key` identifies content and job, so that a repeated upload creates no second run. `strict` lists names in `meta`
    that must be fields; the spool does not store them, because no user sees a refusal of `sync`.
    """

    key: str
    meta: Mapping[str, object]
    files: tuple[SentFile, ...]
    strict: tuple[str, ...] = ()

    @property
    def pieced(self) -> tuple[SentFile, ...]:
        return tuple(file for file in self.files if file.in_pieces)

    @property
    def whole(self) -> tuple[SentFile, ...]:
        return tuple(file for file in self.files if not file.in_pieces)


def read_upload(
    *,
    logs: Sequence[Path],
    configs: Sequence[Path] = (),
    events: Sequence[Path] = (),
    meta: Mapping[str, object],
    job_key: str = "",
    key: str = "",
) -> Upload:
    """Read every file once and return the upload. `key` replaces the computed key.

    Raises UsageError for a missing file, UnreadableLogError for an unreadable one.
    """
    fields: list[tuple[Field, Path]] = [("log", path) for path in files_of(logs)]
    fields += [("config", path) for path in files_of(configs)]
    fields += [("events", path) for path in files_of(events)]
    if not fields:
        raise UsageError("Nothing to upload: the folders are empty.")
    names = _names([path for _, path in fields])
    many, is_table = len(fields) > FORM_FILES, bool(meta.get("format"))
    files = tuple(_read(field, name, path, many, is_table) for (field, path), name in zip(fields, names))
    key = key or upload_key(meta, job_key, *((file.field, file.name, file.sha256) for file in files))
    return Upload(key, meta, files)


def upload_key(meta: Mapping[str, object], job_key: str, *parts: object) -> str:
    """Return the idempotency key of this metadata, job attempt and content."""
    text = json.dumps([meta, job_key, parts], sort_keys=True, ensure_ascii=True)
    return "threewalls-" + hashlib.sha256(text.encode()).hexdigest()[:48]


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Replace each folder by the files in it."""
    files: list[Path] = []
    for path in paths:
        try:
            path.stat()  # `exists` would be False inside an unreadable folder
            if path.is_dir():
                files += sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
            else:
                files.append(path)
        except FileNotFoundError:
            raise UsageError(f"The file {path} does not exist. Check that the job wrote it.") from None
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or str(error)
            raise UnreadableLogError(f"{path} cannot be read: {why}.") from None
    return files


def _names(paths: Sequence[Path]) -> list[str]:
    """Return unique file names, prefixed by the folder or a number if needed: the service identifies logs by name."""
    plain = [plain_name(path.name) for path in paths]
    names = [
        (path.name if plain.count(name) == 1 else "-".join(path.absolute().parts[-2:]))
        .encode("utf-8", "replace")
        .decode()
        for path, name in zip(paths, plain)
    ]
    for index, name in enumerate(names):
        count = [plain_name(earlier) for earlier in names[:index]].count(plain_name(name))
        names[index] = f"{count + 1}-{name}" if count else name
    return names


def _read(field: Field, name: str, path: Path, many: bool, is_table: bool) -> SentFile:
    digest, size, text = hashlib.sha256(), 0, LogText(path)
    for chunk in text:
        digest.update(chunk)
        size += len(chunk)
    is_long = size > PIECE_BYTES and not (is_table or plain_name(name).endswith(TABLE_SUFFIXES))
    in_pieces = field == "log" and (many or is_long)
    return SentFile(field, name, path, size, digest.hexdigest(), in_pieces, text.cut)

"""One upload, as a value: the same whether it is sent now, sent again, or lies in the spool."""

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from app.client.ci import CiJob
from app.client.errors import UsageError
from app.errors import ThreewallsError

# --- The `meta` of an upload: what the CI job says, the metadata file over it, and what is stated over both.

_WINDOW = re.compile(r"(\d+)-(\d+)")


def upload_metadata(
    *,
    job: CiJob | None,
    documents: Iterable[str],
    settings: Iterable[str],
    stated: Mapping[str, str],
    tags: Sequence[str] = (),
) -> dict[str, object]:
    """`documents`: files or JSON texts, later ones win; `settings`: KEY=VALUE, over those; `stated`: over all of it.

    Tags of all of them are kept. Raises UsageError on what cannot be read; what the fields mean, the service checks.
    """
    said: list[Mapping[str, object]] = [_document(document) for document in documents if document]
    said += [dict([_setting(setting)]) for setting in settings]
    said.append({name: value for name, value in stated.items() if value})
    by_job = {} if job is None else job.metadata()
    merged = by_job | {name: value for layer in said for name, value in layer.items()}
    if merged.get("commit") != by_job.get("commit") and merged.get("commit_time") == by_job.get("commit_time"):
        merged.pop("commit_time", None)  # it is that of another commit
    all_tags = [tag for layer in (by_job, *said) for tag in _tags(layer.get("tags"))] + list(tags)
    if all_tags:
        merged["tags"] = [tag for at, tag in enumerate(all_tags) if tag not in all_tags[:at]]
    return merged


def _tags(value: object) -> list[object]:
    if value is None:
        return []
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    return list(value) if isinstance(value, list) else [value]


def _document(text: str) -> dict[str, object]:
    where = "--meta"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The metadata file {where} cannot be read: {error}.") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise UsageError(f'{where} must be a JSON object, for instance {{"gpu": "H100", "gpus": 64}}.')
    return found


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: write KEY=VALUE, for instance --set gpu=H100.")
    if name == "window" and (window := _WINDOW.fullmatch(value)):
        return name, {"first": int(window[1]), "last": int(window[2])}
    if value.startswith(("{", "[")):
        try:
            return name, json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--set {name}: {error}.") from None
    return name, value


# --- The text of a log file, plain or compressed, in chunks: what the service counts bytes of.

CHUNK_BYTES = 1 << 20
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
COMPRESSED_SUFFIXES = (".gz", ".zst")
_MAX_WINDOW = 128 << 20
_ZSTD_INPUT_BYTES = 1024
"""A block of 4 bytes can become 128 KiB, and the decoder has no output limit: so it is fed sparingly."""


class UnreadableLogError(ThreewallsError):
    title = "This file cannot be read"


def plain_name(name: str) -> str:
    """The name of the text in a compressed file."""
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return _is_packed(file.read(4))


def _is_packed(head: bytes) -> bool:
    """Also by a skippable frame, with which pzstd begins."""
    skippable = head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50
    return skippable or head.startswith((GZIP, ZSTD))


class LogText:
    """The chunks of a log's text, from byte `begin` on. A compressed file that ends early, as of a killed job, is read
    up to there: `cut` is then the kind of its compression, once all of it was read.

    Iterating raises UnreadableLogError when the file is damaged or cannot be read.
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
        """All members; zero bytes behind the last one are padding."""
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
        import zstandard  # noqa: PLC0415  only for such a file, so that other commands start sooner

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
    return UnreadableLogError(f"{path} is compressed, but damaged ({why}). Compress the log again.")


Field = Literal["log", "config", "events"]
PIECE_BYTES = 8 << 20
"""Of text. A longer log is sent in pieces of this size, so that an upload that broke off goes on where it stopped."""
FORM_FILES = 64
"""The service takes no more in one form; the logs of more are sent in pieces, too."""


@dataclass(frozen=True, slots=True)
class SentFile:
    """`name` is the only one of its upload. Of a log, `size_bytes` and `sha256` are those of its text, and `cut` is the
    kind of a compression that ends early, else empty."""

    field: Field
    name: str
    path: Path
    size_bytes: int
    sha256: str
    in_pieces: bool = False
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Upload:
    """`key` is the same for the same content of the same job: however often it is sent, it is one run. `strict`: names
    in `meta` that the service must know as fields; the spool does not keep them, because no person reads its refusals.
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
    """Read every file once. `key` is used in place of one made here.

    Raises UsageError for a file that is not there, UnreadableLogError for one that cannot be read.
    """
    given = [("log", path) for path in _files(logs)] + [("config", path) for path in _files(configs)]
    given += [("events", path) for path in _files(events)]
    if not given:
        raise UsageError("There is nothing to upload in what was named.")
    names = _names([path for _, path in given])
    many = len(given) > FORM_FILES
    files = tuple(_read(field, name, path, many) for (field, path), name in zip(given, names, strict=True))  # type: ignore[arg-type]
    return Upload(key or made_key(meta, job_key, *((one.field, one.name, one.sha256) for one in files)), meta, files)


def made_key(meta: Mapping[str, object], job_key: str, *parts: object) -> str:
    said = json.dumps([meta, job_key, parts], sort_keys=True, ensure_ascii=True)
    return "threewalls-" + hashlib.sha256(said.encode()).hexdigest()[:48]


def _files(paths: Sequence[Path]) -> list[Path]:
    """A folder stands for the files in it."""
    found: list[Path] = []
    for path in paths:
        try:
            # What an unreadable folder holds is there for nobody, and `exists` would say as much.
            path.stat()
            found += _in_folder(path) if path.is_dir() else [path]
        except FileNotFoundError:
            raise UsageError(f"There is no file {path}. Check that the job wrote it.") from None
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or str(error)
            raise UnreadableLogError(f"{path} cannot be read: {why}.") from None
    return found


def _in_folder(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))


def _names(paths: Sequence[Path]) -> list[str]:
    """Their last parts, with the folder in front where two are alike: the service tells logs apart by name."""
    plain = [plain_name(path.name) for path in paths]
    names = [
        _readable(path.name if plain.count(name) == 1 else "-".join(path.absolute().parts[-2:]))
        for path, name in zip(paths, plain, strict=True)
    ]
    for at, name in enumerate(names):
        before = [plain_name(one) for one in names[:at]]
        count = before.count(plain_name(name))
        names[at] = f"{count + 1}-{name}" if count else name
    return names


def _readable(name: str) -> str:
    """File systems know names that are no text; requests do not."""
    return name.encode("utf-8", "replace").decode()


def _read(field: Field, name: str, path: Path, many: bool) -> SentFile:
    digest, size, text = hashlib.sha256(), 0, LogText(path)
    for chunk in text:
        digest.update(chunk)
        size += len(chunk)
    in_pieces = field == "log" and (many or size > PIECE_BYTES)
    return SentFile(field, name, path, size, digest.hexdigest(), in_pieces, text.cut)

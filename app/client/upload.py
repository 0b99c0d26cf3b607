"""One upload, as a value: the same whether it is sent now, sent again, or lies in the spool."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.client.errors import UsageError
from app.client.log_bytes import LogText, UnreadableLogError, plain_name

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

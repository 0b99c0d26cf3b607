"""Uploads that wait for the service, each a folder that holds all of it: whole or not there at all.

A folder is filled under another name, written through to the disk, and then renamed: whatever is killed, and whenever,
a folder with a proper name is complete. It goes only after the service acknowledged its upload; until then it may be
sent again, because its key makes it the same run. The token is not in it.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.client.errors import UsageError
from app.client.service import SPOOL
from app.client.upload import SentFile, Upload
from app.errors import ThreewallsError

try:
    import fcntl
except ImportError:  # not on Windows: two syncs then send the same twice, which is one run all the same
    fcntl = None  # type: ignore[assignment]

MANIFEST = "upload.json"
VERSION = 1
_NEW, _SENT = ".new-", ".sent-"
_LEFT_SECONDS = 24 * 3600
"""A folder that somebody began to fill so long ago is what a kill left."""


class SpoolError(ThreewallsError):
    title = "The spool cannot be used"


@dataclass(frozen=True, slots=True)
class Waiting:
    """An upload in the spool. `url`: the service it is for. `created_at`: seconds since 1970."""

    folder: Path
    url: str
    created_at: float
    upload: Upload

    @property
    def size_bytes(self) -> int:
        return sum(file.path.stat().st_size for file in self.upload.files)


def spool_folder(env: Mapping[str, str], stated: str | None = None) -> Path:
    """`--spool`, THREEWALLS_SPOOL, or the user's cache folder. Raises UsageError where there is none."""
    if stated or env.get(SPOOL):
        return Path(stated or env[SPOOL]).expanduser()
    if cache := env.get("XDG_CACHE_HOME"):
        return Path(cache) / "threewalls" / "spool"
    try:
        return Path.home() / ".cache" / "threewalls" / "spool"
    except RuntimeError:
        raise UsageError(f"There is no home folder for the spool. Name one with --spool or {SPOOL}.") from None


def put(spool: Path, upload: Upload, url: str) -> Path:
    """Keep an upload. The same one is kept once. Raises SpoolError when it cannot be written."""
    goal = spool / _identity(upload, url)
    try:
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = spool / f"{_NEW}{uuid.uuid4().hex}"
        new.mkdir(mode=0o700)
        try:
            _fill(new, upload, url)
            try:
                new.rename(goal)
            except OSError:
                if not (goal / MANIFEST).is_file():
                    raise
            _write_through(spool)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise SpoolError(f"{spool}: {error.strerror or error}. The upload was not kept.") from error
    return goal


def waiting(spool: Path) -> tuple[list[Waiting], list[str]]:
    """Oldest first; and what lies there but cannot be read, in sentences. Raises SpoolError for what is no folder."""
    found: list[Waiting] = []
    strange: list[str] = []
    try:
        folders = sorted(spool.iterdir())
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise SpoolError(f"The spool {spool} cannot be read: {error.strerror or error}.") from error
    for folder in folders:
        if folder.name.startswith("."):
            continue
        try:
            if not folder.is_dir():
                continue
            found.append(_read(folder))
        except FileNotFoundError:
            if folder.exists():  # else another sync finished it just now
                strange.append(f"{folder} is no upload: it has no {MANIFEST}, or not all of its files.")
        except (OSError, ValueError, KeyError, TypeError) as error:
            strange.append(f"{folder} cannot be read: {error}.")
    return sorted(found, key=lambda one: one.created_at), strange


@contextmanager
def taken(one: Waiting) -> Iterator[bool]:
    """Have it for oneself. False when another process has it, or was done with it meanwhile."""
    try:
        file = (one.folder / MANIFEST).open("rb")
    except OSError:
        yield False
        return
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:  # file systems of clusters may have no locks: two that send the same make one run of it
                pass
        # Whoever had it before may have finished it between the opening and the lock.
        try:
            still = os.path.samestat(os.fstat(file.fileno()), (one.folder / MANIFEST).stat())
        except OSError:
            still = False
        yield still


def remove(one: Waiting) -> None:
    """After it was acknowledged: in one step out of sight, then deleted."""
    gone = one.folder.with_name(f"{_SENT}{uuid.uuid4().hex}")
    one.folder.rename(gone)
    _write_through(one.folder.parent)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(spool: Path, now: float | None = None) -> None:
    """Delete what kills left behind."""
    oldest = (time.time() if now is None else now) - _LEFT_SECONDS
    try:
        folders = list(spool.iterdir())
    except OSError:  # `waiting` says it
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            is_old = folder.stat().st_mtime < oldest
            if folder.name.startswith(_SENT) or (folder.name.startswith(_NEW) and is_old):
                shutil.rmtree(folder, ignore_errors=True)


def _identity(upload: Upload, url: str) -> str:
    said = [url, upload.key, [[file.field, file.name, file.sha256] for file in upload.files]]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def _fill(folder: Path, upload: Upload, url: str) -> None:
    files: list[dict[str, Any]] = []
    for number, file in enumerate(upload.files):
        stored = f"file-{number}"
        with file.path.open("rb") as source, _private(folder / stored) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        files.append(
            {"field": file.field, "name": file.name, "stored": stored, "size_bytes": file.size_bytes}
            | {"sha256": file.sha256, "in_pieces": file.in_pieces, "cut": file.cut}
        )
    manifest = {"version": VERSION, "url": url, "created_at": time.time()}
    manifest |= {"key": upload.key, "meta": upload.meta, "files": files}
    with _private(folder / MANIFEST) as out:
        out.write(json.dumps(manifest, indent=1).encode())
        out.flush()
        os.fsync(out.fileno())
    _write_through(folder)


def _private(path: Path) -> BinaryIO:
    """A new file that nobody else reads."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _write_through(folder: Path) -> None:
    """The names in a folder are as safe as what is in its files."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that write folders through by themselves
            raise
    finally:
        os.close(handle)


def _read(folder: Path) -> Waiting:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if manifest["version"] != VERSION:
        raise ValueError(f"its version {manifest['version']} is that of another threewalls")
    files = tuple(_file(folder, one) for one in manifest["files"])
    upload = Upload(str(manifest["key"]), dict(manifest["meta"]), files)
    return Waiting(folder, str(manifest["url"]), float(manifest["created_at"]), upload)


def _file(folder: Path, one: Mapping[str, Any]) -> SentFile:
    if one["field"] not in ("log", "config", "events") or "/" in one["stored"]:
        raise ValueError(f"it has a file {one['field']} {one['stored']}")
    path = folder / one["stored"]
    if not path.is_file():
        raise FileNotFoundError(path)
    return SentFile(
        one["field"], str(one["name"]), path, int(one["size_bytes"]), str(one["sha256"]), bool(one["in_pieces"]),
        str(one.get("cut", "")),
    )  # fmt: skip

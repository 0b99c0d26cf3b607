"""The spool: uploads that wait for the service, one complete folder each.

A folder is filled under a temporary name, synced to disk and then renamed, so that every folder with a final name is
complete even if the client is killed. It is removed after the service acknowledged the upload. Sending it twice is
harmless, because its key identifies the run. The token is not stored.
"""

from __future__ import annotations

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

from app.client.options import SPOOL
from app.client.upload import SentFile, Upload
from app.errors import ThreewallsError, UsageError

try:
    import fcntl
except ImportError:  # on Windows, two syncs may send the same upload twice, which creates one run
    fcntl = None  # type: ignore[assignment]

MANIFEST = "upload.json"
VERSION = 1
_NEW, _SENT = ".new-", ".sent-"
_ABANDONED_SECONDS = 24 * 3600
"""Age after which an unfinished folder counts as abandoned by a killed process."""


class SpoolError(ThreewallsError):
    title = "The spool cannot be used"


@dataclass(frozen=True)
class WaitingUpload:
    """An upload in the spool. `url` is the service it is meant for, `created_at` is in seconds since 1970."""

    folder: Path
    url: str
    created_at: float
    upload: Upload

    @property
    def size_bytes(self) -> int:
        return sum(file.path.stat().st_size for file in self.upload.files)


def spool_folder(env: Mapping[str, str], stated: str | None = None) -> Path:
    """Return the folder of `--spool`, THREEWALLS_SPOOL or the user's cache. Raises UsageError without a home folder."""
    if stated or env.get(SPOOL):
        return Path(stated or env[SPOOL]).expanduser()
    if cache := env.get("XDG_CACHE_HOME"):
        return Path(cache) / "threewalls" / "spool"
    try:
        return Path.home() / ".cache" / "threewalls" / "spool"
    except RuntimeError:
        raise UsageError(f"No home folder for the spool. State a folder with --spool or {SPOOL}.") from None


def put(spool: Path, upload: Upload, url: str) -> Path:
    """Store an upload and return its folder; an identical upload is stored once. Raises SpoolError if that fails."""
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
            _sync_folder(spool)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise SpoolError(
            f"The spool {spool} cannot be written: {error.strerror or error}. The upload was not saved."
        ) from error
    return goal


def waiting(spool: Path) -> tuple[list[WaitingUpload], list[str]]:
    """Return the uploads, oldest first, and a sentence for each unreadable folder.

    Raises SpoolError if the spool is not a folder or cannot be read.
    """
    uploads: list[WaitingUpload] = []
    unreadable: list[str] = []
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
            uploads.append(_read(folder))
        except FileNotFoundError:
            if folder.exists():  # otherwise another sync has just finished it
                unreadable.append(f"{folder} is not a complete upload: {MANIFEST} or a file is missing.")
        except (OSError, ValueError, KeyError, TypeError) as error:
            unreadable.append(f"{folder} cannot be read: {error}.")
    return sorted(uploads, key=lambda upload: upload.created_at), unreadable


@contextmanager
def lock(waiting_upload: WaitingUpload) -> Iterator[bool]:
    """Lock an upload against other syncs. Yield False if another process holds or has already sent it."""
    try:
        file = (waiting_upload.folder / MANIFEST).open("rb")
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
            except OSError:  # cluster file systems may lack locks; sending an upload twice creates one run
                pass
        # The previous owner may have removed the folder between opening the file and locking it.
        try:
            exists = os.path.samestat(os.fstat(file.fileno()), (waiting_upload.folder / MANIFEST).stat())
        except OSError:
            exists = False
        yield exists


def remove(waiting_upload: WaitingUpload) -> None:
    """Remove an acknowledged upload: renamed first, so that no half-deleted folder counts as an upload."""
    sent = waiting_upload.folder.with_name(f"{_SENT}{uuid.uuid4().hex}")
    waiting_upload.folder.rename(sent)
    _sync_folder(waiting_upload.folder.parent)
    shutil.rmtree(sent, ignore_errors=True)


def sweep(spool: Path, now: float | None = None) -> None:
    """Delete the folders that killed processes left behind."""
    oldest = (time.time() if now is None else now) - _ABANDONED_SECONDS
    try:
        folders = list(spool.iterdir())
    except OSError:  # `waiting` reports it
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            is_old = folder.stat().st_mtime < oldest
            if folder.name.startswith(_SENT) or (folder.name.startswith(_NEW) and is_old):
                shutil.rmtree(folder, ignore_errors=True)


def _identity(upload: Upload, url: str) -> str:
    parts = [url, upload.key, [[file.field, file.name, file.sha256] for file in upload.files]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


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
    _sync_folder(folder)


def _private(path: Path) -> BinaryIO:
    """Create a file that only this account may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that sync folders themselves
            raise
    finally:
        os.close(handle)


def _read(folder: Path) -> WaitingUpload:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if manifest["version"] != VERSION:
        raise ValueError(f"version {manifest['version']} of the manifest belongs to another version of threewalls")
    files = tuple(_file(folder, entry) for entry in manifest["files"])
    upload = Upload(str(manifest["key"]), dict(manifest["meta"]), files)
    return WaitingUpload(folder, str(manifest["url"]), float(manifest["created_at"]), upload)


def _file(folder: Path, entry: Mapping[str, Any]) -> SentFile:
    if entry["field"] not in ("log", "config", "events") or "/" in entry["stored"]:
        raise ValueError(f"invalid file in the manifest: {entry['field']} {entry['stored']}")
    path = folder / entry["stored"]
    if not path.is_file():
        raise FileNotFoundError(path)
    return SentFile(
        entry["field"], str(entry["name"]), path, int(entry["size_bytes"]), str(entry["sha256"]),
        bool(entry["in_pieces"]), str(entry.get("cut", "")),
    )  # fmt: skip

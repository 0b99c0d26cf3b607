"""What an uploaded file is: a log, or a document beside it (`domain/documents`); and what is neither is refused.

Its first bytes say so; its name is only repeated in messages, and the form field it came in decides where both fit.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from app.domain.documents import recognise
from app.domain.logs import parse_text
from app.errors import EmptyUpload, NotALog
from app.runs.decompress import GZIP, ZSTD
from app.storage.log_files import StagedFile

Kind = Literal["log", "config", "events"]

_CHECKED_BYTES = 1 << 20
_MAX_STRANGE_SHARE = 0.30
"""Share of bytes that no text holds, above which the first megabyte of a file is binary: of data that are no text it is
half and more, of a log that begins with the garbage of a crashed writer, or is Latin-1, less. Holes do not count."""
_HOLE = re.compile(rb"\0{8,}")
"""What network file systems and crashed writers leave. Single NULs are those of UTF-16."""

_UTF16_BYTES = 64
"""So many bytes of English text in UTF-16 hold a NUL. Without one, the mark in front is a writer's garbage."""

_MAX_DOCUMENT_IN_LOG = 1 << 20
"""A larger file posted as a log is one: no script and no configuration is as long."""

_MAGICS = (
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x7fELF", "an ELF program"),
    (b"%PDF-", "a PDF document"),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
)
_TAR_MAGIC_AT = 257
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\b\x1b")
_STRANGE = bytes(c for c in range(32) if c not in _TEXT_CONTROLS) + b"\x7f"


def checked(chunks: Iterable[bytes], kind: Kind, name: str) -> Iterator[bytes]:
    """The same chunks. Raises EmptyUpload or NotALog when `name` can be neither a log nor a document."""
    chunks, head = iter(chunks), b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _CHECKED_BYTES:
            break
    if not head:
        raise EmptyUpload(
            f"{name} holds no text: it has no bytes at all. Nothing was kept. Check that the job wrote it."
        )
    if kind != "events":
        try:
            _refuse_what_is_no_text(head, name)
        except NotALog:
            if recognise(name, head) != "tensorboard":
                raise
    yield from chain((head,), chunks)


def document_kind(kind: Kind, name: str, staged: StagedFile) -> str:
    """What document a staged file is, empty for a log and for what is kept without being read.

    A log may begin with the environment or the command of its job. So what was posted as a log and could be either is a
    document only when it says nothing that logs say.
    """
    found = recognise(name, staged.head)
    if found is None:
        return ""
    if kind == "log" and found != "tensorboard":
        read = parse_text(staged.head)
        if read.n or read.events or staged.stored.size_bytes > _MAX_DOCUMENT_IN_LOG:
            return "" if found != "golden values" or read.n else found
        if found not in ("golden values", "bridge configuration") and staged.stored.size_bytes > len(staged.head):
            return ""
    return found


def _refuse_what_is_no_text(head: bytes, name: str) -> None:
    text = _HOLE.sub(b"", head[:_CHECKED_BYTES])
    if not text.strip():
        raise EmptyUpload(f"{name} holds no text. Nothing was kept. Check that the job wrote to it.")
    for magic, what in _MAGICS:
        if head.startswith(magic):
            raise _not_a_log(name, what)
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        raise _not_a_log(name, "a tar archive")
    if head.startswith((GZIP, ZSTD)):
        raise _not_a_log(name, "compressed twice")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in head[2:_UTF16_BYTES]:
        raise NotALog(f"{name} is UTF-16 text. Nothing was kept. Save it as UTF-8: `iconv -f UTF-16 -t UTF-8`.")
    if _strange_share(text) > _MAX_STRANGE_SHARE:
        raise _not_a_log(name, "binary data")


def _strange_share(head: bytes) -> float:
    controls = len(head) - len(head.translate(None, _STRANGE))
    # The last character may be cut by the end of the block.
    undecodable = head.decode("utf-8", "replace").count("�")
    return (controls + undecodable) / len(head)


def _not_a_log(name: str, what: str) -> NotALog:
    return NotALog(
        f"{name} is {what}, whatever its name says. Nothing was kept. "
        "Upload the log itself: text, or text as .gz or .zst."
    )

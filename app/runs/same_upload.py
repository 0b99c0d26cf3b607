"""When an upload is one that came before: by its content, or by the Idempotency-Key of its sender."""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlmodel import Session, col

from app.domain.access.principal import Uploader
from app.errors import Conflict, FieldError, InvalidUpload
from app.runs.json_text import sorted_json
from app.runs.upload import Kind
from app.storage.tables import ProjectRow, RunRow

MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class Accepted:
    """`created` is False when the same upload was there already, `own` when another sender brought that one.

    `warnings` are known before anything is read.
    """

    run_id: int
    status: str
    created: bool
    own: bool = True
    warnings: tuple[str, ...] = ()


def check_key(key: str | None) -> None:
    if key is not None and not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise InvalidUpload(
            f"The Idempotency-Key must be 1 to {MAX_KEY_LENGTH} printable ASCII characters.",
            (FieldError("Idempotency-Key", "is empty, too long, or not printable ASCII"),),
        )


def sent_key(uploader: Uploader, key: str) -> str:
    """Return what is stored of an Idempotency-Key: it belongs to the token or person that sent it."""
    sender = f"person {uploader.name}" if uploader.token_id is None else f"token {uploader.token_id}"
    return hashlib.sha256(f"{sender}\n{key}".encode()).hexdigest()


def content_key(document: dict[str, Any], files: Sequence[tuple[Kind, str]], is_open: bool, key: str | None) -> str:
    """`files`: the form field and the SHA-256 of each. `key`: as stored."""
    parts: list[Any] = [list(file) for file in files]
    if is_open:
        # Two jobs may well begin with the same lines.
        parts.append(["open", key or uuid.uuid4().hex])
    return hashlib.sha256(sorted_json([document, parts])).hexdigest()


def find_same(session: Session, project: str, upload: RunRow, key: str | None) -> Accepted | None:
    """Return the run that this upload already is. Raises Conflict when its key stands for another content."""
    same = [col(RunRow.content_key) == upload.content_key]
    if upload.idempotency_key is not None:
        same.append(col(RunRow.idempotency_key) == upload.idempotency_key)
    rows = session.execute(
        select(
            RunRow.id, RunRow.status, RunRow.content_key, RunRow.idempotency_key, RunRow.token_id, RunRow.uploaded_by
        )  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(ProjectRow.slug_lower) == project.lower(), or_(*same))
    ).all()
    for row in rows:
        if key is not None and row.idempotency_key == upload.idempotency_key and row.content_key != upload.content_key:
            raise Conflict(
                f"The Idempotency-Key {key!r} was used for another upload, run {row.id}. "
                "Nothing was kept. Use a new key for a new upload, and the same key only to repeat one."
            )
    if not rows:
        return None
    own = (rows[0].token_id, rows[0].uploaded_by) == (upload.token_id, upload.uploaded_by)
    return Accepted(rows[0].id, rows[0].status, created=False, own=own)

"""Keeps one comment, check or status per change and job, also if several jobs post at the same time.

No forge offers "create unless it exists". After creating a comment, a job therefore lists the comments again: the
oldest stays, and every job deletes the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.client.forge import (
    TRIES,
    ForgeError,
    Message,
    State,
    UnconfirmedError,
    is_marked,
    newest_run,
    shows_regression,
)

# --- Checks and statuses: a commit shows the newest run, in any order of reports.
#
# No forge offers "write unless there is a newer one", so a job reads again after writing. A check can be updated; a
# status can only be followed by another, and the last one counts.

_RUN = re.compile(r"/runs/(\d{1,19})(?:#of-run-(\d{1,19}))?$")


@dataclass(frozen=True)
class PostedStatus:
    """A check or status on a commit. `body` is its content as sent."""

    run_id: int
    body: Mapping[str, Any]
    id: int = 0


class Checks(Protocol):
    """Our checks of one name and commit. `create` raises UnconfirmedError if it may have been created."""

    def existing(self) -> Sequence[PostedStatus]: ...

    def create(self, body: Mapping[str, Any]) -> None: ...

    def update(self, check_id: int, body: Mapping[str, Any]) -> None: ...

    def settle(self) -> None:
        """Wait longer than another job takes between reading and writing."""
        ...


class Statuses(Protocol):
    """The statuses of one name and commit."""

    def existing(self) -> Sequence[PostedStatus]:
        """Return the statuses in the order of creation. The last one counts."""
        ...

    def add(self, body: Mapping[str, Any]) -> None: ...


def put_check(checks: Checks, ours: PostedStatus) -> tuple[int, bool]:
    """Post a check. Return the run that the commit shows now, and whether a check existed before.

    Checks that two jobs create at the same time get the same content.
    """
    existed = written = False
    newest = ours
    for attempt in range(1, TRIES + 1):
        existing = checks.existing()
        newest = max((ours, *existing), key=lambda check: check.run_id)  # ours if it is as new as another
        existed |= bool(existing) and not written
        if not existing:
            try:
                checks.create(ours.body)
            except UnconfirmedError:
                if attempt == TRIES:
                    raise
                continue  # the next iteration shows whether it was created
            written = True
            continue
        stale = [check for check in existing if check.run_id != newest.run_id or (newest is ours and not written)]
        if not stale:
            break
        for check in stale:
            checks.update(check.id, newest.body)
        written = True
        if any(check.run_id != newest.run_id for check in stale):
            checks.settle()  # a job with an older run may have read before and write now
    return newest.run_id, existed


def put_status(statuses: Statuses, ours: PostedStatus) -> int:
    """Post a status, and return the run that the commit shows now."""
    newest, written = ours, False
    for _ in range(TRIES):
        existing = statuses.existing()
        newest = max((ours, *existing), key=lambda status: status.run_id)
        is_last = bool(existing) and existing[-1].run_id == newest.run_id
        if is_last and (written or newest is not ours):
            break
        statuses.add(newest.body)
        written = True
    return newest.run_id


def address(message: Message) -> str:
    """Return the address to link, which also encodes the newest run: a status has no other field for it."""
    same = run_id_in(message.url) == message.run_id
    return message.url if same else f"{message.url}#of-run-{message.run_id}"


def run_id_in(url: object) -> int:
    """Return the run that a status links to, 0 if none."""
    match = _RUN.search(str(url or ""))
    return int(match[2] or match[1]) if match else 0


def unchanged(run_id: int) -> str:
    """Describe a post that was left unchanged because it shows a newer run."""
    return f"unchanged, because it shows the newer run {run_id}"


NOT_FOUND = 404


@dataclass(frozen=True)
class Comment:
    id: int
    body: str


class CommentThread(Protocol):
    """The comments of one change. `create` raises UnconfirmedError if it may have been created."""

    def own(self) -> Iterator[Comment]:
        """Yield the comments that the owner of this token may have written."""
        ...

    def create(self, body: str) -> Comment: ...

    def update(self, comment_id: int, body: str) -> None: ...

    def delete(self, comment_id: int) -> None: ...

    def settle(self) -> None:
        """Wait longer than another job takes between reading and writing."""
        ...

    def add_label(self, name: str) -> None: ...

    def remove_label(self, name: str) -> None:
        """Remove a label, which the change may not have."""
        ...


def put_label(thread: CommentThread, message: Message, name: str) -> str:
    """Set a label while a comment of any job shows a regression. Return `set`, `not set` or `unchanged`.

    The last regression that is gone removes it. A run without a decision does not.
    """
    if any(shows_regression(comment.body) for comment in thread.own()):
        thread.add_label(name)
        return "set"
    if message.state is not State.SUCCESS:
        return "unchanged"
    thread.remove_label(name)
    return "not set"


def put_comment(thread: CommentThread, message: Message) -> str:
    """Post a comment. Return `created`, `updated`, or that it shows a newer run. Raises ForgeError."""
    done = ""
    for attempt in range(1, TRIES + 1):
        try:
            done, overwrote = _put(thread, message)
        except UnconfirmedError:
            if attempt == TRIES:
                raise
            continue
        if overwrote:
            thread.settle()
        if _is_current(thread, message):
            break
    return done


def _put(thread: CommentThread, message: Message) -> tuple[str, bool]:
    """Post once. Return what was done, and whether a comment of another run was overwritten."""
    comments = _marked(thread, message)
    created = None
    if not comments:
        created = thread.create(message.comment)
        comments = _marked(thread, message) or [created]
    first, *others = comments
    newest = max(comments, key=lambda comment: newest_run(comment.body, message.marker))
    run_id = newest_run(newest.body, message.marker)
    is_older = run_id > message.run_id
    body = newest.body if is_older else message.comment
    if first.body != body:
        _update(thread, first.id, body)
    for other in others:
        _delete(thread, other.id)
    if is_older:
        return unchanged(run_id), False
    return ("created" if created is not None and first.id == created.id else "updated"), run_id != message.run_id


def _is_current(thread: CommentThread, message: Message) -> bool:
    """Return False if a job with an older run overwrote our comment."""
    comments = _marked(thread, message)
    return not comments or newest_run(comments[0].body, message.marker) >= message.run_id


def _update(thread: CommentThread, comment_id: int, body: str) -> None:
    try:
        thread.update(comment_id, body)
    except ForgeError as error:
        if error.status == NOT_FOUND:  # another job deleted it as the younger of two
            raise UnconfirmedError(error.detail, error.status) from error
        raise


def _marked(thread: CommentThread, message: Message) -> Sequence[Comment]:
    """Return our comments, oldest first."""
    comments = (comment for comment in thread.own() if is_marked(comment.body, message.marker))
    return sorted(comments, key=lambda comment: comment.id)


def _delete(thread: CommentThread, comment_id: int) -> None:
    try:
        thread.delete(comment_id)
    except ForgeError as error:
        if error.status != NOT_FOUND:  # otherwise another job has deleted it
            raise

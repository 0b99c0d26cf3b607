"""One comment a change: found again by its marker, brought up to date, and one again where two jobs made two.

No forge can create "unless there is one". So whoever created a comment looks again: the oldest stays, and every job
knows by itself which one that is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.client.forge import TRIES, ForgeError, Message, UnsureError, is_marked, newest_run

# --- What a commit shows is of the newest run that was reported on it, in whatever order the reports arrive.
#
# No forge can write "unless there is a newer one", so whoever wrote looks again. A check can be changed and what it
# said is lost; a status is never changed, only followed by another, and the last one counts.

_RUN = re.compile(r"/runs/(\d{1,19})(?:#of-run-(\d{1,19}))?$")


@dataclass(frozen=True, slots=True)
class Told:
    """One check or status that is there. `body`: what it says, as it is sent."""

    run_id: int
    body: Mapping[str, Any]
    id: int = 0


class Checks(Protocol):
    """Ours of one name and commit. `create` raises UnsureError when it may have been created."""

    def told(self) -> Sequence[Told]: ...

    def create(self, body: Mapping[str, Any]) -> None: ...

    def update(self, check_id: int, body: Mapping[str, Any]) -> None: ...

    def settle(self) -> None:
        """Wait as long as another job may take between its look and its write."""
        ...


class Statuses(Protocol):
    """Of one name and commit."""

    def told(self) -> Sequence[Told]:
        """The last one counts."""
        ...

    def tell(self, body: Mapping[str, Any]) -> None: ...


def put_check(checks: Checks, ours: Told) -> tuple[int, bool]:
    """The run that the commit shows now, and whether a check was there. Two that jobs at once made say the same."""
    was_there = written = False
    newest = ours
    for attempt in range(1, TRIES + 1):
        found = checks.told()
        newest = max((ours, *found), key=lambda one: one.run_id)  # ours where it is one of them
        was_there |= bool(found) and not written
        if not found:
            try:
                checks.create(ours.body)
            except UnsureError:
                if attempt == TRIES:
                    raise
                continue  # it is there by now, or it is not
            written = True
            continue
        stale = [one for one in found if one.run_id != newest.run_id or (newest is ours and not written)]
        if not stale:
            break
        for one in stale:
            checks.update(one.id, newest.body)
        written = True
        if any(one.run_id != newest.run_id for one in stale):
            checks.settle()  # a job with an older run that looked before may write now
    return newest.run_id, was_there


def put_status(statuses: Statuses, ours: Told) -> int:
    """The run that the commit shows now."""
    newest, written = ours, False
    for _ in range(TRIES):
        told = statuses.told()
        newest = max((ours, *told), key=lambda one: one.run_id)
        stands = bool(told) and told[-1].run_id == newest.run_id
        if stands and (written or newest is not ours):
            break
        statuses.tell(newest.body)
        written = True
    return newest.run_id


def address(message: Message) -> str:
    """Of the run to look at; a status has no other place that says of which run it is."""
    same = run_at(message.url) == message.run_id
    return message.url if same else f"{message.url}#of-run-{message.run_id}"


def run_at(url: object) -> int:
    """0 where it says none."""
    found = _RUN.search(str(url or ""))
    return int(found[2] or found[1]) if found else 0


def left(run_id: int) -> str:
    return f"left as it is, it tells of run {run_id}, which is newer"


NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Comment:
    id: int
    body: str


class Board(Protocol):
    """The comments of one change. `create` raises UnsureError when it may have been created."""

    def own(self) -> Iterator[Comment]:
        """Those that this token's owner may have written."""
        ...

    def create(self, body: str) -> Comment: ...

    def update(self, comment_id: int, body: str) -> None: ...

    def delete(self, comment_id: int) -> None: ...

    def settle(self) -> None:
        """Wait as long as another job may take between its look and its write."""
        ...


def put_comment(board: Board, message: Message) -> str:
    """Says what was done: `created`, `updated`, or left as it is where a newer run is told of already.

    Raises ForgeError.
    """
    done = ""
    for attempt in range(1, TRIES + 1):
        try:
            done, overwrote = _put(board, message)
        except UnsureError:
            if attempt == TRIES:
                raise
            continue
        if overwrote:
            board.settle()
        if _stands(board, message):
            break
    return done


def _put(board: Board, message: Message) -> tuple[str, bool]:
    """In words, and whether another run was told of there."""
    found = _marked(board, message)
    created = None
    if not found:
        created = board.create(message.comment)
        found = _marked(board, message) or [created]
    first, *others = found
    newest = max(found, key=lambda one: newest_run(one.body, message.marker))
    run_id = newest_run(newest.body, message.marker)
    is_older = run_id > message.run_id
    body = newest.body if is_older else message.comment
    if first.body != body:
        _update(board, first.id, body)
    for other in others:
        _delete(board, other.id)
    if is_older:
        return left(run_id), False
    return ("created" if created is not None and first.id == created.id else "updated"), run_id != message.run_id


def _stands(board: Board, message: Message) -> bool:
    """False when a job with an older run, that looked before we wrote, wrote after us."""
    found = _marked(board, message)
    return not found or newest_run(found[0].body, message.marker) >= message.run_id


def _update(board: Board, comment_id: int, body: str) -> None:
    try:
        board.update(comment_id, body)
    except ForgeError as error:
        if error.status == NOT_FOUND:  # another job found two, and this was the younger one for it
            raise UnsureError(error.detail, error.status) from error
        raise


def _marked(board: Board, message: Message) -> Sequence[Comment]:
    """Ours, oldest first."""
    return sorted((one for one in board.own() if is_marked(one.body, message.marker)), key=lambda one: one.id)


def _delete(board: Board, comment_id: int) -> None:
    try:
        board.delete(comment_id)
    except ForgeError as error:
        if error.status != NOT_FOUND:  # else another job was faster
            raise

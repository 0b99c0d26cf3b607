"""One comment a change: found again by its marker, brought up to date, and one again where two jobs made two.

No forge can create "unless there is one". So whoever created a comment looks again: the oldest stays, and every job
knows by itself which one that is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.client.commit_state import left
from app.client.forge import Message, is_marked, newest_run
from app.client.forge_api import TRIES, ForgeError, UnsureError

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

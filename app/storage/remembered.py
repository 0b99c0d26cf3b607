"""Results that a process remembers, because computing them for each request takes long in a large database."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, func, select
from sqlmodel import Session, col

from app.storage.tables import StandingRow
from app.storage.visible import visible_projects

Result = TypeVar("Result")


class UntilRankedAgain(Generic[Result]):
    """Results computed from the standings of stacks, of the `most` last questions, until one of the stacks is ranked
    again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: OrderedDict[tuple[object, ...], tuple[object, Result]] = OrderedDict()
        self._lock = Lock()

    def get(
        self,
        session: Session,
        question: tuple[object, ...],
        compute: Callable[[], Result],
        *conditions: ColumnElement[bool],
    ) -> Result:
        """Return what `compute` returns. `conditions`: the standings that it reads."""
        # The state first: a stack that is ranked between the two reads makes the next one.
        newest = select(func.count(), func.max(col(StandingRow.updated_at))).select_from(StandingRow)
        state = tuple(session.execute(newest.where(*conditions)).one())
        key = (str(session.get_bind().engine.url), visible_projects(), *question)
        with self._lock:
            before = self._results.get(key)
            if before is not None and before[0] == state:
                self._results.move_to_end(key)
                return before[1]
        result = compute()
        with self._lock:
            self._results[key] = (state, result)
            self._results.move_to_end(key)
            while len(self._results) > self._most:
                self._results.popitem(last=False)
        return result

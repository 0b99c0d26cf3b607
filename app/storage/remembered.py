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


class Remembered(Generic[Result]):
    """Results of the `most` last questions, each valid as long as the state that it was computed from."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: OrderedDict[tuple[object, ...], tuple[object, Result]] = OrderedDict()
        self._lock = Lock()

    def find(self, question: tuple[object, ...], state: object) -> Result | None:
        """Return the result, None if there is none of this state."""
        with self._lock:
            before = self._results.get(question)
            if before is None or before[0] != state:
                return None
            self._results.move_to_end(question)
            return before[1]

    def keep(self, question: tuple[object, ...], state: object, result: Result) -> None:
        """Remember a result. `state` was read before it, so that a change in between makes the next state."""
        with self._lock:
            self._results[question] = (state, result)
            self._results.move_to_end(question)
            while len(self._results) > self._most:
                self._results.popitem(last=False)


class UntilRankedAgain(Remembered[Result]):
    """Results computed from the standings of stacks, until one of the stacks is ranked again."""

    def get(
        self,
        session: Session,
        question: tuple[object, ...],
        compute: Callable[[], Result],
        *conditions: ColumnElement[bool],
    ) -> Result:
        """Return what `compute` returns. `conditions`: the standings that it reads."""
        newest = select(func.count(), func.max(col(StandingRow.updated_at))).select_from(StandingRow)
        state = tuple(session.execute(newest.where(*conditions)).one())
        key = (str(session.get_bind().engine.url), visible_projects(), *question)
        result = self.find(key, state)
        if result is None:
            result = compute()
            self.keep(key, state, result)
        return result

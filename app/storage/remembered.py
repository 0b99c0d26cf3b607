"""Results that a process remembers, because computing them for each request takes long in a large database."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, bindparam, func, select
from sqlmodel import Session, col

from app.storage.tables import RunResultRow, StandingRow, in_batches, select_any
from app.storage.visible import visible_projects

Result = TypeVar("Result")


class Remembered(Generic[Result]):
    """Results of the last `most` queries, each valid as long as the state that it was computed from."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: OrderedDict[tuple[object, ...], tuple[object, Result]] = OrderedDict()
        self._lock = Lock()

    def find(self, question: tuple[object, ...], state: object) -> Result | None:
        """Return the result, None if there is none for this state."""
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


class WhileSlow(Generic[Result]):
    """Results of the last `most` queries. One that took over SHORT_SECONDS is reused for TIMES as long as it took."""

    SHORT_SECONDS = 0.02
    TIMES = 100

    def __init__(self, most: int) -> None:
        self._results = Remembered[tuple[float, Result]](most)

    def get(self, session: Session, question: tuple[object, ...], compute: Callable[[], Result]) -> Result:
        """Return what `compute` returns, or returned before."""
        key = (str(session.get_bind().engine.url), visible_projects(), *question)
        before = self._results.find(key, None)
        if before is not None and time.monotonic() < before[0]:
            return before[1]
        began = time.monotonic()
        result = compute()
        took = time.monotonic() - began
        if took > self.SHORT_SECONDS:
            self._results.keep(key, None, (time.monotonic() + self.TIMES * took, result))
        return result


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
        state = _ranked_state(session, conditions)
        key = (str(session.get_bind().engine.url), visible_projects(), *question)
        result = self.find(key, state)
        if result is None:
            result = compute()
            self.keep(key, state, result)
        return result


def _ranked_state(session: Session, conditions: Sequence[ColumnElement[bool]]) -> tuple[object, ...]:
    """Return number and newest change of these standings. Those of all are read once in a snapshot."""
    newest = select(func.count(), func.max(col(StandingRow.updated_at))).select_from(StandingRow)
    if conditions or not session.info.get("is_snapshot"):
        return tuple(session.execute(newest.where(*conditions)).one())
    if "ranked_state" not in session.info:
        session.info["ranked_state"] = tuple(session.execute(newest).one())
    state: tuple[object, ...] = session.info["ranked_state"]
    return state


class ContractValues:
    """Values of some contract fields of the last `most` requested runs, until a run is processed again."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self._names = names
        contract = col(RunResultRow.contract)
        self._statement = select_any(
            RunResultRow.run_id, *(contract[name]["value"].as_string().label(name) for name in names)
        ).where(col(RunResultRow.run_id).in_(bindparam("ids", expanding=True)))
        self._remembered = Remembered[Mapping[str, str | None]](most)

    def of_runs(
        self, session: Session, processed_at: Mapping[int, datetime | None]
    ) -> dict[int, Mapping[str, str | None]]:
        """Return the values by run. `processed_at`: when each run was processed."""
        database = str(session.get_bind().engine.url)
        values = {}
        for run_id, at in processed_at.items():
            if (of_run := self._remembered.find((database, run_id), at)) is not None:
                values[run_id] = of_run
        unread = [run_id for run_id in processed_at if run_id not in values]
        for some in in_batches(unread):
            for row in session.execute(self._statement, {"ids": some}):
                values[row.run_id] = {name: getattr(row, name) for name in self._names}
                self._remembered.keep((database, row.run_id), processed_at[row.run_id], values[row.run_id])
        return values

"""Runs to choose from for one side. Works by links alone."""

from functools import cached_property

from sqlalchemy import select
from sqlmodel import Session, col

from app.compare.pairs import Pair, recent_pairs
from app.compare.queries import offered_runs
from app.compare.selection import MOST_RUNS, Selection, Side
from app.storage.run_list import RunListItem
from app.storage.tables import RunRow


class Picker:
    """`gone`: a run that is named does not exist, so nothing that is chosen can be kept."""

    def __init__(
        self, session: Session, selection: Selection, *, offer_pairs: bool = False, gone: bool = False
    ) -> None:
        self._session = session
        self._offer_pairs = offer_pairs
        self.selection = Selection(pick=selection.pick, q=selection.q) if gone else selection

    @property
    def side(self) -> Side | None:
        """For which a run is chosen: the one asked for, else the first that has none. None: nothing is asked."""
        if self.selection.pick:
            return "a" if self.selection.pick == "a" else "b"
        if not self.selection.a:
            # With a candidate alone, its baseline is what is missing; with nothing, the baseline comes first, too.
            return "a"
        return None if self.selection.b else "b"

    @property
    def full(self) -> bool:
        return self.side is not None and len(self.selection.side(self.side)) >= MOST_RUNS

    @cached_property
    def runs(self) -> tuple[RunListItem, ...]:
        return offered_runs(self._session, self.selection.q, near=self._near, without=self.selection.runs)

    @cached_property
    def same_stack(self) -> set[int]:
        """Which of the offered runs are of the stack of what is chosen already."""
        if self._near is None:
            return set()
        stack = select(RunRow.stack_key).where(col(RunRow.id) == self._near).scalar_subquery()  # type: ignore[call-overload]
        offered = [run.id for run in self.runs]
        of_it = select(RunRow.id).where(col(RunRow.id).in_(offered), col(RunRow.stack_key) == stack)  # type: ignore[call-overload]
        return set(self._session.execute(of_it).scalars())

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return recent_pairs(self._session) if self._offer_pairs and not self.selection.runs else ()

    @property
    def _near(self) -> int | None:
        """The run whose stack is wanted: one of the other side, else one of this side."""
        if self.side is None:
            return None
        other = self.selection.side("b" if self.side == "a" else "a")
        return next(iter((*other, *self.selection.side(self.side))), None)

"""Standings kept from run to run: one stack is ranked again, and what changed at its head is told.

Standings are a function of the stack's runs, its contracts and the family's prior, and of nothing before them: ranking
a stack again gives what a rebuild gives. The prior is therefore kept beside them, and is replaced when it moved.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.ranking.rank import rank_stack
from app.domain.ranking.ranked_run import RankedRun
from app.domain.ranking.result_level import Contracts
from app.domain.ranking.sentences import listed
from app.domain.ranking.standings import Board, StackStandings

NEWS_FLOOR = "screen"
"""The floor at which leaders are told and their history is kept: that of the page when nobody asks for another one."""
_PRIOR_MOVED = 1.1
"""In the standard deviation. A smaller change moves an interval by less than anyone reads, and would rank all stacks of
the family again with each upload."""


@dataclass(frozen=True, slots=True)
class Head:
    """Who heads a board: a row of the leader's history. `dispatchers` several when they tie, () for no ranking."""

    routing_mode: str
    semantic_class: str
    reading: str
    dispatchers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeadChange:
    """The head of a class before and after; `before` None for the first one that is known."""

    before: Head | None
    after: Head

    @property
    def sentence(self) -> str:
        """`alltoall -> deepep`, `deepep -> alltoall and deepep (tie)`."""
        if self.before is None:
            return told(self.after)
        return f"{told(self.before)} -> {told(self.after)}"


@dataclass(frozen=True, slots=True)
class Update:
    """`standings`: what to store, None when the stack has no runs left. `changed`: whether it is not what was stored.

    `heads`: rows to append to the history of leaders.
    """

    standings: StackStandings | None
    changed: bool
    heads: tuple[HeadChange, ...]


def update(
    stored: StackStandings | None,
    runs: Sequence[RankedRun],
    prior: Prior = DEFAULT_PRIOR,
    contracts: Contracts | None = None,
    last_heads: Sequence[Head] = (),
) -> Update:
    """Rank one stack again from all of its runs.

    `last_heads`: the newest row of each class in the history of leaders. While figures wait to be computed again
    (`partial`), nothing is told of leaders: the run that changes them may be one that was only not ready.
    """
    standings = rank_stack(runs, prior, contracts) if runs else None
    if standings is None or standings.partial:
        return Update(standings, standings != stored, ())
    known = {(head.routing_mode, head.semantic_class): head for head in last_heads}
    changes = []
    for head in heads_of(standings):
        before = known.get((head.routing_mode, head.semantic_class))
        if head != before and (before is not None or head.dispatchers):
            changes.append(HeadChange(before, head))
    return Update(standings, standings != stored, tuple(changes))


def heads_of(standings: StackStandings) -> tuple[Head, ...]:
    """One for each class of the stack."""
    return tuple(_head(board) for board in standings.boards_at(NEWS_FLOOR))


def _head(board: Board) -> Head:
    names = tuple(sorted(board.leaders)) if board.is_ranking else ()
    return Head(board.routing_mode, board.semantic_class, board.reading, names)


def told(head: Head) -> str:
    """A head in a few words."""
    if not head.dispatchers:
        return "no ranking"
    qualifier = {"tie": " (tie)", "directional": " (directional)"}.get(head.reading, "")
    return f"{listed(head.dispatchers)}{qualifier}"


def prior_to_keep(kept: Prior | None, fresh: Prior) -> Prior:
    """The family's prior to rank with: `kept`, until what is learned now is another one.

    When it changes, all stacks of the family are ranked again; a rebuild uses the kept one.
    """
    if kept is None or (kept.configurations == 0) != (fresh.configurations == 0):
        return fresh
    moved = math.sqrt(max(kept.variance, fresh.variance) / max(min(kept.variance, fresh.variance), 1e-12))
    more_sure = abs(kept.degrees_of_freedom - fresh.degrees_of_freedom) >= 1
    return fresh if moved > _PRIOR_MOVED or more_sure else kept

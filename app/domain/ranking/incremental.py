"""Standings kept from run to run: one stack is ranked again, and what changed at its head is told.

Standings are a function of the stack's runs, its contracts and the family's prior, and of nothing before them
(`rank_stack`): ranking a stack again gives what a rebuild gives. The prior is therefore kept beside them, and is
replaced when it moved. What a function of the runs cannot tell, who led before, is kept as a history.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from app.domain.detection import Prior
from app.domain.numbers import counted
from app.domain.ranking.sentences import listed
from app.domain.ranking.standings import Board, StackStandings

NEWS_FLOOR = "screen"
"""The floor at which leaders are told and their history is kept: that of the page when nobody asks for another one."""
MOST_NAMED = 3
"""Runs that a change of the leader names."""
_OTHER_PRIOR = "How much launches of the family vary is known better; no run of the board came or went."
_OTHER_RULES = "The rules of the ranking changed; no run of the board came or went."
_PRIOR_MOVED = 1.1
"""In the standard deviation. A smaller change moves an interval by less than anyone reads, and would rank all stacks of
the family again with each upload."""


@dataclass(frozen=True, slots=True)
class Head:
    """Who heads a board: a row of the leader's history. `dispatchers` several when they tie, () for no ranking.

    What follows is no part of who heads it. `at`: place in the history of the newest run that it rests on. `because`:
    which runs made it so, in a sentence; `run`: the newest of them, empty when none did (`by_runs` is False): the same
    runs are read otherwise. `why`: what the board says, with the figures.
    """

    routing_mode: str
    semantic_class: str
    reading: str
    dispatchers: tuple[str, ...]
    at: datetime | None = field(default=None, compare=False)
    run: str = field(default="", compare=False)
    because: str = field(default="", compare=False)
    why: str = field(default="", compare=False)
    by_runs: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class HeadChange:
    """The head of a class before and after; `before` None for the first one that is known."""

    before: Head | None
    after: Head

    @property
    def sentence(self) -> str:
        """`from alltoall to deepep`, `from deepep to alltoall and deepep (tie)`; of the first one `deepep`."""
        if self.before is None:
            return told(self.after)
        return f"from {told(self.before)} to {told(self.after)}"


def head_changes(standings: StackStandings, last_heads: Sequence[Head]) -> tuple[HeadChange, ...]:
    """Rows to append to the history of leaders. `last_heads`: its newest row of each class of the stack.

    While figures wait to be computed again (`partial`), nothing is told of leaders: the run that changes them may be
    one that was only not ready. A class of which no run is left has no ranking any more.
    """
    if standings.partial:
        return ()
    now = {_class_of(head): head for head in heads_of(standings)}
    known = {_class_of(head): head for head in last_heads}
    gone = {key: Head(*key, "nothing_ranked", ()) for key in known if key not in now}
    changes = [HeadChange(known.get(key), head) for key, head in sorted((now | gone).items())]
    return tuple(one for one in changes if _is_news(one))


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of a stack before: the board that a change is of, the newest run that was known then, by its name,
    and whether the rules of the ranking were others.
    """

    board: Board | None = None
    newest: str = ""
    other_rules: bool = False


def explained(change: HeadChange, kept: Kept, now: Board | None, places: Mapping[str, datetime]) -> HeadChange:
    """The change with its reason: which runs of the board came, count again or no longer count.

    `places`: of the stack's runs in its history. Names of runs are in the order in which they arrived.
    """
    was, is_now = _runs_of(kept.board), _runs_of(now)
    came, left = sorted(is_now - was, key=_arrival), sorted(was - is_now, key=_arrival)
    if change.before is None:
        # With the first ranking it is the run by which the last of the dispatchers came in.
        came = sorted((min(entry.runs, key=_arrival) for entry in now.entries), key=_arrival)[-1:] if now else []
        left = []
    again = [run for run in came if _arrival(run) <= _arrival(kept.newest)] if change.before is not None else []
    new = [run for run in came if run not in again]
    run = next((runs[-1] for runs in (new, again, left) if runs), "")
    at = max((places[one] for one in came), default=None) or change.after.at or max(places.values(), default=None)
    why = _because(new, again, left) or (_OTHER_RULES if kept.other_rules else _OTHER_PRIOR)
    return replace(change, after=replace(change.after, at=at, run=run, because=why, by_runs=bool(run)))


def newest_run(boards: Iterable[Board], others: Iterable[str]) -> str:
    """The one that arrived last of those that boards and `others` name; empty without any."""
    return max({run for board in boards for run in _runs_of(board)}.union(others), key=_arrival, default="")


def _arrival(run: str) -> tuple[int, str]:
    return len(run), run


def _runs_of(board: Board | None) -> set[str]:
    return set() if board is None else {run for entry in board.entries for run in entry.runs}


def _because(new: Sequence[str], again: Sequence[str], left: Sequence[str]) -> str:
    told = []
    if new:
        told.append(f"{_named(new)} came in")
    if again:
        told.append(f"{_named(again)} {'counts' if len(again) == 1 else 'count'} again")
    if left:
        told.append(f"{_named(left)} no longer {'counts' if len(left) == 1 else 'count'}")
    text = ", and ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _named(runs: Sequence[str]) -> str:
    """`run 61`, `runs 61 and 62`, `runs 61, 62 and 4 others`."""
    if len(runs) > MOST_NAMED:
        return f"runs {', '.join(runs[:MOST_NAMED])} and {counted(len(runs) - MOST_NAMED, 'other')}"
    return f"run{'s' if len(runs) > 1 else ''} {listed(runs)}"


def _is_news(change: HeadChange) -> bool:
    if change.before is None:
        return bool(change.after.dispatchers)
    return change.before != change.after


def _class_of(head: Head) -> tuple[str, str]:
    return head.routing_mode, head.semantic_class


def heads_of(standings: StackStandings) -> tuple[Head, ...]:
    """One for each class of the stack."""
    return tuple(_head(board) for board in standings.boards_at(NEWS_FLOOR))


def _head(board: Board) -> Head:
    names = tuple(sorted(board.leaders)) if board.is_ranking else ()
    at = max((entry.last_at for entry in board.entries if entry.last_at is not None), default=None)
    return Head(board.routing_mode, board.semantic_class, board.reading, names, at=at, why=board.sentence)


def told(head: Head) -> str:
    """A head in a few words."""
    if not head.dispatchers:
        return "no ranking"
    qualifier = {"tie": " (tie)", "directional": " (directional)", "not_compared": " (not compared with all)"}.get(
        head.reading, ""
    )
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

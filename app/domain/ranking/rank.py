"""Runs in, standings out: a pure function of the runs and the family's prior, whatever order they arrive in."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from app.domain.definitions import DEFINITION_VERSION
from app.domain.numbers import counted
from app.domain.ranking.board import Contracts, Measured, board, empty_board
from app.domain.ranking.pairwise import LossGuard, LossReader, no_losses
from app.domain.ranking.pools import Pools, Stretches
from app.domain.ranking.runs import LEVELS, MEASURED, RankedRun, Refusal, fallbacks, other_shapes, refusal
from app.domain.ranking.standings import Board, Glimpse, MissingDispatcher, StackStandings, listed
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior

MOST_NAMED = 50
"""Refused runs that standings name; a stack of a thousand failures is told by their number."""

Class = tuple[str, str]
"""Routing mode and semantic class."""

Priors = Prior | Mapping[str, Prior]
"""One for all runs, or one for each semantic class; the default for a class that is left out."""


def rank_stack(
    runs: Sequence[RankedRun],
    prior: Priors = DEFAULT_PRIOR,
    contracts: Contracts | None = None,
    *,
    losses: LossReader = no_losses,
    definition_version: int = DEFINITION_VERSION,
) -> StackStandings:
    """The standings of one stack from all of its processed runs, at least one.

    `contracts`: one for each config key, by which matched A/Bs are recognised. `losses` is asked for those of results
    that meet on a board. Raises ValueError for runs of several stack keys: nothing may ever rank those together.
    """
    ordered = _with_ep(sorted({run.name: run for run in runs}.values(), key=lambda run: run.place_in_time))
    keys = {run.facts.stack_key for run in ordered}
    if len(keys) != 1:
        raise ValueError(f"standings are of one stack key, these runs have {len(keys)}")
    refused = _refused(ordered, definition_version)
    eligible = [run for run in ordered if run.name not in refused]
    missing = _missing(ordered)
    newest = ordered[-1]
    return StackStandings(
        stack_key=newest.facts.stack_key,
        hardware=newest.hardware,
        family=newest.family,
        precision=newest.precision,
        boards=tuple(_boards(ordered, refused, missing, prior, contracts or {}, losses=losses)),
        missing=missing,
        refused=tuple([refused[run.name] for run in reversed(ordered) if run.name in refused][:MOST_NAMED]),
        refused_count=len(refused),
        fallbacks=fallbacks(reversed(eligible))[:MOST_NAMED],
        partial=any(item.why == "other_definitions" for item in refused.values()),
    )


def rank_runs(
    runs: Iterable[RankedRun],
    prior: Priors = DEFAULT_PRIOR,
    contracts: Contracts | None = None,
    *,
    definition_version: int = DEFINITION_VERSION,
) -> dict[str, StackStandings]:
    """Standings by stack key, of runs of any stacks."""
    stacks: dict[str, list[RankedRun]] = {}
    for run in runs:
        stacks.setdefault(run.facts.stack_key, []).append(run)
    return {
        key: rank_stack(stacks[key], prior, contracts, definition_version=definition_version) for key in sorted(stacks)
    }


def class_of(run: RankedRun) -> Class:
    """Runs of different classes never meet: forced and natural routing, and benchmarks and training."""
    return run.routing_mode, run.facts.semantic_class


def _with_ep(ordered: Sequence[RankedRun]) -> list[RankedRun]:
    """A run that failed early states no expert parallelism; where all that state one agree, it is that of the stack."""
    stated = {run.ep for run in ordered if run.ep is not None}
    if len(stated) != 1:
        return list(ordered)
    (ep,) = stated
    return [run if run.ep is not None else replace(run, ep=ep) for run in ordered]


def _refused(ordered: Sequence[RankedRun], definition_version: int) -> dict[str, Refusal]:
    refused = {run.name: why for run in ordered if (why := refusal(run, definition_version))}
    shapes = other_shapes([run for run in ordered if run.name not in refused])
    return refused | {shape.run: shape for shape in shapes}


def _missing(ordered: Sequence[RankedRun]) -> tuple[MissingDispatcher, ...]:
    """Dispatchers that the stack's container does not have, unless one of its runs shows that it ran."""
    runs: dict[str, list[RankedRun]] = {}
    for run in reversed(ordered):
        for name in run.missing:
            runs.setdefault(name, []).append(run)
    ran = {run.active for run in ordered}
    return tuple(
        MissingDispatcher(name, tuple(run.name for run in runs[name][:MOST_NAMED]), runs[name][0].ep)
        for name in sorted(runs)
        if name not in ran
    )


def _boards(
    ordered: Sequence[RankedRun],
    refused: dict[str, Refusal],
    missing: Sequence[MissingDispatcher],
    prior: Priors,
    contracts: Contracts,
    *,
    losses: LossReader,
) -> Iterable[Board]:
    """At each floor one for each class that has something to show, at least one: a stack of failures is a stack."""
    boards: list[Board] = []
    for wanted in sorted({class_of(run) for run in ordered}):
        mine = [run for run in ordered if class_of(run) == wanted and run.name not in refused]
        seen = [refused[run.name] for run in ordered if class_of(run) == wanted and run.name in refused]
        family_prior = prior if isinstance(prior, Prior) else prior.get(wanted[1], DEFAULT_PRIOR)
        measured = Measured(
            *wanted, mine, Stretches(mine, family_prior), Pools(family_prior), contracts, LossGuard(losses)
        )
        offered = (board(measured, _glimpses(seen), missing, floor, seen) for floor in LEVELS)
        boards += [one for one in offered if one is not None]
    shown = {one.floor for one in boards}
    newest = refused.get(ordered[-1].name)
    why = newest.sentence if newest else "below the evidence level asked for"
    boards += [empty_board(*class_of(ordered[-1]), floor, why) for floor in LEVELS if floor not in shown]
    return sorted(boards, key=lambda one: (one.routing_mode, one.semantic_class, LEVELS.index(one.floor)))


def _glimpses(refused: Sequence[Refusal]) -> tuple[Glimpse, ...]:
    """The newest of each dispatcher."""
    newest: dict[str, Glimpse] = {}
    for item in refused:
        if item.why in MEASURED and item.dispatcher and item.step_time_ms is not None:
            newest[item.dispatcher] = Glimpse(item.dispatcher, item.run, item.step_time_ms, item.sentence)
    return tuple(newest[name] for name in sorted(newest))


# --- Standings kept from run to run: one stack is ranked again, and what changed at its head is told.
#
# Standings are a function of the stack's runs, its contracts and the family's prior, and of nothing before them
# (`rank_stack`): ranking a stack again gives what a rebuild gives. The prior is therefore kept beside them, and is
# replaced when it moved. What a function of the runs cannot tell, who led before, is kept as a history.

NEWS_FLOOR = "screen"
"""The floor at which leaders are told and their history is kept: that of the page when nobody asks for another one."""
MOST_CHANGES_NAMED = 3
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
    before = {_class_of(head): head for head in last_heads}
    gone = {key: Head(*key, "nothing_ranked", ()) for key in before if key not in now}
    changes = [HeadChange(before.get(key), head) for key, head in sorted((now | gone).items())]
    return tuple(change for change in changes if _is_news(change))


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
    at = max((places[name] for name in came), default=None) or change.after.at or max(places.values(), default=None)
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
    parts = []
    if new:
        parts.append(f"{_named(new)} came in")
    if again:
        parts.append(f"{_named(again)} {'counts' if len(again) == 1 else 'count'} again")
    if left:
        parts.append(f"{_named(left)} no longer {'counts' if len(left) == 1 else 'count'}")
    text = ", and ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _named(runs: Sequence[str]) -> str:
    """`run 61`, `runs 61 and 62`, `runs 61, 62 and 4 others`."""
    if len(runs) > MOST_CHANGES_NAMED:
        return f"runs {', '.join(runs[:MOST_CHANGES_NAMED])} and {counted(len(runs) - MOST_CHANGES_NAMED, 'other')}"
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


def prior_to_keep(stored: Prior | None, fresh: Prior) -> Prior:
    """The family's prior to rank with: `kept`, until what is learned now is another one.

    When it changes, all stacks of the family are ranked again; a rebuild uses the kept one.
    """
    if stored is None or (stored.configurations == 0) != (fresh.configurations == 0):
        return fresh
    moved = math.sqrt(max(stored.variance, fresh.variance) / max(min(stored.variance, fresh.variance), 1e-12))
    more_sure = abs(stored.degrees_of_freedom - fresh.degrees_of_freedom) >= 1
    return fresh if moved > _PRIOR_MOVED or more_sure else stored

"""Rank a stack: a pure function of its runs and the family's prior, independent of the order of arrival."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from app.domain.definitions import DEFINITION_VERSION
from app.domain.numbers import plural
from app.domain.ranking.board import BoardInputs, Contracts, board, empty_board
from app.domain.ranking.pairwise import LossGuard, LossReader, no_losses
from app.domain.ranking.pools import Pools, Segments
from app.domain.ranking.runs import MEASURED, RankedRun, Refusal, fallbacks, other_shapes, refusal
from app.domain.ranking.standings import Board, MissingDispatcher, StackStandings, UnrankedResult, listed
from app.domain.run import EVIDENCE_LEVELS
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior

MOST_NAMED = 50
"""Most refused runs that standings list; further ones are only counted."""

Class = tuple[str, str]
"""Routing mode and semantic class."""

Priors = Prior | Mapping[str, Prior]
"""One for all runs, or one for each semantic class; a missing class has the default."""


def rank_stack(
    runs: Sequence[RankedRun],
    prior: Priors = DEFAULT_PRIOR,
    contracts: Contracts | None = None,
    *,
    losses: LossReader = no_losses,
) -> StackStandings:
    """Compute the standings of one stack from all its processed runs, at least one.

    `contracts`: one per config key, to recognise matched A/Bs. `losses`: reads the losses of results that meet on a
    board. Raises ValueError for runs of several stack keys, which must never be ranked together.
    """
    ordered = _with_ep(sorted({run.name: run for run in runs}.values(), key=lambda run: run.history_position))
    keys = {run.facts.stack_key for run in ordered}
    if len(keys) != 1:
        raise ValueError(f"standings are of one stack key, these runs have {len(keys)}")
    refused = _refused(ordered)
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


def class_of(run: RankedRun) -> Class:
    """Return the class of a run. Forced and natural routing, benchmarks and training are never compared."""
    return run.routing_mode, run.facts.semantic_class


def _with_ep(ordered: Sequence[RankedRun]) -> list[RankedRun]:
    """Fill in expert parallelism for runs that failed before stating it, when all other runs agree on it."""
    stated = {run.ep for run in ordered if run.ep is not None}
    if len(stated) != 1:
        return list(ordered)
    (ep,) = stated
    return [run if run.ep is not None else replace(run, ep=ep) for run in ordered]


def _refused(ordered: Sequence[RankedRun]) -> dict[str, Refusal]:
    refused = {run.name: why for run in ordered if (why := refusal(run, DEFINITION_VERSION))}
    shapes = other_shapes([run for run in ordered if run.name not in refused])
    return refused | {shape.run: shape for shape in shapes}


def _missing(ordered: Sequence[RankedRun]) -> tuple[MissingDispatcher, ...]:
    """Return dispatchers missing in the stack's container, except those that ran in one of its runs."""
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
    """Yield one board per evidence floor and class, at least one per floor even when all runs failed."""
    boards: list[Board] = []
    for wanted in sorted({class_of(run) for run in ordered}):
        mine = [run for run in ordered if class_of(run) == wanted and run.name not in refused]
        seen = [refused[run.name] for run in ordered if class_of(run) == wanted and run.name in refused]
        family_prior = prior if isinstance(prior, Prior) else prior.get(wanted[1], DEFAULT_PRIOR)
        measured = BoardInputs(
            *wanted, mine, Segments(mine, family_prior), Pools(family_prior), contracts, LossGuard(losses)
        )
        offered = (board(measured, _unranked(seen), missing, floor, seen) for floor in EVIDENCE_LEVELS)
        boards += [board for board in offered if board is not None]
    shown = {board.floor for board in boards}
    newest = refused.get(ordered[-1].name)
    why = newest.sentence if newest else "below the requested evidence level"
    boards += [empty_board(*class_of(ordered[-1]), floor, why) for floor in EVIDENCE_LEVELS if floor not in shown]
    return sorted(boards, key=lambda item: (item.routing_mode, item.semantic_class, EVIDENCE_LEVELS.index(item.floor)))


def _unranked(refused: Sequence[Refusal]) -> tuple[UnrankedResult, ...]:
    """Return the newest measured but ineligible run of each dispatcher."""
    newest: dict[str, UnrankedResult] = {}
    for item in refused:
        if item.why in MEASURED and item.dispatcher and item.step_time_ms is not None:
            newest[item.dispatcher] = UnrankedResult(item.dispatcher, item.run, item.step_time_ms, item.sentence)
    return tuple(newest[name] for name in sorted(newest))


# --- Changes of the leader.
#
# Standings depend only on the stack's runs, its contracts and the family's prior, so ranking a stack again gives the
# same result as a rebuild. The prior is therefore stored with them and replaced when it moved. Former leaders cannot be
# derived from the runs, so they are stored as a history.

LEADER_FLOOR = "screen"
"""The evidence floor of the leader history: the default of the page."""
MOST_CHANGES_NAMED = 3
"""Most runs that the reason of a change names."""
_OTHER_PRIOR = "The estimate of run-to-run variation improved; the runs of the board are the same."
_OTHER_RULES = "The ranking rules changed; the runs of the board are the same."
_PRIOR_MOVED = 1.1
"""Ratio of standard deviations. Smaller changes hardly move an interval, but would rank all stacks of the family again
with each upload."""


@dataclass(frozen=True, slots=True)
class Head:
    """The leaders of a board: a row of the leader history. `dispatchers`: several in a tie, () without a ranking.

    The other fields do not count for equality. `at`: history position of the newest run behind it. `because`: the runs
    that caused it, as a sentence; `run`: the newest of them, empty when the same runs led to another result (`by_runs`
    is then False). `why`: the sentence of the board, with figures. `second`: the second place behind a leader.
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
    second: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class HeadChange:
    """The leaders of a class before and after; `before` is None for the first ranking."""

    before: Head | None
    after: Head

    @property
    def sentence(self) -> str:
        """Format the change: `from alltoall to deepep`, `from deepep to alltoall and deepep (tie)`; first: `deepep`."""
        if self.before is None:
            return head_text(self.after)
        return f"from {head_text(self.before)} to {head_text(self.after)}"


def head_changes(standings: StackStandings, last_heads: Sequence[Head]) -> tuple[HeadChange, ...]:
    """Return the rows to append to the leader history. `last_heads`: its newest row for each class of the stack.

    Empty while figures wait to be recomputed (`partial`), because the change may only reflect a missing run. A class
    without runs loses its ranking.
    """
    if standings.partial:
        return ()
    now = {board_class(head): head for head in heads_of(standings)}
    before = {board_class(head): head for head in last_heads}
    gone = {key: Head(*key, "nothing_ranked", ()) for key in before if key not in now}
    changes = [HeadChange(before.get(key), head) for key, head in sorted((now | gone).items())]
    return tuple(change for change in changes if _is_reportable(change))


@dataclass(frozen=True, slots=True)
class StoredState:
    """The stored state before a change: the board, the name of the newest run then known, and whether the ranking
    rules were different.
    """

    board: Board | None = None
    newest: str = ""
    other_rules: bool = False


def explained(change: HeadChange, stored: StoredState, now: Board | None, places: Mapping[str, datetime]) -> HeadChange:
    """Add the reason to a change: which runs of the board are new, count again or no longer count.

    `places`: history positions of the stack's runs. Run names are in the order of their arrival.
    """
    was, is_now = _runs_of(stored.board), _runs_of(now)
    came, left = sorted(is_now - was, key=_arrival), sorted(was - is_now, key=_arrival)
    if change.before is None:
        # The first ranking is due to the first run of the last dispatcher.
        came = sorted((min(entry.runs, key=_arrival) for entry in now.entries), key=_arrival)[-1:] if now else []
        left = []
    again = [run for run in came if _arrival(run) <= _arrival(stored.newest)] if change.before is not None else []
    new = [run for run in came if run not in again]
    run = next((runs[-1] for runs in (new, again, left) if runs), "")
    at = max((places[name] for name in came), default=None) or change.after.at or max(places.values(), default=None)
    why = _because(new, again, left) or (_OTHER_RULES if stored.other_rules else _OTHER_PRIOR)
    return replace(change, after=replace(change.after, at=at, run=run, because=why, by_runs=bool(run)))


def newest_run(boards: Iterable[Board], others: Iterable[str]) -> str:
    """Return the run that arrived last among those of `boards` and `others`; empty without any."""
    return max({run for board in boards for run in _runs_of(board)}.union(others), key=_arrival, default="")


def _arrival(run: str) -> tuple[int, str]:
    return len(run), run


def _runs_of(board: Board | None) -> set[str]:
    return set() if board is None else {run for entry in board.entries for run in entry.runs}


def _because(new: Sequence[str], again: Sequence[str], left: Sequence[str]) -> str:
    parts = []
    if new:
        parts.append(f"{_named(new)} {plural(len(new), 'was', 'were', number=False)} added")
    if again:
        parts.append(f"{_named(again)} {plural(len(again), 'counts', 'count', number=False)} again")
    if left:
        parts.append(f"{_named(left)} no longer {plural(len(left), 'counts', 'count', number=False)}")
    text = ", and ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _named(runs: Sequence[str]) -> str:
    """Return `run 61`, `runs 61 and 62` or `runs 61, 62, 63 and 4 others`."""
    if len(runs) > MOST_CHANGES_NAMED:
        return f"runs {', '.join(runs[:MOST_CHANGES_NAMED])} and {plural(len(runs) - MOST_CHANGES_NAMED, 'other')}"
    return f"{plural(len(runs), 'run', number=False)} {listed(runs)}"


def _is_reportable(change: HeadChange) -> bool:
    if change.before is None:
        return bool(change.after.dispatchers)
    return change.before != change.after


def board_class(board: Board | Head) -> tuple[str, str]:
    return board.routing_mode, board.semantic_class


def heads_of(standings: StackStandings) -> tuple[Head, ...]:
    """Return the leaders of each class of the stack."""
    return tuple(_head(board) for board in standings.boards_at(LEADER_FLOOR))


def _head(board: Board) -> Head:
    names = tuple(sorted(board.leaders)) if board.is_ranking else ()
    at = max((entry.last_at for entry in board.entries if entry.last_at is not None), default=None)
    second = board.first_two[1] if board.reading == "leader" else ""
    return Head(
        board.routing_mode, board.semantic_class, board.reading, names, at=at, why=board.sentence, second=second
    )


def head_text(head: Head) -> str:
    """Return the leaders in a few words."""
    if not head.dispatchers:
        return "no ranking"
    return f"{listed(head.dispatchers)}{_QUALIFIERS.get(head.reading, '')}"


_QUALIFIERS = {
    "contested": " (undecided)",
    "tie": " (tie)",
    "directional": " (directional)",
    "not_compared": " (not compared with all)",
}


def prior_to_keep(stored: Prior | None, fresh: Prior) -> Prior:
    """Return the prior to rank with: the stored one until the fresh one differs enough.

    When it changes, all stacks of the family are ranked again; a rebuild uses the stored one.
    """
    if stored is None or (stored.configurations == 0) != (fresh.configurations == 0):
        return fresh
    moved = math.sqrt(max(stored.variance, fresh.variance) / max(min(stored.variance, fresh.variance), 1e-12))
    more_sure = abs(stored.degrees_of_freedom - fresh.degrees_of_freedom) >= 1
    return fresh if moved > _PRIOR_MOVED or more_sure else stored

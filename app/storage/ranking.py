"""Ranks a stack and keeps what it is ranked as: reading first, then writing in the transaction that ends its work.

Standings follow from the runs of the stack and the priors of its family. So whoever ranks it last leaves the same
behind, in whatever order runs came in.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, delete, insert, or_, select
from sqlmodel import Session, col

from app.domain.definitions import RANKING_VERSION
from app.domain.ranking import Board, HeadChange, ScalingRuns, StackStandings, board_results, rank_stack, scaling_runs
from app.domain.ranking.incremental import NEWS_FLOOR, Head, Kept, explained, head_changes, newest_run
from app.storage import json_column
from app.storage.judging_tables import StackWorkRow
from app.storage.leader_changes import add_leader_changes, last_heads
from app.storage.ranked_runs import RankedStack, StackAbout, ranked_stack
from app.storage.ranking_priors import NO_PRIORS, FamilyPriors, keep_priors, kept_priors, learned_priors
from app.storage.run_losses import losses_of_runs
from app.storage.run_records import aware
from app.storage.stack_work import ask_to_judge
from app.storage.standings_tables import RankingPriorRow, StandingBoardRow, StandingRow
from app.storage.tables import RunRow, utc_now
from app.storage.typed_json import from_json, to_json

Key = tuple[int, str]
"""Project and stack key."""

BATCH_STACKS = 16
# As tables: what is compared and written here has no place among the objects of the session.
_STACKS: Table = StandingRow.__table__  # type: ignore[attr-defined]
_BOARDS: Table = StandingBoardRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Ranked:
    """A stack as it is to be kept; None when it has no runs left. `heads`: what changed at the head of its boards.

    `sizes`: the runs of its configurations, for the scaling view.
    """

    project_id: int
    stack_key: str
    standings: StackStandings | None = None
    about: StackAbout | None = None
    runs: int = 0
    priors: FamilyPriors = NO_PRIORS
    heads: tuple[HeadChange, ...] = ()
    sizes: tuple[ScalingRuns, ...] = ()

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Of its row, without the time; {} when it is to have none."""
        if self.standings is None or self.about is None:
            return {}
        about = asdict(self.about)
        known, newest_at = about.pop("known"), about.pop("newest_at")
        return {
            "hardware": self.standings.hardware,
            "family": self.standings.family,
            "precision": self.standings.precision,
            **about,
            "about": to_json(known),
            "newest_at": newest_at,
            "runs": self.runs,
            "ranking_version": RANKING_VERSION,
            "prior_version": self.priors.version,
            "document": to_json(replace(self.standings, boards=()))
            | {"scaling": json_column.dumps(to_json(self.sizes))},
        }

    @cached_property
    def boards(self) -> list[dict[str, Any]]:
        stack = self.standings
        return [] if stack is None else [_board_columns(stack, board) for board in stack.boards]


def rank(session: Session, project_id: int, stack_key: str, *, learn: bool = True) -> Ranked:
    """The standings of a stack from its runs as they are. `learn`: with what they and their family say of priors now,
    else with the priors that are kept.
    """
    stack = ranked_stack(session, project_id, stack_key)
    if stack is None:
        return Ranked(project_id, stack_key)
    gpu = stack.about.gpu
    classes = {run.facts.semantic_class for run in stack.runs}
    priors = learned_priors(session, project_id, gpu, classes) if learn else kept_priors(session, project_id, gpu)
    standings = rank_stack(stack.runs, priors.of_class, stack.contracts, losses=partial(losses_of_runs, session))
    heads = _head_changes(session, project_id, standings, stack) if learn else ()
    sizes = scaling_runs(stack.runs, stack.contracts, priors.of_class)
    return Ranked(project_id, stack_key, standings, stack.about, len(stack.runs), priors, heads, sizes)


def _head_changes(
    session: Session, project_id: int, standings: StackStandings, stack: RankedStack
) -> tuple[HeadChange, ...]:
    """With the runs that made them: those by which the board is another one than the one that is kept."""
    changes = head_changes(standings, last_heads(session, project_id, standings.stack_key))
    if not changes:
        return ()
    before = _kept_before(session, project_id, standings.stack_key)
    after = {_class(one): one for one in standings.boards_at(NEWS_FLOOR)}
    places = {run.name: run.ordered_at for run in stack.runs}
    return tuple(explained(one, before(_class(one.after)), after.get(_class(one.after)), places) for one in changes)


def _kept_before(session: Session, project_id: int, stack_key: str) -> Callable[[tuple[str, str]], Kept]:
    """What is kept of a stack now, by class."""
    of_boards = (_BOARDS.c.project_id == project_id, _BOARDS.c.stack_key == stack_key, _BOARDS.c.floor == NEWS_FLOOR)
    kept = session.execute(select(_BOARDS.c.document).where(*of_boards)).scalars()
    boards = {_class(one): one for one in (from_json(Board, row) for row in kept)}
    of_stack = (_STACKS.c.project_id == project_id, _STACKS.c.stack_key == stack_key)
    row = session.execute(select(_STACKS.c.ranking_version, _STACKS.c.document).where(*of_stack)).one_or_none()
    refused = [one["run"] for one in row.document["refused"]] if row else []
    newest = newest_run(boards.values(), refused)
    other_rules = row is not None and row.ranking_version != RANKING_VERSION
    return lambda wanted: Kept(boards.get(wanted), newest, other_rules)


def _class(one: Board | Head) -> tuple[str, str]:
    return one.routing_mode, one.semantic_class


def keep(session: Session, ranked: Ranked) -> bool:
    """Write it where it is not what is kept already. Whether it was not."""
    version = keep_priors(session, ranked.project_id, ranked.priors)
    ranked = replace(ranked, priors=replace(ranked.priors, version=version))
    add_leader_changes(session, ranked.project_id, ranked.stack_key, ranked.heads)
    is_new = bool(difference(session, ranked))
    if is_new:
        _write(session, ranked)
    return is_new


def difference(session: Session, ranked: Ranked) -> tuple[str, ...]:
    """Names of what is kept otherwise than `ranked`; () when they are equal."""
    columns = ranked.columns
    row = session.execute(select(_STACKS).where(*_of(_STACKS, ranked))).one_or_none()
    if row is None or not columns:
        return () if row is None and not columns else ("the stack itself",)
    found = [name for name, value in columns.items() if _text(value) != _text(getattr(row, name))]
    kept = {_board_name(one): _text(one) for one in _kept_boards(session, ranked)}
    made = {_board_name(one): _text(one) for one in ranked.boards}
    names = sorted(name for name in kept.keys() | made.keys() if kept.get(name) != made.get(name))
    return (*found, *(f"board {name}" for name in names))


def ask_to_rank_again(session: Session) -> list[int]:
    """Have the next stacks ranked again that were ranked by earlier rules, or with priors that moved since.

    The ids to ring for after the commit. Nothing of them is judged again. One that could not be ranked rests until
    something of it changes.
    """
    same = and_(
        col(StackWorkRow.project_id) == StandingRow.project_id, col(StackWorkRow.stack_key) == StandingRow.stack_key
    )
    rests = or_(col(StackWorkRow.id).is_(None), and_(col(StackWorkRow.work) == "", col(StackWorkRow.attempts) == 0))
    chosen = _behind().outerjoin(StackWorkRow, same).where(rests).limit(BATCH_STACKS)
    return [ask_to_judge(session, row.project_id, row.stack_key) for row in session.execute(chosen).all()]


def behind(session: Session) -> list[Key]:
    """Stacks that were ranked by earlier rules, or with priors that moved since."""
    return [(row.project_id, row.stack_key) for row in session.execute(_behind())]


def all_stacks(session: Session) -> list[Key]:
    """Every stack that has runs, or standings."""
    of_runs = select(RunRow.project_id, RunRow.stack_key).where(col(RunRow.stack_key) != "")  # type: ignore[call-overload]
    kept = select(StandingRow.project_id, StandingRow.stack_key)  # type: ignore[call-overload]
    return sorted((row.project_id, row.stack_key) for row in session.execute(of_runs.union(kept)))


def _behind() -> Select[Any]:
    """In the order in which everybody locks them."""
    family = and_(
        col(RankingPriorRow.project_id) == StandingRow.project_id, col(RankingPriorRow.gpu) == StandingRow.gpu
    )
    chosen: Select[Any] = select(StandingRow.project_id, StandingRow.stack_key).outerjoin(RankingPriorRow, family)  # type: ignore[call-overload]
    moved = col(RankingPriorRow.version) != StandingRow.prior_version
    return chosen.where(or_(col(StandingRow.ranking_version) != RANKING_VERSION, moved)).order_by(
        col(StandingRow.project_id), col(StandingRow.stack_key)
    )


def _write(session: Session, ranked: Ranked) -> None:
    key = {"project_id": ranked.project_id, "stack_key": ranked.stack_key}
    for table in (_BOARDS, _STACKS):
        session.execute(delete(table).where(*_of(table, ranked)))
    if columns := ranked.columns:
        session.execute(insert(_STACKS), [key | columns | {"updated_at": utc_now()}])
        if boards := ranked.boards:
            session.execute(insert(_BOARDS), [key | one for one in boards])


def _board_columns(stack: StackStandings, board: Board) -> dict[str, Any]:
    return {
        "floor": board.floor,
        "routing_mode": board.routing_mode,
        "semantic_class": board.semantic_class,
        "reading": board.reading,
        "is_ranking": board.is_ranking,
        "results": to_json(board_results(stack, board).results),
        "document": to_json(board),
    }


def _kept_boards(session: Session, ranked: Ranked) -> list[dict[str, Any]]:
    kept = [column for column in _BOARDS.columns if column.name not in ("project_id", "stack_key")]
    return [dict(row._mapping) for row in session.execute(select(*kept).where(*_of(_BOARDS, ranked)))]


def _of(table: Table, ranked: Ranked) -> tuple[ColumnElement[bool], ...]:
    return table.c.project_id == ranked.project_id, table.c.stack_key == ranked.stack_key


def _board_name(board: Mapping[str, Any]) -> str:
    return f"{board['routing_mode'] or 'unknown routing'}, {board['semantic_class']}, {board['floor']}"


def _text(value: Any) -> str:
    """As it is kept; times in one zone."""
    return aware(value).isoformat() if isinstance(value, datetime) else json_column.dumps(value)

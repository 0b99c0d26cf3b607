"""Stored standings for pages and the API: the boards of one page of stacks, and summaries of all stacks."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, func, select
from sqlmodel import Session, col

from app.domain.contract.fields import STACK_FIELDS
from app.domain.naming import SEPARATOR
from app.domain.ranking.across import BoardResults, ClassSummary, StackResult, summaries
from app.domain.ranking.experiments import contradictions
from app.domain.ranking.rank import LEADER_FLOOR, Head, HeadChange, board_class
from app.domain.ranking.runs import routing_class, slug
from app.domain.ranking.standings import Board, StackStandings
from app.domain.run import EVIDENCE_LEVELS, Value
from app.errors import FieldError, InvalidQuery, NotFound
from app.storage.database import ListPage
from app.storage.experiments import dispatcher_experiments
from app.storage.json_text import from_json, frozen, to_json
from app.storage.remembered import UntilRankedAgain
from app.storage.stacks import names_of_titles
from app.storage.tables import (
    LeaderChangeRow,
    ProjectRow,
    RunRow,
    StackRow,
    StandingBoardRow,
    StandingRow,
    from_row,
    not_indexed,
    select_any,
)

PAGE_SIZE = 25
DEFAULT_FLOOR = "screen"

Key = tuple[int, str]
"""Project and stack key."""


@dataclass(frozen=True, slots=True)
class StandingsFilters:
    """Filters of stacks; empty means any.

    `floor`: the minimum evidence level. `routing`: forced, natural, unknown, or one routing mode. `ep_size`: stacks
    in which a dispatcher ran, or failed to run, at that EP size. `stack`: first digits of a stack key.
    """

    project: str = ""
    floor: str = DEFAULT_FLOOR
    routing: str = ""
    semantic_class: str = ""
    precision: str = ""
    ep_size: str = ""
    stack: str = ""


@dataclass(frozen=True, slots=True)
class StoredStandings:
    """A stack with its standings. `standings.boards` contains only the requested boards.

    `title`, `container`, `gpus` and `about` (contract fields of the stack by name) come from its newest run. `name` is
    the title, made unique.
    """

    project_id: int
    project: str
    generated: bool
    stack_key: str
    name: str
    title: str
    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    precision: str
    container: str
    gpus: int | None
    about: Mapping[str, Value]
    runs: int
    newest_run_id: int
    newest_at: datetime
    updated_at: datetime
    ranking_version: int
    standings: StackStandings

    @property
    def key(self) -> Key:
        return self.project_id, self.stack_key

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the fields of the stack key that its runs do not state; with any, the boards are provisional.

        Runs that state such a field belong to another stack, so the two are never ranked together.
        """
        return tuple(name for name in STACK_FIELDS if self.about.get(name) is None)


@dataclass(frozen=True, slots=True)
class BoardFilterOptions:
    """The filter values that occur among the stacks of one leaderboard (hardware and family)."""

    projects: tuple[str, ...] = ()
    routing_modes: tuple[str, ...] = ()
    semantic_classes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    ep_sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StandingsPage(ListPage[StoredStandings]):
    """One page of stacks: those with a ranking first, then by newest run.

    `total` and `summaries` (one per class, over boards) cover all matching stacks. `hardware` and `family` are names;
    empty if no stack has these slugs or the request named none.
    """

    hardware: str
    family: str
    summaries: tuple[ClassSummary, ...]
    options: BoardFilterOptions


@dataclass(frozen=True, slots=True)
class HardwareFamily:
    """One row of the index. `rankings`: stacks with a ranking at the default evidence level.

    `generated`: whether figures of any of its stacks are generated.
    """

    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    stacks: int
    rankings: int
    runs: int
    newest_at: datetime
    generated: bool


def standings_of(
    session: Session,
    hardware_slug: str,
    family_slug: str,
    filters: StandingsFilters,
    page: int = 1,
    *,
    size: int = PAGE_SIZE,
) -> StandingsPage:
    """Return the matching stacks of one hardware and family; an empty slug means any.

    A page past the end is empty, with the true total.
    """
    matching = _matching(session, hardware_slug, family_slug, filters)
    shown = matching.keys[(page - 1) * size : page * size]
    return StandingsPage(
        hardware=matching.hardware if hardware_slug else "",
        family=matching.family if family_slug else "",
        items=_documents(session, shown, filters.floor, matching.classes),
        total=len(matching.keys),
        page=page,
        page_size=size,
        summaries=matching.summaries,
        options=matching.options,
    )


def leaderboard_title(session: Session, hardware_slug: str, family_slug: str) -> str:
    """Return the title of a leaderboard; empty if no visible stack has this hardware and family."""
    names = select_any(StandingRow.family, StandingRow.hardware).where(*_of_leaderboard(hardware_slug, family_slug))
    return " on ".join(session.execute(names.limit(1)).first() or ())


def class_summaries(session: Session, filters: StandingsFilters) -> tuple[ClassSummary, ...]:
    """Return the summaries of all leaderboards: one for each hardware, family and class of runs."""
    return _matching(session, "", "", filters).summaries


@dataclass(frozen=True, slots=True)
class _Matching:
    """The keys of the matching stacks in page order with the classes of their boards, and values over all of them."""

    hardware: str
    family: str
    keys: tuple[Key, ...]
    classes: Mapping[Key, Collection[tuple[str | None, str | None]]]
    summaries: tuple[ClassSummary, ...]
    options: BoardFilterOptions


_matching_of: UntilRankedAgain[_Matching] = UntilRankedAgain(32)


def _matching(session: Session, hardware_slug: str, family_slug: str, filters: StandingsFilters) -> _Matching:
    """Return the matching stacks. The result is remembered, because reading thousands of boards takes half a second."""
    return _matching_of.get(
        session,
        (hardware_slug, family_slug, filters),
        lambda: _read_matching(session, hardware_slug, family_slug, filters),
        *_of_leaderboard(hardware_slug, family_slug),
    )


def _read_matching(session: Session, hardware_slug: str, family_slug: str, filters: StandingsFilters) -> _Matching:
    rows = _slim_rows(session, hardware_slug, family_slug, filters.floor)
    stacks: dict[Key, list[Row[Any]]] = {}
    for row in rows:
        stacks.setdefault((row.project_id, row.stack_key), []).append(row)
    matching_rows = {key: [row for row in group if _matches(row, filters)] for key, group in stacks.items()}
    keys = sorted(
        (key for key, group in matching_rows.items() if group),
        key=lambda key: not any(row.is_ranking for row in matching_rows[key]),
    )
    return _Matching(
        hardware=rows[0].hardware if rows else "",
        family=rows[0].family if rows else "",
        keys=tuple(keys),
        classes={key: {(row.routing_mode, row.semantic_class) for row in matching_rows[key]} for key in keys},
        summaries=tuple(
            summaries(_board_results(row) for key in keys for row in matching_rows[key] if row.results is not None)
        ),
        options=_options(rows),
    )


def _of_leaderboard(hardware_slug: str, family_slug: str) -> list[ColumnElement[bool]]:
    """Return the conditions for stacks of one hardware and family; an empty slug adds none."""
    slugs = ((col(StandingRow.hardware_slug), hardware_slug), (col(StandingRow.family_slug), family_slug))
    return [column == slug for column, slug in slugs if slug]


def stack_standings(session: Session, stack_key: str, floor: str = DEFAULT_FLOOR) -> StoredStandings | None:
    """Return one stack with its boards at `floor` (all boards if empty); None if it was never ranked."""
    owner = select_any(StandingRow.project_id).where(col(StandingRow.stack_key) == stack_key)
    project_id = session.execute(owner).scalars().first()
    documents = () if project_id is None else _documents(session, [(project_id, stack_key)], floor)
    return documents[0] if documents else None


@dataclass(frozen=True, slots=True)
class PooledTime:
    """The pooled step time of a configuration over `runs` launches. `rank`: its position in its stack, from 0."""

    step_time_ms: float
    runs: int
    rank: int


def pooled_times(session: Session, keys: Collection[Key]) -> dict[tuple[str, str], PooledTime]:
    """Return the results of the ranked configurations of stacks by stack key and configuration key."""
    chosen = select_any(StandingBoardRow.stack_key, StandingBoardRow.document).where(
        col(StandingBoardRow.project_id).in_({project_id for project_id, _ in keys}),
        col(StandingBoardRow.stack_key).in_({stack_key for _, stack_key in keys}),
        col(StandingBoardRow.floor) == DEFAULT_FLOOR,
    )
    times: dict[tuple[str, str], PooledTime] = {}
    for stack_key, document in session.execute(chosen):
        entries = from_json(Board, document).entries
        for rank, item in enumerate(configuration for entry in entries for configuration in entry.configurations):
            times.setdefault((stack_key, item.config_key), PooledTime(item.step_time_ms.value, item.runs, rank))
    return times


@dataclass(frozen=True, slots=True)
class RequestedDispatcher:
    """A dispatcher that runs in a container requested, and the newest of them. `available`: None, no log shows it."""

    container: str
    dispatcher: str
    run_id: int
    generated: bool
    available: None = None


_requested: UntilRankedAgain[tuple[RequestedDispatcher, ...]] = UntilRankedAgain(1)


def requested_dispatchers(session: Session) -> tuple[RequestedDispatcher, ...]:
    """Return the dispatchers of the runs of all stacks with a stated container, by container."""
    return _requested.get(session, (), lambda: _read_requested(session))


def _read_requested(session: Session) -> tuple[RequestedDispatcher, ...]:
    stacks = session.execute(
        select_any(
            StandingRow.container, StackRow.project_id, StackRow.stack_key, StackRow.dispatchers, ProjectRow.generated
        )
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .join(
            StackRow,
            and_(col(StackRow.project_id) == StandingRow.project_id, col(StackRow.stack_key) == StandingRow.stack_key),
        )
        .where(col(StandingRow.container) != "")
        .order_by(col(StackRow.last_at))
    )
    newest = {
        (container, dispatcher): (project_id, stack_key, generated)
        for container, project_id, stack_key, dispatchers, generated in stacks
        for dispatcher in dispatchers.split(",")
        if dispatcher not in ("", "?")
    }
    requested = []
    for (container, dispatcher), (project_id, stack_key, generated) in sorted(newest.items()):
        # One query per pair reads one run; a query for all pairs would read all runs of the stacks.
        run = session.execute(
            select_any(RunRow.id)
            .where(
                not_indexed(col(RunRow.project_id)) == project_id,
                col(RunRow.stack_key) == stack_key,
                not_indexed(col(RunRow.dispatcher)) == dispatcher,
            )
            .order_by(col(RunRow.ordered_at).desc())
            .limit(1)
        ).scalar_one_or_none()
        if run is not None:
            requested.append(RequestedDispatcher(container, dispatcher, run, generated))
    return tuple(requested)


_index_of: UntilRankedAgain[tuple[HardwareFamily, ...]] = UntilRankedAgain(32)


def hardware_and_families(session: Session, project: str = "") -> tuple[HardwareFamily, ...]:
    """Return the existing leaderboards by names of hardware and family."""
    return _index_of.get(session, (project,), lambda: _read_index(session, project))


def _read_index(session: Session, project: str) -> tuple[HardwareFamily, ...]:
    ranked = (
        select_any(StandingBoardRow.project_id, StandingBoardRow.stack_key)
        .where(col(StandingBoardRow.floor) == DEFAULT_FLOOR, col(StandingBoardRow.is_ranking))
        .distinct()
        .subquery()
    )
    same = and_(ranked.c.project_id == StandingRow.project_id, ranked.c.stack_key == StandingRow.stack_key)
    chosen = select_any(
        func.min(StandingRow.hardware), StandingRow.hardware_slug, func.min(StandingRow.family),
        StandingRow.family_slug, func.count(), func.count(ranked.c.stack_key), func.sum(StandingRow.runs),
        func.max(StandingRow.newest_at), func.max(case((col(ProjectRow.generated), 1), else_=0)),
    ).outerjoin(ranked, same).join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)  # fmt: skip
    if project:
        chosen = chosen.where(col(ProjectRow.slug) == project)
    rows = session.execute(chosen.group_by(col(StandingRow.hardware_slug), col(StandingRow.family_slug)))
    index = [
        HardwareFamily(hardware, hardware_slug, family, family_slug, stacks, rankings, runs, newest_at, bool(generated))
        for hardware, hardware_slug, family, family_slug, stacks, rankings, runs, newest_at, generated in rows
    ]
    return tuple(sorted(index, key=lambda entry: (entry.hardware, entry.family)))


RanIn = tuple[str, datetime]
"""A container, and the history position of the newest run in it."""
_newest_in: UntilRankedAgain[Mapping[tuple[str, str], RanIn]] = UntilRankedAgain(32)


def newest_containers(session: Session, project: str = "") -> Mapping[tuple[str, str], RanIn]:
    """Return the container of the newest run of each leaderboard, by the slugs of hardware and family."""
    return _newest_in.get(session, (project,), lambda: _read_newest_containers(session, project))


def _read_newest_containers(session: Session, project: str) -> Mapping[tuple[str, str], RanIn]:
    pair = (col(StandingRow.hardware_slug), col(StandingRow.family_slug))
    at = func.max(StandingRow.newest_at)
    chosen = select_any(*pair, StandingRow.container, at).join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
    if project:
        chosen = chosen.where(col(ProjectRow.slug) == project)
    rows = session.execute(chosen.group_by(*pair, col(StandingRow.container)).order_by(at))
    return {(hardware, family): (container, newest_at) for hardware, family, container, newest_at in rows}


def containers_of(session: Session, stack_keys: Collection[str]) -> Mapping[str, RanIn]:
    """Return the container and the newest history position of these stacks."""
    columns = (StandingRow.stack_key, StandingRow.container, StandingRow.newest_at)
    chosen = select_any(*columns).where(col(StandingRow.stack_key).in_(stack_keys))
    rows = session.execute(chosen) if stack_keys else ()
    return {row.stack_key: (row.container, row.newest_at) for row in rows}


def _slim_rows(session: Session, hardware_slug: str, family_slug: str, floor: str) -> Sequence[Row[Any]]:
    """Return one row per board at this evidence level, and one per stack without such a board; newest stacks first."""
    of_stack = and_(
        col(StandingBoardRow.project_id) == StandingRow.project_id,
        col(StandingBoardRow.stack_key) == StandingRow.stack_key,
        col(StandingBoardRow.floor) == floor,
    )
    chosen = (
        select_any(
            StandingRow.project_id, StandingRow.stack_key, StandingRow.hardware, StandingRow.family,
            StandingRow.precision, ProjectRow.slug, StandingBoardRow.floor, StandingBoardRow.routing_mode,
            StandingBoardRow.semantic_class, StandingBoardRow.is_ranking, StandingBoardRow.results,
        )
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .outerjoin(StandingBoardRow, of_stack)
        .where(
            *_of_leaderboard(hardware_slug, family_slug),
        )
        .order_by(
            col(StandingRow.newest_at).desc(), col(StandingRow.stack_key), col(StandingBoardRow.routing_mode),
            col(StandingBoardRow.semantic_class),
        )
    )  # fmt: skip
    return session.execute(chosen).all()


def _matches(row: Row[Any], filters: StandingsFilters) -> bool:
    asked = (
        (filters.project, (row.slug,)),
        (filters.precision, (row.precision,)),
        (filters.routing, (row.routing_mode, routing_class(row.routing_mode)) if row.floor else ()),
        (filters.semantic_class, (row.semantic_class,)),
        (filters.ep_size, tuple(result["ep_size"] for result in row.results or ())),
    )
    is_named = row.stack_key.startswith(filters.stack)
    return is_named and all(not wanted or wanted in values for wanted, values in asked)


def _board_results(row: Row[Any]) -> BoardResults:
    results = tuple(from_json(StackResult, result) for result in row.results)
    return BoardResults(
        row.stack_key, row.hardware, row.family, row.routing_mode, row.semantic_class, row.floor, row.is_ranking,
        results,
    )  # fmt: skip


def _options(rows: Sequence[Row[Any]]) -> BoardFilterOptions:
    boards = [row for row in rows if row.results is not None]
    return BoardFilterOptions(
        projects=_sorted(row.slug for row in rows),
        routing_modes=_sorted(row.routing_mode for row in boards),
        semantic_classes=_sorted(row.semantic_class for row in boards),
        precisions=_sorted(row.precision for row in rows),
        ep_sizes=_sorted(result["ep_size"] for row in boards for result in row.results),
    )


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _documents(
    session: Session,
    keys: Sequence[Key],
    floor: str = "",
    classes: Mapping[Key, Collection[tuple[str | None, str | None]]] | None = None,
) -> tuple[StoredStandings, ...]:
    """Return stacks in the order of `keys`, with their boards at `floor` and of `classes`; an empty value means any."""
    stack_keys = [stack_key for _, stack_key in keys]
    # The primary key begins with the project, so this condition lets the database use it.
    of_projects = col(StandingBoardRow.project_id).in_({project_id for project_id, _ in keys})
    chosen = select(StandingBoardRow).where(of_projects, col(StandingBoardRow.stack_key).in_(stack_keys))
    if floor:
        chosen = chosen.where(col(StandingBoardRow.floor) == floor)
    boards: dict[Key, list[Board]] = {}
    for row in session.execute(chosen).scalars():
        key = (row.project_id, row.stack_key)
        if classes is None or (row.routing_mode, row.semantic_class) in classes.get(key, ()):
            boards.setdefault(key, []).append(from_json(Board, row.document))
    stacks = (
        select_any(StandingRow, ProjectRow.slug, ProjectRow.generated)
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .where(col(StandingRow.stack_key).in_(stack_keys))
    )
    rows = {(row.project_id, row.stack_key): (row, slug, generated) for row, slug, generated in session.execute(stacks)}
    names = names_of_titles(session, (row.title for row, _, _ in rows.values()))
    return tuple(_stored(*rows[key], boards.get(key, ()), names[key[1]]) for key in keys if key in rows)


def _stored(row: StandingRow, project: str, generated: bool, boards: Iterable[Board], name: str) -> StoredStandings:
    standings = from_json(StackStandings, row.document | {"boards": []})
    return from_row(
        StoredStandings,
        row,
        project=project,
        generated=generated,
        name=name,
        about={name: frozen(value) for name, value in row.about.items()},
        standings=replace(standings, boards=tuple(sorted(boards, key=_order))),
    )


def _order(board: Board) -> tuple[str, str, int]:
    """Return the sort key of a board: by class, then from the weakest evidence level to the strongest."""
    return board.routing_mode, board.semantic_class, EVIDENCE_LEVELS.index(board.floor)


# --- Look-ups of hardware, family, project and stack by name.

_MOST_NAMED = 12
_KEY = re.compile(r"[0-9a-f]{1,64}")


def leaderboards_named(index: Sequence[HardwareFamily], hardware: str, family: str) -> tuple[HardwareFamily, ...]:
    """Return the rows of `index` with this hardware and family (slugs or shown names); empty means any.

    Raises NotFound with the existing names, because an empty answer would look like missing results.
    """
    of_hardware = [entry for entry in index if not hardware or entry.hardware_slug == slug(hardware)]
    if hardware and not of_hardware:
        raise NotFound(_not_ranked(f"hardware {hardware[:60]!r}", (entry.hardware_slug for entry in index)))
    matching = [entry for entry in of_hardware if not family or entry.family_slug == slug(family)]
    if family and not matching:
        on = f" on {of_hardware[0].hardware}" if hardware else ""
        raise NotFound(_not_ranked(f"model family {family[:60]!r}{on}", (entry.family_slug for entry in of_hardware)))
    return tuple(matching)


def check_project(session: Session, project: str) -> None:
    """Raise NotFound unless a project has this name or the name is empty."""
    named = select_any(ProjectRow.id).where(col(ProjectRow.slug) == project)
    if project and session.execute(named).first() is None:
        raise NotFound(f"Project {project[:60]!r} does not exist.")


def stacks_named(session: Session, first_digits: str) -> tuple[str, ...]:
    """Return the keys of ranked stacks that start with these digits; none for empty text. Raises NotFound."""
    if not first_digits:
        return ()
    begins = col(StandingRow.stack_key).startswith(first_digits, autoescape=True)
    keys = tuple(session.execute(select_any(StandingRow.stack_key).where(begins)).scalars())
    if not keys:
        raise NotFound(f"No stack with the key {first_digits[:64]!r} has been ranked.")
    return keys


def named_stack(session: Session, first_digits: str) -> str:
    """Return the one stack key that starts with these digits. Raises InvalidQuery if none or several do."""
    if not is_key(first_digits):
        raise InvalidQuery("Not a stack key.", (FieldError("stack", invalid_key(first_digits)),))
    keys = stacks_named(session, first_digits)
    if len(keys) > 1:
        wrong = f"matches {len(keys):,} stacks; give more digits"
        raise InvalidQuery("Give one stack.", (FieldError("stack", wrong),))
    return keys[0]


def is_key(text: str) -> bool:
    """Return whether a stack key can start with this text."""
    return _KEY.fullmatch(text) is not None


def invalid_key(text: str) -> str:
    return f"must be the first digits of a stack key, 0 to 9 and a to f, not {text[:40]!r}"


def _not_ranked(what: str, available: Iterable[str]) -> str:
    names = sorted(set(available))
    listed = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    return f"No stack of {what} has been ranked. " + (f"Available: {listed}." if names else "None has been ranked yet.")


# --- The history of leaders: which dispatcher led a leaderboard from when.

NEWEST = 50


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A change of the leader of one leaderboard.

    `at`: when the service noticed it. `name`: unique title of the stack; empty unless `named_changes` added it.
    `run_id`: the run that caused it, at history position `placed_at`; None if no run caused it or the run was deleted.
    `measured_until`: history position of the stack's newest run.
    """

    id: int
    project_id: int
    project: str
    stack_key: str
    name: str
    title: str
    hardware_slug: str
    family_slug: str
    floor: str
    at: datetime
    run_id: int | None
    run_name: str
    placed_at: datetime | None
    measured_until: datetime
    change: HeadChange

    @property
    def workload(self) -> str:
        """Return model and GPUs, with which titles begin."""
        return SEPARATOR.join(self.title.split(SEPARATOR)[:2])

    @property
    def happened_at(self) -> datetime:
        """Return when the change happened: the position of the stack's newest run then, else of the run that caused it,
        else when the service noticed it."""
        return self.change.after.at or self.placed_at or self.at


def leader_changes(
    session: Session,
    *,
    hardware_slug: str = "",
    family_slug: str = "",
    project: str = "",
    stack_keys: Sequence[str] = (),
    since: datetime | None = None,
    newest: int | None = NEWEST,
    is_named: bool = True,
) -> tuple[LeaderChange, ...]:
    """Return the changes of stacks that still have standings, newest first. `is_named`: whether to add stack names."""
    same = and_(
        col(StandingRow.project_id) == LeaderChangeRow.project_id,
        col(StandingRow.stack_key) == LeaderChangeRow.stack_key,
    )
    chosen = (
        select_any(
            LeaderChangeRow.id, LeaderChangeRow.project_id, LeaderChangeRow.stack_key, LeaderChangeRow.floor,
            LeaderChangeRow.at, LeaderChangeRow.before, LeaderChangeRow.after, LeaderChangeRow.run_id,
            StandingRow.title, StandingRow.hardware_slug, StandingRow.family_slug, StandingRow.newest_at,
            ProjectRow.slug, RunRow.name, RunRow.ordered_at,
        )
        .join(StandingRow, same)
        .join(ProjectRow, col(ProjectRow.id) == LeaderChangeRow.project_id)
        .outerjoin(RunRow, col(RunRow.id) == LeaderChangeRow.run_id)
        .order_by(col(LeaderChangeRow.at).desc(), col(LeaderChangeRow.id).desc())
        .limit(newest)
    )  # fmt: skip
    for value, column in (
        (hardware_slug, col(StandingRow.hardware_slug)),
        (family_slug, col(StandingRow.family_slug)),
    ):
        if value:
            chosen = chosen.where(column == value)
    if project:
        number = select_any(ProjectRow.id).where(col(ProjectRow.slug) == project)
        chosen = chosen.where(col(LeaderChangeRow.project_id) == number.scalar_subquery())
    if since is not None:
        chosen = chosen.where(col(LeaderChangeRow.at) >= since)
    if stack_keys:
        chosen = chosen.where(col(LeaderChangeRow.stack_key).in_(stack_keys))
    rows = session.execute(chosen).all()
    changes = _contested(session, [_change(row) for row in rows])
    return named_changes(session, changes) if is_named else tuple(changes)


def _contested(session: Session, changes: Sequence[LeaderChange]) -> list[LeaderChange]:
    """Return the changes, newest first, with a current leader called contested where its board is."""
    boards = [(change.project_id, change.stack_key, board_class(change.change.after)) for change in changes]
    current = dict(zip(boards[::-1], changes[::-1], strict=True))  # the newest of each board
    led = [change for change in current.values() if change.change.after.second]
    experiments = dispatcher_experiments(session, {change.stack_key for change in led})
    contested = {
        change.id
        for change in led
        if contradictions(
            experiments.get((change.project_id, change.stack_key), ()),
            change.change.after.dispatchers[0],
            change.change.after.second,
        )
    }
    return [
        replace(change, change=replace(change.change, after=replace(change.change.after, reading="contested")))
        if change.id in contested
        else change
        for change in changes
    ]


def named_changes(session: Session, changes: Sequence[LeaderChange]) -> tuple[LeaderChange, ...]:
    names = names_of_titles(session, (change.title for change in changes))
    return tuple(replace(change, name=names[change.stack_key]) for change in changes)


def last_heads(session: Session, project_id: int, stack_key: str) -> tuple[Head, ...]:
    """Return the newest head of each class of the stack."""
    rows = session.execute(
        select_any(LeaderChangeRow.after)
        .where(col(LeaderChangeRow.project_id) == project_id, col(LeaderChangeRow.stack_key) == stack_key)
        .order_by(col(LeaderChangeRow.id))
    ).scalars()
    heads = [from_json(Head, stored) for stored in rows]
    return tuple({(head.routing_mode, head.semantic_class): head for head in heads}.values())


def add_leader_changes(session: Session, project_id: int, stack_key: str, changes: Iterable[HeadChange]) -> None:
    listed = list(changes)
    named = [int(change.after.run) for change in listed if change.after.run]
    existing = session.execute(select_any(RunRow.id).where(col(RunRow.id).in_(named))).scalars() if named else ()
    run_ids = {str(run_id): run_id for run_id in existing}  # a run that no longer counts may be deleted
    session.add_all(
        LeaderChangeRow(
            project_id=project_id,
            stack_key=stack_key,
            floor=LEADER_FLOOR,
            routing_mode=change.after.routing_mode,
            semantic_class=change.after.semantic_class,
            before=to_json(change.before),
            after=to_json(change.after),
            run_id=run_ids.get(change.after.run),
        )
        for change in listed
    )


def _change(row: Row[Any]) -> LeaderChange:
    before = None if row.before is None else from_json(Head, row.before)
    return from_row(
        LeaderChange,
        row,
        project=row.slug,
        name="",
        run_name=row.name or "",
        placed_at=row.ordered_at,
        measured_until=row.newest_at,
        change=HeadChange(before, from_json(Head, row.after)),
    )

"""`/api/v1/leaderboards`: the standings of stacks, totals across stacks, gains, and leadership periods."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlmodel import Session

from app.domain.access.principal import Action
from app.domain.ranking.experiments import DispatcherExperiment, contradictions
from app.domain.ranking.rank import head_text
from app.domain.ranking.standings import Board, Entry, Gain, Interval
from app.domain.report.values import storable
from app.leaderboards.api_models import (
    ChangesQuery,
    LeaderboardOut,
    LeaderChangeOut,
    LeaderChangesOut,
    StandingsOut,
    page_values,
)
from app.leaderboards.queries import LeaderboardQuery, with_experiments
from app.storage.experiments import dispatcher_experiments
from app.storage.standings import (
    HardwareFamily,
    Key,
    LeaderChange,
    StandingsPage,
    StoredStandings,
    check_project,
    hardware_and_families,
    leader_changes,
    leaderboards_named,
    stacks_named,
    standings_of,
)
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, ReadSession, api_router
from app.web.errors import as_content, documented
from app.web.lists import CellKind, only_parameters, table_answer, table_format
from app.web.templating import public_address

# --- A board in the requested order: its entries and their positions.

_BY_MEMORY, _BY_TFLOPS = "memory_headroom", "tflops_per_gpu"


def ordered(items: Iterable[StoredStandings], rank: str) -> tuple[StoredStandings, ...]:
    """Return the boards in another order. Readings, sentences and gains stay, because they are about speed."""
    return tuple(
        replace(
            item,
            standings=replace(item.standings, boards=tuple(_board(board, rank) for board in item.standings.boards)),
        )
        for item in items
    )


def _board(board: Board, rank: str) -> Board:
    if rank == _BY_MEMORY:
        places = {place.name: place for place in board.by_memory}
        order = list(places) or [entry.dispatcher for entry in board.entries]
        entries = [replace(entry, place=places.get(entry.dispatcher)) for entry in board.entries]
        return replace(board, entries=tuple(sorted(entries, key=lambda entry: order.index(entry.dispatcher))))
    if rank == _BY_TFLOPS and board.flops_differ:
        return replace(board, entries=tuple(replace(entry, place=None) for entry in board.entries))
    return board


# --- Gains over alltoall as values: what the chart of a leaderboard draws.


class DispatcherGainOut(ApiValue):
    """A dispatcher's best configuration against that of `over` in one stack, in percent of throughput.

    The interval is the one that decided.
    """

    stack_key: str
    name: str
    title: str
    project: str
    routing_mode: str
    semantic_class: str
    evidence: str
    reading: str
    dispatcher: str
    over: str
    outcome: str = Field(description="`first`: it is clearly faster; `second`: it is clearly slower; else a tie.")
    gain_pct: float = Field(
        description="Extra throughput in percent; pages show the saved step time, 100 * gain_pct / (100 + gain_pct)."
    )
    gain_pct_low: float | None
    gain_pct_high: float | None
    memory_more_pct: float | None
    kind: str = Field(description="`matched_ab`: only the dispatcher differs.")
    differs_in: list[str]
    directional: bool
    tie_because: str = Field(
        description="The rule that makes this a tie although the interval excludes zero; else empty."
    )
    more_runs: int | None = Field(description="Further runs per side that would decide a tie; null when unknown.")
    sentence: str

    @classmethod
    def of(cls, stack: StoredStandings, board: Board, entry: Entry, gain: Gain) -> Self:
        comparison = gain.comparison
        return cls.from_values(
            gain, comparison, entry, board, stack, evidence=board.floor,
            gain_pct_low=comparison.low_pct, gain_pct_high=comparison.high_pct,
        )  # fmt: skip


class GainsOut(ApiValue):
    """Gains on one page of stacks; `total` counts the matching stacks."""

    items: list[DispatcherGainOut]
    total: int
    page: int
    page_size: int
    pages: int

    @classmethod
    def of(cls, page: StandingsPage, shown: Iterable[StoredStandings]) -> Self:
        gains = [DispatcherGainOut.of(*gain) for stack in shown for gain in _gains(stack)]
        return cls.from_values(page, items=gains)


def _gains(standings: StoredStandings) -> Iterable[tuple[StoredStandings, Board, Entry, Gain]]:
    for board in standings.standings.boards:
        for entry in board.entries:
            if entry.gain is not None:
                yield standings, board, entry, entry.gain


# --- The tables of a leaderboard: a row per result, per gain, per change of leaders.

Rows = list[tuple[Any, ...]]

_OF_BOARD: Mapping[str, CellKind] = {
    "stack_key": "text", "stack": "text", "project": "text", "seq_len": "int", "gbs": "int", "mbs": "int",
    "routing_mode": "text", "semantic_class": "text", "floor": "text", "reading": "text",
}  # fmt: skip
_MEASURED = ("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu")
STANDING_COLUMNS: Mapping[str, CellKind] = {
    **_OF_BOARD, "first_place": "int", "last_place": "int", "dispatcher": "text", "ties_with": "text",
    "contested_by": "text", "config_key": "text", "evidence_level": "text",
    "directional": "flag", "unproven": "flag", "inferred": "flag",
    "worse_loss_than": "text", "ep": "int", "n_runs": "int", "interval_from_prior": "flag", "last_measured_at": "time",
    **{f"{name}{part}": "float" for name in _MEASURED for part in ("", "_ci_low", "_ci_high")},
    "peak_memory_gib": "float", "memory_headroom_pct": "float", "runs": "text", "not_ranked_because": "text",
}  # fmt: skip
GAIN_COLUMNS: Mapping[str, CellKind] = {
    **_OF_BOARD, "dispatcher": "text", "over": "text", "outcome": "text", "gain_pct": "float",
    "gain_pct_ci_low": "float", "gain_pct_ci_high": "float", "memory_more_pct": "float", "kind": "text",
    "differs_in": "text", "directional": "flag", "more_runs": "int", "tie_because": "text",
}  # fmt: skip
CHANGE_COLUMNS: Mapping[str, CellKind] = {
    "at": "time", "noticed_at": "time", "project": "text", "stack_key": "text", "stack": "text",
    "routing_mode": "text", "semantic_class": "text", "floor": "text", "before": "text", "after": "text",
    "because": "text", "run_id": "int",
}  # fmt: skip


def standings_table(
    items: Sequence[StoredStandings], experiments: Mapping[Key, Sequence[DispatcherExperiment]]
) -> Rows:
    """Return a row per result. Unranked dispatchers, and those that could not run, have rows too."""
    return [row for stack, board in _boards(items) for row in _standing_rows(stack, board, experiments)]


def gains_table(items: Sequence[StoredStandings]) -> Rows:
    return [row for stack, board in _boards(items) for row in _gain_rows(stack, board)]


def changes_table(changes: Iterable[LeaderChange]) -> Rows:
    return [_change_row(change) for change in changes]


def _boards(items: Sequence[StoredStandings]) -> Iterable[tuple[StoredStandings, Board]]:
    return ((item, board) for item in items for board in item.standings.boards)


def _of_board(standings: StoredStandings, board: Board) -> tuple[Any, ...]:
    work = tuple(standings.about.get(name) for name in ("seq_len", "gbs", "mbs"))
    head = (standings.stack_key, standings.name, standings.project, *work)
    return (*head, board.routing_mode, board.semantic_class, board.floor, board.reading)


def _standing_rows(
    standings: StoredStandings, board: Board, experiments: Mapping[Key, Sequence[DispatcherExperiment]]
) -> Iterable[tuple[Any, ...]]:
    head, own = _of_board(standings, board), experiments.get(standings.key, ())
    for entry in board.entries:
        beaten = entry.place.beats if entry.place else ()
        otherwise = [item.text for other in beaten for item in contradictions(own, entry.dispatcher, other)]
        yield (*head, *_entry_cells(entry, otherwise))
    ranked = {entry.dispatcher for entry in board.entries}
    absent = [
        (result.dispatcher, result.runs, "not available in the container") for result in standings.standings.missing
    ]
    absent += [(result.dispatcher, (result.run,), result.why) for result in board.unranked_results]
    absent += [(result.dispatcher, result.runs, result.sentence) for result in board.outside]
    listed = {name for name, _, _ in absent}
    absent += [
        (result.dispatcher, (result.run,), result.sentence)
        for result in board.unranked
        if result.dispatcher not in listed
    ]
    for name, runs, why in absent:
        if name not in ranked:
            unmeasured = (None,) * (len(STANDING_COLUMNS) - len(head) - 5)
            yield (*head, None, None, name, *unmeasured, " ".join(runs), why)


def _entry_cells(entry: Entry, contested_by: Sequence[str]) -> tuple[Any, ...]:
    place = entry.place
    return (
        place and place.first, place and place.last, entry.dispatcher, " ".join(place.ties) if place else None,
        "; ".join(contested_by) or None, entry.config_key, entry.level,
        entry.directional, entry.unproven, entry.inferred,
        " ".join(entry.worse_loss_than) or None, entry.ep, len(entry.runs), entry.from_prior,
        entry.last_at,
        *(cell for name in _MEASURED for cell in interval_cells(getattr(entry, name))),
        entry.peak_memory_gib, entry.memory_headroom_pct, " ".join(entry.runs), None,
    )  # fmt: skip


def _gain_rows(standings: StoredStandings, board: Board) -> Iterable[tuple[Any, ...]]:
    for entry in board.entries:
        if (gain := entry.gain) is not None:
            pair = gain.comparison
            yield (
                *_of_board(standings, board), entry.dispatcher, gain.over, pair.outcome, pair.gain_pct, pair.low_pct,
                pair.high_pct, gain.memory_more_pct, gain.kind, " ".join(gain.differs_in), pair.directional,
                pair.more_runs, pair.tie_because or None,
            )  # fmt: skip


def _change_row(change: LeaderChange) -> tuple[Any, ...]:
    before, head = change.change.before, change.change.after
    return (
        change.happened_at, change.at, change.project, change.stack_key, change.name,
        head.routing_mode, head.semantic_class, change.floor, head_text(before) if before else None,
        head_text(head), head.because or None, change.run_id,
    )  # fmt: skip


def interval_cells(figure: Interval | None) -> tuple[float | None, float | None, float | None]:
    """Return the figure with the ends of its interval, the cells of a table; empty ones if it is unknown."""
    return (None, None, None) if figure is None else (figure.value, figure.low, figure.high)


router = api_router("leaderboards")

_FILTERS = [only_parameters(*LeaderboardQuery.names(), "page", "page_size", "format")]
_ANSWERS = documented(404, 406, 422, ok=as_content("text/csv"))


@router.get("/leaderboards", response_model=StandingsOut, dependencies=_FILTERS, responses=_ANSWERS)
@requires(Action.READ)
def list_standings(request: Request, session: ReadSession, query: Annotated[LeaderboardQuery, Query()]) -> Response:
    """List stacks with their rankings, and counts over all that match.

    CSV and Parquet (`format`) have one row per result of the page.
    """
    chosen = table_format(request, strict=True)
    page, index = _standings_page(session, query)
    experiments = dispatcher_experiments(session, [item.stack_key for item in page.items])
    items = ordered(with_experiments(page.items, experiments), query.rank)
    if chosen != "json":
        table = standings_table(items, experiments)
        return _with_links(request, page, table_answer(chosen, STANDING_COLUMNS, [table], "standings"))
    base = public_address(request)
    values = page_values(page, items, query, [LeaderboardOut.of(leaderboard, base) for leaderboard in index])
    return JSONResponse(storable(values), headers={"Vary": "Accept"})


@router.get("/leaderboards/gains", response_model=GainsOut, dependencies=_FILTERS, responses=_ANSWERS)
@requires(Action.READ)
def list_gains(request: Request, session: ReadSession, query: Annotated[LeaderboardQuery, Query()]) -> Response:
    """List gains over alltoall of the same stacks, as the chart draws them: by stack, each in its own order."""
    chosen = table_format(request, strict=True)
    page, _ = _standings_page(session, query)
    experiments = dispatcher_experiments(session, [item.stack_key for item in page.items])
    items = ordered(with_experiments(page.items, experiments), query.rank)
    if chosen != "json":
        return _with_links(request, page, table_answer(chosen, GAIN_COLUMNS, [gains_table(items)], "gains"))
    return JSONResponse(GainsOut.of(page, items).model_dump(mode="json"), headers={"Vary": "Accept"})


@router.get(
    "/leaderboards/changes",
    response_model=LeaderChangesOut,
    dependencies=[only_parameters(*ChangesQuery.model_fields, "format")],
    responses=_ANSWERS,
)
@requires(Action.READ)
def list_leader_changes(
    request: Request, session: ReadSession, query: Annotated[ChangesQuery, Query()]
) -> Response | LeaderChangesOut:
    """List changes of the leaders of rankings, newest first. As a table, too (`format`)."""
    chosen = table_format(request, strict=True)
    index = _index(session, query)
    changes = leader_changes(
        session,
        hardware_slug=index[0].hardware_slug if query.hardware else "",
        family_slug=index[0].family_slug if query.family else "",
        project=query.project,
        stack_keys=stacks_named(session, query.stack),
        newest=query.newest,
    )
    if chosen != "json":
        return table_answer(chosen, CHANGE_COLUMNS, [changes_table(changes)], "leaders")
    return LeaderChangesOut(items=[LeaderChangeOut.of(change) for change in changes])


def _standings_page(session: Session, query: LeaderboardQuery) -> tuple[StandingsPage, Sequence[HardwareFamily]]:
    index = _index(session, query)
    stacks_named(session, query.stack)
    hardware = index[0].hardware_slug if query.hardware else ""
    family = index[0].family_slug if query.family else ""
    page = standings_of(session, hardware, family, query.filters, query.page, size=query.page_size)
    query.check(page.options)
    return page, index


def _index(session: Session, query: LeaderboardQuery | ChangesQuery) -> Sequence[HardwareFamily]:
    """Return at least one leaderboard when hardware or family are given; NotFound lists the existing ones."""
    check_project(session, query.project)
    return leaderboards_named(hardware_and_families(session, query.project), query.hardware, query.family)


def _with_links(request: Request, page: StandingsPage, answer: Response) -> Response:
    """Add the addresses of the other pages in the Link header (RFC 8288)."""
    numbers = {"first": 1, "prev": page.page - 1, "next": page.page + 1, "last": page.pages}
    links = [
        f'<{_address(request, number)}>; rel="{rel}"' for rel, number in numbers.items() if 1 <= number <= page.pages
    ]
    answer.headers.update({"Link": ", ".join(links), "X-Total-Count": str(page.total)})
    return answer


def _address(request: Request, page: int) -> str:
    params = dict(request.query_params) | {"page": str(page)}
    return f"{public_address(request)}{request.url.path}?{urlencode(params)}"

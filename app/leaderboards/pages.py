"""`/leaderboards` and `/leaderboards/{hardware}/{family}`: pages, their charts, their tables as CSV."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, HTTPException, Request
from sqlmodel import Session, col
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.experiments.journey import continuation
from app.domain.naming import SEPARATOR, common_parts
from app.domain.numbers import TimeUnit, change_text
from app.domain.ranking.experiments import DispatcherExperiment
from app.domain.ranking.rank import head_text
from app.domain.ranking.runs import hardware_of, slug
from app.domain.ranking.standings import Board, would_decide
from app.errors import NotFound
from app.leaderboards import charts, words
from app.leaderboards.api import (
    CHANGE_COLUMNS,
    GAIN_COLUMNS,
    STANDING_COLUMNS,
    changes_table,
    gains_table,
    standings_table,
)
from app.leaderboards.charts import (
    AXIS,
    GainRow,
    LeadershipPeriod,
    chart_height,
    class_text,
    gain_chart,
    gain_rows,
    leader_chart,
    leadership_periods,
)
from app.leaderboards.index_page import IndexFilters, leaderboard_index, missing_board
from app.leaderboards.matrix_pages import MatrixPage, StackMatrix, ep_note, stacks_of
from app.leaderboards.picture import (
    BoardPicture,
    RunsPicture,
    TimedDispatcherRun,
    board_picture,
    runs_picture,
)
from app.leaderboards.queries import RANKINGS, BoardQuery, with_experiments
from app.leaderboards.views import (
    MOST_COMPARED,
    ClassView,
    LoneLine,
    NextRanking,
    StackCard,
    against_best,
    class_view,
    has_rivals,
    knobs_apart,
    knobs_between,
    lone_lines,
    next_ranking,
    page_answer,
    quarantines_of,
    stack_card,
)
from app.leaderboards.words import board_unit, meanings_of
from app.storage.experiments import dispatcher_experiments
from app.storage.journeys import journey_of
from app.storage.projects import ProjectName, project_named
from app.storage.references import references
from app.storage.runs import Quarantine
from app.storage.standings import (
    LeaderChange,
    StandingsPage,
    StoredStandings,
    leader_changes,
    leaderboard_title,
    stacks_named,
    standings_of,
)
from app.storage.suspect_evidence import find_availability
from app.storage.tables import RunRow, select_any
from app.web.access_rule import requires
from app.web.charts import AvailabilityTable, availability_table
from app.web.dependencies import BoardSlug, ReadSession
from app.web.identity import access_of
from app.web.lists import table_answer
from app.web.pictures import DotRow, Kind, Picture, Theme, dispatcher_colour, picture_response, rows_body
from app.web.templating import render

# --- The data of the leaderboard of one hardware and family. A part is computed when a template first needs it.

MOST_CHANGES = 50
MOST_DOTS = 200
FEWEST_RANKINGS = 3
"""Rankings from which the table of wins is shown."""


class LeaderboardPage:
    """The data of the page, each part read on first use and cached for the request.

    Raises NotFound for a leaderboard that never existed, and InvalidQuery for a filter that no stack of it can match.
    """

    def __init__(self, session: Session, hardware: str, family: str, filters: BoardQuery) -> None:
        self._session = session
        self._named = {"hardware": hardware, "family": family}
        self.filters = filters
        self.address = f"/leaderboards/{hardware}/{family}"
        stored = standings_of(session, hardware, family, filters.filters, filters.page, size=filters.page_size)
        ranked = [item.stack_key for item in stored.items if has_rivals(item)]
        self.experiments_of_stacks = dispatcher_experiments(session, ranked)
        self.standings: StandingsPage = replace(
            stored, items=with_experiments(stored.items, self.experiments_of_stacks)
        )
        if not self.standings.hardware:
            raise NotFound("No stack of this hardware and model family has been ranked.")
        filters.check(self.standings.options)
        stacks_named(session, filters.stack)

    @property
    def title(self) -> str:
        return f"{self.standings.family} on {self.standings.hardware}"

    @property
    def answer(self) -> str:
        if self.standings.total == 1 and self.standings.items:
            boards = self.standings.items[0].standings.boards
            return (
                " ".join(dict.fromkeys(board.sentence for board in boards)) or "No result of this stack is ranked here."
            )
        return page_answer(self.standings.summaries, self.standings.total, self.filters.evidence)

    @property
    def lead(self) -> str:
        """Return the figure of the only ranking, why there is none, or the answer."""
        if self.picture:
            return f"{self.picture.lead} No ranking in {self.newer_container} yet." if self.newer else self.picture.lead
        return self.next_ranking.sentence if self.next_ranking and self.standings.total > 1 else self.answer

    @cached_property
    def classes(self) -> tuple[ClassView, ...]:
        return tuple(class_view(summary) for summary in self.standings.summaries)

    @cached_property
    def cards(self) -> tuple[StackCard, ...]:
        """Return the stacks with something to rank, and a stack that was requested alone."""
        wanted = [stack for stack in self.standings.items if self.standings.total == 1 or has_rivals(stack)]
        knobs = knobs_apart(self._session, wanted)
        return tuple(stack_card(stack, self.filters.rank, knobs) for stack in wanted)

    @cached_property
    def quarantines(self) -> Mapping[str, Quarantine]:
        return quarantines_of(self._session, [card.stack for card in self.cards])

    @cached_property
    def alone(self) -> tuple[LoneLine, ...]:
        """Return stacks without a comparison: a line for each class of their runs."""
        if self.standings.total == 1:
            return ()
        return lone_lines(self._lone, knobs_apart(self._session, self._lone))

    @property
    def alone_unit(self) -> TimeUnit:
        """Return the unit of their step times, which share one column."""
        figures = (line.figures.get("step_time_ms") for line in self.alone)
        return board_unit(line.value for line in figures if line is not None)

    @property
    def lone_stacks(self) -> int:
        """Return the matching stacks without a ranking, those of other pages, too: rankings come first."""
        before = (self.standings.page - 1) * self.standings.page_size
        return self.standings.total - before - (len(self.standings.items) - len(self._lone))

    @property
    def next_ranking(self) -> NextRanking | None:
        """Return how a board without any ranking gets one; None if any page has a ranking."""
        has_ranking = self.cards or any(summary.rankings for summary in self.standings.summaries)
        return None if has_ranking and self.standings.total > 1 else next_ranking(self.standings.items)

    @cached_property
    def ep_note(self) -> str:
        """Return the EP degrees of the compared results where they differ; else empty."""
        return ep_note(self.ranked[1]) if self.ranked else ""

    @property
    def leader_changed(self) -> bool:
        """Return whether a board changed its leader after its first one, at another time."""
        return len({(period.row, period.begins) for period in self.periods}) > self.boards_led

    @property
    def alone_share(self) -> str:
        """Return the part that all their names share, which their lines do not repeat."""
        return SEPARATOR.join(common_parts([line.name for line in self._lone]))

    @property
    def _lone(self) -> list[StoredStandings]:
        return [item for item in self.standings.items if not has_rivals(item)]

    @cached_property
    def meanings(self) -> dict[str, str]:
        """Return the meanings of the badges on the page."""
        return meanings_of([board for item in self.standings.items for board in item.standings.boards])

    @cached_property
    def ranked(self) -> tuple[StoredStandings, Board] | None:
        """Return the only ranking with its stack; None without one, and for several, which the gains show."""
        ranked = [(item, board) for item in self.standings.items for board in item.standings.boards if board.is_ranking]
        return ranked[0] if len(ranked) == 1 else None

    @cached_property
    def picture(self) -> BoardPicture | None:
        if self.ranked is None:
            return None
        stack, board = self.ranked
        columns = self.degrees.matrix.columns if self.degrees else {}
        contenders = [
            item
            for entry in board.entries
            for item in columns.get(entry.ep or 0, ())
            if item.name == entry.dispatcher and item.runs == entry.runs
        ]
        points = [
            point for point in references(self._session, stack.project) if point.point.family.name == stack.family
        ]
        runs = self.degrees.stack.runs if self.degrees else ()
        dates = {
            name: datetime.fromtimestamp(at, UTC) for item in runs for name, at in zip(item.runs, item.at, strict=True)
        }
        twins = {entry.dispatcher: {entry.config_key} for entry in board.entries}
        for item in contenders:
            if item.equal:
                twins[item.equal.name].add(item.equal.config_key)
        apart = knobs_between(self._session, [keys for keys in twins.values() if len(keys) > 1])
        knobs = {key: str(value) for key, value in apart.items()}
        return board_picture(stack, board, points, contenders, knobs=knobs, dates=dates, experiments=self.experiments)

    @cached_property
    def runs_picture(self) -> RunsPicture | None:
        """Return the newest runs of a board that ranks nothing yet."""
        if not self.standings.items or self.next_ranking is None:
            return None
        keys = [item.stack_key for item in self.standings.items]
        chosen = (
            select_any(RunRow.id, RunRow.stack_key, RunRow.dispatcher, RunRow.step_time_ms)
            .where(col(RunRow.stack_key).in_(keys), col(RunRow.step_time_ms).is_not(None), col(RunRow.quarantine) == "")
            .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
            .limit(MOST_DOTS)
        )
        runs = [
            TimedDispatcherRun(row.id, row.stack_key, row.dispatcher or "", row.step_time_ms)
            for row in self._session.execute(chosen)
        ]
        return runs_picture(self.standings.items, runs, self.next_ranking.dispatcher)

    @cached_property
    def newer(self) -> StoredStandings | None:
        """Return the newest stack in another container than the only ranking, if it ran later and ranks nothing."""
        if self.ranked is None:
            return None
        ranked = self.ranked[0]
        newest = max(self.standings.items, key=lambda item: item.newest_at)
        is_newer = newest.newest_at > ranked.newest_at and newest.container not in ("", ranked.container)
        return newest if is_newer else None

    @property
    def newer_container(self) -> str:
        """Return the container of `newer` without its registry; empty without one."""
        return self.newer.container.rpartition("/")[2] if self.newer else ""

    @property
    def newer_ranking(self) -> NextRanking | None:
        return next_ranking([self.newer]) if self.newer else None

    @cached_property
    def matrices(self) -> MatrixPage:
        """Return the same stacks by EP degree, with all plans: the template checks whether the user may plan."""
        stacks = stacks_of(self._session, **self._named, project=self.filters.project)
        return MatrixPage([replace(stack, may_plan=True) for stack in stacks])

    @cached_property
    def degrees(self) -> StackMatrix | None:
        """Return the EP degrees of the only ranking; None if its runs do not state them."""
        if self.ranked is None:
            return None
        stack, board = self.ranked
        wanted = (stack.stack_key, board.routing_mode, board.semantic_class)
        matrices = (*self.matrices.matrices, *self.matrices.singles)
        keys = ((item.stack.key, item.matrix.routing_mode, item.matrix.semantic_class) for item in matrices)
        return next((item for item, key in zip(matrices, keys, strict=True) if key == wanted), None)

    @property
    def tells_wins(self) -> bool:
        """Return whether there are enough rankings to count who won."""
        return sum(summary.rankings for summary in self.standings.summaries) >= FEWEST_RANKINGS

    @property
    def query(self) -> str:
        """Return the query string of this page."""
        return self.filters.query(self.standings.page)

    @cached_property
    def project(self) -> ProjectName | None:
        """Return the only project of the page; None for several."""
        return project_named(self._session, self.filters.project)

    @property
    def asked(self) -> str:
        """Return the query with its question mark; empty without filters."""
        return f"?{self.query}" if self.query else ""

    @property
    def api_query(self) -> str:
        """Return the query for the same standings in the API, which has filters of the same names."""
        shown = {"page": self.standings.page, "page_size": self.standings.page_size}
        return urlencode({**self._named, **self.filters.active, **shown})

    @property
    def changes_query(self) -> str:
        """Return the query for the history of leaders in the API: of one stack where the page shows one."""
        items = self.standings.items
        narrowed = {"project": self.filters.project, "stack": items[0].stack_key if len(items) == 1 else ""}
        return urlencode(self._named | {name: value for name, value in narrowed.items() if value})

    @cached_property
    def gains(self) -> tuple[GainRow, ...]:
        return gain_rows(self.standings.items, self.address + self.asked)

    @property
    def gain_height(self) -> int:
        return chart_height(len(self.gains)) + AXIS

    @property
    def gain_chart(self) -> dict[str, Any]:
        return gain_chart(self.gains)

    @cached_property
    def changes(self) -> tuple[LeaderChange, ...]:
        """Return changes of leaders, newest first; with filters only of the stacks on this page."""
        keys = [item.stack_key for item in self.standings.items] if self.filters.active else []
        if self.filters.active and not keys:
            return ()
        return leader_changes(
            self._session,
            hardware_slug=self._named["hardware"],
            family_slug=self._named["family"],
            stack_keys=keys,
            newest=MOST_CHANGES,
        )

    @cached_property
    def periods(self) -> tuple[LeadershipPeriod, ...]:
        return leadership_periods(self.changes, [item.name for item in self.standings.items])

    @property
    def leaders(self) -> list[str]:
        """Return the leaders that have a colour in the chart."""
        return sorted({period.leader for period in self.periods if period.leader})

    @property
    def boards_led(self) -> int:
        return len({period.row for period in self.periods})

    @property
    def leader_height(self) -> int:
        return chart_height(self.boards_led) + AXIS

    @property
    def leader_chart(self) -> dict[str, Any]:
        return leader_chart(self.periods, self.boards_led)

    @cached_property
    def availability(self) -> AvailabilityTable:
        """Return the availability table for the containers of the stacks on this page, from runs on this hardware."""
        containers = {item.container for item in self.standings.items if item.container}
        items = find_availability(self._session, containers)
        chosen = select_any(RunRow.id, RunRow.gpu).where(col(RunRow.id).in_([item.run_id for item in items]))
        local = {run for run, gpu in self._session.execute(chosen) if hardware_of(gpu).slug == self._named["hardware"]}
        here = [item for item in items if item.run_id in local]
        seen = {(item.container, item.dispatcher) for item in here}
        ranked = {
            (stack.container, entry.dispatcher): entry
            for stack in self.standings.items
            for board in stack.standings.boards
            for entry in board.entries
        }
        ran = [
            replace(item, available=True, run_id=int(entry.runs[-1]), evidence=(), seen_at=entry.last_at)
            for item in items
            if (item.container, item.dispatcher) not in seen
            and (entry := ranked.get((item.container or "", item.dispatcher)))
            and entry.last_at
        ]
        return availability_table([*here, *ran])

    @cached_property
    def unfinished(self) -> tuple[tuple[int, str], ...]:
        """Return the experiments to finish before the leader is changed again, each with the word of its state."""
        if self.picture is None:
            return ()
        leader = int(self.picture.leader)
        return continuation(journey_of(self._session, leader), leader).unfinished

    def pooled(self, item: DispatcherExperiment) -> int:
        """Return how many runs the ranks of both dispatchers rest on; 0 where the A/B has all of them."""
        entries = self.ranked[1].entries if self.ranked else ()
        ranked = {run for entry in entries if entry.dispatcher in item.dispatchers for run in entry.runs}
        own = {str(run) for runs in item.runs.values() for run in runs}
        return len(ranked) if own < ranked else 0

    @property
    def experiments(self) -> list[DispatcherExperiment]:
        """Return the A/Bs between the dispatchers of the only ranking."""
        if self.ranked is None:
            return []
        stack, board = self.ranked
        ranked = {entry.dispatcher for entry in board.entries}
        return [item for item in self.experiments_of_stacks.get(stack.key, ()) if ranked.issuperset(item.dispatchers)]


# --- Routes.

router = APIRouter(include_in_schema=False)


def redirect_names(request: Request, hardware: BoardSlug, family: BoardSlug) -> None:
    """Redirect displayed names, `H100/Qwen3-30B-A3B`, to the address with their slugs."""
    if (slug(hardware), slug(family)) != (hardware, family):
        parts = ("leaderboards", slug(hardware), slug(family), *request.scope["path"].split("/")[4:])
        query = f"?{request.url.query}" if request.url.query else ""
        moved = "".join(f"/{quote(part)}" for part in parts) + query
        raise HTTPException(308, "Moved to its canonical URL.", {"Location": moved})


Canonical = Depends(redirect_names)


def get_page(
    request: Request, session: ReadSession, hardware: BoardSlug, family: BoardSlug, _: None = Canonical
) -> LeaderboardPage:
    return LeaderboardPage(session, hardware, family, BoardQuery.from_params(request.query_params))


Page = Annotated[LeaderboardPage, Depends(get_page)]


@router.get("/leaderboards")
@requires(Action.READ)
def list_leaderboards(request: Request, session: ReadSession) -> HTMLResponse:
    index = leaderboard_index(session, IndexFilters.from_params(request.query_params))
    return render(request, "leaderboards/index.html", index=index, would_decide=would_decide)


@router.get("/leaderboards/{hardware}/{family}")
@requires(Action.READ)
def show_leaderboard(
    request: Request, session: ReadSession, hardware: BoardSlug, family: BoardSlug, _: None = Canonical
) -> HTMLResponse:
    """Show the board, or published figures for a model and a GPU without runs."""
    if not leaderboard_title(session, hardware, family):
        return render(request, "leaderboards/missing.html", p=missing_board(session, hardware, family))
    return _render(request, get_page(request, session, hardware, family), "board")


@router.get("/leaderboards/{hardware}/{family}/gains")
@requires(Action.READ)
def show_gains(request: Request, page: Page) -> HTMLResponse:
    """Return the chart alone: it loads after the figures, so that drawing does not delay them."""
    return _render(request, page, "gain_chart")


@router.get("/leaderboards/{hardware}/{family}/leaders")
@requires(Action.READ)
def show_leaders(request: Request, page: Page) -> HTMLResponse:
    return _render(request, page, "leader_chart")


@router.get("/leaderboards/{hardware}/{family}/picture.{kind}")
@requires(Action.READ)
def draw_board(request: Request, page: Page, kind: Kind, theme: Theme = "light") -> Response:
    """Return the gain of each dispatcher over alltoall in each stack as a slide."""
    several = len({gain.name for gain in page.gains}) > 1
    rows = [
        DotRow(
            gain.dispatcher, gain.change_pct, gain.low_pct, gain.high_pct,
            f"{'=' if gain.tie else ''} {change_text(gain.change_pct).figure}{' short' if gain.directional else ''}",
            dispatcher_colour(gain.dispatcher), gain.short_name if several else "",
        )
        for gain in page.gains
    ]  # fmt: skip
    if rows:
        rows.append(DotRow("alltoall", 0.0, None, None, "reference", "alltoall"))
    body = rows_body(rows, "change of step time against alltoall, %, with the interval that decided; = is a tie")
    generated = any(stack.generated for stack in page.standings.items)
    picture = Picture(
        f"Which dispatcher is fastest? {page.title}", page.answer, f"{page.address}{page.asked}", generated, body
    )
    return picture_response(request, picture, kind, theme)


@router.get("/leaderboards/{hardware}/{family}/standings.csv")
@requires(Action.READ)
def export_standings(page: Page) -> Response:
    return table_answer(
        "csv", STANDING_COLUMNS, [standings_table(page.standings.items, page.experiments_of_stacks)], "standings"
    )


@router.get("/leaderboards/{hardware}/{family}/gains.csv")
@requires(Action.READ)
def export_gains(page: Page) -> Response:
    return table_answer("csv", GAIN_COLUMNS, [gains_table(page.standings.items)], "gains")


@router.get("/leaderboards/{hardware}/{family}/leaders.csv")
@requires(Action.READ)
def export_leaders(page: Page) -> Response:
    return table_answer("csv", CHANGE_COLUMNS, [changes_table(page.changes)], "leaders")


def _render(request: Request, page: LeaderboardPage, block: str) -> HTMLResponse:
    is_page = block == "board"
    return render(
        request,
        "leaderboards/board.html",
        block=block,
        address=page.address + page.asked if is_page else None,
        p=page,
        may_plan=all(access_of(request).may(Action.CONTRIBUTE, item.project_id) for item in page.standings.items),
        f=page.filters,
        rankings=RANKINGS,
        words=words,
        gain_of=charts.gain_text,
        memory_of=charts.memory_text,
        against_best=against_best,
        class_text=class_text,
        told_head=head_text,
        would_decide=would_decide,
        most_compared=MOST_COMPARED,
        gain_level=words.GAIN_LEVEL,
    )

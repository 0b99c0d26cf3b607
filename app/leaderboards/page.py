"""All that the leaderboard of one hardware and family shows. Parts are computed when a template asks for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from sqlmodel import Session

from app.domain.numbers import TimeUnit, time_unit_of
from app.domain.stack_names import SEPARATOR, common_parts
from app.errors import NotFound
from app.leaderboards.charts import AXIS, chart_height, gain_chart, leader_chart
from app.leaderboards.filters import BoardFilters
from app.leaderboards.gains import GainRow, gain_rows
from app.leaderboards.knobs import knobs_apart
from app.leaderboards.leaders import Reign, reigns_of
from app.leaderboards.lone import LoneLine, has_rivals, lone_lines
from app.leaderboards.quarantined import quarantines_of
from app.leaderboards.summary_view import ClassView, class_view, page_answer
from app.leaderboards.view import StackCard, stack_card
from app.leaderboards.words import meanings_of
from app.storage.availability import find_availability
from app.storage.leader_changes import LeaderChange, leader_changes
from app.storage.leaderboard_names import stacks_named
from app.storage.run_records import Quarantine
from app.storage.standings import KeptStandings, StandingsPage, standings_of
from app.web.availability_table import AvailabilityTable, availability_table

STACKS_OF_A_PAGE = 10
"""Rankings are tall, and come first; what is no ranking has a line."""
MOST_CHANGES = 50


@dataclass(frozen=True, slots=True)
class Pager:
    """What links to other pages are made of; `first` to `last` of `total`, from 1."""

    items: tuple[object, ...]
    page: int
    pages: int
    first: int
    last: int
    total: int


class LeaderboardPage:
    """Reads what it is asked for; keeps it for the length of one request.

    Raises NotFound where there never was one, and InvalidQuery on a filter that no stack of it can match.
    """

    def __init__(self, session: Session, hardware: str, family: str, filters: BoardFilters, page: int = 1) -> None:
        self._session = session
        self._named = {"hardware": hardware, "family": family}
        self.filters = filters
        self.address = f"/leaderboards/{hardware}/{family}"
        self.found: StandingsPage = standings_of(session, hardware, family, filters.kept, page, size=STACKS_OF_A_PAGE)
        if not self.found.hardware:
            raise NotFound("No stack of this hardware and model family has been ranked. The list is at /leaderboards.")
        filters.check(self.found.options)
        stacks_named(session, filters.stack)

    @property
    def title(self) -> str:
        return f"{self.found.family} on {self.found.hardware}"

    @property
    def answer(self) -> str:
        if self.found.total == 1 and self.found.items:
            boards = self.found.items[0].standings.boards
            return " ".join(dict.fromkeys(board.sentence for board in boards)) or "No result of this stack counts here."
        return page_answer(self.found.summaries, self.found.total, self.filters.evidence)

    @cached_property
    def classes(self) -> tuple[ClassView, ...]:
        return tuple(class_view(one) for one in self.found.summaries)

    @cached_property
    def cards(self) -> tuple[StackCard, ...]:
        """Stacks with something to rank, and a stack that was asked for alone."""
        wanted = [one for one in self.found.items if self.found.total == 1 or has_rivals(one)]
        knobs = knobs_apart(self._session, wanted)
        return tuple(stack_card(one, self.filters.rank, knobs) for one in wanted)

    @cached_property
    def quarantines(self) -> Mapping[str, Quarantine]:
        return quarantines_of(self._session, [one.kept for one in self.cards])

    @cached_property
    def alone(self) -> tuple[LoneLine, ...]:
        """Stacks in which nothing is compared: a line for each class of their runs."""
        if self.found.total == 1:
            return ()
        return lone_lines(self._lone, knobs_apart(self._session, self._lone))

    @property
    def alone_unit(self) -> TimeUnit:
        """Of their step times, which stand in one column."""
        found = (one.figures.get("step_time_ms") for one in self.alone)
        return time_unit_of(one.value for one in found if one is not None)

    @property
    def lone_stacks(self) -> int:
        return len(self._lone)

    @property
    def alone_share(self) -> str:
        """What the names of all of them have in common, and their lines do not repeat."""
        return SEPARATOR.join(common_parts([one.name for one in self._lone]))

    @property
    def _lone(self) -> list[KeptStandings]:
        return [one for one in self.found.items if not has_rivals(one)]

    @cached_property
    def meanings(self) -> dict[str, str]:
        """Of the badges that the page shows."""
        return meanings_of([board for one in self.found.items for board in one.standings.boards])

    @property
    def pager(self) -> Pager:
        found = self.found
        first = (found.page - 1) * found.size + 1 if found.items else 0
        return Pager(found.items, found.page, found.pages, first, first + len(found.items) - 1, found.total)

    @property
    def query(self) -> str:
        """Of this very page."""
        return self.filters.query(self.found.page)

    @property
    def asked(self) -> str:
        """The query with its question mark; empty where nothing is asked for."""
        return f"?{self.query}" if self.query else ""

    @property
    def api_query(self) -> str:
        """The same standings from the API, which knows the filters by the same names."""
        shown = {"page": self.found.page, "page_size": STACKS_OF_A_PAGE}
        return urlencode({**self._named, **self.filters.active, **shown})

    @property
    def changes_query(self) -> str:
        """The history of leaders from the API: of one stack where the page shows one."""
        items = self.found.items
        narrowed = {"project": self.filters.project, "stack": items[0].stack_key if len(items) == 1 else ""}
        return urlencode(self._named | {name: value for name, value in narrowed.items() if value})

    @cached_property
    def gains(self) -> tuple[GainRow, ...]:
        return gain_rows(self.found.items, self.address + self.asked)

    @property
    def gain_height(self) -> int:
        return chart_height(len(self.gains)) + AXIS

    @property
    def gain_chart(self) -> dict[str, Any]:
        return gain_chart(self.gains)

    @cached_property
    def changes(self) -> tuple[LeaderChange, ...]:
        """Newest first; of the stacks on this page where it is narrowed to some."""
        keys = [one.stack_key for one in self.found.items] if self.filters.active else []
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
    def reigns(self) -> tuple[Reign, ...]:
        return reigns_of(self.changes, [one.name for one in self.found.items])

    @property
    def leaders(self) -> list[str]:
        """Those that have a colour in the chart."""
        return sorted({one.leader for one in self.reigns if one.leader})

    @property
    def boards_led(self) -> int:
        return len({one.row for one in self.reigns})

    @property
    def leader_height(self) -> int:
        return chart_height(self.boards_led) + AXIS

    @property
    def leader_chart(self) -> dict[str, Any]:
        return leader_chart(self.reigns, self.boards_led)

    @cached_property
    def availability(self) -> AvailabilityTable:
        """Of the containers of the stacks on this page."""
        containers = {one.container for one in self.found.items if one.container}
        return availability_table(find_availability(self._session, containers=containers))

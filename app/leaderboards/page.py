"""All that the leaderboard of one hardware and family shows. Parts are computed when a template asks for them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from sqlmodel import Session

from app.errors import NotFound
from app.leaderboards.charts import AXIS, chart_height, gain_chart, leader_chart
from app.leaderboards.filters import BoardFilters
from app.leaderboards.gains import GainRow, gain_rows
from app.leaderboards.leaders import Reign, reigns_of
from app.leaderboards.summary_view import ClassView, class_view, page_answer
from app.leaderboards.view import StackCard, stack_card
from app.storage.availability import find_availability
from app.storage.leader_changes import LeaderChange, leader_changes
from app.storage.standings import StandingsPage, standings_of
from app.web.availability_table import AvailabilityTable, availability_table

STACKS_OF_A_PAGE = 10
"""Cards are tall: more of them would hide what stands below."""
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
    """Reads what it is asked for; keeps it for the length of one request. Raises NotFound where there never was one."""

    def __init__(self, session: Session, hardware: str, family: str, filters: BoardFilters, page: int = 1) -> None:
        self._session = session
        self._named = {"hardware": hardware, "family": family}
        self.filters = filters
        self.address = f"/leaderboards/{hardware}/{family}"
        self.found: StandingsPage = standings_of(session, hardware, family, filters.kept, page, size=STACKS_OF_A_PAGE)
        if not self.found.hardware:
            raise NotFound("No stack of this hardware and model family has been ranked. The list is at /leaderboards.")

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
        return tuple(stack_card(one, self.filters.rank) for one in self.found.items)

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
        return gain_rows(self.found.items, f"{self.address}?{self.query}" if self.query else self.address)

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
        return reigns_of(self.changes, datetime.now(UTC))

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

"""What the API says of leaderboards, in types (`docs/api.md` in prose). Additions are welcome, changes are not."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, Field

from app.domain.ranking import DISPATCHERS, Board, ClassSummary, Head
from app.domain.ranking.eligibility import Refusal
from app.domain.ranking.standings import MissingDispatcher
from app.leaderboards.api_query import LeaderboardQuery
from app.storage.leader_changes import LeaderChange
from app.storage.standings import HardwareFamily, KeptStandings, StandingsPage
from app.storage.typed_json import to_json


class LeaderboardOut(BaseModel):
    """One hardware and family. `rankings`: stacks with a ranking at the usual floor of evidence."""

    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    url: str = Field(description="Page of the leaderboard, for people.")
    stacks: int
    rankings: int
    runs: int
    newest_at: datetime

    @classmethod
    def of(cls, one: HardwareFamily, base: str) -> Self:
        url = f"{base}/leaderboards/{one.hardware_slug}/{one.family_slug}"
        return cls(url=url, **{name: getattr(one, name) for name in cls.model_fields if name != "url"})


class StackStandingsOut(BaseModel):
    """One stack. `boards`: one for each routing mode and semantic class, which never mix; runs are named by number."""

    stack_key: str
    name: str = Field(description="The title with what sets the stack apart from others of that title.")
    title: str
    project: str
    generated: bool
    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    precision: str
    container: str
    gpus: int | None
    about: dict[str, Any] = Field(description="Fields of the stack key that its newest run states.")
    runs: int
    newest_run_id: int
    newest_at: datetime = Field(description="Place of the newest run in the history of the stack.")
    updated_at: datetime = Field(description="When the standings last changed.")
    ranking_version: int
    boards: list[Board]
    missing: list[MissingDispatcher]
    refused: list[Refusal] = Field(description="The newest runs that may be ranked nowhere, each with the reason.")
    refused_count: int
    fallbacks: list[Refusal] = Field(description="Runs that count for another dispatcher than they asked for.")
    partial: bool = Field(description="Some figures are of other definitions and wait to be computed again.")


class StandingsOut(BaseModel):
    """`summaries` are over all stacks that match, `items` one page of them, those with the newest runs first."""

    dispatchers: list[str] = list(DISPATCHERS)
    evidence: str
    rank: str = Field(description="What the entries of each board are in the order of, and their places are by.")
    leaderboards: list[LeaderboardOut]
    summaries: list[ClassSummary]
    items: list[StackStandingsOut]
    total: int
    page: int
    page_size: int
    pages: int


class LeaderChangeOut(BaseModel):
    """`before` null: the first known. `at`: when it was noticed; `run_id`: the run that made it."""

    project: str
    stack_key: str
    name: str = Field(description="The title with what sets the stack apart from others of that title.")
    title: str
    hardware_slug: str
    family_slug: str
    evidence: str
    at: datetime
    run_id: int | None
    placed_at: datetime | None
    before: Head | None
    after: Head
    sentence: str

    @classmethod
    def of(cls, one: LeaderChange) -> Self:
        same = {name: getattr(one, name) for name in cls.model_fields if hasattr(one, name)}
        change = one.change
        return cls(**same, evidence=one.floor, before=change.before, after=change.after, sentence=change.sentence)


class LeaderChangesOut(BaseModel):
    """Newest first."""

    items: list[LeaderChangeOut]


def page_values(
    page: StandingsPage, items: Iterable[KeptStandings], query: LeaderboardQuery, index: list[LeaderboardOut]
) -> dict[str, Any]:
    """As `StandingsOut`, but plain: what is kept is JSON already, and hundreds of results need no second check."""
    return {
        "dispatchers": DISPATCHERS,
        "evidence": query.filters.floor,
        "rank": query.ordered_by,
        "leaderboards": [one.model_dump(mode="json") for one in index],
        "summaries": to_json(page.summaries),
        "items": [_stack_values(one) for one in items],
        "total": page.total,
        "page": page.page,
        "page_size": page.size,
        "pages": page.pages,
    }


def _stack_values(kept: KeptStandings) -> dict[str, Any]:
    standings = to_json(kept.standings)
    values = {name: getattr(kept, name) for name in StackStandingsOut.model_fields if hasattr(kept, name)}
    found = {name: standings[name] for name in StackStandingsOut.model_fields if name not in values}
    return values | found | {"newest_at": kept.newest_at.isoformat(), "updated_at": kept.updated_at.isoformat()}

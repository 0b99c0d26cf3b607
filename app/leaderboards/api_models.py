"""Types of the API's leaderboards; `docs/api.md` describes them. Fields may be added but not changed."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, StringConstraints

from app.domain.ranking.across import ClassSummary, TallyGroup
from app.domain.ranking.rank import Head
from app.domain.ranking.runs import DISPATCHERS, Refusal
from app.domain.ranking.standings import Board, MissingDispatcher
from app.leaderboards.queries import LeaderboardQuery
from app.storage.json_text import to_json
from app.storage.standings import (
    HardwareFamily,
    LeaderChange,
    StandingsPage,
    StoredStandings,
)
from app.web.dependencies import ApiValue

MOST_TALLIED = 25
"""Stacks that a tally lists, those with a ranking and the newest runs first."""

# --- Query parameters of the leaderboard API: the filters of the page, by the same names.

Hardware = Annotated[str, Field(max_length=100, description="`h100`, or its display name: `H100`.")]
ModelFamily = Annotated[
    str, Field(max_length=100, description="The model family: `qwen3-30b-a3b`, or its display name: `Qwen3-30B-A3B`.")
]
Project = Annotated[str, Field(max_length=100)]
Stack = Annotated[str, StringConstraints(pattern="^[0-9a-f]*$", max_length=64)]


class ChangesQuery(BaseModel):
    """Filters of the stacks; an empty filter means any."""

    hardware: Hardware = ""
    family: ModelFamily = ""
    project: Project = ""
    stack: Stack = Field("", description="A stack key, or its first digits.")
    newest: int = Field(50, ge=1, le=1000)


class LeaderboardOut(ApiValue):
    """One hardware and family. `rankings`: stacks with a ranking at the default evidence floor."""

    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    url: str = Field(description="Page of the leaderboard.")
    stacks: int
    rankings: int
    runs: int
    newest_at: datetime

    @classmethod
    def of(cls, family: HardwareFamily, base: str) -> Self:
        return cls.from_values(family, url=f"{base}/leaderboards/{family.hardware_slug}/{family.family_slug}")


class StackStandingsOut(BaseModel):
    """One stack. `boards`: one for each routing mode and semantic class, which never mix; runs are numbers."""

    stack_key: str
    name: str = Field(description="The title with the fields that distinguish the stack from others of that title.")
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
    unknown: list[str] = Field(
        description="Fields of the stack key that it does not state: the boards are provisional."
    )
    runs: int
    newest_run_id: int
    newest_at: datetime = Field(description="History position of the newest run.")
    updated_at: datetime = Field(description="When the standings last changed.")
    ranking_version: int
    boards: list[Board]
    missing: list[MissingDispatcher]
    refused: list[Refusal] = Field(description="The newest ineligible runs, each with the reason.")
    refused_count: int
    fallbacks: list[Refusal] = Field(description="Runs that count for another dispatcher than requested.")
    partial: bool = Field(description="Some figures use other definitions and wait to be recomputed.")


class StandingsOut(BaseModel):
    """`summaries` cover all matching stacks, and each tally lists 25; `items` are one page of them, those with the
    newest runs first."""

    dispatchers: list[str] = list(DISPATCHERS)
    evidence: str
    rank: str = Field(description="Order of the entries and places of each board.")
    leaderboards: list[LeaderboardOut]
    summaries: list[ClassSummary]
    items: list[StackStandingsOut]
    total: int
    page: int
    page_size: int
    pages: int


class LeaderChangeOut(ApiValue):
    """`before` null: the first ranking. `at`: when the service noticed it; `run_id`: the run that caused it."""

    project: str
    stack_key: str
    name: str = Field(description="The title with the fields that distinguish the stack from others of that title.")
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
    def of(cls, change: LeaderChange) -> Self:
        return cls.from_values(change, change.change, evidence=change.floor)


class LeaderChangesOut(BaseModel):
    """Changes of leaders, newest first."""

    items: list[LeaderChangeOut]


def page_values(
    page: StandingsPage, items: Iterable[StoredStandings], query: LeaderboardQuery, index: list[LeaderboardOut]
) -> dict[str, Any]:
    """Return `StandingsOut` as plain values: stored standings are JSON already and need no second validation."""
    return {
        "dispatchers": DISPATCHERS,
        "evidence": query.filters.floor,
        "rank": query.rank,
        "leaderboards": [leaderboard.model_dump(mode="json") for leaderboard in index],
        "summaries": to_json([_shortened(summary) for summary in page.summaries]),
        "items": [_stack_values(stack) for stack in items],
        "total": page.total,
        "page": page.page,
        "page_size": page.page_size,
        "pages": page.pages,
    }


def _shortened(summary: ClassSummary) -> ClassSummary:
    """Return the summary with the keys of MOST_TALLIED stacks of each tally: a large database has thousands."""
    return replace(
        summary, overall=_shortened_group(summary.overall), groups=tuple(map(_shortened_group, summary.groups))
    )


def _shortened_group(group: TallyGroup) -> TallyGroup:
    tallies = (replace(tally, stacks=tally.stacks[:MOST_TALLIED]) for tally in group.tallies)
    return replace(group, tallies=tuple(tallies))


def _stack_values(stack: StoredStandings) -> dict[str, Any]:
    standings = to_json(stack.standings)
    values = {name: getattr(stack, name) for name in StackStandingsOut.model_fields if hasattr(stack, name)}
    others = {name: standings[name] for name in StackStandingsOut.model_fields if name not in values}
    return values | others | {"newest_at": stack.newest_at.isoformat(), "updated_at": stack.updated_at.isoformat()}

"""Gains over alltoall as values: what the chart of a leaderboard draws."""

from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, Field

from app.domain.ranking import Board, Entry, Gain
from app.storage.standings import KeptStandings, StandingsPage


class GainOut(BaseModel):
    """A dispatcher's best configuration against that of `over`, in one stack. Percent of throughput, 99 % interval."""

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
    gain_pct: float
    gain_pct_low: float | None
    gain_pct_high: float | None
    memory_more_pct: float | None
    kind: str = Field(description="`matched_ab`: the two differ in the dispatcher alone.")
    differs_in: list[str]
    directional: bool
    tie_because: str = Field(description="The rule that makes a tie of an interval that leaves zero out; else empty.")
    more_runs: int | None = Field(description="Further runs of each that would decide a tie; null where none is told.")
    sentence: str

    @classmethod
    def of(cls, kept: KeptStandings, board: Board, entry: Entry, gain: Gain) -> Self:
        duel = gain.duel
        return cls(
            stack_key=kept.stack_key,
            name=kept.name,
            title=kept.title,
            project=kept.project,
            routing_mode=board.routing_mode,
            semantic_class=board.semantic_class,
            evidence=board.floor,
            reading=board.reading,
            dispatcher=entry.dispatcher,
            over=gain.over,
            outcome=duel.outcome,
            gain_pct=duel.gain_pct,
            gain_pct_low=duel.low_pct,
            gain_pct_high=duel.high_pct,
            memory_more_pct=gain.memory_more_pct,
            kind=gain.kind,
            differs_in=list(gain.differs_in),
            directional=duel.directional,
            tie_because=duel.tie_because,
            more_runs=duel.more_runs,
            sentence=gain.sentence,
        )


class GainsOut(BaseModel):
    """Of one page of stacks; `total` counts the stacks that match."""

    items: list[GainOut]
    total: int
    page: int
    page_size: int
    pages: int

    @classmethod
    def of(cls, page: StandingsPage, shown: Iterable[KeptStandings]) -> Self:
        found = [GainOut.of(*one) for kept in shown for one in _gains(kept)]
        return cls(items=found, total=page.total, page=page.page, page_size=page.size, pages=page.pages)


def _gains(kept: KeptStandings) -> Iterable[tuple[KeptStandings, Board, Entry, Gain]]:
    for board in kept.standings.boards:
        for entry in board.entries:
            if entry.gain is not None:
                yield kept, board, entry, entry.gain

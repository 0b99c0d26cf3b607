"""Filters of a leaderboard, and the A/Bs of its dispatchers.

The query string is the whole state of a page, so it is validated as input.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from app.domain.contract.fields import FIELDS, PRECISIONS
from app.domain.ranking.experiments import DispatcherExperiment, ab_at_equal_knobs, contradictions
from app.domain.ranking.standings import Board, Entry
from app.domain.run import EVIDENCE_LEVELS
from app.errors import NotFound
from app.leaderboards.picture import board_sentence
from app.leaderboards.words import EP_SIZES, SEMANTIC_CLASSES
from app.storage.standings import (
    DEFAULT_FLOOR,
    BoardFilterOptions,
    Key,
    StandingsFilters,
    StoredStandings,
    invalid_key,
    is_key,
)
from app.web.lists import ListQuery, OneOf, Passes, invalid_filter

RANKINGS = {
    "step_time": "step time",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "tflops_per_gpu": "TFLOP/s/GPU",
    "memory_headroom": "memory headroom",
}
"""Orders of a board. The first three are one test, so they give one order."""
BY_STEP_TIME = "step_time"
ROUTINGS = ("forced", "natural", "unknown", *FIELDS["routing_mode"].choices)
_MOST_NAMED = 20


def _key_problem(text: str) -> str:
    return "" if is_key(text) else invalid_key(text)


class BoardQuery(ListQuery):
    """Filters of a leaderboard. `evidence`: the weakest level that counts; `stack`: first digits of a stack key."""

    max_text = 200
    not_narrowing = ("rank",)

    page_size: int = 10  # rankings take much vertical space
    rank: Annotated[str, OneOf(tuple(RANKINGS))] = Field(BY_STEP_TIME, description="Order of the results.")
    evidence: Annotated[str, OneOf(EVIDENCE_LEVELS)] = Field(
        DEFAULT_FLOOR, description="The weakest evidence level that counts."
    )
    routing: Annotated[str, OneOf(ROUTINGS)] = Field("", description="A kind of routing, or one routing mode.")
    semantic_class: Annotated[str, OneOf(tuple(SEMANTIC_CLASSES))] = ""
    precision: str = ""
    ep_size: Annotated[str, OneOf(tuple(EP_SIZES))] = Field("", description="Small: EP up to 8; large: from 32.")
    project: str = ""
    stack: Annotated[str, Passes(_key_problem)] = Field("", description="A stack key, or its first digits.")

    def check(self, options: BoardFilterOptions) -> None:
        """Raise NotFound or InvalidQuery for a value that no stack here has, instead of an empty list."""
        precisions = tuple(dict.fromkeys((*PRECISIONS, *options.precisions)))
        if self.project and self.project not in options.projects:
            raise NotFound(
                f"No stack of the project {self.project[:60]!r} is ranked here. {_there_are(options.projects)}"
            )
        if self.precision and self.precision not in precisions:
            raise invalid_filter("precision", f"must be one of {_listed(precisions)}, not {self.precision[:40]!r}")

    @property
    def filters(self) -> StandingsFilters:
        return StandingsFilters(
            project=self.project,
            floor=self.evidence,
            routing=self.routing,
            semantic_class=self.semantic_class,
            precision=self.precision,
            ep_size=self.ep_size,
            stack=self.stack,
        )


class LeaderboardQuery(BoardQuery):
    """The same filters for the API, over all leaderboards or those of one hardware and family."""

    page_size: int = Field(25, ge=1, le=200)
    hardware: str = Field("", description="`h100`, or its display name: `H100`.")
    family: str = Field("", description="`qwen3-30b-a3b`, or its display name: `Qwen3-30B-A3B`.")


def _there_are(names: Sequence[str]) -> str:
    return f"Available: {_listed(names)}." if names else "None exists."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


# --- A/Bs of dispatchers, which a board names where they contradict it.


def with_experiments(
    items: Iterable[StoredStandings], experiments: Mapping[Key, Sequence[DispatcherExperiment]]
) -> tuple[StoredStandings, ...]:
    """Return the stacks as pages, answers and tables show them: with the A/Bs that decide or contradict a ranking."""
    return tuple(
        replace(item, standings=replace(item.standings, boards=tuple(
            _board(board, experiments.get(item.key, ())) for board in item.standings.boards
        )))
        for item in items
    )  # fmt: skip


def _board(board: Board, experiments: Sequence[DispatcherExperiment]) -> Board:
    """Return a board whose gains at equal knobs are those of the A/B of the same two configurations."""
    board = replace(board, entries=tuple(_with_experiment(entry, experiments) for entry in board.entries))
    is_contested = board.reading == "leader" and contradictions(experiments, *board.first_two)
    return replace(
        board,
        sentence=board_sentence(board, experiments),
        reading="contested" if is_contested else board.reading,
    )


def _with_experiment(entry: Entry, experiments: Sequence[DispatcherExperiment]) -> Entry:
    gain = entry.gain
    if gain and gain.equal_knobs and (ab := ab_at_equal_knobs(experiments, gain.equal_knobs, gain.equal_runs)):
        gain = replace(gain, equal_knobs=ab[1])
    if gain and gain.at_other_ep and (ab := ab_at_equal_knobs(experiments, gain.at_other_ep, gain.other_ep_runs)):
        gain = replace(gain, at_other_ep=ab[1])
    return replace(entry, gain=gain)

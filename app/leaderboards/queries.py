"""What a leaderboard can be asked for. The query string is its whole state, so it is checked as input."""

from collections.abc import Sequence
from typing import Annotated

from app.domain.contract.fields import FIELDS, PRECISIONS
from app.domain.ranking.runs import LEVELS
from app.errors import FieldError, InvalidQuery, NotFound
from app.leaderboards.words import EP_SIZES, SEMANTIC_CLASSES
from app.storage.standings import DEFAULT_FLOOR, FilterOptions, StandingsFilters, is_key, no_key
from app.web.lists import ListQuery, OneOf, Passes

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
    return "" if is_key(text) else no_key(text)


class BoardQuery(ListQuery):
    """Filters of a leaderboard. `evidence`: the weakest level that counts; `stack`: first digits of a stack key."""

    max_text = 200
    not_narrowing = ("rank",)

    page_size: int = 10  # rankings are tall
    rank: Annotated[str, OneOf(tuple(RANKINGS))] = BY_STEP_TIME
    evidence: Annotated[str, OneOf(LEVELS)] = DEFAULT_FLOOR
    routing: Annotated[str, OneOf(ROUTINGS)] = ""
    semantic_class: Annotated[str, OneOf(tuple(SEMANTIC_CLASSES))] = ""
    precision: str = ""
    ep_size: Annotated[str, OneOf(tuple(EP_SIZES))] = ""
    project: str = ""
    stack: Annotated[str, Passes(_key_problem)] = ""

    def check(self, options: FilterOptions) -> None:
        """Raises NotFound, InvalidQuery on what no stack here has: an empty answer would look like no results."""
        precisions = tuple(dict.fromkeys((*PRECISIONS, *options.precisions)))
        if self.project and self.project not in options.projects:
            raise NotFound(
                f"No stack of the project {self.project[:60]!r} is ranked here. {_there_are(options.projects)}"
            )
        if self.precision and self.precision not in precisions:
            raise InvalidQuery(self.refusal, (FieldError("precision", _not_one_of(precisions, self.precision)),))

    @property
    def kept(self) -> StandingsFilters:
        return StandingsFilters(
            project=self.project,
            floor=self.evidence,
            routing=self.routing,
            semantic_class=self.semantic_class,
            precision=self.precision,
            ep_size=self.ep_size,
            stack=self.stack,
        )


def _not_one_of(names: Sequence[str], value: str) -> str:
    return f"must be one of {_listed(names)}, not {value[:40]!r}"


def _there_are(names: Sequence[str]) -> str:
    return f"There are: {_listed(names)}." if names else "There is none."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")

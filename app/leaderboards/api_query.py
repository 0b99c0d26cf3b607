"""What the API of the leaderboards can be asked for: the filters of the page, by the same names."""

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from app.domain.contract.fields import FIELDS
from app.domain.contract.fields.performance import PRECISIONS
from app.domain.ranking import LEVELS
from app.errors import FieldError, InvalidQuery
from app.leaderboards.filters import BY_STEP_TIME, RANKINGS
from app.leaderboards.words import EP_SIZES, SEMANTIC_CLASSES
from app.storage.standings import DEFAULT_FLOOR, FilterOptions, StandingsFilters
from app.web.query_checks import one_of

ROUTINGS = ("forced", "natural", "unknown", *FIELDS["routing_mode"].choices)

Hardware = Annotated[str, Field(max_length=100, description="As in addresses, `h100`, or as it is shown: `H100`.")]
ModelFamily = Annotated[
    str, Field(max_length=100, description="The model family: `qwen3-30b-a3b`, or as it is shown: `Qwen3-30B-A3B`.")
]
Project = Annotated[str, Field(max_length=100)]
Stack = Annotated[str, StringConstraints(pattern="^[0-9a-f]*$", max_length=64)]


class LeaderboardQuery(BaseModel):
    """Which stacks; an empty filter means any."""

    hardware: Hardware = ""
    family: ModelFamily = ""
    project: Project = ""
    rank: Annotated[str, *one_of(tuple(RANKINGS))] = Field(BY_STEP_TIME, description="What results are ordered by.")
    evidence: Annotated[str, *one_of(LEVELS)] = Field(
        DEFAULT_FLOOR, description="The weakest evidence level that counts."
    )
    routing: Annotated[str, *one_of(ROUTINGS)] = Field("", description="A kind of routing, or one routing mode.")
    semantic_class: Annotated[str, *one_of(tuple(SEMANTIC_CLASSES))] = ""
    precision: str = Field("", max_length=50)
    ep_size: Annotated[str, *one_of(tuple(EP_SIZES))] = Field("", description="Small: EP up to 8; large: from 32.")
    stack: Stack = Field("", description="A stack key, or its first digits.")
    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(25, ge=1, le=200)

    @property
    def ordered_by(self) -> str:
        return self.rank or BY_STEP_TIME

    @property
    def filters(self) -> StandingsFilters:
        return StandingsFilters(
            project=self.project,
            floor=self.evidence or DEFAULT_FLOOR,
            routing=self.routing,
            semantic_class=self.semantic_class,
            precision=self.precision,
            ep_size=self.ep_size,
            stack=self.stack,
        )

    def check_precision(self, options: FilterOptions) -> None:
        """Raises InvalidQuery; runs may state others than the contract lists, so those that occur count, too."""
        known = dict.fromkeys((*PRECISIONS, *options.precisions))
        if self.precision and self.precision not in known:
            error = FieldError("precision", f"must be one of {', '.join(known)}, not {self.precision!r}")
            raise InvalidQuery("No stack can have this precision.", (error,))


class ChangesQuery(BaseModel):
    """Of which stacks; an empty filter means any."""

    hardware: Hardware = ""
    family: ModelFamily = ""
    project: Project = ""
    stack: Stack = Field("", description="A stack key, or its first digits.")
    newest: int = Field(50, ge=1, le=1000)

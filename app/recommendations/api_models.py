"""What the API says of the next steps of a run, in types (`docs/api.md` in prose). Additions are welcome, changes are
not."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.domain.rules.change import Against
from app.domain.rules.engine import Met
from app.domain.rules.journey import State
from app.domain.rules.rule import Confidence, Kind, Phase, Wall
from app.domain.rules.wall import Certainty

FactValue = str | int | float | bool | list[str] | list[int] | None


class _FromDomain(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class WallOut(_FromDomain):
    wall: Wall
    certainty: Certainty
    because: str
    evidence: list[str] = Field(description="Names of the facts behind it.")


class StepOut(_FromDomain):
    phase: Phase
    state: State
    because: str
    rules: list[str] = Field(description="Rules that fire in it, blockers first.")


class FactOut(BaseModel):
    name: str
    value: FactValue
    unit: str
    stated_by: str = Field(description="Who stated it since the upload; empty where a file or its metadata tell it.")


class RequirementOut(BaseModel):
    text: str
    state: Met = Field(description="Of a conflict `met` means that it is there.")
    missing: list[str] = Field(description="Facts that nobody stated and that would decide it.")


class FieldChangeOut(_FromDomain):
    name: str
    before: str | None = Field(description="null where it is unknown.")
    after: str


class FrameworkOut(BaseModel):
    add: str = Field(description="Flags or overrides to add to the command, or to put in place of those of that name.")
    remove: list[str] = Field(description="Flags to take out.")
    fill: list[str] = Field(description="Flags with a <place> that somebody has to fill in; they are not in `add`.")
    against: Against = Field(description="What the diff is against: the run's own command, the log's, its contract.")
    command: str = Field(description="The run's whole command with the change; empty where its own is not known.")
    diff: list[str] = Field(description="Lines that change, each behind `-` or `+`.")


class ChangesOut(BaseModel):
    text: str
    fields: list[FieldChangeOut]
    megatron_lm: FrameworkOut
    megatron_bridge: FrameworkOut
    environment: list[str] = Field(description="Variables that change, each behind `-` or `+`.")
    open: list[str] = Field(description="Fields whose value depends on facts that nobody stated.")


class MeasuredOut(BaseModel):
    n: int = Field(description="Matched A/Bs, reruns counted once.")
    median_gain_pct: float = Field(description="In percent of throughput; positive is faster.")
    low_pct: float
    high_pct: float
    same_stack: bool
    stacks: list[str]
    runs: list[int]
    experiments: list[int] = Field(
        description="Planned A/Bs among them; the verdicts on their runs do not count a second time."
    )


class EvidenceOut(BaseModel):
    level: int = Field(ge=1, le=6, description="1 enforced in code, 2 measured here ... 6 rule of thumb.")
    standing: str
    text: str
    setting: str
    source: str
    date: str
    older_because: list[str] = Field(description="What changed since, so that it counts one level less.")
    measured_here: MeasuredOut | None


class SourceOut(_FromDomain):
    key: str
    title: str
    where: str
    date: str


class SuggestionOut(BaseModel):
    rule: str
    url: str = Field(description="Page of this step, for people.")
    phase: Phase
    wall: Wall
    kind: Kind
    title: str
    why: str
    facts: list[FactOut] = Field(description="Those that its condition looked at.")
    changes: ChangesOut
    prerequisites: list[RequirementOut]
    conflicts: list[RequirementOut]
    effect: str
    evidence: list[EvidenceOut] = Field(description="The strongest first.")
    overridden: str = Field(description="Where what was measured here contradicts what is published.")
    verify: str
    source: list[SourceOut]
    valid: str = Field(description="Year and month of the newest source that supports it.")
    confidence: Confidence
    withheld: str = Field(description="Why it is kept back for now; empty where it is not.")
    doubt: str = Field(description="Of a blocker in a run that ran in spite of it.")


class PairOut(BaseModel):
    """What the rules about two runs say of this run beside those that it was judged against."""

    runs: list[int]
    url: str = Field(description="Where they stand beside each other.")
    found: list[SuggestionOut]


class MissingOut(BaseModel):
    fact: str
    meaning: str
    supply: str
    unlocks: list[str] = Field(description="Rules that wait for nothing else.")
    together: list[str] = Field(description="Rules that wait for more than this.")
    decides: list[str] = Field(description="Those of `unlocks` that somebody could act upon now; without one it waits.")


class StatedOut(_FromDomain):
    name: str
    value: FactValue
    author: str
    at: datetime
    note: str


class SuggestionsOut(BaseModel):
    url: str
    run: int
    status: Literal["ready", "failed", "unread"]
    wall: WallOut
    phases: list[StepOut]
    current: Phase | None = Field(description="The first phase that is not done.")
    suggestions: list[SuggestionOut] = Field(description="Ranked: blockers, then gates, sizing and candidates.")
    withheld: list[SuggestionOut]
    warnings: list[SuggestionOut]
    pair: PairOut | None = Field(description="null where the run was judged against nothing.")
    missing: list[MissingOut] = Field(description="Facts that nobody stated, the most useful first.")
    stated: list[StatedOut] = Field(description="Facts that people stated since the upload.")
    thresholds: dict[str, float] = Field(description="Defaults of this service that no source gives.")

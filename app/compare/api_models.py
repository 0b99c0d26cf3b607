"""What the API says of a comparison, in types (`docs/api.md` in prose). Additions are welcome, changes are not."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.domain.comparison.decisions import OutcomeWord
from app.domain.contract.fields import Role
from app.domain.matching import Axis, Kind
from app.domain.run import Source, Value


class _FromDomain(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class ValueOut(_FromDomain):
    value: Value
    source: Source
    detail: str = ""


class DifferenceOut(BaseModel):
    field: str
    role: Role = Field(description="stack: must be equal before runs are ranked. config: a knob. info: in no key.")
    follows: str | None = Field(description="The field because of which this one differs; it counts as part of it.")
    a: ValueOut | None = Field(description="null where nobody states it, which is not known to be equal.")
    b: ValueOut | None


class ComparedRunOut(BaseModel):
    id: int
    name: str
    url: str = Field(description="Page of the run, for people.")
    commit: str
    left_out: str | None = Field(
        description="Why it counts for nothing in the figures of its side; null when it counts."
    )


class SideOut(BaseModel):
    """The runs, oldest first. `differ_in`: why they are no reruns of one job; empty when they are."""

    runs: list[ComparedRunOut]
    reruns: bool
    differ_in: list[str]


class MetricOut(_FromDomain):
    """Percentages are of the figure itself, with an interval of 99 %; null where nothing was measured."""

    baseline: float | None
    candidate: float | None
    delta_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None
    decision: OutcomeWord = Field(description="differs: certain, but no winner may be named.")


class LossOut(_FromDomain):
    """Medians over the last iterations that all runs share."""

    baseline: float | None
    candidate: float | None
    delta_pct: float | None
    decision: Literal["worse", "no_worse", "not_finite", "not_judged"]


class DistributionOut(BaseModel):
    """Step times in the steady window of one run, in ms."""

    run: int
    side: Literal["a", "b"]
    n: int
    p05: float
    p25: float
    p50: float
    p75: float
    p95: float
    mean: float
    spike_share: float = Field(description="0 to 1.")


class TestOut(BaseModel):
    """What the measured change rests on. Run-to-run variation and the smallest shift are in percent of step time."""

    baseline_runs: list[int]
    candidate_runs: list[int]
    run_to_run_pct: float | None
    learned_from: int = Field(description="Other configurations from which the variation is known; 0: assumed.")
    smallest_callable_pct: float | None
    need_runs: int | None = Field(description="Further runs of B that would decide an inconclusive comparison.")


class CompareOut(BaseModel):
    url: str = Field(description="Page of the comparison, for people.")
    kind: Kind
    attributed_to: str | None = Field(
        description="The one field that explains a difference; null where none may be named."
    )
    winner: Literal["a", "b"] | None = Field(description="null where neither is better, or none may be named.")
    no_winner_because: list[str]
    not_measured_because: str | None
    differs: str = Field(description="What differs, in a sentence.")
    result: str = Field(description="What came out, in one to three sentences.")
    rule: str = Field(description="What may be said of two such sides.")
    notes: list[str]
    provisional: bool = Field(description="It rests on fields that nobody stated: `unknown` names them.")
    directional: bool = Field(description="Too few iterations for more than a direction.")
    fewest_iterations: tuple[int, int] | None = Field(description="Of A and of B, where that is why it is directional.")
    a: SideOut
    b: SideOut
    differences: dict[Axis, list[DifferenceOut]]
    same: list[str]
    unknown: list[str] = Field(description="Fields to state; `env` stands for all variables of the environment.")
    metrics: dict[str, MetricOut | None]
    loss: LossOut | None
    distributions: list[DistributionOut]
    test: TestOut | None

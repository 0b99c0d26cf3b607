"""What the API says of rules, in types (`docs/api.md` in prose). Additions are welcome, changes are not."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.rules.rule import Confidence, Kind, Level, Origin, Phase, Requirement, Wall
from app.playbook.list import RuleItem, RulePage
from app.playbook.thresholds import thresholds
from app.storage.knob_gains import MeasuredHere
from app.storage.rules_in_force import RulesInForce


class _FromDomain(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class RuleQuery(BaseModel):
    """Filters of the list; an empty one means any."""

    q: str = Field("", description="Words that must all occur: in id, title, reason, condition, flags or source.")
    phase: str = ""
    wall: str = ""
    kind: str = ""
    confidence: str = ""
    origin: str = Field("", description="`built-in` or `team`.")
    only: str = Field("", description="`fired`, `tried`, `paid_off` or `disputed`.")
    project: str = Field("", description="Whose runs are counted; empty for all.")
    sort: str = Field("", description="`workflow` (the default), `fired`, `tried`, `paid_off` or `newest`.")
    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(50, ge=1, le=500)

    def filters(self) -> dict[str, str]:
        return {name: value for name, value in self.model_dump().items() if isinstance(value, str)}


class RuleSourceOut(_FromDomain):
    key: str
    title: str
    where: str
    url: str | None
    date: str


class RuleSummaryOut(BaseModel):
    rule: str
    url: str = Field(description="Its page, for people.")
    title: str
    phase: Phase
    wall: Wall
    kind: Kind
    confidence: Confidence
    origin: Origin
    overrides: str = Field(description="Why a team's rule stands in place of the service's; empty where it does not.")
    valid: str = Field(description="Date of the newest source that supports it.")
    source: list[RuleSourceOut]
    fired: int = Field(description="Runs in which it fires, as they were last read.")
    tried: int = Field(description="Matched A/Bs on its knob, and experiments from it that ended.")
    paid_off: int = Field(description="Those that were faster beyond their interval, or accepted.")
    disputed: bool = Field(description="Its sources contradict each other.")

    @classmethod
    def summary_of(cls, one: RuleItem, base: str) -> dict[str, object]:
        rule = one.rule
        return {
            "rule": rule.id,
            "url": f"{base}/playbook/{rule.id}",
            **{name: getattr(rule, name) for name in ("title", "phase", "wall", "kind", "confidence", "origin")},
            "overrides": rule.overrides,
            "valid": rule.valid,
            "source": [RuleSourceOut.model_validate(source) for source in one.sources],
            "fired": one.fired,
            "tried": one.results.tried,
            "paid_off": one.results.paid_off,
            "disputed": one.disputed > 0,
        }


class ThresholdOut(_FromDomain):
    name: str
    value: float
    default: float
    meaning: str
    setting: str = Field(description="The environment variable that sets it. No source gives these numbers.")


class RuleMistakeOut(_FromDomain):
    file: str
    line: int
    rule: str
    said: str


class RuleListOut(BaseModel):
    total: int
    page: int
    page_size: int
    thresholds: list[ThresholdOut]
    left_out: list[RuleMistakeOut] = Field(description="Files of a team that do not count, and why.")
    rules: list[RuleSummaryOut]

    @classmethod
    def of(cls, page: RulePage, rules: RulesInForce, base: str) -> Self:
        return cls(
            total=page.total,
            page=page.page,
            page_size=page.size,
            thresholds=[ThresholdOut.model_validate(one) for one in thresholds(rules)],
            left_out=[RuleMistakeOut.model_validate(one) for one in rules.team.mistakes],
            rules=[RuleSummaryOut.model_validate(RuleSummaryOut.summary_of(one, base)) for one in page.items],
        )


class RuleChangeOut(_FromDomain):
    name: str
    value: str
    computed: bool = Field(description="`value` is an expression over the facts of a run.")
    megatron_lm: list[str]
    bridge: list[str]


class RuleRequirementOut(BaseModel):
    text: str
    when: str | None = Field(description="null: no fact tells, a person has to look.")

    @classmethod
    def of(cls, one: Requirement) -> Self:
        return cls(text=one.text, when=None if one.when is None else one.when.source)


class PublishedOut(BaseModel):
    text: str
    setting: str
    level: Level
    source: str
    date: str


class RuleMeasuredOut(BaseModel):
    """Matched A/Bs of this service on the knob, of one stack; gains in percent of throughput."""

    stack_key: str
    n: int
    median_gain_pct: float
    low_pct: float
    high_pct: float
    newest: str
    runs: list[int]

    @classmethod
    def of(cls, one: MeasuredHere) -> Self:
        found = one.result
        return cls(
            stack_key=found.stacks[0],
            n=found.n,
            median_gain_pct=found.median_gain_pct,
            low_pct=found.low_pct,
            high_pct=found.high_pct,
            newest=found.newest,
            runs=list(one.runs),
        )


class DisputeOut(BaseModel):
    older: str
    older_sources: list[str]
    newer: str
    newer_sources: list[str]
    counts: Literal["older", "newer", "here", "both"]
    because: str
    kept: str = Field(description="What the rules do then.")


class FiredInOut(_FromDomain):
    run_id: int
    name: str
    project: str


class RuleOut(RuleSummaryOut):
    """One rule whole. `{fact}` in a text stands for the fact of a run."""

    when: str = Field(description="The condition, in CEL.")
    facts: list[str] = Field(description="What it asks for.")
    why: str
    change: str
    fields: list[RuleChangeOut]
    megatron_lm: list[str] = Field(description="Further flags.")
    bridge: list[str] = Field(description="Further overrides.")
    environment: dict[str, str | None] = Field(description="null unsets a variable.")
    needs: list[RuleRequirementOut]
    conflicts: list[RuleRequirementOut]
    effect: str
    published: list[PublishedOut]
    measured_here: list[RuleMeasuredOut]
    overridden: str = Field(description="What was measured here against what is published; empty where nothing is.")
    disputes: list[DisputeOut]
    verify: str
    unlocks: list[str]
    last_fired: list[FiredInOut]

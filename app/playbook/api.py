"""`/api/v1/rules`: every rule of the workflow, and what became of each here."""

from typing import Annotated, Literal, Self

from fastapi import Path, Query, Request
from pydantic import BaseModel, Field

from app.domain.access.principal import Action
from app.domain.rules.rule import Confidence, Kind, Level, Origin, Phase, Requirement, Wall
from app.playbook.pages import OtherData, RuleItem, RulePageOf, RuleQuery, find_rules, thresholds
from app.storage.database import ListPage
from app.storage.rules import RulesInForce
from app.storage.suspect_evidence import MeasuredHere
from app.web.access_rule import requires
from app.web.dependencies import ReadSession, Rules, api_router
from app.web.errors import documented
from app.web.templating import public_address

# --- Types of the API's rules; `docs/api.md` describes them. Fields may be added but not changed.


class RuleSourceOut(BaseModel, from_attributes=True):
    key: str
    title: str
    where: str
    url: str | None
    date: str


class RuleSummaryOut(BaseModel):
    rule: str
    url: str = Field(description="Its page.")
    title: str
    phase: Phase
    wall: Wall
    kind: Kind
    confidence: Confidence
    origin: Origin
    overrides: str = Field(description="Why a team rule replaces the built-in rule; empty if it does not.")
    valid: str = Field(description="Date of the newest source that supports it.")
    source: list[RuleSourceOut]
    fired: int = Field(description="Runs in which it fires by their own data.")
    other_data: OtherData = Field(
        description="What else it reads for the suggestions of a run: a baseline run, a faster run or record, or the "
        "profile of a run with the same configuration. `fired` does not count that; empty: none."
    )
    tried: int = Field(description="Matched A/Bs of its change where it fires, and finished experiments based on it.")
    paid_off: int = Field(description="Those that were faster beyond their interval, or accepted.")
    disputed: bool = Field(description="Its sources contradict each other.")

    @classmethod
    def summary_of(cls, item: RuleItem, base: str) -> dict[str, object]:
        rule = item.rule
        return {
            "rule": rule.id,
            "url": f"{base}/playbook/{rule.id}",
            **{name: getattr(rule, name) for name in ("title", "phase", "wall", "kind", "confidence", "origin")},
            "overrides": rule.overrides,
            "valid": rule.valid,
            "source": [RuleSourceOut.model_validate(source) for source in item.sources],
            "fired": item.fired,
            "other_data": item.other_data,
            "tried": item.results.tried,
            "paid_off": item.results.paid_off,
            "disputed": item.disputed > 0,
        }


class ThresholdOut(BaseModel, from_attributes=True):
    name: str
    value: float
    default: float
    meaning: str
    setting: str = Field(description="The environment variable that sets it. No source gives these numbers.")


class RuleMistakeOut(BaseModel):
    file: str
    line: int
    rule: str
    said: str


class RuleListOut(BaseModel):
    total: int
    page: int
    page_size: int
    thresholds: list[ThresholdOut]
    left_out: list[RuleMistakeOut] = Field(description="Ignored files of the team, with the reason.")
    rules: list[RuleSummaryOut]

    @classmethod
    def of(cls, page: ListPage[RuleItem], rules: RulesInForce, base: str) -> Self:
        return cls(
            total=page.total,
            page=page.page,
            page_size=page.page_size,
            thresholds=[ThresholdOut.model_validate(threshold) for threshold in thresholds(rules)],
            left_out=[
                RuleMistakeOut(file=mistake.file, line=mistake.line, rule=mistake.rule, said=mistake.message)
                for mistake in rules.team.mistakes
            ],
            rules=[RuleSummaryOut.model_validate(RuleSummaryOut.summary_of(item, base)) for item in page.items],
        )


class RuleChangeOut(BaseModel, from_attributes=True):
    name: str
    value: str
    computed: bool = Field(description="`value` is an expression over the facts of a run.")
    megatron_lm: list[str]
    bridge: list[str]


class RuleRequirementOut(BaseModel):
    text: str
    when: str | None = Field(description="Null if no fact decides this, so that a user has to check.")

    @classmethod
    def of(cls, requirement: Requirement) -> Self:
        return cls(text=requirement.text, when=None if requirement.when is None else requirement.when.source)


class PublishedOut(BaseModel):
    text: str
    setting: str
    level: Level
    source: str
    date: str


class RuleMeasuredOut(BaseModel):
    """Matched A/Bs of this service on the knob, by stack and replaced value; gains in percent of throughput."""

    stack_key: str
    before: str = Field(description="The value that the change replaced.")
    n: int
    median_gain_pct: float
    low_pct: float
    high_pct: float
    newest: str
    runs: list[int]

    @classmethod
    def of(cls, measurement: MeasuredHere) -> Self:
        result = measurement.result
        return cls(
            stack_key=result.stacks[0],
            before=measurement.before[0],
            n=result.n,
            median_gain_pct=result.median_gain_pct,
            low_pct=result.low_pct,
            high_pct=result.high_pct,
            newest=result.newest,
            runs=list(measurement.runs),
        )


class DisputeOut(BaseModel):
    older: str
    older_sources: list[str]
    newer: str
    newer_sources: list[str]
    counts: Literal["older", "newer", "here", "both"]
    because: str
    kept: str = Field(description="How the rules handle it.")


class FiredInOut(BaseModel, from_attributes=True):
    run_id: int
    name: str
    project: str


class RuleOut(RuleSummaryOut):
    """One complete rule. `{fact}` in a text is replaced by a fact of the run."""

    when: str = Field(description="The condition, in CEL.")
    facts: list[str] = Field(description="The facts it uses.")
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
    overridden: str = Field(description="Result measured here compared with the published one; empty without one.")
    disputes: list[DisputeOut]
    verify: str
    unlocks: list[str]
    last_fired: list[FiredInOut]


router = api_router("rules")

RuleName = Annotated[str, Path(max_length=100, description="Rule id.")]


@router.get("/rules", responses=documented(422))
@requires(Action.READ)
def list_all_rules(
    request: Request, session: ReadSession, rules: Rules, query: Annotated[RuleQuery, Query()]
) -> RuleListOut:
    """List every rule that suggestions come from, with how often it fired, was tried and paid off here."""
    items = find_rules(session, rules, query)
    return RuleListOut.of(ListPage.cut(items, query.page, query.page_size), rules, public_address(request))


@router.get("/rules/{rule}", responses=documented(404, 422))
@requires(Action.READ)
def read_rule(
    request: Request,
    session: ReadSession,
    rules: Rules,
    rule: RuleName,
    project: Annotated[str, Query(max_length=300, description="Project whose runs are counted; empty for all.")] = "",
) -> RuleOut:
    """Return one rule: condition, change, evidence, results measured here, conflicting sources."""
    page = RulePageOf(session, rules, rule, project)
    definition = page.rule
    return RuleOut.model_validate(
        {
            **RuleSummaryOut.summary_of(page.item, public_address(request)),
            "when": definition.when.source,
            "facts": list(definition.when.names),
            "why": definition.why,
            "change": definition.change.text,
            "fields": [RuleChangeOut.model_validate(field) for field in page.fields],
            "megatron_lm": list(definition.change.megatron_lm),
            "bridge": list(definition.change.bridge),
            "environment": {field.name: field.value or None for field in page.variables},
            "needs": [RuleRequirementOut.of(need) for need in definition.needs],
            "conflicts": [RuleRequirementOut.of(conflict) for conflict in definition.conflicts],
            "effect": definition.effect.text,
            "published": [
                PublishedOut(text=row.text, setting=row.setting, level=row.level, source=row.source, date=row.date)
                for row in definition.effect.evidence
            ],
            "measured_here": [RuleMeasuredOut.of(row) for row in page.measured],
            "overridden": page.overridden,
            "disputes": [
                DisputeOut(
                    older=row.contradiction.older,
                    older_sources=list(row.contradiction.older_sources),
                    newer=row.contradiction.newer,
                    newer_sources=list(row.contradiction.newer_sources),
                    counts=row.ruling.side,
                    because=row.ruling.because,
                    kept=row.contradiction.kept,
                )
                for row in page.disputes
            ],
            "verify": definition.verify,
            "unlocks": list(definition.hints.unlocks),
            "last_fired": [FiredInOut.model_validate(run) for run in page.last],
        }
    )

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
from app.web.dependencies import ApiValue, ReadSession, Rules, api_router
from app.web.errors import documented
from app.web.templating import public_address

# --- Types of the API's rules; `docs/api.md` describes them. Fields may be added but not changed.


class RuleSourceOut(ApiValue):
    key: str = Field(description="Its name in `sources.yaml`, for rules of a team.")
    title: str
    where: str
    url: str | None
    date: str


class RuleSummaryOut(ApiValue):
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
    tried: int = Field(description="Matched A/Bs of its change where it can apply, and experiments based on it.")
    paid_off: int = Field(
        description="Those that were faster beyond their interval, or accepted; of a rule of the phase `fit` or of the "
        "first bring-up, which seeks no gain, only accepted experiments."
    )
    disputed: bool = Field(description="Its sources contradict each other.")

    @classmethod
    def of(cls, item: RuleItem, base: str, *values: object, **others: object) -> Self:
        rule = item.rule
        return cls.from_values(
            item,
            item.results,
            rule,
            *values,
            rule=rule.id,
            url=f"{base}/playbook/{rule.id}",
            source=item.sources,
            disputed=item.disputed > 0,
            **others,
        )


class ThresholdOut(ApiValue):
    name: str
    value: float
    default: float
    meaning: str
    setting: str = Field(description="The environment variable that sets it. No source gives these numbers.")


class RuleMistakeOut(ApiValue):
    file: str
    line: int
    rule: str
    said: str


class RuleListOut(ApiValue):
    total: int
    page: int
    page_size: int
    thresholds: list[ThresholdOut]
    left_out: list[RuleMistakeOut] = Field(description="Ignored files of the team, with the reason.")
    rules: list[RuleSummaryOut]

    @classmethod
    def of(cls, page: ListPage[RuleItem], rules: RulesInForce, base: str) -> Self:
        return cls.from_values(
            page,
            thresholds=thresholds(rules),
            left_out=[RuleMistakeOut.from_values(mistake, said=mistake.message) for mistake in rules.team.mistakes],
            rules=[RuleSummaryOut.of(item, base) for item in page.items],
        )


class RuleChangeOut(ApiValue):
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


class PublishedOut(ApiValue):
    text: str
    setting: str
    level: Level
    source: str = Field(description="Key of the source.")
    title: str = Field(description="Title of the source.")
    date: str


class RuleMeasuredOut(ApiValue):
    """Matched A/Bs of this service on the knob, by stack and replaced value; gains in percent of throughput."""

    stack_key: str
    before: str = Field(description="The value that the change replaced.")
    n: int
    median_gain_pct: float = Field(description="In percent of throughput; positive is faster.")
    low_pct: float
    high_pct: float
    newest: str
    runs: list[int]

    @classmethod
    def of(cls, measurement: MeasuredHere) -> Self:
        result = measurement.result
        return cls.from_values(measurement, result, stack_key=result.stacks[0], before=measurement.before[0])


class DisputeOut(ApiValue):
    older: str
    older_sources: list[str]
    newer: str
    newer_sources: list[str]
    counts: Literal["older", "newer", "here", "both"]
    because: str
    kept: str = Field(description="How the rules handle it.")


class FiredInOut(ApiValue):
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
    definition, change = page.rule, page.rule.change
    return RuleOut.of(
        page.item,
        public_address(request),
        change,
        page,
        when=definition.when.source,
        facts=definition.when.names,
        change=change.text,
        environment={field.name: field.value or None for field in page.variables},
        needs=[RuleRequirementOut.of(need) for need in definition.needs],
        conflicts=[RuleRequirementOut.of(conflict) for conflict in definition.conflicts],
        effect=definition.effect.text,
        published=[
            PublishedOut.from_values(result, title=named.source)
            for result, named in zip(definition.effect.evidence, page.published, strict=True)
        ],
        measured_here=[RuleMeasuredOut.of(row) for row in page.measured],
        disputes=[
            DisputeOut.from_values(row.contradiction, row.ruling, counts=row.ruling.side) for row in page.disputes
        ],
        unlocks=definition.hints.unlocks,
        last_fired=page.last,
    )

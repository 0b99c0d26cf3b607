"""`/api/v1/rules`: every rule of the workflow, and what became of each here."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from app.playbook.api_models import (
    DisputeOut,
    FiredInOut,
    PublishedOut,
    RuleChangeOut,
    RuleListOut,
    RuleMeasuredOut,
    RuleOut,
    RuleQuery,
    RuleRequirementOut,
    RuleSummaryOut,
)
from app.playbook.filters import RuleFilters
from app.playbook.list import find_rules, page_of
from app.playbook.rule_page import RulePageOf
from app.web.dependencies import ReadSession, Rules
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["rules"])

RuleName = Annotated[str, Path(max_length=100, description="Id of the rule.")]


@router.get("/rules", responses=documented(422))
def list_all_rules(
    request: Request, session: ReadSession, rules: Rules, query: Annotated[RuleQuery, Query()]
) -> RuleListOut:
    """Every rule that suggestions come from, with how often it fired, was tried and paid off here."""
    found = find_rules(session, rules, RuleFilters.from_params(query.filters()))
    return RuleListOut.of(page_of(found, query.page, query.page_size), rules, public_address(request))


@router.get("/rules/{rule}", responses=documented(404, 422))
def read_rule(
    request: Request,
    session: ReadSession,
    rules: Rules,
    rule: RuleName,
    project: Annotated[str, Query(max_length=300, description="Whose runs are counted; empty for all.")] = "",
) -> RuleOut:
    """One rule whole: condition, change, evidence, what was measured here, where its sources disagree."""
    found = RulePageOf(session, rules, rule, project)
    one = found.rule
    return RuleOut.model_validate(
        {
            **RuleSummaryOut.summary_of(found.item, public_address(request)),
            "when": one.when.source,
            "facts": list(one.when.names),
            "why": one.why,
            "change": one.change.text,
            "fields": [RuleChangeOut.model_validate(field) for field in found.fields],
            "megatron_lm": list(one.change.megatron_lm),
            "bridge": list(one.change.bridge),
            "environment": {field.name: field.value or None for field in found.variables},
            "needs": [RuleRequirementOut.of(need) for need in one.needs],
            "conflicts": [RuleRequirementOut.of(conflict) for conflict in one.conflicts],
            "effect": one.effect.text,
            "published": [
                PublishedOut(text=row.text, setting=row.setting, level=row.level, source=row.source, date=row.date)
                for row in one.effect.evidence
            ],
            "measured_here": [RuleMeasuredOut.of(row) for row in found.measured],
            "overridden": found.overridden,
            "disputes": [
                DisputeOut(
                    older=row.one.older,
                    older_sources=list(row.one.older_sources),
                    newer=row.one.newer,
                    newer_sources=list(row.one.newer_sources),
                    counts=row.ruling.side,
                    because=row.ruling.because,
                    kept=row.one.kept,
                )
                for row in found.disputes
            ],
            "verify": one.verify,
            "unlocks": list(one.hints.unlocks),
            "last_fired": [FiredInOut.model_validate(run) for run in found.last],
        }
    )

"""`/api/v1/runs/{id}/suggestions`: what to try next with a run, ranked."""

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from app.domain.rules.change import DiffLine, FrameworkChange, change_of, without_context
from app.domain.rules.engine import Checked, Suggestion
from app.domain.rules.facts import SETTINGS, Fact
from app.domain.rules.precedence import LEVEL_NAMES, Statement
from app.recommendations.advise import Advice, advise
from app.recommendations.api_models import (
    ChangesOut,
    EvidenceOut,
    FactOut,
    FieldChangeOut,
    FrameworkOut,
    MeasuredOut,
    MissingOut,
    PairOut,
    RequirementOut,
    SourceOut,
    StatedOut,
    StepOut,
    SuggestionOut,
    SuggestionsOut,
    WallOut,
)
from app.recommendations.state import state
from app.storage.audit import MAX_AUTHOR, MAX_NOTE
from app.storage.database import read_session
from app.storage.stated_facts import in_force
from app.web.access.acting import Author, author_field
from app.web.dependencies import AppEngine, ReadSession, Rules
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["runs"])

RunId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/runs/{run_id}/suggestions", responses=documented(404, 409, 422))
def list_suggestions(request: Request, session: ReadSession, rules: Rules, run_id: RunId) -> SuggestionsOut:
    """Where the run stands, what to try next and why, and which facts would tell more. 409 while it is not read."""
    return told(request, advise(session, run_id, rules))


class StateFacts(BaseModel):
    model_config = ConfigDict(extra="forbid")

    facts: dict[str, Any] = Field(max_length=300, description='By fact: its value, or {"unset": true} to take it back.')
    author: Author = author_field("Who states it.", MAX_AUTHOR)
    note: str = Field("", max_length=MAX_NOTE, description="From where it is known.")


@router.patch("/runs/{run_id}/facts", responses=documented(404, 409, 422))
def state_facts(request: Request, engine: AppEngine, rules: Rules, run_id: RunId, change: StateFacts) -> SuggestionsOut:
    """State what no log tells: measurements of a profile, options of the launch. The answer: what the rules say now."""
    state(engine, run_id, facts=change.facts, author=change.author, note=change.note)
    with read_session(engine) as session:
        return told(request, advise(session, run_id, rules))


def told(request: Request, advice: Advice) -> SuggestionsOut:
    """Everything that the rules say of a run."""
    run_id = advice.run.id
    url = f"{public_address(request)}/runs/{run_id}/next"

    def shown(found: Iterable[Suggestion]) -> list[SuggestionOut]:
        return [_suggestion(advice, one, f"{url}/{one.rule.id}") for one in found]

    return SuggestionsOut(
        url=url,
        run=run_id,
        status=advice.run.status if advice.run.status in ("failed", "unread") else "ready",
        wall=WallOut.model_validate(advice.told.wall),
        phases=[StepOut.model_validate(step) for step in advice.journey.steps],
        current=advice.journey.current,
        suggestions=shown(advice.ranked),
        withheld=shown(advice.told.withheld),
        warnings=shown(advice.told.warnings),
        pair=None
        if advice.pair is None
        else PairOut(
            runs=list(advice.pair.beside),
            url=public_address(request) + advice.pair.compare(run_id),
            found=shown(advice.pair.told.fired),
        ),
        missing=[
            MissingOut(
                fact=one.fact.name,
                meaning=one.fact.meaning,
                supply=one.fact.supply,
                unlocks=list(one.alone),
                together=list(one.together),
                decides=list(one.decides),
            )
            for one in advice.told.missing
        ],
        stated=[StatedOut.model_validate(one) for one in in_force(advice.statements).values()],
        thresholds={name: float(advice.told.facts[name]) for name in SETTINGS},  # type: ignore[arg-type]
    )


def _suggestion(advice: Advice, one: Suggestion, url: str) -> SuggestionOut:
    rule = one.rule
    return SuggestionOut(
        rule=rule.id,
        url=url,
        phase=rule.phase,
        wall=rule.wall,
        kind=one.kind,
        title=rule.title,
        why=one.why,
        facts=[_fact(advice, f.fact, f.value) for f in one.facts],
        changes=_changes(advice, one),
        prerequisites=[_requirement(need) for need in one.needs],
        conflicts=[_requirement(conflict) for conflict in one.conflicts],
        effect=rule.effect.text,
        evidence=[_evidence(advice, statement) for statement in one.standing.statements],
        overridden=one.standing.overridden,
        verify=rule.verify,
        source=[SourceOut.model_validate(advice.book.sources[key]) for key in rule.sources],
        valid=rule.valid,
        confidence=rule.confidence,
        withheld=one.withheld,
        doubt=one.doubt,
    )


def _fact(advice: Advice, fact: Fact, value: Any) -> FactOut:
    stated = advice.stated_by(fact.name)
    return FactOut(name=fact.name, value=value, unit=fact.unit, stated_by="" if stated is None else stated.author)


def _requirement(one: Checked) -> RequirementOut:
    return RequirementOut(text=one.text, state=one.state, missing=list(one.missing))


def _changes(advice: Advice, one: Suggestion) -> ChangesOut:
    diff = change_of(one, advice.told_by(one.rule.id).facts, advice.launch, advice.reading.arguments)
    return ChangesOut(
        text=one.rule.change.text,
        fields=[FieldChangeOut.model_validate(change) for change in diff.fields],
        megatron_lm=_framework(diff.megatron_lm),
        megatron_bridge=_framework(diff.bridge),
        environment=_lines(diff.environment),
        open=list(one.open),
    )


def _framework(change: FrameworkChange) -> FrameworkOut:
    return FrameworkOut(
        add=change.paste,
        remove=list(change.remove),
        fill=list(change.fill),
        command=change.command,
        against=change.against,
        diff=_lines(without_context(change).lines),
    )


def _lines(lines: Iterable[DiffLine]) -> list[str]:
    return [f"{line.sign} {line.text}" for line in lines]


def _evidence(advice: Advice, one: Statement) -> EvidenceOut:
    measured = next((found for found in advice.own if found.result is one.own), None)
    return EvidenceOut(
        level=one.level,
        standing=LEVEL_NAMES[one.level],
        text=one.text,
        setting="" if measured else one.setting,
        source=one.source,
        date=one.date,
        older_because=list(one.expired),
        measured_here=None
        if measured is None
        else MeasuredOut(
            n=measured.result.n,
            median_gain_pct=measured.result.median_gain_pct,
            low_pct=measured.result.low_pct,
            high_pct=measured.result.high_pct,
            same_stack=measured.result.same_contract,
            stacks=list(measured.result.stacks),
            runs=list(measured.runs),
            experiments=list(measured.experiments),
        ),
    )

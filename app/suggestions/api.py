"""Suggestions for a run at `/api/v1/runs/{id}/suggestions`: what to try next, ranked."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from fastapi import Request
from pydantic import BaseModel, Field

from app.domain.access.principal import Action
from app.domain.rules.change import Against, DiffLine, FrameworkChange, change_of, without_context
from app.domain.rules.derive import WallReading
from app.domain.rules.engine import Met, Suggestion
from app.domain.rules.evidence import Statement
from app.domain.rules.facts import SETTINGS, Fact
from app.domain.rules.phases import State
from app.domain.rules.ranking import Tier
from app.domain.rules.rule import Confidence, Kind, Phase, Wall
from app.pipeline.suggest import RunSuggestions, suggest
from app.storage.audit import MAX_NOTE
from app.storage.database import read_session
from app.storage.readings import in_force
from app.suggestions.commands import state
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, AppEngine, ReadSession, Rules, RunId, api_router
from app.web.errors import documented
from app.web.identity import Author, author_field
from app.web.templating import public_address

# --- Types of the API's suggestions; `docs/api.md` describes them. Fields may be added but not changed.

FactValue = str | int | float | bool | list[str] | list[int] | None


class StepOut(ApiValue):
    phase: Phase
    state: State
    because: str
    rules: list[str] = Field(description="Rules of this phase that fire, blockers first.")


class FactOut(BaseModel):
    name: str
    value: FactValue
    unit: str
    stated_by: str = Field(description="User who stated it after the upload; empty if it comes from the upload.")


class RequirementOut(ApiValue):
    text: str
    state: Met = Field(description="For a conflict, `met` means that it is present.")
    missing: list[str] = Field(description="Missing facts it depends on.")


class FieldChangeOut(ApiValue):
    name: str
    before: str | None = Field(description="null if unknown.")
    after: str


class FrameworkOut(ApiValue):
    add: str = Field(description="Flags or overrides to add; they replace existing ones of the same name.")
    remove: list[str] = Field(description="Flags to remove.")
    fill: list[str] = Field(description="Flags with a <placeholder> to replace; not included in `add`.")
    against: Against = Field(description="What the diff compares with: the run's command, its log or its contract.")
    command: str = Field(description="The run's complete command with the change. Empty if its command is unknown.")
    diff: list[str] = Field(description="Changed lines, each prefixed with `-` or `+`.")


class ChangesOut(ApiValue):
    text: str
    fields: list[FieldChangeOut]
    megatron_lm: FrameworkOut
    megatron_bridge: FrameworkOut
    environment: list[str] = Field(description="Changed variables, each prefixed with `-` or `+`.")
    open: list[str] = Field(description="Fields whose value depends on missing facts.")


class MeasuredOut(ApiValue):
    n: int = Field(description="Number of matched A/Bs; reruns count once.")
    median_gain_pct: float = Field(description="In percent of throughput; positive is faster.")
    low_pct: float = Field(description="The lowest end of their intervals.")
    high_pct: float = Field(description="The highest end of their intervals.")
    same_stack: bool
    same_model: bool
    on_gpu: str = Field(
        description="The GPU models, if of another kind than that of this run: the gain here is unknown. Else empty."
    )
    at_gpus: list[int] = Field(
        description="Other GPU counts of the workload of this run that they were measured at; empty for other stacks."
    )
    stacks: list[str]
    runs: list[int]
    experiments: list[int] = Field(
        description="Planned A/Bs among them. The verdicts of their runs are not counted again."
    )


class RuleEvidenceOut(ApiValue):
    level: int = Field(ge=1, le=6, description="1 enforced in code, 2 measured here ... 6 rule of thumb.")
    strength: str
    text: str
    setting: str
    source: str
    date: str
    older_because: list[str] = Field(description="What changed since then. Such evidence is ranked one level lower.")
    measured_here: MeasuredOut | None


class SourceOut(ApiValue):
    key: str
    title: str
    where: str
    date: str


class ExpectedGainOut(ApiValue):
    pct: float = Field(
        description="In percent of throughput; positive is faster. `text` says it in step time: 25 % more throughput "
        "is 20 % faster."
    )
    low_pct: float = Field(description="Of a single A/B the end of its interval, of several the lowest gain.")
    high_pct: float
    text: str = Field(description="The result it is based on.")
    setting: str
    likeness: float = Field(description="Similarity of that setting and this run, from 0 to 1.")
    same: list[str] = Field(description="Facts that are equal.")
    differs: list[str]


class PlaceOut(ApiValue):
    """Explain the rank of a suggestion."""

    group: Tier
    because: str
    expected_gain: ExpectedGainOut | None = Field(description="null if no source states a figure.")
    worth: float = Field(description="Weight of the evidence x gain x likeness, in percent of throughput.")
    confidence: Confidence = Field(description="Confidence in the expected gain.")
    runs_per_side: int | None = Field(description="Runs per side of an A/B that detects the expected gain.")
    cost_gpu_hours: float | None = Field(description="Cost of that A/B with 50 steps per run.")
    not_profiled: list[str] = Field(description="Profile shares that its condition needs but that are unknown.")


class AlsoOut(ApiValue):
    rule: str
    title: str
    why: str


class RecipeOut(ApiValue):
    title: str
    run: str
    then: str


class SuggestionOut(ApiValue):
    rule: str
    url: str = Field(description="Page of this suggestion.")
    phase: Phase
    wall: Wall
    kind: Kind
    title: str
    why: str
    facts: list[FactOut] = Field(description="Facts in its condition.")
    changes: ChangesOut
    prerequisites: list[RequirementOut]
    conflicts: list[RequirementOut]
    effect: str
    evidence: list[RuleEvidenceOut] = Field(description="Strongest first.")
    overridden: str = Field(description="How local measurements contradict published ones. Empty if they do not.")
    verify: str
    source: list[SourceOut]
    valid: str = Field(description="Year and month of the newest supporting source.")
    confidence: Confidence
    withheld: str = Field(description="Why it is deferred. Empty if it is not.")
    doubt: str = Field(description="Why a blocker is doubtful: the run completed iterations despite it.")
    place: PlaceOut
    also: list[AlsoOut] = Field(description="Other rules that suggest the same change.")
    experiment: int | None = Field(description="Newest experiment on the run's stack that makes this change.")
    recipes: list[RecipeOut] = Field(description="Commands to run for this suggestion.")


class PairOut(BaseModel):
    """Results of the rules that compare this run with its baseline runs."""

    runs: list[int]
    url: str = Field(description="Page that compares them.")
    found: list[SuggestionOut]


class MissingOut(ApiValue):
    fact: str
    meaning: str
    supply: str
    unlocks: list[str] = Field(description="Rules that lack only this fact.")
    together: list[str] = Field(description="Rules that lack this and other facts.")
    decides: list[str] = Field(
        description="Rules of `unlocks` that are actionable now. If empty, the fact is not urgent."
    )


class StatedFactOut(ApiValue):
    name: str
    value: FactValue
    author: str
    at: datetime
    note: str
    in_use: FactValue = Field(None, description="The value in use if the run's files contradict the statement.")


class SuggestionsOut(ApiValue):
    url: str
    run: int
    status: Literal["ready", "failed", "unread"]
    wall: WallReading
    phases: list[StepOut]
    current: Phase | None = Field(description="The first phase that is not done.")
    suggestions: list[SuggestionOut] = Field(description="Ranked: blockers, then gates, sizing and candidates.")
    withheld: list[SuggestionOut]
    warnings: list[SuggestionOut]
    pair: PairOut | None = Field(description="null if the run has no baseline.")
    missing: list[MissingOut] = Field(description="Missing facts, most useful first.")
    stated: list[StatedFactOut] = Field(description="Facts stated after the upload.")
    thresholds: dict[str, float] = Field(description="Thresholds of this service; no published source gives them.")


router = api_router("runs")


@router.get("/runs/{run_id}/suggestions", responses=documented(404, 409, 422))
@requires(Action.READ, of="run")
def list_suggestions(request: Request, session: ReadSession, rules: Rules, run_id: RunId) -> SuggestionsOut:
    """Return the workflow phase of a run, ranked suggestions, and missing facts. 409 until the run was read."""
    return suggestions_out(request, suggest(session, run_id, rules))


class StateFacts(BaseModel, extra="forbid"):
    facts: dict[str, Any] = Field(max_length=300, description='Value of each fact, or {"unset": true} to withdraw it.')
    author: Author = author_field("Author of the statement.")
    note: str = Field("", max_length=MAX_NOTE, description="Source of the values.")


@router.patch("/runs/{run_id}/facts", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE, of="run")
def state_facts(request: Request, engine: AppEngine, rules: Rules, run_id: RunId, change: StateFacts) -> SuggestionsOut:
    """State facts that logs lack, such as profile measurements or launch options. Returns the updated suggestions."""
    state(engine, run_id, facts=change.facts, author=change.author, note=change.note)
    with read_session(engine) as session:
        return suggestions_out(request, suggest(session, run_id, rules))


def suggestions_out(request: Request, advice: RunSuggestions) -> SuggestionsOut:
    """Return all suggestions of a run as the API serves them."""
    run_id = advice.run.id
    url = f"{public_address(request)}/runs/{run_id}/next"

    def shown(suggestions: Iterable[Suggestion]) -> list[SuggestionOut]:
        return [_suggestion(advice, row, f"{url}/{row.rule.id}") for row in suggestions]

    return SuggestionsOut.from_values(
        advice.evaluation,
        advice.phases,
        url=url,
        run=run_id,
        status=advice.run.status if advice.run.status in ("failed", "unread") else "ready",
        phases=advice.phases.steps,
        suggestions=shown(advice.ranked),
        withheld=shown(advice.evaluation.withheld),
        warnings=shown(advice.evaluation.warnings),
        pair=None
        if advice.pair is None
        else PairOut(
            runs=list(advice.pair.others),
            url=public_address(request) + advice.pair.compare(run_id),
            found=shown(advice.pair.evaluation.fired),
        ),
        missing=[
            MissingOut.from_values(missing, missing.fact, fact=missing.fact.name, unlocks=missing.alone)
            for missing in advice.evaluation.missing
        ],
        stated=[
            StatedFactOut.model_validate(fact).model_copy(update={"in_use": advice.stated.get(fact.name)})
            for fact in in_force(advice.statements).values()
        ],
        thresholds={name: advice.evaluation.facts[name] for name in SETTINGS},
    )


def _suggestion(advice: RunSuggestions, suggestion: Suggestion, url: str) -> SuggestionOut:
    rule = suggestion.rule
    return SuggestionOut.from_values(
        suggestion,
        rule,
        rule=rule.id,
        url=url,
        facts=[_fact(advice, f.fact, f.value) for f in suggestion.facts],
        changes=_changes(advice, suggestion),
        prerequisites=suggestion.needs,
        effect=rule.effect.text,
        evidence=[_evidence(advice, statement) for statement in suggestion.evidence.statements],
        overridden=suggestion.evidence.overridden,
        source=[advice.book.sources[key] for key in rule.sources],
        place=_place(advice, suggestion),
        experiment=experiment.id if (experiment := advice.experiments.get(rule.id)) is not None else None,
        also=[AlsoOut.from_values(other, rule=other.rule.id) for other in suggestion.also],
    )


def _place(advice: RunSuggestions, suggestion: Suggestion) -> PlaceOut:
    place, expected = suggestion.place, suggestion.place.expected
    sizing = advice.sizing(suggestion)
    return PlaceOut.from_values(
        place,
        group=place.tier,
        expected_gain=None
        if expected is None
        else ExpectedGainOut.from_values(
            expected,
            expected.likeness,
            expected.statement,
            low_pct=expected.low,
            high_pct=expected.high,
            setting="" if expected.statement.own is not None else expected.statement.setting,
            likeness=expected.likeness.score,
        ),
        runs_per_side=None if sizing is None else sizing.runs_each,
        cost_gpu_hours=None if sizing is None else sizing.gpu_hours,
        not_profiled=suggestion.assumed,
    )


def _fact(advice: RunSuggestions, fact: Fact, value: Any) -> FactOut:
    stated = advice.stated_by(fact.name)
    return FactOut(name=fact.name, value=value, unit=fact.unit, stated_by="" if stated is None else stated.author)


def _changes(advice: RunSuggestions, suggestion: Suggestion) -> ChangesOut:
    diff = change_of(
        suggestion, advice.evaluation_of(suggestion.rule.id).facts, advice.launch, advice.reading.arguments
    )
    return ChangesOut.from_values(
        diff,
        suggestion,
        text=suggestion.change_text,
        megatron_lm=_framework(diff.megatron_lm),
        megatron_bridge=_framework(diff.bridge),
        environment=_lines(diff.environment),
    )


def _framework(change: FrameworkChange) -> FrameworkOut:
    return FrameworkOut.from_values(change, add=change.paste, diff=_lines(without_context(change).lines))


def _lines(lines: Iterable[DiffLine]) -> list[str]:
    return [f"{line.sign} {line.text}" for line in lines]


def _evidence(advice: RunSuggestions, statement: Statement) -> RuleEvidenceOut:
    measured = next((own_result for own_result in advice.own if own_result.result is statement.own), None)
    return RuleEvidenceOut.from_values(
        statement,
        setting="" if measured else statement.setting,
        older_because=statement.expired,
        measured_here=None
        if measured is None
        else MeasuredOut.from_values(measured, measured.result, same_stack=measured.result.same_contract),
    )

"""Types of the API's experiments and journeys; `docs/api.md` describes them. Fields may be added but not changed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, Field

from app.domain.experiments.journey import Journey, JourneyNode
from app.domain.experiments.plan import MOST_ASKED_EACH, tagged, upload_command
from app.domain.experiments.values import (
    SIDES,
    Commands,
    ExperimentResult,
    KnobChange,
    PlannedGain,
    Side,
    SizePoint,
    State,
)
from app.domain.rules.engine import Suggestion
from app.domain.verdict.decide import MetricChange
from app.domain.verdict.step_time import DroppedRun
from app.pipeline.propose import LEAST_EFFECT_PCT, MOST_EFFECT_PCT
from app.storage.audit import MAX_NOTE
from app.storage.experiments import Experiment, ExperimentItem, ExperimentListPage
from app.web.dependencies import ApiValue, ListOut
from app.web.identity import Author, author_field

ExperimentId = Annotated[int, Path(ge=1, lt=2**31)]
KnobValue = str | int | float | bool | list[str] | list[int] | None


class ExperimentIn(BaseModel, extra="forbid"):
    """From a suggestion (`rule`), or from an idea of your own (`knobs`)."""

    run: int = Field(ge=1, lt=2**31, description="The baseline: a run with figures.")
    rule: str = Field("", max_length=100, description="A rule that fires in the run.")
    knobs: dict[str, KnobValue] = Field({}, description="Contract fields by name, with their new values.")
    author: Author = author_field("Author of the plan.")
    title: str = Field("", max_length=300)
    note: str = Field("", max_length=MAX_NOTE)
    runs_each: int | None = Field(None, ge=1, le=MOST_ASKED_EACH, description="null: as many as `effect_pct` needs.")
    effect_pct: float | None = Field(
        None,
        ge=LEAST_EFFECT_PCT,
        le=MOST_EFFECT_PCT,
        description="The change of step time, in percent, to detect with 80 % probability. null: what the evidence of "
        "the rule expects, else 2 %, from two runs per side on and within 500 GPU-hours.",
    )


class ExperimentChangeIn(BaseModel, extra="forbid"):
    """A decision (`state`), or another number of runs (`runs_each`)."""

    author: Author = author_field("Author of the decision.")
    state: Literal["accepted", "rejected", "withdrawn"] | None = None
    runs_each: int | None = Field(None, ge=1, le=MOST_ASKED_EACH)
    note: str = Field(
        "", max_length=MAX_NOTE, description="Required to reject, and to accept a candidate that did not win."
    )


class ResultOut(ApiValue):
    sentence: str
    finished: bool
    early: bool = Field(
        description="Decided before all planned runs had arrived, by the stricter test of an early look."
    )
    looks: int
    decision: str | None = Field(description="Of B against A; null until it is `finished`.")
    reason: str = Field(description="The decision in a sentence; empty without one.")
    winner: Literal["", "baseline", "candidate"]
    gain: PlannedGain | None = Field(
        description="In percent of throughput; positive is faster. Pages show the change of step time, "
        "-100 * pct / (100 + pct)."
    )
    paired: PlannedGain | None = Field(
        description="The gain by neighbouring runs of both sides, for alternating runs; null with fewer than 3 pairs."
    )
    metrics: dict[str, MetricChange | None] = Field(description="Each is `not_judged` until it is `finished`.")
    evidence_level: str
    evidence_because: str = Field(description="Why it is not higher.")
    semantic_class: str
    attributed_to: str = Field(description="The only field that can explain the difference; empty without one.")
    baseline: list[int] = Field(description="Runs that count.")
    candidate: list[int]
    left_out: list[DroppedRun] = Field(description="Joined runs that do not count, each with the reason.")
    warnings: list[str]
    notes: list[str] = Field(description="Further results of the test: what would decide, the spread.")

    @classmethod
    def of(cls, result: ExperimentResult) -> "ResultOut":
        verdict = result.verdict
        is_decided = result.finished and verdict is not None
        return cls.from_values(
            result,
            decision=result.decision if is_decided else None,
            metrics=result.judged_metrics,
            reason=verdict.reason if verdict is not None and result.finished else "",
            notes=() if verdict is None else verdict.notes,
        )


class ExperimentItemOut(ApiValue):
    id: int
    url: str = Field(description="Page of the experiment.")
    project: str
    title: str
    rule: str = Field(description="Empty for a change without a rule.")
    state: State
    tag: str = Field(description="Include it in the `tags` of each upload.")
    knobs: list[KnobChange]
    baseline_run: int
    parent: int | None = Field(description="The experiment whose candidate this one continues from.")
    sweep: int | None = Field(description="The sweep that it is part of, by its first experiment.")
    stack_key: str
    runs_each: int
    created_by: str
    created_at: datetime
    decided_by: str
    decided_at: datetime | None
    note: str
    result: ResultOut

    @classmethod
    def renamed(cls, item: ExperimentItem, base_url: str) -> dict[str, Any]:
        return {
            "url": f"{base_url}/experiments/{item.id}",
            "rule": item.rule_id,
            "baseline_run": item.baseline_run_id,
            "parent": item.parent_id,
            "sweep": item.sweep_id,
            "result": ResultOut.of(item.result),
        }


class ExperimentListOut(ListOut[ExperimentItemOut]):
    states: dict[str, int] = Field(description="Number of experiments in each state, regardless of the filter.")

    @classmethod
    def of(cls, page: ExperimentListPage, base_url: str) -> "ExperimentListOut":
        items = [
            ExperimentItemOut.from_values(item, **ExperimentItemOut.renamed(item, base_url)) for item in page.items
        ]
        return cls.from_values(page, items=items)


class SizingOut(ApiValue):
    effect_pct: float
    power: float
    needed: int | None = Field(description="Runs per side for `effect_pct`; null when more than 20.")
    smallest_pct: float = Field(description="The effect that the planned number detects.")
    spread_pct: float = Field(description="Standard deviation between launches of the same job.")
    spread_from: Literal["series", "family", "default"]
    spread_runs: int = Field(description="The configuration's earlier launches that it is estimated from.")
    curve: list[SizePoint]
    hours: float | None = Field(description="Calendar time of all runs, one after another, with 50 steps each.")
    gpu_hours: float | None


class UploadOut(BaseModel):
    side: Side
    meta: dict[str, Any]
    command: str


class ExperimentPlanOut(ApiValue):
    text: str
    sizing: SizingOut
    commands: list[Commands]
    environment: list[str]
    export: str
    open: list[str]
    hold: dict[str, str]
    verify: str
    expected: str
    uploads: list[UploadOut]
    warnings: list[str]


class ExperimentRunOut(ApiValue):
    run_id: int
    name: str
    side: Side
    joined_by: Literal["plan", "tag", "config"]
    joined_at: datetime
    counts: bool
    why_not: str
    status: str
    step_time_ms: float | None
    evidence_level: str


class PairRuleOut(ApiValue):
    rule: str
    title: str
    why: str


class ExperimentOut(ExperimentItemOut):
    sequence: list[Side] = Field(description="The interleaved order of the runs, the planned baseline run first.")
    baseline_key: str
    candidate_key: str = Field(description="Empty when it cannot be predicted.")
    winner_run: int | None = Field(description="The run to continue from.")
    next_url: str = Field(description="Page of its next steps; empty without one.")
    plan: ExperimentPlanOut
    runs: list[ExperimentRunOut]
    rules: list[PairRuleOut] = Field(description="Results of the rules that compare both sides.")

    @classmethod
    def of(cls, experiment: Experiment, base_url: str, pair: Sequence[Suggestion] = ()) -> "ExperimentOut":
        winner = experiment.winner_run_id
        return cls.from_values(
            experiment,
            **cls.renamed(experiment, base_url),
            winner_run=winner,
            next_url=f"{base_url}/runs/{winner}/next" if winner else "",
            plan=_plan(experiment, base_url),
            rules=[PairRuleOut.from_values(item, rule=item.rule.id) for item in pair],
        )


def _plan(experiment: Experiment, base_url: str) -> ExperimentPlanOut:
    plan, change = experiment.plan, experiment.plan.change
    uploads = [(side, tagged(plan.meta.get(side, {}), experiment.tag, side)) for side in SIDES]
    return ExperimentPlanOut.from_values(
        plan,
        change,
        hold=dict(plan.hold),
        uploads=[UploadOut(side=side, meta=meta, command=upload_command(meta, base_url)) for side, meta in uploads],
    )


# --- Journeys.


class JourneyEdgeOut(ApiValue):
    source: str
    target: str
    experiment: int = Field(validation_alias="experiment_id")
    title: str
    knobs: list[KnobChange]
    state: State
    gain: PlannedGain | None = Field(description="In percent of throughput, as in an experiment.")
    evidence_level: str
    winner: str
    level_pct: float | None = Field(description="Confidence level of the interval of `gain`, in percent.")


class JourneyOut(ApiValue):
    run: int
    project: str
    current_run: int = Field(description="The run to continue from.")
    nodes: list[JourneyNode]
    edges: list[JourneyEdgeOut]

    @classmethod
    def of(cls, journey: Journey) -> "JourneyOut":
        return cls.from_values(journey, run=journey.run_id, current_run=journey.current_run_id)

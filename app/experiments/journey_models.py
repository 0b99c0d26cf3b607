"""What the API says of a journey."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.domain.experiments.journey import Journey
from app.domain.experiments.values import State
from app.experiments.api_models import GainOut, KnobOut


class JourneyNodeOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    key: str
    run_id: int | None = Field(description="null while no run of it counts.")
    name: str
    step_time_ms: float | None
    tokens_per_s_per_gpu: float | None
    mark: Literal["", "root", "winner", "current"]
    on_path: bool
    gain_from_root_pct: float | None
    depth: int


class JourneyEdgeOut(BaseModel):
    source: str
    target: str
    experiment: int
    title: str
    knobs: list[KnobOut]
    state: State
    gain: GainOut | None
    evidence_level: str
    winner: str


class JourneyOut(BaseModel):
    run: int
    project: str
    current_run: int = Field(description="The run to go on from.")
    nodes: list[JourneyNodeOut]
    edges: list[JourneyEdgeOut]

    @classmethod
    def of(cls, journey: Journey) -> "JourneyOut":
        edges = [
            JourneyEdgeOut(
                source=one.source,
                target=one.target,
                experiment=one.experiment_id,
                title=one.title,
                knobs=[KnobOut.of(knob) for knob in one.knobs],
                state=one.state,
                gain=None if one.gain is None else GainOut.model_validate(one.gain),
                evidence_level=one.evidence_level,
                winner=one.winner,
            )
            for one in journey.edges
        ]
        return cls(
            run=journey.run_id,
            project=journey.project,
            current_run=journey.current_run_id,
            nodes=[JourneyNodeOut.model_validate(node) for node in journey.nodes],
            edges=edges,
        )

"""`/api/v1/definitions`: the versions of all rules, and how far stored figures and verdicts follow them."""

from datetime import datetime
from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.definitions.queries import DefinitionState, definition_state, try_again
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS, VERDICT_RULES, VERDICT_VERSION
from app.queue import RECOMPUTE, enqueue
from app.storage.database import read_session
from app.web.dependencies import AppEngine, ReadSession

router = APIRouter(prefix="/api/v1/definitions", tags=["definitions"])


class RunsOut(BaseModel):
    """Runs by how their figures stand to the current definitions."""

    total: int
    done: int = Field(description="Computed by the current definitions.")
    waiting: int = Field(description="Still to be computed again; their projects keep their verdicts until then.")
    failed: int = Field(description="Could not be computed again: they keep their figures and are no baseline.")
    since: datetime | None = Field(description="When the first run was computed by these definitions.")


class VerdictsOut(BaseModel):
    total: int
    waiting: int = Field(description="Made by earlier rules, or of figures of earlier definitions.")


class LeftBehindOut(BaseModel):
    run_id: int
    definition_version: int
    definitions: dict[str, int] = Field(description="The rules that its figures were computed by.")
    reason: str = Field(description="Why they could not be computed again.")


class DefinitionsOut(BaseModel):
    definition_version: int = Field(description="Sum of the versions of all definitions.")
    definitions: dict[str, int] = Field(description="Version by rule of the figures.")
    verdict_version: int
    verdict_rules: dict[str, int] = Field(description="Version by rule of the verdicts.")
    runs: RunsOut
    verdicts: VerdictsOut
    failed_runs: list[LeftBehindOut] = Field(description="The newest of them, at most 100.")

    @classmethod
    def of(cls, state: DefinitionState) -> Self:
        runs = state.runs
        return cls(
            definition_version=DEFINITION_VERSION,
            definitions=DEFINITIONS,
            verdict_version=VERDICT_VERSION,
            verdict_rules=VERDICT_RULES,
            runs=RunsOut(
                total=runs.total, done=runs.current, waiting=runs.waiting, failed=runs.failed, since=runs.since
            ),
            verdicts=VerdictsOut(total=state.verdicts, waiting=state.verdicts_outdated),
            failed_runs=[
                LeftBehindOut(
                    run_id=one.run_id,
                    definition_version=one.definition_version,
                    definitions=dict(one.definitions),
                    reason=one.reason,
                )
                for one in state.left_behind
            ],
        )


@router.get("")
def read_definitions(session: ReadSession) -> DefinitionsOut:
    """What figures and verdicts mean now, and how far those that are stored follow."""
    return DefinitionsOut.of(definition_state(session))


@router.post("/retry", status_code=202)
def retry_definitions(engine: AppEngine) -> DefinitionsOut:
    """Compute the runs again that could not be computed before."""
    try_again(engine)
    enqueue(RECOMPUTE)
    with read_session(engine) as session:
        return DefinitionsOut.of(definition_state(session))

"""`/settings/definitions`: how far figures and verdicts follow the current rules, while it runs and after it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement, Engine, case, func, select, update
from sqlmodel import Session, col
from starlette.responses import HTMLResponse, RedirectResponse

from app.domain.access.principal import Action
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS, VERDICT_RULES, VERDICT_VERSION, changes
from app.queue import RECOMPUTE, enqueue
from app.storage.database import read_session, transaction
from app.storage.definition_progress import Progress, could_not_be_computed, progress
from app.storage.tables import RunResultRow, RunRow, VerdictRow, select_any
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession
from app.web.templating import render

# --- How far the figures and verdicts of all runs are those of the current rules, and which figures stay behind.

MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A run that keeps older figures. `changed`: the rules that they lack; `reason`: why they could not be computed."""

    run_id: int
    name: str
    definition_version: int
    definitions: Mapping[str, int]
    reason: str

    @property
    def changed(self) -> str:
        return changes(self.definitions, DEFINITIONS)


@dataclass(frozen=True, slots=True)
class DefinitionState:
    """`left_behind`: the newest MOST_LISTED of them. `verdicts_outdated` wait to be made again."""

    runs: Progress
    left_behind: tuple[LeftBehind, ...]
    verdicts: int
    verdicts_outdated: int

    @property
    def is_running(self) -> bool:
        return bool(self.runs.waiting or self.verdicts_outdated)


def definition_state(session: Session) -> DefinitionState:
    counted = (
        select(func.count(), func.count(case((_is_outdated_verdict(), 1))))
        .select_from(VerdictRow)
        .join(RunRow, col(RunRow.id) == VerdictRow.run_id)  # tells whose it is (`visible.py`)
        .where(col(VerdictRow.current))
    )
    verdicts, outdated = session.execute(counted).one()
    runs = progress(session)
    return DefinitionState(runs, _left_behind(session) if runs.failed else (), verdicts, outdated)


def _is_outdated_verdict() -> ColumnElement[bool]:
    """Made by earlier rules, or of figures of earlier definitions."""
    return (col(VerdictRow.verdict_version) < VERDICT_VERSION) | (
        col(VerdictRow.definition_version) < DEFINITION_VERSION
    )


def _left_behind(session: Session) -> tuple[LeftBehind, ...]:
    chosen = (
        select_any(RunRow.id, RunRow.name, RunRow.definition_version, RunResultRow.definitions, RunRow.recompute_error)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(could_not_be_computed())
        .order_by(col(RunRow.id).desc())
        .limit(MOST_LISTED)
    )
    return tuple(
        LeftBehind(row.id, row.name, row.definition_version, row.definitions, row.recompute_error or "")
        for row in session.execute(chosen)
    )


def try_again(engine: Engine) -> None:
    """Have the runs that were left behind computed again; the sweep finds them."""
    with transaction(engine) as session:
        session.execute(
            update(RunRow)
            .where(could_not_be_computed())
            .values(recompute_failed=0, recompute_error=None)
            .execution_options(synchronize_session=False)
        )


router = APIRouter(include_in_schema=False)

ADDRESS = "/settings/definitions"


@router.get(ADDRESS)
@requires(Action.READ)
def show_definitions(request: Request, session: ReadSession) -> HTMLResponse:
    return render(
        request,
        "definitions/index.html",
        block="standing",
        state=definition_state(session),
        definitions=DEFINITIONS,
        verdict_rules=VERDICT_RULES,
    )


@router.post(f"{ADDRESS}/retry")
@requires(Action.ADMINISTER)
def retry(engine: AppEngine) -> RedirectResponse:
    try_again(engine)
    enqueue(RECOMPUTE)
    return RedirectResponse(ADDRESS, status_code=303)


# --- `/api/v1/definitions`: the versions of all rules, and how far stored figures and verdicts follow them.

api_router = APIRouter(prefix="/api/v1/definitions", tags=["definitions"])


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


@api_router.get("")
@requires(Action.READ)
def read_definitions(session: ReadSession) -> DefinitionsOut:
    """What figures and verdicts mean now, and how far those that are stored follow."""
    return DefinitionsOut.of(definition_state(session))


@api_router.post("/retry", status_code=202)
@requires(Action.ADMINISTER)
def retry_definitions(engine: AppEngine) -> DefinitionsOut:
    """Compute the runs again that could not be computed before."""
    try_again(engine)
    enqueue(RECOMPUTE)
    with read_session(engine) as session:
        return DefinitionsOut.of(definition_state(session))

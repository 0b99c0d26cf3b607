"""`/settings/definitions`: the progress of recomputing figures and verdicts after an upgrade changed their rules."""

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
from app.domain.definitions import DECIDES, DEFINITION_VERSION, DEFINITIONS, VERDICT_RULES, VERDICT_VERSION, changes
from app.queue import RECOMPUTE, enqueue
from app.storage.database import read_session, transaction
from app.storage.readings import Progress, could_not_be_computed, progress
from app.storage.tables import RunResultRow, RunRow, VerdictRow, select_any
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, AppEngine, ReadSession, api_router
from app.web.templating import render

MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A run whose figures could not be recomputed, and the reason. `definitions`: the versions of its figures."""

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
    """`left_behind`: at most MOST_LISTED runs, newest first. `verdicts_outdated`: verdicts that wait for an update."""

    runs: Progress
    left_behind: tuple[LeftBehind, ...]
    verdicts: int
    verdicts_outdated: int

    @property
    def is_running(self) -> bool:
        return bool(self.runs.waiting or self.verdicts_outdated)


def definition_state(session: Session) -> DefinitionState:
    query = (
        select(func.count(), func.count(case((_is_outdated_verdict(), 1))))
        .select_from(VerdictRow)
        .join(RunRow, col(RunRow.id) == VerdictRow.run_id)  # for the filter of projects (`visible.py`)
        .where(col(VerdictRow.current))
    )
    verdicts, outdated = session.execute(query).one()
    runs = progress(session)
    return DefinitionState(runs, _left_behind(session) if runs.failed else (), verdicts, outdated)


def _is_outdated_verdict() -> ColumnElement[bool]:
    """Return the condition for verdicts by earlier rules or from figures of earlier definitions."""
    return (col(VerdictRow.verdict_version) < VERDICT_VERSION) | (
        col(VerdictRow.definition_version) < DEFINITION_VERSION
    )


def _left_behind(session: Session) -> tuple[LeftBehind, ...]:
    query = (
        select_any(RunRow.id, RunRow.name, RunRow.definition_version, RunResultRow.definitions, RunRow.recompute_error)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(could_not_be_computed())
        .order_by(col(RunRow.id).desc())
        .limit(MOST_LISTED)
    )
    return tuple(
        LeftBehind(row.id, row.name, row.definition_version, row.definitions, row.recompute_error or "")
        for row in session.execute(query)
    )


def try_again(engine: Engine) -> None:
    """Request recomputation of the runs that failed it. The next sweep enqueues them."""
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
        "projects/definitions.html",
        block="progress",
        state=definition_state(session),
        definitions=DEFINITIONS,
        verdict_rules=VERDICT_RULES,
        decides=DECIDES,
    )


@router.post(f"{ADDRESS}/retry")
@requires(Action.ADMINISTER)
def retry(engine: AppEngine) -> RedirectResponse:
    try_again(engine)
    enqueue(RECOMPUTE)
    return RedirectResponse(ADDRESS, status_code=303)


# --- `/api/v1/definitions`.

api = api_router("definitions", "/api/v1/definitions")


class RunsOut(ApiValue):
    """Numbers of runs by the definitions of their figures."""

    total: int
    done: int = Field(description="Computed with the current definitions.")
    waiting: int = Field(description="Waiting for recomputation. Verdicts of their projects stay until it is done.")
    failed: int = Field(description="Recomputation failed: they keep their figures and cannot be baselines.")
    since: datetime | None = Field(description="When the first run was computed with these definitions.")


class VerdictsOut(BaseModel):
    total: int
    waiting: int = Field(description="Verdicts by earlier rules or from figures of earlier definitions.")


class LeftBehindOut(ApiValue):
    run_id: int
    definition_version: int
    definitions: dict[str, int] = Field(description="Versions of the definitions of its figures.")
    reason: str = Field(description="Why recomputation failed.")


class DefinitionsOut(ApiValue):
    definition_version: int = Field(description="Sum of the versions of all definitions.")
    definitions: dict[str, int] = Field(description="Version of each definition of figures.")
    verdict_version: int
    verdict_rules: dict[str, int] = Field(description="Version of each rule of verdicts.")
    runs: RunsOut
    verdicts: VerdictsOut
    failed_runs: list[LeftBehindOut] = Field(description="At most 100, newest first.")

    @classmethod
    def of(cls, state: DefinitionState) -> Self:
        runs = state.runs
        return cls.from_values(
            definition_version=DEFINITION_VERSION,
            definitions=DEFINITIONS,
            verdict_version=VERDICT_VERSION,
            verdict_rules=VERDICT_RULES,
            runs=RunsOut.from_values(runs, done=runs.current),
            verdicts=VerdictsOut(total=state.verdicts, waiting=state.verdicts_outdated),
            failed_runs=state.left_behind,
        )


@api.get("")
@requires(Action.READ)
def read_definitions(session: ReadSession) -> DefinitionsOut:
    """Return the versions of all definitions and rules, and how many stored figures and verdicts follow them."""
    return DefinitionsOut.of(definition_state(session))


@api.post("/retry", status_code=202)
@requires(Action.ADMINISTER)
def retry_definitions(engine: AppEngine) -> DefinitionsOut:
    """Request another recomputation of the runs that failed it."""
    try_again(engine)
    enqueue(RECOMPUTE)
    with read_session(engine) as session:
        return DefinitionsOut.of(definition_state(session))

"""`/api/v1/regressions`: the triage list, one regression, and what people do about one or several."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session, col

from app.domain.access.principal import Action
from app.domain.report.exit_codes import UNREAD
from app.domain.report.values import verdict_json
from app.domain.verdict.document import RerunRequest
from app.errors import NotFound
from app.pipeline.regressions import costs_of
from app.regressions.api_models import (
    ManyChangedOut,
    ManyChangesIn,
    OneChangeIn,
    RegressionDetailOut,
    RegressionId,
    RegressionListOut,
    RegressionOut,
    detail_out,
)
from app.regressions.commands import Seen, change_regressions
from app.regressions.queries import RegressionQuery, find_regressions, get_regression
from app.storage import audit
from app.storage.database import read_session
from app.storage.suspect_evidence import suspects_with_evidence
from app.storage.tables import RunRow, select_any, utc_now
from app.storage.verdicts import StoredVerdict, rerun_request, verdicts_of
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession
from app.web.errors import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["regressions"])


@router.get("/regressions", responses=documented(422))
@requires(Action.READ)
def list_regressions(
    request: Request, session: ReadSession, query: Annotated[RegressionQuery, Query()]
) -> RegressionListOut:
    """Regressions of every state, the most costly first unless asked otherwise; unknown costs come last."""
    return RegressionListOut.of(find_regressions(session, query), public_address(request))


@router.get("/regressions/{regression_id}", responses=documented(404, 422))
@requires(Action.READ, of="regression")
def read_regression(request: Request, session: ReadSession, regression_id: RegressionId) -> RegressionDetailOut:
    """One regression: its stacks, what it costs and how that number was made, and all that was done about it."""
    return _detail(session, regression_id, public_address(request))


@router.patch("/regressions/{regression_id}", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE, of="regression")
def change_regression(
    request: Request, engine: AppEngine, regression_id: RegressionId, change: OneChangeIn
) -> RegressionDetailOut:
    """Change state, assignee or link, add a note, or answer a proposal. Recorded with who, when and what was before."""
    change_regressions(engine, [Seen(regression_id, change.changed_at)], change.change())
    with read_session(engine) as session:
        return _detail(session, regression_id, public_address(request))


@router.patch("/regressions", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE)
def change_many_regressions(request: Request, engine: AppEngine, change: ManyChangesIn) -> ManyChangedOut:
    """The same change of several: all of them, or none when one cannot be changed so."""
    seen = change.seen()
    changed = change_regressions(engine, seen, change.change())
    return ManyChangedOut(
        changed=changed, items=_read(engine, [regression.id for regression in seen], public_address(request))
    )


def _read(engine: Engine, ids: Sequence[int], base: str) -> list[RegressionOut]:
    with read_session(engine) as session:
        return [RegressionOut.of(get_regression(session, number), base) for number in dict.fromkeys(ids)]


def _detail(session: Session, regression_id: int, base: str) -> RegressionDetailOut:
    regression = get_regression(session, regression_id)
    events = list(reversed(audit.events(session, "regression", regression_id)))
    return detail_out(regression, costs_of(session, regression, utc_now()), events, base)


# --- `GET /api/v1/runs/{id}/verdict`: what is said of a run, what it rests on, and what was said before.

verdict_router = APIRouter(prefix="/api/v1", tags=["runs"])


class MetricChangeOut(BaseModel):
    """Percentages are of the metric itself; positive is more of it."""

    baseline: float
    candidate: float
    delta_pct: float
    ci_low_pct: float | None = Field(description="Of the 99 % interval; null for memory, which is no matter of chance.")
    ci_high_pct: float | None
    decision: Literal["regression", "improvement", "no_change", "inconclusive", "changed", "not_judged"]


class BaselineOut(BaseModel):
    kind: Literal["golden", "same_config", "last_config", "nearest", "none"] = Field(
        description="nearest: the run that an experiment was measured against for lack of a baseline."
    )
    runs: list[str] = Field(description="Those that counted, oldest first.")
    left_out: list[dict[str, str]] = Field(description="Runs of the stack that do not count: `run` and `why`.")
    more_left_out: int = Field(description="So many more are not listed.")
    other_branch: dict[str, Any] | None = Field(
        None, description="Runs that would be the baseline, were `baseline_branch` of the project among `branches`."
    )
    prior: dict[str, Any] = Field(description="What was known of run-to-run variation before.")


class EarlierVerdictOut(BaseModel):
    made_at: datetime
    because: str
    verdict: str
    reason: str


class VerdictOut(BaseModel):
    """Runs are named by their numbers, as text. With `status` pending nothing else is known yet."""

    run: int
    status: Literal["judged", "pending", "unread"]
    verdict: Literal["regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed"] | None = None
    reason: str = Field("", description="A sentence. While it is pending: what it waits for.")
    made_at: datetime | None = None
    because: str = Field("", description="Why this verdict was made.")
    exit_code: int | None = Field(None, description="That of the command line for this verdict.")
    raises_regression: bool = Field(False, description="False for an experiment: its result is an A/B.")
    notes: list[str] = []
    provisional: bool = Field(False, description="It rests on a field that nobody states.")
    fields_to_supply: list[str] = []
    metrics: dict[str, MetricChangeOut | None] = {}
    loss: dict[str, Any] | None = None
    need_runs: int | None = Field(None, description="Inconclusive: so many more runs of this commit would decide.")
    rerun: RerunRequest | None = Field(None, description="Inconclusive: the reruns to start, when few would decide.")
    test: dict[str, float] | None = Field(None, description="Figures of the test of step time, as logarithms.")
    would_decide: dict[str, int] | None = Field(None, description="Reruns and baseline runs that would, together.")
    smallest_callable_pct: float | None = None
    needs_confirmation: bool = Field(False, description="It rests on few iterations: let a full run confirm it.")
    rests_on_iterations: int | None = Field(None, description="Of the shorter side, where an A/B is a direction only.")
    looks: int | None = None
    quarantined: str | None = Field(None, description="Why the run itself counts for nothing, when it does not.")
    candidate: dict[str, list[str]] | None = Field(None, description="The reruns judged together, those that counted.")
    baseline: BaselineOut | None = None
    comparability: dict[str, Any] | None = None
    suspects: list[dict[str, Any]] = []
    contrast: dict[str, Any] | None = Field(None, description="Measured against one other stack; it is no verdict.")
    nearest_misses: list[dict[str, Any]] = []
    definition_version: int | None = None
    earlier: list[EarlierVerdictOut] = Field([], description="What was said before, newest first.")


@verdict_router.get("/runs/{run_id}/verdict", responses=documented(404, 422))
@requires(Action.READ, of="run", own=Action.UPLOAD)
def read_verdict(
    session: ReadSession, run_id: Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of the run.")]
) -> VerdictOut:
    """The verdict against its baseline. 404 for no such run; `status` is `pending` until it was read and judged, and
    `unread` where no reader knows its log: it gets no verdict."""
    run = session.execute(
        select_any(RunRow.status, RunRow.reception, RunRow.error).where(col(RunRow.id) == run_id)
    ).first()
    if run is None:
        raise NotFound(f"Run {run_id} does not exist. It may have been deleted.")
    if run.status == "unread" and run.reception != "receiving":
        return VerdictOut(run=run_id, status="unread", reason=run.error or "", exit_code=UNREAD)
    verdicts = verdicts_of(session, run_id)
    if not verdicts:
        return VerdictOut(run=run_id, status="pending", reason=_waits_for(run.status, run.reception, run.error))
    return _out(session, run_id, verdicts[0], verdicts[1:])


def _out(session: Session, run_id: int, verdict: StoredVerdict, earlier: tuple[StoredVerdict, ...]) -> VerdictOut:
    document = verdict.document
    values = verdict_json(document, suspects_with_evidence(session, run_id, document))
    values |= {
        "run": run_id,
        "status": "judged",
        "made_at": verdict.made_at,
        "because": verdict.because,
        "definition_version": document.definition_version,
        "rerun": rerun_request(session, run_id, document),
        "earlier": [
            EarlierVerdictOut(
                made_at=previous.made_at, because=previous.because, verdict=previous.document.decision,
                reason=previous.document.verdict.reason,
            )
            for previous in earlier
        ],
    }  # fmt: skip
    return VerdictOut.model_validate(values)


def _waits_for(status: str, reception: str, error: str | None) -> str:
    if reception == "receiving":
        return "More of its log is to come; it is judged when it is complete."
    if status in ("received", "processing"):
        return "It waits to be read."
    if status == "failed" and error:
        return f"It could not be read: {error}"
    return "It waits to be judged."

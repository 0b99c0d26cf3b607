"""The verdict of a run at `/api/v1/runs/{id}/verdict`: its basis, and earlier verdicts."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlmodel import Session

from app.domain.access.principal import Action
from app.domain.experiments.values import Side
from app.domain.report.values import UNREAD
from app.domain.verdict.document import RerunRequest
from app.runs.queries import get_run
from app.storage.run_answer import run_answer
from app.storage.runs import RunDetail
from app.storage.verdicts import StoredVerdict, rerun_request, verdicts_of
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, ReadSession, RunId, api_router
from app.web.errors import documented

router = api_router("runs")


class MetricChangeOut(BaseModel):
    """Change of one figure. Percentages are of the figure itself; positive is more."""

    baseline: float
    candidate: float
    delta_pct: float
    ci_low_pct: float | None = Field(
        description="End of the interval that decided; null for memory, which hardly varies."
    )
    ci_high_pct: float | None
    decision: Literal["regression", "improvement", "no_change", "inconclusive", "changed", "not_judged"]


class LossChangeOut(BaseModel):
    """Loss against the median of the baseline. Values and percentages are null where the loss was not finite."""

    decision: Literal["worse", "no_worse", "not_finite"]
    delta_pct: float | None
    alarm_pct: float | None = Field(description="The loss is worse above this change.")
    not_finite_iterations: int
    baseline: float | None
    candidate: float | None
    since: str = Field(
        description="The first of the runs right before this one with a loss as much worse; empty if it is this run."
    )


class BaselineOut(BaseModel):
    kind: Literal["golden", "same_config", "last_config", "nearest", "experiment", "none"] = Field(
        description="experiment: side A. nearest: the run that an A/B without a baseline was compared with."
    )
    runs: list[str] = Field(description="Runs that counted, oldest first.")
    left_out: list[dict[str, str]] = Field(description="Runs of the stack that do not count, with the reason.")
    more_left_out: int = Field(description="Number of runs that are not listed.")
    other_branch: dict[str, Any] | None = Field(
        None, description="Runs that would be the baseline if `baseline_branch` were one of `branches`."
    )
    prior: dict[str, Any] = Field(description="Run-to-run variation assumed beforehand.")


class ExperimentSideOut(BaseModel):
    id: int
    side: Side
    finished: bool = Field(description="False until the planned runs exist or the test decides; then inconclusive.")


class EarlierVerdictOut(ApiValue):
    made_at: datetime
    because: str
    verdict: str
    reason: str


class VerdictOut(BaseModel):
    """The verdict of a run. Run numbers are text. If `status` is pending, only `reason` is set."""

    run: int
    status: Literal["judged", "pending", "unread"]
    verdict: Literal["regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed"] | None = None
    experiment: ExperimentSideOut | None = Field(
        None, description="Of a run made for an experiment: its side. The verdict is the result of B against A."
    )
    reason: str = Field("", description="The sentence of the page of the run; while pending, what it waits for.")
    made_at: datetime | None = None
    because: str = Field("", description="Why this verdict was made.")
    exit_code: int | None = Field(None, description="Exit code of the command line for this verdict.")
    raises_regression: bool = Field(
        False,
        description="Its slowdown counts against the code, or it opened a regression after an upgrade. False for an "
        "experiment, whose result is an A/B.",
    )
    notes: list[str] = []
    provisional: bool = Field(False, description="Depends on an unknown field.")
    fields_to_supply: list[str] = []
    metrics: dict[str, MetricChangeOut | None] = {}
    loss: LossChangeOut | None = None
    need_runs: int | None = Field(None, description="Inconclusive: further runs of this commit that would decide.")
    rerun: RerunRequest | None = Field(None, description="The requested reruns, if few would decide or confirm it.")
    test: dict[str, float] | None = Field(None, description="Values of the step-time test, as logarithms.")
    would_decide: dict[str, int] | None = Field(None, description="Reruns and baseline runs that would decide.")
    smallest_callable_pct: float | None = None
    needs_confirmation: bool = Field(
        False, description="Slower on one launch, an unsteady run or few iterations: a rerun must confirm it."
    )
    rests_on_iterations: int | None = Field(None, description="Iterations of the shorter side of a directional A/B.")
    looks: int | None = None
    quarantined: str | None = Field(None, description="Why the run does not count; null if it does.")
    limits_broken: list[str] = Field([], description="Fixed limits of the project that its figures break.")
    reference_job: dict[str, Any] | None = Field(
        None, description="Set while the reference job is slow on the same cluster and day: no alarm is raised."
    )
    candidate: dict[str, list[str]] | None = Field(None, description="Reruns judged together that counted.")
    baseline: BaselineOut | None = None
    branch_point: str | None = Field(
        None, description="Merge base of a change: later runs of other branches are not part of its baseline."
    )
    comparability: dict[str, Any] | None = None
    suspects: list[dict[str, Any]] = []
    contrast: dict[str, Any] | None = Field(
        None, description="Without a baseline: the comparison with one other stack. It decides `reason`, not `verdict`."
    )
    since_upgrade: dict[str, Any] | None = Field(
        None, description="What the upgrade that the stack began with changed, over its first runs; not a verdict."
    )
    nearest_misses: list[dict[str, Any]] = []
    definition_version: int | None = None
    earlier: list[EarlierVerdictOut] = Field([], description="Earlier verdicts, newest first.")


@router.get("/runs/{run_id}/verdict", responses=documented(404, 422))
@requires(Action.READ, of="run", own=Action.UPLOAD)
def read_verdict(session: ReadSession, run_id: RunId) -> VerdictOut:
    """Return the verdict of a run.

    `status` is `pending` until it was read and judged, and `unread` if no reader supports its log.
    """
    run = get_run(session, run_id)
    if run.status == "unread" and not run.receiving:
        return VerdictOut(run=run_id, status="unread", reason=run.error or "", exit_code=UNREAD)
    verdicts = verdicts_of(session, run_id)
    if not verdicts:
        return VerdictOut(run=run_id, status="pending", reason=_waits_for(run))
    return _out(session, run, verdicts[0], verdicts[1:])


def _out(session: Session, run: RunDetail, verdict: StoredVerdict, earlier: tuple[StoredVerdict, ...]) -> VerdictOut:
    answered, side = run_answer(session, run, verdict.document), verdict.side
    document, values = answered.document, answered.values
    values |= {
        "run": run.id,
        "status": "judged",
        "reason": document.verdict.reason if side else answered.lead,
        "experiment": side and {"id": side.experiment_id, "side": side.side, "finished": side.result.finished},
        "made_at": verdict.made_at,
        "because": verdict.because,
        "definition_version": document.definition_version,
        "rerun": rerun_request(session, run.id, document),
        "earlier": [
            EarlierVerdictOut.from_values(previous, previous.document.verdict, verdict=previous.document.decision)
            for previous in earlier
        ],
    }
    return VerdictOut.model_validate(values)


def _waits_for(run: RunDetail) -> str:
    if run.receiving:
        return "Its log is still growing; it is judged when the log is complete."
    if run.status in ("received", "processing"):
        return "Waiting to be read."
    if run.status == "failed" and run.error:
        return f"Could not be read: {run.error}"
    return "Waiting to be judged."

"""`/api/v1/runs/{id}/bisect`: the ends of a bisection, and the commit of a range to measure next."""

import math
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from sqlmodel import Session, col

from app.domain.access.principal import Action
from app.domain.contract.values import shown
from app.domain.numbers import is_worse
from app.domain.verdict.bisect import Bisection, CommitLaunch, NotBisectableError, bisect, commands_in
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.step_time import ALARM_PCT, DEFAULT_PRIOR
from app.errors import FieldError, InvalidChange
from app.pipeline.rank import stored_priors
from app.storage.runs import get_run, stored_contract
from app.storage.suspect_evidence import document_of_member, first_slow, last_good
from app.storage.tables import RegressionMemberRow, RegressionRow, RunResultRow, RunRow, select_any
from app.storage.verdicts import current_verdict
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, ReadSession, RunId, api_router
from app.web.errors import documented

MOST_COMMITS = 5_000
MOST_RUNS = 2_000
_MOST_LISTED = 100

router = api_router("regressions")

Commit = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{7,64}$")]
Metric = Literal["step_time_ms", "peak_memory_gib"]
_OF_METRIC = "The metric to judge by; without one, step time, or peak memory if that alone regressed."


class BisectEnds(BaseModel):
    run: int
    metric: Metric
    good: str = Field(description="Commit of the newest run of the job before the change; empty if none states one.")
    bad: str = Field(
        description="Commit of the first run as slow: an earlier one of the job in another stack, else the run itself."
    )


class BisectRange(BaseModel, extra="forbid"):
    commits: list[Commit] = Field(
        min_length=2,
        max_length=MOST_COMMITS,
        description="Full hashes, oldest first: the good commit, those in between, and the bad one, as by "
        "`git rev-list --reverse --first-parent GOOD..BAD`.",
    )
    metric: Metric | None = Field(default=None, description=_OF_METRIC)


class MeasuredCommitOut(ApiValue):
    commit: str
    state: str = Field(description="good, bad, unclear (within the noise) or failed.")
    runs: list[int]
    delta_pct: float | None = Field(description="Change of the metric against the good commit.")


class BisectOut(ApiValue):
    run: int
    metric: Metric
    change_pct: float = Field(description="Change of the metric from the good to the bad commit.")
    measured: list[MeasuredCommitOut] = Field(description="Commits of the range with runs, oldest first.")
    left: list[str] = Field(description="Commits that may have caused the change; the first 100.")
    commits_left: int
    first_bad: str = Field(description="The commit that caused the change; empty while several are left.")
    next: str = Field(description="The commit to measure next; empty when one is left or none can be measured.")
    launches: int = Field(description="Runs of a commit that decide it.")
    steps: int = Field(description="Commits to measure until one is left.")
    gpu_hours_each: float | None = Field(description="Median cost of a run.")
    is_mixed: bool = Field(description="A good commit follows a bad one, so there is more than one change.")
    job: str
    tag: str = Field(description="Tag that identifies the runs. A run joins by its commit.")

    @classmethod
    def of(cls, run_id: int, job: str, metric: Metric, result: Bisection) -> "BisectOut":
        return cls.from_values(
            result,
            run=run_id,
            metric=metric,
            left=result.left[:_MOST_LISTED],
            commits_left=len(result.left),
            gpu_hours_each=result.gpu_hours_each if math.isfinite(result.gpu_hours_each) else None,
            job=job,
            tag=f"bisect-{run_id}",
        )


@router.get("/runs/{run_id}/bisect", responses=documented(404, 422))
@requires(Action.READ, of="run")
def read_bisect_ends(
    session: ReadSession, run_id: RunId, metric: Annotated[Metric | None, Query(description=_OF_METRIC)] = None
) -> BisectEnds:
    """Return the commits between which a bisection of the run's change lies."""
    run = get_run(session, run_id)
    document, regressed = _regressed(session, run_id)
    metric = metric or regressed
    good = last_good(session, run, document, metric) if document else None
    slow = first_slow(session, run, document, metric, good) if document else None
    bad = slow.commit if slow else run.commit
    return BisectEnds(run=run_id, metric=metric, good=good.commit if good else "", bad=bad)


def _regressed(session: Session, run_id: int) -> tuple[VerdictDocument | None, Metric]:
    """Return the verdict as the run's regression shows it, and the metric that regressed: step time if both did."""
    verdict = current_verdict(session, run_id)
    of_run = select_any(RegressionRow.kind, RegressionRow.metric).join(
        RegressionMemberRow, col(RegressionMemberRow.regression_id) == RegressionRow.id
    )
    regressions = session.execute(of_run.where(col(RegressionMemberRow.run_id) == run_id)).all()
    is_upgrade = any(row.kind == "upgrade" for row in regressions)
    document = document_of_member(verdict.document, "upgrade" if is_upgrade else "run") if verdict else None
    metrics = {row.metric for row in regressions} or {document.leading_metric(in_regression=()) if document else ""}
    return document, "peak_memory_gib" if metrics == {"peak_memory_gib"} else "step_time_ms"


@router.post("/runs/{run_id}/bisect", responses=documented(404, 422))
@requires(Action.READ, of="run")
def bisect_range(session: ReadSession, run_id: RunId, body: BisectRange) -> BisectOut:
    """Return the commit of the range to measure next, from all runs of the same stack and configuration.

    Nothing is stored: measure the commit, upload its run, and ask again.
    """
    run = get_run(session, run_id)
    commits = [commit.lower() for commit in body.commits]
    if len(set(commits)) != len(commits):
        raise _refused("lists a commit twice")
    document, regressed = _regressed(session, run_id)
    metric = body.metric or regressed
    if metric == "peak_memory_gib":
        memory = document.verdict.memory if document else None
        variance = ((memory.alarm_pct if memory else ALARM_PCT) / 100 / _ALARM_SDS) ** 2
    else:
        priors = stored_priors(session, run.project_id, run.gpu)
        variance = priors.of_class.get(run.semantic_class, DEFAULT_PRIOR).variance
    launches = _launches(session, run, metric, set(commits))
    other, container = _container_of(session, run, commits[0]), _container(session, run.id)
    if other and container not in ("", other) and all(launch.commit != commits[0] for launch in launches):
        raise _refused(
            f"{commits[0][:12]} was measured in {other} and run {run.id} in {container}: code and container changed "
            f"together. Hold the container fixed: measure {commits[-1][:12]} in {other}. If it {is_worse(metric)} "
            f"there, too, bisect that run; if not, the container is the cause.\n{commands_in(other, commits[-1])}"
        )
    try:
        result = bisect(commits, launches, variance)
    except NotBisectableError as problem:
        raise _refused(str(problem)) from problem
    return BisectOut.of(run_id, run.job, metric, result)


_ALARM_SDS = 6.0
"""Standard deviations of peak memory between launches in the increase that is a regression, which is at least three
times the range of the baseline: one launch of a commit decides."""


def _launches(session: Session, run: RunRow, metric: Metric, commits: set[str]) -> list[CommitLaunch]:
    """Return the newest runs of the same stack, configuration and job whose commit is in the range."""
    chosen = (
        select_any(
            RunRow.id, RunRow.commit, RunRow.status, RunRow.log_step_time, RunRow.step_time_ms,
            RunRow.peak_memory_gib, RunRow.gpus, RunResultRow.health,
        )
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id, isouter=True)
        .where(
            col(RunRow.project_id) == run.project_id,
            col(RunRow.stack_key) == run.stack_key,
            col(RunRow.config_key) == run.config_key,
            col(RunRow.quarantine) == "",
            col(RunRow.status).in_(("ready", "failed")),
            col(RunRow.commit) != "",
        )
        .order_by(col(RunRow.id).desc())
        .limit(MOST_RUNS)
    )  # fmt: skip
    if run.job:
        chosen = chosen.where(col(RunRow.job).in_((run.job, "")))
    launches = []
    for row in session.execute(chosen):
        commit = _in_range(row.commit.lower(), commits)
        if commit:
            value = row.log_step_time
            if metric == "peak_memory_gib":
                value = math.log(row.peak_memory_gib) if row.peak_memory_gib else None
            value = value if row.status == "ready" and value is not None else math.nan
            iterations = (row.health or {}).get("iterations") or math.nan
            hours = (row.step_time_ms or math.nan) * iterations * (row.gpus or math.nan) / 3.6e6
            launches.append(CommitLaunch(row.id, commit, value, hours))
    return launches


def _container_of(session: Session, run: RunRow, commit: str) -> str:
    """Return the container in which the newest run of the same job measured a commit; empty if it is unknown."""
    names = ("project_id", "job", "model", "gpu", "gpus")
    rows = session.execute(
        select_any(RunRow.id, RunRow.commit)
        .where(
            *(col(getattr(RunRow, name)) == getattr(run, name) for name in names),
            col(RunRow.quarantine) == "",
            col(RunRow.status) == "ready",
            col(RunRow.commit).startswith(commit[:_SHORTEST], autoescape=True),
        )
        .order_by(col(RunRow.id).desc())
    )
    measured = next((row.id for row in rows if _in_range(row.commit.lower(), {commit})), None)
    return "" if measured is None else _container(session, measured)


def _container(session: Session, run_id: int | None) -> str:
    result = session.get(RunResultRow, run_id)
    container = stored_contract(result.contract if result else None).get("container")
    return shown(container.value) if container and container.value else ""


_SHORTEST = 7
"""Digits of a shortened commit."""


def _in_range(commit: str, commits: set[str]) -> str:
    """Return the commit of the range that a run states, which may be shortened; empty for any other commit."""
    if commit in commits:
        return commit
    if len(commit) < _SHORTEST:
        return ""
    alike = [full for full in commits if full.startswith(commit) or commit.startswith(full)]
    return alike[0] if len(alike) == 1 else ""


def _refused(why: str) -> InvalidChange:
    return InvalidChange(f"This range cannot be bisected: {why}", (FieldError("commits", why),))

"""`/api/v1/runs/{id}/bisect`: the ends of a bisection, and the commit of a range to measure next."""

import math
from typing import Annotated

from pydantic import BaseModel, Field
from sqlmodel import Session, col

from app.domain.access.principal import Action
from app.domain.verdict.bisect import Bisection, CommitLaunch, NotBisectableError, bisect
from app.domain.verdict.step_time import DEFAULT_PRIOR
from app.errors import FieldError, InvalidChange
from app.pipeline.rank import stored_priors
from app.storage.runs import get_run
from app.storage.suspect_evidence import document_of_member, last_good
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


class BisectEnds(BaseModel):
    run: int
    good: str = Field(description="Commit of the newest run of the job before the change; empty if none states one.")
    bad: str = Field(description="Commit of the run.")


class BisectRange(BaseModel, extra="forbid"):
    commits: list[Commit] = Field(
        min_length=2,
        max_length=MOST_COMMITS,
        description="Full hashes, oldest first: the good commit, those in between, and the bad one, as by "
        "`git rev-list --reverse --first-parent GOOD..BAD`.",
    )


class MeasuredCommitOut(ApiValue):
    commit: str
    state: str = Field(description="good, bad, unclear (within the noise) or failed.")
    runs: list[int]
    delta_pct: float | None = Field(description="Change of step time against the good commit.")


class BisectOut(ApiValue):
    run: int
    change_pct: float = Field(description="Change of step time from the good to the bad commit.")
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
    def of(cls, run_id: int, job: str, result: Bisection) -> "BisectOut":
        return cls.from_values(
            result,
            run=run_id,
            left=result.left[:_MOST_LISTED],
            commits_left=len(result.left),
            gpu_hours_each=result.gpu_hours_each if math.isfinite(result.gpu_hours_each) else None,
            job=job,
            tag=f"bisect-{run_id}",
        )


@router.get("/runs/{run_id}/bisect", responses=documented(404, 422))
@requires(Action.READ, of="run")
def read_bisect_ends(session: ReadSession, run_id: RunId) -> BisectEnds:
    """Return the commits between which a bisection of the run's change lies."""
    run, verdict = get_run(session, run_id), current_verdict(session, run_id)
    kinds = select_any(RegressionRow.kind).join(
        RegressionMemberRow, col(RegressionMemberRow.regression_id) == RegressionRow.id
    )
    is_upgrade = "upgrade" in session.execute(kinds.where(col(RegressionMemberRow.run_id) == run_id)).scalars().all()
    document = document_of_member(verdict.document, "upgrade" if is_upgrade else "run") if verdict else None
    good = last_good(session, run, document) if document else None
    return BisectEnds(run=run_id, good=good.commit if good else "", bad=run.commit)


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
    priors = stored_priors(session, run.project_id, run.gpu)
    prior = priors.of_class.get(run.semantic_class, DEFAULT_PRIOR)
    try:
        result = bisect(commits, _launches(session, run, set(commits)), prior.variance)
    except NotBisectableError as problem:
        raise _refused(str(problem)) from problem
    return BisectOut.of(run_id, run.job, result)


def _launches(session: Session, run: RunRow, commits: set[str]) -> list[CommitLaunch]:
    """Return the newest runs of the same stack, configuration and job whose commit is in the range."""
    chosen = (
        select_any(
            RunRow.id, RunRow.commit, RunRow.status, RunRow.log_step_time, RunRow.step_time_ms, RunRow.gpus,
            RunResultRow.health,
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
            time = row.log_step_time if row.status == "ready" and row.log_step_time is not None else math.nan
            iterations = (row.health or {}).get("iterations") or math.nan
            hours = (row.step_time_ms or math.nan) * iterations * (row.gpus or math.nan) / 3.6e6
            launches.append(CommitLaunch(row.id, commit, time, hours))
    return launches


def _in_range(commit: str, commits: set[str]) -> str:
    """Return the commit of the range that a run states, which may be shortened; empty for any other commit."""
    if commit in commits:
        return commit
    if len(commit) < 7:
        return ""
    alike = [full for full in commits if full.startswith(commit) or commit.startswith(full)]
    return alike[0] if len(alike) == 1 else ""


def _refused(why: str) -> InvalidChange:
    return InvalidChange(f"This range cannot be bisected: {why}", (FieldError("commits", why),))

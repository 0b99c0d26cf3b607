"""`/api/v1/projects/{slug}/defaults`, `/api/v1/availability`: what holds for more than one run."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import Query
from pydantic import BaseModel, Field
from sqlmodel import Session

from app.domain.access.principal import Action
from app.pipeline.decisions import MAX_BRANCH
from app.projects.commands import (
    MOST_BYTES,
    MOST_RUNS,
    Defaults,
    ProjectQuota,
    Rules,
    get_defaults,
    get_quota,
    get_rules,
    set_defaults,
    set_quota,
    set_rules,
)
from app.projects.verdicts import ProjectPolicy, get_policy, rerun_value, set_policy, value_json
from app.storage.database import ListPage, read_session
from app.storage.suspect_evidence import find_availability, newest_containers
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, AppEngine, AppSettings, ListOut, ReadSession, Slug, api_router
from app.web.errors import documented
from app.web.identity import Author, author_field
from app.web.lists import only_parameters

router = api_router("projects")


class DefaultsIn(BaseModel, extra="forbid"):
    fields: dict[str, Any] = Field(
        {}, max_length=300, description="Values by contract field. They replace all previous defaults."
    )
    container_image: str = Field(
        "", max_length=500, description="Completes short names: with nvcr.io/nvidia/nemo, `26.06` names a container."
    )
    author: Author = author_field("Author of the change.")


class RulesChange(ApiValue):
    who: str
    at: datetime
    before: dict[str, Any]
    after: dict[str, Any]


class RulesOut(ApiValue):
    project: str
    baseline_branch: str = Field(description="Branch whose `ci` runs are baselines; `*` for any.")
    commit_url: str = Field(description="Link to a commit, with {commit}; empty for none.")
    compare_url: str = Field(description="Link to a range of commits, with {from} and {to}; empty for none.")
    changes: list[RulesChange] = Field(description="Previous changes, newest first.")

    @classmethod
    def of(cls, rules: Rules) -> Self:
        return cls.from_values(rules, changes=rules.events)


class RulesIn(BaseModel, extra="forbid"):
    """Omitted fields are unchanged."""

    baseline_branch: str | None = Field(None, min_length=1, max_length=MAX_BRANCH, description="`*` for any.")
    commit_url: str | None = Field(None, description="For example https://github.com/org/repo/commit/{commit}.")
    compare_url: str | None = Field(None, description="For example https://github.com/org/repo/compare/{from}...{to}.")
    author: Author = author_field("Author of the change.")


class AvailabilityEvidenceOut(ApiValue):
    file: int
    line: int
    text: str


class AvailabilityItem(ApiValue):
    """Whether a dispatcher works in a container, over all runs whose logs show it."""

    container: str | None = Field(description="null: runs with an unknown container.")
    dispatcher: str
    available: bool = Field(description="Whether it works in the newest of these runs.")
    runs_with: int = Field(description="Number of runs in which it works.")
    runs_without: int = Field(description="Number of runs in which it does not work.")
    run_id: int = Field(description="The newest of these runs.")
    seen_at: datetime
    evidence: list[AvailabilityEvidenceOut]


class AvailabilityList(ListOut[AvailabilityItem]):
    """The dispatchers in one page of containers, those with the newest runs first; `total` counts the containers."""

    pages: int


@router.get("/projects/{slug}/defaults", responses=documented(404, 422))
@requires(Action.READ, of="project")
def read_defaults(session: ReadSession, slug: Slug) -> Defaults:
    """Return the default contract fields of the project's runs."""
    return get_defaults(session, slug)


@router.put("/projects/{slug}/defaults", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def write_defaults(engine: AppEngine, slug: Slug, defaults: DefaultsIn) -> Defaults:
    """Replace the defaults. Affected runs are processed again."""
    image, author = defaults.container_image, defaults.author
    return set_defaults(engine, slug, fields=defaults.fields, container_image=image, author=author)


@router.get("/projects/{slug}/rules", responses=documented(404, 422))
@requires(Action.READ, of="project")
def read_rules(session: ReadSession, slug: Slug) -> RulesOut:
    """Return the baseline branch of the project and its links to commits."""
    return RulesOut.of(get_rules(session, slug))


@router.patch("/projects/{slug}/rules", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def write_rules(engine: AppEngine, slug: Slug, change: RulesIn) -> RulesOut:
    """Change baseline branch or links. With another branch, every stack of the project is judged again."""
    with read_session(engine) as session:
        before = get_rules(session, slug)
    return RulesOut.of(
        set_rules(
            engine,
            slug,
            baseline_branch=before.baseline_branch if change.baseline_branch is None else change.baseline_branch,
            commit_url=before.commit_url if change.commit_url is None else change.commit_url,
            compare_url=before.compare_url if change.compare_url is None else change.compare_url,
            author=change.author,
        )
    )


# --- `/api/v1/projects/{slug}/verdicts`.


class FixedLimitIn(BaseModel, extra="forbid"):
    metric: str = Field(max_length=100, description="A headline figure, or `hours_without_run`.")
    bound: str = Field(max_length=20, description="`at_least` or `at_most`.")
    value: float = Field(description="In the unit of the metric.")


class StackPolicyIn(BaseModel, extra="forbid"):
    """Thresholds that are left out have their defaults: 1 % each."""

    thresholds: dict[str, float] = Field({}, max_length=10, description="`relevance_pct`, `memory_pct`, `loss_pct`.")
    fixed: list[FixedLimitIn] = Field([], max_length=100, description="Limits of figures, independent of the baseline.")


class RerunBudgetIn(BaseModel, extra="forbid"):
    reruns_a_day: int | None = Field(None, ge=0, description="Reruns within 24 hours; null: no limit.")
    gpu_hours_a_day: float | None = Field(None, ge=0, description="What they may take; null: no limit.")


class VerdictPolicyIn(StackPolicyIn):
    """It replaces the whole policy."""

    stacks: dict[str, StackPolicyIn] = Field(
        {}, max_length=200, description="Exceptions for single stacks, by stack key or at least 8 of its digits."
    )
    budget: RerunBudgetIn = RerunBudgetIn()
    reference_job: str = Field("", description="Job whose slowdown shows that the machine changed; empty for none.")
    upgrades: list[str] = Field(
        [],
        max_length=100,
        description="Containers, drivers or clusters that replace those before them, even if these are still in use.",
    )
    author: Author = author_field("Author of the change.")


class VerdictPolicyOut(ApiValue):
    project: str
    thresholds: dict[str, float]
    fixed: list[dict[str, Any]]
    stacks: dict[str, dict[str, Any]]
    budget: dict[str, float | None]
    reference_job: str
    upgrades: list[str]
    reruns: dict[str, Any] | None = Field(description="Benefit of reruns; null until a run was compared.")
    changes: list[RulesChange] = Field(description="Previous changes, newest first.")

    @classmethod
    def of(cls, session: Session, own: ProjectPolicy) -> Self:
        policy = own.policy
        return cls.from_values(
            own,
            policy,
            thresholds=asdict(own.every.thresholds),
            fixed=[asdict(limit) for limit in own.every.fixed],
            stacks={key: dict(values) for key, values in policy.stacks.items()},
            budget=asdict(policy.budget),
            reruns=value_json(rerun_value(session, own)),
            changes=own.events,
        )


@router.get("/projects/{slug}/verdicts", responses=documented(404, 422))
@requires(Action.READ, of="project")
def read_verdict_policy(session: ReadSession, slug: Slug) -> VerdictPolicyOut:
    """Return the thresholds, fixed limits, budget of reruns and reference job of the project, and what reruns gain."""
    return VerdictPolicyOut.of(session, get_policy(session, slug))


@router.put("/projects/{slug}/verdicts", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def write_verdict_policy(engine: AppEngine, slug: Slug, policy: VerdictPolicyIn) -> VerdictPolicyOut:
    """Replace them. Every stack of the project is judged again unless only the budget changed."""
    own = set_policy(engine, slug, policy.model_dump(exclude={"author"}), policy.author)
    with read_session(engine) as session:
        return VerdictPolicyOut.of(session, own)


@router.get(
    "/availability",
    responses=documented(422),
    dependencies=[only_parameters("container", "project", "page", "page_size")],
)
@requires(Action.READ)
def read_availability(
    session: ReadSession,
    container: Annotated[str, Query(max_length=500, description="Only this container.")] = "",
    project: Annotated[str, Query(max_length=100, description="Only runs of this project.")] = "",
    page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    page_size: Annotated[int, Query(ge=1, le=200, description="Containers per page.")] = 100,
) -> AvailabilityList:
    """List which dispatchers work in which container, the containers with the newest runs first."""
    containers = [name for name in newest_containers(session, project) if container in ("", name)]
    shown = ListPage.cut(containers, page, page_size)
    items = find_availability(session, shown.items, project=project)
    return AvailabilityList.from_values(shown, items=items)


# --- `/api/v1/projects/{slug}/quota`.


class QuotaOut(ApiValue):
    project: str
    quota_bytes: int = Field(description="Storage quota, in decompressed bytes; 0: no limit.")
    quota_runs_a_day: int = Field(description="New runs allowed within 24 hours; 0: no limit.")
    used_bytes: int
    runs_today: int = Field(description="New runs within the last 24 hours.")

    @classmethod
    def of(cls, project: ProjectQuota) -> Self:
        quota, usage = project.quota, project.usage
        return cls.from_values(
            project, usage, quota_bytes=quota.bytes, quota_runs_a_day=quota.runs_a_day, used_bytes=usage.bytes
        )


class QuotaIn(BaseModel, extra="forbid"):
    quota_bytes: int | None = Field(None, ge=0, le=MOST_BYTES, description="0: no limit; null: the service's default.")
    quota_runs_a_day: int | None = Field(
        None, ge=0, le=MOST_RUNS, description="0: no limit; null: the service's default."
    )
    author: Author = author_field("Author of the change.")


@router.get("/projects/{slug}/quota", responses=documented(404, 422))
@requires(Action.READ, of="project")
def read_quota(session: ReadSession, settings: AppSettings, slug: Slug) -> QuotaOut:
    """Return the quotas of the project and their usage."""
    return QuotaOut.of(get_quota(session, settings, slug))


@router.put("/projects/{slug}/quota", responses=documented(404, 422))
@requires(Action.ADMINISTER, of="project")
def write_quota(engine: AppEngine, settings: AppSettings, slug: Slug, quota: QuotaIn) -> QuotaOut:
    """Set the quotas. Existing data stay, even if they exceed the quota."""
    return QuotaOut.of(
        set_quota(
            engine,
            settings,
            slug,
            most_bytes=quota.quota_bytes,
            runs_a_day=quota.quota_runs_a_day,
            author=quota.author,
        )
    )

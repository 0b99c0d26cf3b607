"""`/api/v1/projects/{slug}/quota`: what a project may take, and takes."""

from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.projects.api import Slug
from app.projects.quota import MOST_BYTES, MOST_RUNS, ProjectQuota, get_quota, set_quota
from app.storage.audit import MAX_AUTHOR
from app.web.access.acting import Author, author_field
from app.web.dependencies import AppEngine, AppSettings, ReadSession
from app.web.problems import documented

router = APIRouter(prefix="/api/v1", tags=["projects"])


class QuotaOut(BaseModel):
    project: str
    quota_bytes: int = Field(description="What its files may take, as decompressed; 0: no limit.")
    quota_runs_a_day: int = Field(description="Runs that it may begin within 24 hours; 0: no limit.")
    used_bytes: int
    runs_today: int = Field(description="Begun within the last 24 hours.")

    @classmethod
    def of(cls, found: ProjectQuota) -> Self:
        quota, usage = found.quota, found.usage
        return cls(
            project=found.project,
            quota_bytes=quota.bytes,
            quota_runs_a_day=quota.runs_a_day,
            used_bytes=usage.bytes,
            runs_today=usage.runs_today,
        )


class QuotaIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    quota_bytes: int | None = Field(None, ge=0, le=MOST_BYTES, description="0: no limit; null: the service's own.")
    quota_runs_a_day: int | None = Field(None, ge=0, le=MOST_RUNS, description="0: no limit; null: the service's own.")
    author: Author = author_field("Who sets it.", MAX_AUTHOR)


@router.get("/projects/{slug}/quota", responses=documented(404, 422))
def read_quota(session: ReadSession, settings: AppSettings, slug: Slug) -> QuotaOut:
    """What the project may take, and takes."""
    return QuotaOut.of(get_quota(session, settings, slug))


@router.put("/projects/{slug}/quota", responses=documented(404, 422))
def write_quota(engine: AppEngine, settings: AppSettings, slug: Slug, quota: QuotaIn) -> QuotaOut:
    """Set it. What is there already stays, also where it is more."""
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

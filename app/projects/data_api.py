"""`/api/v1/projects/{slug}/deletions`, `/retention`, `/archive`, `/api/v1/usage` and `DELETE /api/v1/runs/{id}`."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from fastapi import Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from app.domain.access.principal import Action
from app.domain.retention import MOST_DAYS
from app.pipeline.deletion import MOST_CHOSEN, DeletionPreview, DeletionSelection
from app.pipeline.project_archive import export_project
from app.projects.data import (
    ProjectData,
    delete_run,
    delete_runs,
    get_data,
    preview_deletion,
    select_runs,
    set_archived,
    set_retention,
    undo,
)
from app.storage.audit import MAX_AUTHOR, MAX_NOTE
from app.storage.database import read_session
from app.storage.projects import find_project
from app.storage.tables import utc_now
from app.storage.usage import counted_at, database_bytes, usage_of_projects
from app.storage.worker_activity import stage_times
from app.web.access_rule import requires
from app.web.dependencies import LARGEST_NUMBER, ApiValue, AppEngine, AppLogFiles, ReadSession, RunId, Slug, api_router
from app.web.errors import as_content, documented
from app.web.identity import Author, AuthorBody, access_of, author_field
from app.web.identity import author as stated_author

router = api_router("projects")

DeletionId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER)]
Days = Annotated[int | None, Field(ge=1, le=MOST_DAYS)]


class PreviewOut(ApiValue):
    what: str = Field(description="`runs`, `stack`, `project`, or by age: `older`, `failed`, `logs`.")
    runs: int
    bytes: int = Field(description="Of uploaded files, decompressed.")
    golden: int = Field(description="Pinned runs and baselines of experiments among them.")
    experiments: int = Field(description="Experiments that are deleted with their baseline.")
    sentence: str

    @classmethod
    def of(cls, selection: DeletionSelection, expected: DeletionPreview) -> Self:
        return cls.from_values(expected, what=selection.kind, sentence=expected.sentence(selection))


class DeletionOut(ApiValue):
    id: int
    title: str
    state: Literal["waiting", "done", "undoing", "undone", "final"] = Field(
        description="`waiting` and `undoing` continue in the worker; `final` can no longer be undone."
    )
    requested_by: str
    requested_at: datetime
    note: str
    runs: int = Field(description="Runs deleted so far.")
    bytes: int
    ends_at: datetime | None = Field(description="Until when it can be undone; null while it is not finished.")
    undone_by: str


class DeletionList(BaseModel):
    items: list[DeletionOut] = Field(description="The last 100, newest first.")


class DeletionIn(BaseModel, extra="forbid"):
    what: Literal["runs", "stack", "project"]
    runs: list[Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]] = Field(
        [], max_length=MOST_CHOSEN, description="Numbers of runs, for `runs`."
    )
    stack: str = Field("", max_length=64, description="Complete stack key, for `stack`.")
    author: Author = author_field("Author of the change.")
    note: str = Field("", max_length=MAX_NOTE, description="Reason.")

    def selection(self) -> DeletionSelection:
        if self.what == "runs":
            return select_runs(self.runs)
        return DeletionSelection(kind=self.what, stack=self.stack, before=utc_now())


class DeletionPreviewIn(DeletionIn):
    author: str = Field("", max_length=MAX_AUTHOR, description="Ignored, because nothing is changed.")


class RetentionIn(BaseModel, extra="forbid"):
    """It replaces the whole retention; null: forever."""

    logs_days: Days = Field(None, description="Raw logs and other uploaded files; figures are kept.")
    failed_days: Days = Field(None, description="Runs without figures: failed and unread.")
    runs_days: Days = Field(None, description="All runs. Golden runs are kept under all three rules.")
    author: Author = author_field("Author of the change.")


class DataOut(ApiValue):
    project: str
    archived_at: datetime | None
    logs_days: int | None
    failed_days: int | None
    runs_days: int | None
    due: list[PreviewOut] = Field(description="What each rule would delete now.")

    @classmethod
    def of(cls, data: ProjectData) -> Self:
        due = [PreviewOut.of(selection, expected) for selection, expected in data.due]
        return cls.from_values(data, data.retention, due=due)


class UsageOut(ApiValue):
    project: str
    runs: int
    bytes: int = Field(description="Of uploaded files, decompressed; see `counted_at`.")
    bytes_a_day: float | None = Field(
        description="Uploaded per day in the last 90 days; null before seven days of uploads."
    )
    bytes_in_90_days: float | None = Field(
        description="Forecast if uploads continue at this rate and nothing is "
        "deleted; null before seven days of uploads."
    )
    months: dict[str, int] = Field(description="Bytes by month of upload, at most twelve.")
    undoable_bytes: int = Field(description="Held by deletions that can be undone.")


class StageOut(ApiValue):
    stage: str = Field(description="read, judge, rank, rules, profile, deliver or delete.")
    calls: int
    seconds: float = Field(description="Processor seconds of all workers.")


class UsageList(BaseModel):
    items: list[UsageOut]
    counted_at: datetime | None = Field(description="Time of the count; null if it was counted for this answer.")
    database_bytes: int | None = Field(description="Size of the database, for administrators; else null.")
    stages: list[StageOut] = Field(description="Work of the last 30 days, for administrators; else empty.")


@router.delete("/runs/{run_id}", responses=documented(404, 422))
@requires(Action.MANAGE, of="run")
def remove_run(
    engine: AppEngine,
    run_id: RunId,
    author: Annotated[
        str, Query(max_length=MAX_AUTHOR, description="Author of the deletion; ignored with log-ins.")
    ] = "",
    note: Annotated[str, Query(max_length=MAX_NOTE, description="Reason.")] = "",
) -> DeletionOut:
    """Delete one run with all that belongs to it. Its stack is judged again. Can be undone for 7 days."""
    return DeletionOut.model_validate(delete_run(engine, run_id, author=stated_author(author), note=note))


@router.get("/projects/{slug}/deletions", responses=documented(404, 422))
@requires(Action.READ, of="project")
def list_deletions(session: ReadSession, slug: Slug) -> DeletionList:
    return DeletionList(items=[DeletionOut.model_validate(deletion) for deletion in get_data(session, slug).deletions])


@router.post("/projects/{slug}/deletions/preview", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def preview_deletion_of(session: ReadSession, slug: Slug, deletion: DeletionPreviewIn) -> PreviewOut:
    """Return what a deletion would do. Nothing is deleted."""
    selection = deletion.selection()
    return PreviewOut.of(selection, preview_deletion(session, slug, selection))


@router.post("/projects/{slug}/deletions", status_code=202, responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def create_deletion(engine: AppEngine, slug: Slug, deletion: DeletionIn) -> DeletionOut:
    """Delete runs, a stack or the project. A large deletion continues in the worker. Can be undone for 7 days."""
    selection = deletion.selection()
    return DeletionOut.model_validate(delete_runs(engine, slug, selection, author=deletion.author, note=deletion.note))


@router.post("/projects/{slug}/deletions/{deletion_id}/undo", status_code=202, responses=documented(404, 409, 422))
@requires(Action.MANAGE, of="project")
def undo_deletion_of(engine: AppEngine, slug: Slug, deletion_id: DeletionId, change: AuthorBody) -> DeletionOut:
    """Undo the deletion, except for runs that were uploaded again meanwhile."""
    return DeletionOut.model_validate(undo(engine, slug, deletion_id, author=change.author))


@router.get("/projects/{slug}/retention", responses=documented(404, 422))
@requires(Action.READ, of="project")
def read_retention(session: ReadSession, slug: Slug) -> DataOut:
    """Return what the project keeps for how long, and what each rule would delete now."""
    return DataOut.of(get_data(session, slug))


@router.put("/projects/{slug}/retention", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def write_retention(engine: AppEngine, slug: Slug, retention: RetentionIn) -> DataOut:
    """Replace the retention. Workers apply it once a day; each deletion can be undone for 7 days."""
    values: dict[str, Any] = retention.model_dump(exclude={"author"})
    set_retention(engine, slug, values, author=retention.author)
    with read_session(engine) as session:
        return DataOut.of(get_data(session, slug))


@router.post("/projects/{slug}/archive", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def archive_project(engine: AppEngine, slug: Slug, change: AuthorBody) -> DataOut:
    """Archive the project: it accepts no uploads. Everything else stays."""
    return _archived(engine, slug, True, change.author)


@router.post("/projects/{slug}/unarchive", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def unarchive_project(engine: AppEngine, slug: Slug, change: AuthorBody) -> DataOut:
    """Take the project out of the archive."""
    return _archived(engine, slug, False, change.author)


def _archived(engine: AppEngine, slug: str, archived: bool, author: str) -> DataOut:
    set_archived(engine, slug, archived, author=author)
    with read_session(engine) as session:
        return DataOut.of(get_data(session, slug))


@router.get(
    "/export",
    response_class=Response,
    responses=documented(404, 422, ok=as_content("application/x-tar", "binary")),
)
@requires(Action.MANAGE)
def export_archive(
    session: ReadSession,
    engine: AppEngine,
    log_files: AppLogFiles,
    project: Annotated[str, Query(min_length=1, max_length=100, description="Name of the project.")],
) -> Response:
    """Return a whole project as one archive, for `threewalls import-project` (docs/backup.md)."""
    slug = find_project(session, project).slug
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(slug, safe='')}.tar"}
    return StreamingResponse(export_project(engine, log_files, slug), media_type="application/x-tar", headers=headers)


@router.get("/usage")
@requires(Action.READ)
def read_usage(request: Request, session: ReadSession) -> UsageList:
    """Return what each project holds and how it grows, the largest first."""
    administers = access_of(request).may_anywhere(Action.ADMINISTER)
    stages = stage_times(session, days=30) if administers else ()
    return UsageList(
        items=[
            UsageOut.from_values(
                usage,
                project=usage.slug,
                bytes_a_day=usage.a_day,
                bytes_in_90_days=usage.in_days(90),
                months=dict(usage.months),
                undoable_bytes=usage.waiting_bytes,
            )
            for usage in usage_of_projects(session)
        ],
        counted_at=counted_at(session),
        # It grows with projects that other callers may not see.
        database_bytes=database_bytes(session) if administers else None,
        stages=[StageOut.model_validate(entry) for entry in stages],
    )

"""Profiles at `/api/v1/runs/{id}/profiles` and `/api/v1/profiles`: upload, list, read, compare."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from app.access.guards import UPLOAD_BYTES
from app.domain.access.principal import Action
from app.domain.profiles.difference import difference_document
from app.errors import FieldError, InvalidUpload, NotFound
from app.pipeline.profiles import SentProfileFile, accept_profile
from app.profiles.queries import confirm, file_address, get_difference, get_profile, list_profiles, remove
from app.storage.audit import MAX_AUTHOR
from app.storage.database import read_session
from app.storage.profiles import StoredProfile, profiled_runs
from app.storage.stacks import is_stack
from app.web.access_rule import requires
from app.web.dependencies import (
    LARGEST_NUMBER,
    ApiValue,
    AppEngine,
    AppLogFiles,
    AppSettings,
    ReadSession,
    RoomOnDisk,
    RunId,
    api_router,
)
from app.web.errors import as_content, documented
from app.web.forms import sent_form
from app.web.identity import Author, author_field, signed, uploader
from app.web.templating import public_address

router = api_router("profiles")

MAX_FILES = 64
MAX_FIELDS = 2 * MAX_FILES + 8
MOST_PROFILED = 50

ProfileId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Number of the profile.")]
Status = Literal["received", "processing", "ready", "failed"]

_FORM = {
    "type": "object",
    "properties": {
        "profile": {
            "type": "array",
            "items": {"type": "string", "format": "binary"},
            "description": "Traces of one or several ranks: Kineto JSON, SQLite exports of Nsight Systems, archives.",
        },
        "rank": {"type": "array", "items": {"type": "integer"}, "description": "Rank of each file, in file order."},
        "stage": {"type": "array", "items": {"type": "integer"}, "description": "Pipeline stage of each file."},
    },
    "required": ["profile"],
}


class ProfileAnswer(BaseModel):
    id: int
    url: str = Field(description="Page of the profile.")
    status: Status
    created: bool = Field(description="False if the run already has these files.")


class ProfileFileOut(ApiValue):
    name: str
    size_bytes: int
    rank: int | None = Field(description="As stated with the upload.")
    stage: int | None
    url: str | None = Field(description="Download; null once the file was dropped.")


class ProfileOut(ApiValue):
    id: int
    run: int
    url: str = Field(description="Page of the profile.")
    status: Status
    created_at: datetime
    uploaded_by: str
    progress: float = Field(description="Share of its files that was read, 0 to 1.")
    error: str | None = Field(description="Why the profile could not be read.")
    files: list[ProfileFileOut]
    counts: bool = Field(description="The rules use its facts.")
    differs: list[str] = Field(description="Contradictions with the run's contract, to be confirmed.")
    confirmed_by: str
    confirmed_at: datetime | None
    facts: dict[str, Any] = Field(description="Named as in docs/profiles.md; null if unknown.")


class ProfileDetailOut(ProfileOut):
    document: dict[str, Any] | None = Field(description="All figures (docs/profiles.md); null until read.")


class ProfileListOut(BaseModel):
    items: list[ProfileOut]


class ProfiledRunOut(ApiValue):
    run: int
    name: str
    commit: str
    at: datetime = Field(description="History position of the run.")
    profile: ProfileOut


class ProfiledRunsOut(BaseModel):
    items: list[ProfiledRunOut]


class ProfileDifferenceOut(BaseModel):
    """The rows add up to the difference of the step."""

    a: int
    b: int
    sentence: str
    before_ms: float
    after_ms: float
    difference_ms: float
    per_step: bool = Field(description="False if the windows are not steps, so that their lengths are not comparable.")
    anchor: str = Field(description="Without steps, the kernel by whose launches all times are divided; else empty.")
    contract: list[str] = Field(description="Contract fields that differ between the profiles.")
    rows: list[dict[str, Any]]


@router.post(
    "/runs/{run_id}/profiles",
    status_code=202,
    max_body_size=UPLOAD_BYTES,
    dependencies=[RoomOnDisk],
    responses=documented(400, 404, 413, 422, 503, 507),
    openapi_extra={"requestBody": {"content": {"multipart/form-data": {"schema": _FORM}}, "required": True}},
)
@requires(Action.CONTRIBUTE, of="run", own=Action.UPLOAD)
async def upload_profile(
    *,
    request: Request,
    response: Response,
    engine: AppEngine,
    log_files: AppLogFiles,
    settings: AppSettings,
    run_id: RunId,
) -> ProfileAnswer:
    """Attach a profile to a run. It is read in the background. Uploading the same files again has no effect."""
    async with sent_form(request, max_files=MAX_FILES, max_fields=MAX_FIELDS) as form:
        accept = partial(accept_profile, engine, log_files, settings, run_id=run_id, uploader=uploader(request))
        accepted = await run_in_threadpool(lambda: accept(files=sent_files(form)))
    response.status_code = 202 if accepted.created else 200
    response.headers["Location"] = f"/api/v1/profiles/{accepted.id}"
    return ProfileAnswer.model_validate(
        {
            "id": accepted.id,
            "url": _page(request, run_id, accepted.id),
            "status": accepted.status,
            "created": accepted.created,
        }
    )


def sent_files(form: FormData) -> list[SentProfileFile]:
    """Return the files of a form with their stated ranks and stages. Raises InvalidUpload."""
    files = []
    for value in form.getlist("profile"):
        if not isinstance(value, UploadFile):
            raise InvalidUpload(
                "The form field `profile` contains text, not a file. Nothing was saved. With curl: -F profile=@FILE.",
                (FieldError("profile", "must be a file"),),
            )
        if value.filename or value.size:
            files.append(value)
    ranks, stages = (_numbers(form, name, len(files)) for name in ("rank", "stage"))
    return [
        SentProfileFile(file.filename or "profile", file.file, rank, stage)
        for file, rank, stage in zip(files, ranks, stages, strict=True)
    ]


def _numbers(form: FormData, name: str, count: int) -> Sequence[int | None]:
    texts = [value.strip() for value in form.getlist(name) if isinstance(value, str) and value.strip()]
    if not texts:
        return [None] * count
    if len(texts) != count:
        raise _refused(name, f"must state one for each of the {count} files, or none")
    if not all(text.isascii() and text.isdigit() and int(text) <= LARGEST_NUMBER for text in texts):
        raise _refused(name, "must be a whole number from 0")
    return [int(text) for text in texts]


def _refused(name: str, message: str) -> InvalidUpload:
    return InvalidUpload(f"{name}: {message}. Nothing was saved.", (FieldError(name, message),))


@router.get("/runs/{run_id}/profiles", responses=documented(404, 422))
@requires(Action.READ, of="run")
def read_profiles(request: Request, session: ReadSession, run_id: RunId) -> ProfileListOut:
    """List the profiles of a run, newest first."""
    return ProfileListOut(items=[_out(request, profile) for profile in list_profiles(session, run_id)])


@router.get("/history/{stack}/profiles", responses=documented(404, 422))
@requires(Action.READ)
def read_profiles_of_stack(
    request: Request, session: ReadSession, stack: Annotated[str, Path(max_length=64)]
) -> ProfiledRunsOut:
    """List the newest 50 runs of a stack (by its whole key) that have a usable profile, each with the newest one."""
    runs = profiled_runs(session, stack, most=MOST_PROFILED)
    if not runs and not is_stack(session, stack):
        raise NotFound("No stack has this key. The list of stacks is at /api/v1/history.")
    return ProfiledRunsOut(
        items=[
            ProfiledRunOut.from_values(row, run=row.run_id, at=row.ordered_at, profile=_out(request, row.profile))
            for row in runs
        ]
    )


@router.get("/profiles/{profile_id}", responses=documented(404, 422))
@requires(Action.READ)
def read_profile(request: Request, session: ReadSession, profile_id: ProfileId) -> ProfileDetailOut:
    """Return one profile with all its figures."""
    return _detail(request, session, profile_id)


@router.get(
    "/profiles/{profile_id}/files/{position}",
    response_class=Response,
    responses=documented(404, 422, 503, ok=as_content("application/octet-stream", "binary")),
)
@requires(Action.READ)
def download_trace(
    session: ReadSession,
    log_files: AppLogFiles,
    profile_id: ProfileId,
    position: Annotated[int, Path(ge=0, le=LARGEST_NUMBER, description="Place of the file, from 0.")],
) -> Response:
    """Return a trace as it was sent, if the service keeps traces."""
    files = get_profile(session, profile_id).stored.files
    file = next((file for file in files if file.position == position and file.key), None)
    if file is None:
        raise NotFound(f"File {position} of profile {profile_id} is not kept. THREEWALLS_KEEP_PROFILES keeps traces.")
    log_files.text([file.key])  # a failing store gives a 503, not a truncated response
    return StreamingResponse(
        log_files.stream([file.key]),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"},
    )


@router.delete("/runs/{run_id}/profiles/{profile_id}", status_code=204, responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="run")
def remove_profile(
    engine: AppEngine, run_id: RunId, profile_id: ProfileId, author: Annotated[str, Query(max_length=MAX_AUTHOR)] = ""
) -> Response:
    """Remove a profile and its facts."""
    remove(engine, run_id, profile_id, signed(author))
    return Response(status_code=204)


class Confirmation(BaseModel):
    author: Author = author_field("Author of the confirmation.")


@router.post("/runs/{run_id}/profiles/{profile_id}/confirm", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="run")
def confirm_profile(
    *, request: Request, engine: AppEngine, run_id: RunId, profile_id: ProfileId, confirmation: Confirmation
) -> ProfileDetailOut:
    """Use the facts of a profile although it contradicts the contract of its run."""
    confirm(engine, run_id, profile_id, confirmation.author)
    with read_session(engine) as session:
        return _detail(request, session, profile_id)


@router.get("/compare/profiles", responses=documented(404, 409, 422))
@requires(Action.READ)
def compare_two_profiles(
    session: ReadSession,
    a: Annotated[int, Query(ge=1, le=LARGEST_NUMBER, description="The earlier profile.")],
    b: Annotated[int, Query(ge=1, le=LARGEST_NUMBER, description="The later profile.")],
) -> ProfileDifferenceOut:
    """Explain the difference in step time between profiles `a` and `b`, in milliseconds that add up."""
    *_, difference = get_difference(session, a, b)
    return ProfileDifferenceOut.model_validate({"a": a, "b": b, **difference_document(difference)})


def _detail(request: Request, session: Session, profile_id: int) -> ProfileDetailOut:
    profile = get_profile(session, profile_id)
    return ProfileDetailOut.from_values(profile, profile.stored, **_renamed(request, profile.stored))


def _out(request: Request, profile: StoredProfile) -> ProfileOut:
    return ProfileOut.from_values(profile, **_renamed(request, profile))


def _renamed(request: Request, profile: StoredProfile) -> dict[str, object]:
    base = public_address(request)
    files = [
        ProfileFileOut.from_values(file, url=f"{base}{file_address(profile.id, file)}" if file.key else None)
        for file in profile.files
    ]
    return {"run": profile.run_id, "url": _page(request, profile.run_id, profile.id), "files": files}


def _page(request: Request, run_id: int, profile_id: int) -> str:
    return f"{public_address(request)}/runs/{run_id}/profiles/{profile_id}"

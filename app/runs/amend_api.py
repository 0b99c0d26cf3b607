"""`PATCH /api/v1/runs/{id}/contract`: a person states contract fields of a run that is there already."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from app.runs.amend import amend_contract
from app.runs.api_models import RunId, RunOut
from app.runs.queries import get_run
from app.runs.waiting import settled
from app.storage.audit import MAX_AUTHOR, MAX_NOTE
from app.storage.database import read_session
from app.web.access.acting import Author, author_field
from app.web.dependencies import AppEngine, AppSettings
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["runs"])


MAX_FIELDS = 300
"""More than the contract has."""


class Amend(BaseModel):
    model_config = ConfigDict(extra="forbid")

    fields: dict[str, Any] = Field(
        max_length=MAX_FIELDS,
        description='By contract field: the new value, or {"unset": true} to take an earlier correction back.',
    )
    author: Author = author_field("Who states it.", MAX_AUTHOR)
    note: str = Field("", max_length=MAX_NOTE, description="Why, or from where it is known.")


@router.patch("/runs/{run_id}/contract", responses=documented(404, 422))
async def amend_run(
    *,
    request: Request,
    engine: AppEngine,
    settings: AppSettings,
    run_id: RunId,
    change: Amend,
    wait: Annotated[float, Query(ge=0, description="Answer when the run was read anew, at the latest then.")] = 0,
) -> RunOut:
    """Correct or complete the contract. All fields or none; recorded with who, when and the old value, then applied."""

    def amend() -> None:
        amend_contract(engine, run_id, fields=change.fields, author=change.author, note=change.note)

    def read() -> RunOut:
        with read_session(engine) as session:
            return RunOut.of(get_run(session, run_id), f"{public_address(request)}/runs/{run_id}")

    await run_in_threadpool(amend)
    await settled(engine, run_id, min(wait, settings.max_wait_seconds))
    return await run_in_threadpool(read)

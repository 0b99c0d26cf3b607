"""Forms of runs: the upload, and the statement of contract fields afterwards. They work without script."""

from functools import partial

from fastapi import APIRouter, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.access.roles import Action
from app.errors import FieldError, InvalidMetadata, InvalidUpload
from app.runs.amend import amend_contract
from app.runs.amend_form import AmendForm, read_amend_form
from app.runs.filters import PURPOSES
from app.runs.ingest import UploadedFile, accept_upload
from app.runs.routes import RunId
from app.runs.run_page import RunPage, render_run
from app.runs.run_view import RunView
from app.runs.upload_form import UploadForm, read_form
from app.settings import Settings
from app.storage.database import read_session
from app.storage.projects import slugs_by_id
from app.web.access.acting import upload_project, uploader
from app.web.access.state import access_of
from app.web.body_limit import UPLOAD_BYTES
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings, RoomOnDisk
from app.web.forms import sent_form
from app.web.request_session import reading
from app.web.templating import render

MAX_FILES = 64
MAX_FIELDS = 64
MULTIPART = {"multipart/form-data": {"schema": {"type": "object"}}}
MAX_AMENDED = 300
"""More inputs than the contract has fields."""

router = APIRouter(include_in_schema=False)


@router.get("/upload")
def show_upload(request: Request, engine: AppEngine, settings: AppSettings) -> HTMLResponse:
    return _render_upload(request, engine, settings, UploadForm())


@router.post(
    "/upload",
    max_body_size=UPLOAD_BYTES,
    dependencies=[RoomOnDisk],
    openapi_extra={"requestBody": {"content": MULTIPART}},
)
async def upload_run(request: Request, engine: AppEngine, log_files: AppLogFiles, settings: AppSettings) -> Response:
    """The same upload as the API's. Async only to read the form; the work is done in a thread."""
    async with sent_form(
        request, max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=settings.max_metadata_bytes
    ) as sent:
        form = read_form(sent)
        files = [
            UploadedFile("log", upload.filename or "log", upload.file)
            for upload in sent.getlist("log")
            if isinstance(upload, UploadFile) and upload.filename
        ]
        try:
            meta = form.metadata()
            into = partial(_chosen_project, request, engine)
            accept = partial(accept_upload, files=files, meta=meta, into=into, uploader=uploader(request))
            accepted = await run_in_threadpool(accept, engine, log_files, settings)
        except InvalidUpload as error:
            return await run_in_threadpool(_render_upload, request, engine, settings, form.refused(error), status=422)
    return RedirectResponse(f"/runs/{accepted.run_id}", status_code=303)


@router.post("/runs/{run_id}/contract")
async def amend_run(request: Request, engine: AppEngine, log_files: AppLogFiles, run_id: RunId) -> Response:
    """The same correction as the API's. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_AMENDED) as sent:
        form = read_amend_form(sent)
    refused = await run_in_threadpool(_amend, engine, run_id, form)
    if refused is None:
        return RedirectResponse(f"/runs/{run_id}#contract", status_code=303)

    def page() -> HTMLResponse:
        with reading(request) as session:
            return render_run(
                request, RunPage(session, log_files, run_id, RunView(), form=refused), block=None, status=422
            )

    return await run_in_threadpool(page)


def _amend(engine: Engine, run_id: int, form: AmendForm) -> AmendForm | None:
    """None when the statement was recorded, else the form with what is wrong."""
    try:
        amend_contract(engine, run_id, fields=form.stated(), author=form.value("author"), note=form.value("note"))
    except InvalidUpload as error:
        return form.refused(error)
    return None


def _chosen_project(request: Request, engine: Engine, stated: str | None) -> str:
    """Raises InvalidMetadata, NotAllowed."""
    person = access_of(request).person
    if stated is None and person is not None and person.administrator:
        raise InvalidMetadata("No project was chosen.", (FieldError("meta.project", "must be chosen or named"),))
    return upload_project(request, engine, stated)


def _render_upload(
    request: Request, engine: Engine, settings: Settings, form: UploadForm, status: int = 200
) -> HTMLResponse:
    """With log-ins the project is one of those that there are: none begins by a word that was mistyped or left out."""
    access = access_of(request)
    with read_session(engine) as session:
        slugs = slugs_by_id(session)
    return render(
        request,
        "runs/upload.html",
        status=status,
        form=form,
        purposes=PURPOSES,
        max_bytes=settings.max_upload_bytes,
        projects=sorted(slug for number, slug in slugs.items() if access.may(Action.UPLOAD, number)),
    )

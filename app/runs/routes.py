"""Pages of runs: the list, one run and its parts, the upload form. HTTP in, template out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from app.errors import InvalidUpload
from app.runs.export import csv_rows
from app.runs.filters import EVIDENCE_LEVELS, PURPOSES, STATUSES
from app.runs.ingest import UploadedFile, accept_upload
from app.runs.queries import RunFilters, filter_options, find_runs, get_series, page_number
from app.runs.run_page import RunPage
from app.runs.run_view import RunView
from app.runs.upload_form import UploadForm, read_form
from app.settings import Settings
from app.web.assets import vega_bundle
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings, ReadSession
from app.web.templating import render

MAX_FILES = 64
MAX_FIELDS = 64

router = APIRouter(include_in_schema=False)

RunId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/runs")
def list_runs(request: Request, session: ReadSession) -> HTMLResponse:
    filters = RunFilters.from_params(request.query_params)
    number = page_number(request.query_params)
    page = find_runs(session, filters, number)
    query = filters.query(page=number)
    return render(
        request,
        "runs/list.html",
        block="run_table",
        address=f"/runs?{query}" if query else "/runs",
        page=page,
        filters=filters,
        options=filter_options(session),
        choices={"status": STATUSES, "purpose": PURPOSES, "evidence": EVIDENCE_LEVELS},
    )


def get_page(request: Request, run_id: RunId, session: ReadSession, log_files: AppLogFiles) -> RunPage:
    return RunPage(session, log_files, run_id, RunView.from_params(request.query_params))


Page = Annotated[RunPage, Depends(get_page)]


@router.get("/runs/{run_id}")
def show_run(request: Request, page: Page, settings: AppSettings) -> HTMLResponse:
    return _render_run(request, page, settings, block=None)


@router.get("/runs/{run_id}/chart")
def show_chart(request: Request, page: Page, settings: AppSettings) -> HTMLResponse:
    return _render_run(request, page, settings, block="run_chart", anchor="chart")


@router.get("/runs/{run_id}/log")
def show_log(request: Request, page: Page, settings: AppSettings) -> HTMLResponse:
    anchor = f"L{page.view.line}" if page.view.line else "log"
    return _render_run(request, page, settings, block="run_log", anchor=anchor)


@router.get("/runs/{run_id}/state")
def show_state(request: Request, page: Page, settings: AppSettings, seen: str = "") -> Response:
    """What a waiting page asks every second. 204 while nothing changed, so that nothing on the page moves."""
    if page.run.status == seen:
        return Response(status_code=204, headers={"Vary": "HX-Request", "Cache-Control": "no-cache"})
    return _render_run(request, page, settings, block="run_body")


@router.get("/runs/{run_id}/series.csv")
def export_series(session: ReadSession, run_id: RunId) -> StreamingResponse:
    """The API's CSV under an address of its own: a link cannot ask for a media type."""
    headers = {"Content-Disposition": f'attachment; filename="run-{run_id}.csv"'}
    return StreamingResponse(csv_rows(get_series(session, run_id)), media_type="text/csv", headers=headers)


@router.get("/upload")
def show_upload(request: Request, settings: AppSettings) -> HTMLResponse:
    return _render_upload(request, settings, UploadForm())


@router.post("/upload")
async def upload_run(request: Request, engine: AppEngine, log_files: AppLogFiles, settings: AppSettings) -> Response:
    """The same upload as the API's. Async only to read the form; the work is done in a thread."""
    async with request.form(
        max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=settings.max_metadata_bytes
    ) as sent:
        form = read_form(sent)
        files = [
            UploadedFile("log", upload.filename or "log", upload.file)
            for upload in sent.getlist("log")
            if isinstance(upload, UploadFile) and upload.filename
        ]
        try:
            meta = form.metadata()
            accepted = await run_in_threadpool(accept_upload, engine, log_files, settings, files=files, meta=meta)
        except InvalidUpload as error:
            return await run_in_threadpool(_render_upload, request, settings, form.refused(error), status=422)
    return RedirectResponse(f"/runs/{accepted.run_id}", status_code=303)


def _render_upload(request: Request, settings: Settings, form: UploadForm, status: int = 200) -> HTMLResponse:
    return render(
        request, "runs/upload.html", status=status, form=form, purposes=PURPOSES, max_bytes=settings.max_upload_bytes
    )


def _render_run(
    request: Request, page: RunPage, settings: Settings, *, block: str | None, anchor: str = ""
) -> HTMLResponse:
    query = page.view.query()
    # Writing the bundle takes a second the first time, so only a page that draws asks for it.
    return render(
        request,
        "runs/run.html",
        block=block,
        address=f"/runs/{page.run.id}{'?' + query if query else ''}#{anchor}" if anchor else None,
        p=page,
        run=page.run,
        view=page.view,
        vega_url=lambda: f"/assets/{vega_bundle(settings.data_dir).name}",
    )

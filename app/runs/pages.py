"""Pages of a run and its parts, and the upload. HTTP in, template out."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from sqlalchemy import Engine, and_
from sqlmodel import Session, col
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.access.guards import UPLOAD_BYTES
from app.domain.access.principal import Action
from app.errors import Conflict, FieldError, InvalidChange, InvalidMetadata, InvalidUpload, ThreewallsError
from app.pipeline.profile_files import is_profile
from app.pipeline.profiles import SentProfileFile, accept_profile
from app.pipeline.receive import UploadedFile, accept_upload
from app.runs.api import csv_rows
from app.runs.commands import RUN_DECISIONS, RunDecision, amend_contract, correct, decide, describe_lines
from app.runs.forms import AmendForm, CorrectionForm, DecisionForm, ReadAsForm, UploadForm
from app.runs.preview import PREVIEW_BYTES, preview_body
from app.runs.queries import PURPOSES, get_run, get_series, get_state
from app.runs.run_page import RunPage, RunView, SeenState, announcement, render_run, token_of
from app.settings import Settings
from app.storage.database import read_session
from app.storage.projects import slugs_by_id
from app.storage.runs import latest_runs
from app.storage.tables import RunRow
from app.storage.verdicts import regressions_of
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, AppLogFiles, AppSettings, ReadSession, RoomOnDisk, RunId
from app.web.forms import answer_form, sent_form, status_of
from app.web.identity import access_of, upload_project, uploader
from app.web.lists import csv_download
from app.web.templating import render, shown_params

router = APIRouter(include_in_schema=False)


def get_page(request: Request, run_id: RunId, session: ReadSession, log_files: AppLogFiles) -> RunPage:
    return RunPage(session, log_files, run_id, RunView.from_params(request.query_params))


Page = Annotated[RunPage, Depends(get_page)]


@router.get("/runs/{run_id}")
@requires(Action.READ, of="run")
def show_run(request: Request, page: Page) -> HTMLResponse:
    page.check_series()
    return render_run(request, page, block=None)


@router.get("/runs/{run_id}/chart")
@requires(Action.READ, of="run")
def show_chart(request: Request, page: Page) -> HTMLResponse:
    if not page.view.tab:  # the chart stays while tabs change below it
        page.view = replace(page.view, tab=RunView.from_params(shown_params(request)).shown)
    # The chart that loads with the page leaves the tabs alone, because a reader may have clicked one meanwhile.
    has_loaded = request.headers.get("HX-Trigger") != "run-chart"
    return render_run(request, page, block="run_chart", anchor="chart", whole=has_loaded)


@router.get("/runs/{run_id}/tab")
@requires(Action.READ, of="run")
def show_tab(request: Request, page: Page) -> HTMLResponse:
    return render_run(request, page, block="run_tab", anchor="")


@router.get("/runs/{run_id}/log")
@requires(Action.READ, of="run")
def show_log(request: Request, page: Page) -> HTMLResponse:
    page.view = replace(page.view, tab="log")
    anchor = f"L{page.view.line}" if page.view.line else "log"
    return render_run(request, page, block="run_tab", anchor=anchor)


@router.get("/runs/{run_id}/timers")
@requires(Action.READ, of="run")
def show_timers(request: Request, page: Page) -> HTMLResponse:
    return render_run(request, page, block="run_timers")


@router.get("/runs/{run_id}/news")
@requires(Action.READ, of="run")
def show_news(
    *, request: Request, session: ReadSession, log_files: AppLogFiles, run_id: RunId, seen: str = ""
) -> Response:
    """Return what an open page needs to catch up; 204 when nothing changed, so that the page does not move."""
    before, now = SeenState.parse(seen), token_of(get_state(session, run_id))
    if before == now:
        return Response(status_code=204, headers={"Vary": "HX-Request", "Cache-Control": "no-cache"})
    page = RunPage(session, log_files, run_id, RunView.from_params(shown_params(request)))
    return render_run(
        request, page, block="run_news", whole=before.status != now.status, announce=announcement(before, now)
    )


@router.get("/runs/{run_id}/series.csv")
@requires(Action.READ, of="run")
def export_series(session: ReadSession, run_id: RunId) -> Response:
    """Return the CSV of the API under its own address, because a link cannot request a media type."""
    return csv_download(csv_rows(get_series(session, run_id)), f"run-{run_id}.csv")


# --- Forms of runs: the upload, and the statement of contract fields afterwards. They work without script.

MAX_FILES = 64
MAX_UPLOAD_FIELDS = 64
MULTIPART = {"multipart/form-data": {"schema": {"type": "object"}}}
MAX_DECISION_FIELDS = 8
MAX_AMENDED = 300
"""More inputs than the contract has fields."""


@router.get("/upload")
@requires(Action.UPLOAD)
def show_upload(request: Request, engine: AppEngine, settings: AppSettings) -> HTMLResponse:
    """Show the upload form. Values of the address, such as `?project=moe`, fill its inputs."""
    return _render_upload(request, engine, settings, UploadForm.read(request.query_params))


@router.post(
    "/upload",
    max_body_size=UPLOAD_BYTES,
    dependencies=[RoomOnDisk],
    openapi_extra={"requestBody": {"content": MULTIPART}},
)
@requires(Action.UPLOAD)
async def upload_run(request: Request, engine: AppEngine, log_files: AppLogFiles, settings: AppSettings) -> Response:
    """Upload a run like the API. Async only to read the form; a thread does the work."""
    async with sent_form(
        request, max_files=MAX_FILES, max_fields=MAX_UPLOAD_FIELDS, max_part_size=settings.max_metadata_bytes
    ) as sent:
        form = UploadForm.read(sent)
        try:
            files, traces = await run_in_threadpool(_sorted_out, sent)
            meta = form.metadata()
            into = partial(_chosen_project, request, engine)
            accept = partial(accept_upload, files=files, meta=meta, into=into, uploader=uploader(request))
            accepted = await run_in_threadpool(accept, engine, log_files, settings)
            if traces:
                attach = partial(accept_profile, run_id=accepted.run_id, files=traces, uploader=uploader(request))
                await run_in_threadpool(attach, engine, log_files, settings)
        except InvalidUpload as error:
            return await run_in_threadpool(_render_upload, request, engine, settings, form.refused(error), status=422)
    return RedirectResponse(f"/runs/{accepted.run_id}", status_code=303)


def _sorted_out(sent: FormData) -> tuple[list[UploadedFile], list[SentProfileFile]]:
    """Return the logs and the profiles of a form. A profile among the logs is recognised by its content."""
    files: list[UploadedFile] = []
    traces: list[SentProfileFile] = []
    for field in ("log", "profile"):
        for upload in sent.getlist(field):
            if not isinstance(upload, UploadFile) or not upload.filename:
                continue
            if field == "profile" or is_profile(upload.filename, upload.file):
                traces.append(SentProfileFile(upload.filename, upload.file))
            else:
                files.append(UploadedFile("log", upload.filename, upload.file))
    if traces and not files:
        name = traces[0].name[:100]
        what = f"{name} is a trace or an archive, so it is read as a profile, not as a log."
        raise InvalidUpload(f"{what} Upload it with the log of its job, or attach it on the page of its run.")
    return files, traces


@router.post("/runs/{run_id}/contract")
@requires(Action.CONTRIBUTE, of="run")
async def amend_run(request: Request, engine: AppEngine, log_files: AppLogFiles, run_id: RunId) -> Response:
    """Correct a run like the API."""

    def amend(form: AmendForm) -> str:
        amend_contract(engine, run_id, fields=form.stated(), author=form.value("author"), note=form.value("note"))
        return f"/runs/{run_id}?tab=config#contract"

    def again(session: Session, form: AmendForm, _: ThreewallsError) -> Response:
        page = RunPage(session, log_files, run_id, RunView(tab="config"), form=form)
        return render_run(request, page, block=None, status=422)

    return await answer_form(request, AmendForm, amend, again, max_fields=MAX_AMENDED, catch=(InvalidUpload,))


@router.post("/runs/{run_id}/read-as")
@requires(Action.CONTRIBUTE, of="run")
async def describe_step_lines(request: Request, engine: AppEngine, log_files: AppLogFiles, run_id: RunId) -> Response:
    """Describe the step lines of a log like the API."""

    def describe(form: ReadAsForm) -> str:
        note = form.value("note")
        describe_lines(engine, run_id, read_as=form.value("read_as"), author=form.value("author"), note=note)
        return f"/runs/{run_id}"

    def again(session: Session, form: ReadAsForm, _: ThreewallsError) -> Response:
        page = RunPage(session, log_files, run_id, RunView(), read_as=form)
        return render_run(request, page, block=None, status=422)

    return await answer_form(
        request, ReadAsForm, describe, again, max_fields=MAX_DECISION_FIELDS, catch=(InvalidUpload,)
    )


@router.post(
    "/upload/preview",
    max_body_size=PREVIEW_BYTES,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
@requires(Action.UPLOAD)
async def preview_upload(request: Request, name: Annotated[str, Query(max_length=300)] = "log") -> JSONResponse:
    """Return the values in the beginning of a file, before it is uploaded. Nothing is stored."""
    return JSONResponse(asdict(await preview_body(request, name)), headers={"Cache-Control": "no-store"})


@router.get("/runs/{run_id}/correct")
@requires(Action.CONTRIBUTE, of="run")
def show_correction(request: Request, session: ReadSession, run_id: RunId) -> HTMLResponse:
    return _render_correction(request, session, run_id)


@router.post("/runs/{run_id}/correct")
@requires(Action.CONTRIBUTE, of="run")
async def correct_run(request: Request, engine: AppEngine, run_id: RunId) -> Response:
    """Correct a run like the API: only what differs from the stored values is a change."""

    def act(form: CorrectionForm) -> str:
        with read_session(engine) as session:
            changes = form.changes(CorrectionForm.of(get_run(session, run_id)))
        if changes:
            correct(engine, [run_id], changes, author=form.value("author"), note=form.value("note"))
        return f"/runs/{run_id}"

    def again(session: Session, form: CorrectionForm, error: ThreewallsError) -> Response:
        return _render_correction(request, session, run_id, form, status=status_of(error))

    return await answer_form(
        request, CorrectionForm, act, again, max_fields=MAX_UPLOAD_FIELDS, catch=(InvalidChange, Conflict)
    )


def _render_correction(
    request: Request, session: Session, run_id: int, form: CorrectionForm | None = None, status: int = 200
) -> HTMLResponse:
    run = get_run(session, run_id)
    may = access_of(request).may
    projects = [slug for number, slug in slugs_by_id(session).items() if may(Action.CONTRIBUTE, number)]
    return render(
        request,
        "runs/correct.html",
        status=status,
        run=run,
        form=form or CorrectionForm.of(run),
        projects=sorted(projects),
    )


def _chosen_project(request: Request, engine: Engine, stated: str | None) -> str:
    """Return the project of the upload; administrators must name one. Raises InvalidMetadata, NotAllowed."""
    user = access_of(request).user
    if stated is None and user is not None and user.administrator:
        raise InvalidMetadata("No project was chosen.", (FieldError("meta.project", "choose or name a project"),))
    return upload_project(request, engine, stated)


_EXAMPLES = 20
"""Most runs among which the example is searched."""


def _render_upload(
    request: Request, engine: Engine, settings: Settings, form: UploadForm, status: int = 200
) -> HTMLResponse:
    """Render the upload form with the newest run whose verdict is certain as an example.

    With log-ins it offers the existing projects, so that a mistyped name does not create one.
    """
    access = access_of(request)
    with read_session(engine) as session:
        slugs = slugs_by_id(session)
        readable = [number for number in slugs if access.may(Action.READ, number)]
        shown = and_(col(RunRow.project_id).in_(readable), col(RunRow.purpose) != "experiment")
        # A slowdown can be a single noisy run; `no_change` needs a narrow interval.
        steady = latest_runs(session, _EXAMPLES, shown, col(RunRow.verdict) == "no_change")
        # As fast as earlier runs, a run that continues a regression is still slow.
        newest = next((run for run in steady if not regressions_of(session, run.id)), None)
        newest = newest or next(iter(latest_runs(session, 1, shown, col(RunRow.verdict) == "regression")), None)
    return render(
        request,
        "runs/upload.html",
        status=status,
        form=form,
        purposes=PURPOSES,
        max_bytes=settings.max_upload_bytes,
        preview_bytes=PREVIEW_BYTES,
        newest=newest,
        projects=sorted(slug for number, slug in slugs.items() if access.may(Action.UPLOAD, number)),
    )


# --- `POST /runs/{id}/quarantine`, `/pin`, `/propose` and so on: the forms of the run's page. They work without script.


def _route(action: RunDecision) -> Callable[..., Awaitable[Response]]:
    @requires(Action.CONTRIBUTE, of="run")
    async def decide_run(request: Request, engine: AppEngine, log_files: AppLogFiles, run_id: RunId) -> Response:
        """Carry out a decision like the API."""

        def act(form: DecisionForm) -> str:
            decide(engine, run_id, action, author=form.value("author"), note=form.value("note"))
            return f"/runs/{run_id}?tab=record#decisions"

        def again(session: Session, form: DecisionForm, _: ThreewallsError) -> Response:
            decision = replace(form, action=action)
            page = RunPage(session, log_files, run_id, RunView(tab="record"), decision=decision)
            return render_run(request, page, block=None, status=422)

        return await answer_form(request, DecisionForm, act, again, max_fields=MAX_DECISION_FIELDS)

    return decide_run


for _action in RUN_DECISIONS:
    router.add_api_route(f"/runs/{{run_id}}/{_action}", _route(_action), methods=["POST"], name=f"{_action}_by_form")

"""Uploads the demo runs over HTTP, one at a time, while the server runs."""

import json
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog
from sqlmodel import select

from app.demo.job import PROJECT, DemoJob, DemoTrial
from app.demo.story import render, story, trials
from app.demo.studies import PUBLIC_PROJECT, REPOSITORY, PublicRun, journey, public_runs, studies
from app.demo.trace import render_trace
from app.domain.verdict.policy import ANY_BRANCH
from app.pipeline.regressions import refresh_costs
from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.example_runs import loading_examples
from app.storage.tables import ProjectRow, StackWorkRow, utc_now
from app.storage.users import has_administrator
from app.storage.visible import EVERY_PROJECT, seeing

# --- The experiments of the demo: planned, run and decided through the API.

EXPERIMENT_TIMEOUT_SECONDS = 60
AUTHOR = "Demo"
UNFINISHED, DECIDED = ("planned", "waiting"), ("accepted", "rejected", "withdrawn")
_ATTEMPTS, _PAUSE_SECONDS = 2_400, 0.25
"""Limit for processing a run, which waits behind the uploads of a whole month."""


def planned(address: str, stopping: threading.Event, trial: DemoTrial, run_id: int) -> dict[str, Any]:
    """Return the experiment, planned now or by an earlier start; empty if the service stops before."""
    experiments = _call(address, "GET", f"experiments?project={quote(PROJECT)}&run={run_id}")["items"]
    if existing := next((experiment for experiment in experiments if experiment["title"] == trial.title), None):
        return dict(existing)
    if not _is_ready(address, stopping, run_id):
        return {}
    change = {"rule": trial.rule} if trial.rule else {"knobs": dict(trial.knobs)}
    plan = {"run": run_id, "title": trial.title, "runs_each": trial.runs_each, "author": AUTHOR}
    return dict(_call(address, "POST", "experiments", plan | change))


def decide(
    address: str, stopping: threading.Event, experiment_id: int, run_ids: Collection[int], trial: DemoTrial
) -> None:
    """Decide an experiment as the trial says, unless it is decided already.

    It waits until all of `run_ids` belong to it: an early decision may come before the last run, and a run that
    comes after a person decided does not join.
    """
    experiment: dict[str, Any] = {}

    def has_all_runs() -> bool:
        experiment.update(_call(address, "GET", f"experiments/{experiment_id}"))
        is_finished = experiment["state"] not in UNFINISHED or not run_ids
        return is_finished and {run["run_id"] for run in experiment["runs"]} >= {*run_ids}

    if _comes(stopping, has_all_runs) and trial.decision and experiment["state"] not in DECIDED:
        decision = {"state": trial.decision, "author": AUTHOR, "note": trial.note}
        _call(address, "PATCH", f"experiments/{experiment_id}", decision)


def _is_ready(address: str, stopping: threading.Event, run_id: int) -> bool:
    return _comes(stopping, lambda: _call(address, "GET", f"runs/{run_id}")["status"] == "ready")


def _comes(stopping: threading.Event, condition: Callable[[], bool]) -> bool:
    """Wait for the condition. Return False if the service stops or the limit is reached."""
    for _ in range(_ATTEMPTS):
        if condition():
            return True
        if stopping.wait(_PAUSE_SECONDS):
            return False
    return False


def _call(address: str, method: str, path: str, body: object = None) -> Any:
    request = urllib.request.Request(  # noqa: S310  the address is our own server's
        f"{address}/api/v1/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=EXPERIMENT_TIMEOUT_SECONDS) as answer:  # noqa: S310
        return json.load(answer)


log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 60


def seed(settings: Settings, *, with_public_ci: bool) -> Callable[[str, threading.Event], None]:
    """Return a function that fills the demo projects of the server at an address until the event is set.

    It is repeatable: each run has its own idempotency key, so a start adds only the missing runs.
    """

    def push_all(address: str, stopping: threading.Event) -> None:
        if _asks_for_log_ins(settings):
            log.warning("demo_not_filled", why="an administrator exists, so uploads need a log-in")
            return
        _make_project(settings, ProjectRow(slug=PROJECT, generated=True))
        parts = ((list(story()), trials()), (list(studies()), journey()))
        total = sum(len(jobs) + sum(len(trial.jobs) for trial in planned_trials) for jobs, planned_trials in parts)
        public = list(public_runs()) if with_public_ci else []
        sent: dict[str, int] = {}
        try:
            with loading_examples(total + len(public)):
                for jobs, planned_trials in parts:
                    for job in jobs:
                        if stopping.is_set():
                            return
                        _send(address, stopping, job, sent)
                    _try_knobs(address, stopping, sent, planned_trials)
                if public:
                    _send_public_runs(settings, address, stopping, public)
                if _comes(stopping, lambda: not _call(address, "GET", "runs?status=received&page_size=1")["items"]):
                    propose_closing(settings, stopping)
        except OSError as error:
            log.warning("demo_upload_interrupted", error=str(error), next="continues at the next start")

    return push_all


def propose_closing(settings: Settings, stopping: threading.Event) -> None:
    """Refresh the regressions when all stacks are judged, as a sweep does later: many are idle or recovered."""
    engine = make_engine(settings)

    def is_judged() -> bool:
        with read_session(engine) as session:
            return session.exec(select(StackWorkRow.id).where(StackWorkRow.work != "").limit(1)).first() is None

    with seeing(EVERY_PROJECT):
        if _comes(stopping, is_judged):
            with transaction(engine) as session:
                refresh_costs(session, utc_now())
    engine.dispose()


def _send(address: str, stopping: threading.Event, job: DemoJob, sent: dict[str, int]) -> None:
    """Upload a job and record the number of its run by its name."""
    try:
        answer = upload(address, job)
        sent[job.name] = answer.run_id
        if job.pinned and answer.is_new and _is_ready(address, stopping, answer.run_id):
            pin(address, answer.run_id, job.pinned)
        if answer.is_new and job.profile:
            trace = render_trace(job, job.profile)
            _post_form(
                address, f"runs/{answer.run_id}/profiles", [('name="profile"; filename="rank-0.json.gz"', trace)]
            )
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.CONFLICT:  # an earlier version uploaded it with slightly different content
            log.error("demo_upload_refused", run=job.name, status=error.code, answer=error.read().decode())


def _send_public_runs(settings: Settings, address: str, stopping: threading.Event, public: Iterable[PublicRun]) -> None:
    """Upload the second project. Its tests run on several branches, so all of them are baselines."""
    _make_project(
        settings,
        ProjectRow(
            slug=PUBLIC_PROJECT,
            baseline_branch=ANY_BRANCH,
            commit_url=f"{REPOSITORY}/commit/{{commit}}",
            compare_url=f"{REPOSITORY}/compare/{{from}}...{{to}}",
        ),
    )
    for run in public:
        if stopping.is_set():
            return
        parts = [
            ('name="meta"', json.dumps(run.metadata).encode()),
            ('name="config"; filename="golden_values.json"', json.dumps(run.document).encode()),
        ]
        _post_form(address, "runs", parts, key=run.key)


def _try_knobs(
    address: str, stopping: threading.Event, sent: dict[str, int], planned_trials: Iterable[DemoTrial]
) -> None:
    """Run experiments: each is planned, gets its runs, and is decided before the next one."""
    for trial in planned_trials:
        if stopping.is_set() or trial.baseline not in sent:
            return
        experiment = planned(address, stopping, trial, sent[trial.baseline])
        if not experiment:
            return
        for side, job in trial.jobs:
            _send(address, stopping, replace(job, tags=(experiment["tag"], side)), sent)
        if trial.decision:
            decide(
                address,
                stopping,
                experiment["id"],
                [sent[job.name] for _, job in trial.jobs if job.name in sent],
                trial,
            )


@dataclass(frozen=True, slots=True)
class Sent:
    run_id: int
    is_new: bool


def upload(address: str, job: DemoJob) -> Sent:
    """Upload the log and metadata of a job."""
    parts = [
        ('name="meta"', json.dumps(job.metadata()).encode()),
        (f'name="log"; filename="{job.name.replace(" ", "-")}.log"', render(job).encode()),
    ]
    status, answer = _post_form(address, "runs", parts, key=job.key)
    return Sent(int(answer["id"]), status == HTTPStatus.ACCEPTED)


def _post_form(address: str, path: str, parts: Iterable[tuple[str, bytes]], key: str = "") -> tuple[int, Any]:
    """Post a form (disposition and content of each part). Return the status and the answer."""
    boundary = secrets.token_hex(16).encode()
    body = b"".join(
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (boundary, disposition.encode(), content)
        for disposition, content in parts
    )
    request = urllib.request.Request(  # noqa: S310  the address is our own server's
        f"{address}/api/v1/{path}",
        data=b"%b--%b--\r\n" % (body, boundary),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary.decode()}"}
        | ({"Idempotency-Key": key} if key else {}),
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
        return answer.status, json.load(answer)


def pin(address: str, run_id: int, note: str) -> None:
    """Pin a run as the golden baseline of its stack."""
    request = urllib.request.Request(  # noqa: S310
        f"{address}/api/v1/runs/{run_id}/pin",
        data=json.dumps({"author": AUTHOR, "note": note}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):  # noqa: S310
        pass


def _asks_for_log_ins(settings: Settings) -> bool:
    engine = make_engine(settings)
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        needs_log_in = has_administrator(session)
    engine.dispose()
    return needs_log_in


def _make_project(settings: Settings, row: ProjectRow) -> None:
    """Create the project before its first run arrives, unless it exists."""
    engine = make_engine(settings)
    with seeing(EVERY_PROJECT), transaction(engine) as session:
        if session.exec(select(ProjectRow).where(ProjectRow.slug == row.slug)).first() is None:
            session.add(row)
    engine.dispose()

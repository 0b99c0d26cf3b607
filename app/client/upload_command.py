"""`threewalls upload`: reads the files, sends or spools them, and waits for the verdict with `--wait`."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.client import spool
from app.client.ci import CiJob, surrounding_job
from app.client.delivery import DeliveredRun, Follower, ProgressLine, StopCondition, attach_profile, deliver
from app.client.errors import FINE, NO_VERDICT, SERVICE, NotThreewalls, Refused, Unreachable, apply_allow, failure
from app.client.options import SPOOL
from app.client.report import WORST_FIRST, exit_code_of, outcome_of, report_of, verdict_text
from app.client.service import ClientSettings, Service
from app.client.terminal import one_line, out, say
from app.client.upload import UnreadableLogError, Upload, files_of, is_compressed, read_upload, upload_metadata
from app.errors import ThreewallsError, UsageError

# --- Separates the jobs in a folder, so that each becomes its own run. The service reads the beginning of each file,
# and the end of a long one. Logs whose facts contradict each other, such as the seed or the number of GPUs, are of
# different jobs, and so are two logs with all iterations, one after the other.

_PREVIEW = "/api/v1/uploads/preview"
_PREVIEW_BYTES, _END_BYTES = 1 << 20, 1 << 16
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
MOST_FILES = 200
"""Files of a folder that are previewed; the ranks of a larger job are not read twice."""


@dataclass
class Job:
    """The logs of one job, their common facts, the spans of those with all iterations, and the documents with them."""

    logs: list[Path] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    spans: list[tuple[float, float]] = field(default_factory=list)
    documents: list[Path] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        return [*self.logs, *self.documents]


def split_jobs(service: Service, files: Sequence[Path]) -> list[Job]:
    """Return the jobs that wrote these files, in the order of the files. One job if the service cannot tell.

    A log without facts, such as the output of another rank, joins the job whose files have the most similar name. A
    document also joins such a job, or all jobs if none is more similar than the others. Raises Unreachable.
    """
    everything = [Job(list(files))]
    if not 1 < len(files) <= MOST_FILES:
        return everything
    previews = {}
    for path in files:
        try:
            previews[path] = _preview(service, path)
        except (Refused, NotThreewalls, OSError):  # an earlier service, or a file that the upload will report
            return everything
    jobs: list[Job] = []
    for path, preview in previews.items():
        if facts := preview.get("job"):
            spans = [tuple(preview["whole_job"])] if preview.get("whole_job") else []
            job = next((job for job in jobs if _agree(job.facts, facts) and _overlap(job.spans + spans)), None)
            if job is None:
                job = Job()
                jobs.append(job)
            job.logs.append(path)
            job.facts = {**facts, **job.facts}
            job.spans += spans
    if len(jobs) < 2:
        return everything
    for path, preview in previews.items():
        if not preview.get("job"):
            _join(path, jobs, is_document=preview.get("is_document") is True)
    return jobs


def describe(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield a line for each job: its logs, and the facts in which the jobs differ."""
    differing = [name for name in jobs[0].facts if len({str(job.facts.get(name)) for job in jobs}) > 1]
    for number, job in enumerate(jobs, start=1):
        facts = ", ".join(f"{name} {job.facts[name]}" for name in differing if name in job.facts)
        names = ", ".join(path.name for path in job.logs[:3]) + (
            f" and {len(job.logs) - 3} more" if job.logs[3:] else ""
        )
        yield f"  {number}. {names}" + (f" ({facts})" if facts else "")


def _preview(service: Service, path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        text = file.read(_PREVIEW_BYTES)
        if len(text) == _PREVIEW_BYTES and not text.startswith(_COMPRESSED):
            file.seek(max(file.tell(), path.stat().st_size - _END_BYTES))
            text += b"\n" + file.read(_END_BYTES)
    name = path.name.encode("utf-8", "replace").decode()[:300]
    answer: Mapping[str, Any] = service.post(_PREVIEW, params={"name": name}, content=text).json()
    return answer


def _agree(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(b[name] == value for name, value in a.items() if name in b)


def _overlap(spans: Sequence[tuple[float, float]]) -> bool:
    return not spans or max(begins for begins, _ in spans) <= min(ends for _, ends in spans)


def _join(path: Path, jobs: Sequence[Job], *, is_document: bool) -> None:
    likeness = [max(_common_letters(path.name, log.name) for log in job.logs) for job in jobs]
    best = [job for job, length in zip(jobs, likeness) if length == max(likeness)]
    if not is_document:
        best[0].logs.append(path)
        return
    for job in best:
        job.documents.append(path)


def _common_letters(a: str, b: str) -> int:
    """Return how many letters two names have in common at their beginning."""
    return next((place for place, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


# --- `threewalls upload`.

SCHEMA = "threewalls.upload/1"
_STANDARD_INPUT = Path("-")
_KEY_LENGTH = 255


@dataclass(frozen=True)
class _Call:
    """The parsed inputs of one call."""

    options: argparse.Namespace
    settings: ClientSettings
    env: Mapping[str, str]
    job: CiJob | None
    meta: Mapping[str, object]
    progress: ProgressLine


def upload(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    """Upload a run and return the exit code. An unreachable service sends the upload to the spool.

    Raises UsageError, Refused or SpoolError.
    """
    job = None if options.no_ci else surrounding_job(env, Path.cwd())
    stated = {"name": options.name, "purpose": options.purpose, "project": options.project or ""}
    stated |= {"read_as": options.read_as, "format": options.format}
    meta = upload_metadata(job=job, documents=options.meta, settings=options.set, stated=stated, tags=options.tag)
    if settings.project:
        meta.setdefault("project", settings.project)
    if options.key and not (options.key.isascii() and options.key.isprintable() and len(options.key) <= _KEY_LENGTH):
        raise UsageError(f"--key must be at most {_KEY_LENGTH} printable ASCII characters.")
    if not options.follow and (options.until_pid or options.until_idle or options.until_text):
        raise UsageError("--until-pid, --until-idle and --until-text need --follow.")
    if options.allow and options.wait is None:
        raise UsageError("--allow needs --wait, because it refers to the verdict.")
    if job is not None and job.doubt and not meta.get("branch"):
        say(job.doubt)
    call = _Call(options, settings, env, job, meta, ProgressLine(sys.stderr))
    if options.follow:
        return _follow(call)
    if options.each and options.profile and options.each != "none":
        raise UsageError("--profile needs one run. Attach it to the run afterwards, or use --each none.")
    runs = _runs(call)
    codes = []
    for number, logs in enumerate(runs, start=1):
        key = f"{options.key}-{number}" if options.key and len(runs) > 1 else options.key
        codes.append(_send(replace(call, options=argparse.Namespace(**{**vars(options), "logs": logs, "key": key}))))
    return next((code for code in WORST_FIRST if code in codes), max(codes))


def _runs(call: _Call) -> list[list[Path]]:
    """Return the files of each run. Asks before a folder becomes several runs, if a person can answer."""
    options = call.options
    logs: list[Path] = options.logs
    if options.each == "file":
        return [[path] for path in files_of(logs)]
    is_folder = any(path.is_dir() for path in logs)
    if options.each == "none" or not (options.each or is_folder) or options.offline or options.profile:
        return [logs]
    try:
        with Service(call.settings, say=call.progress.line) as service:
            jobs = split_jobs(service, files_of(logs))
    except Unreachable:  # the upload says so, and waits in the spool as one run
        return [logs]
    if len(jobs) == 1:
        return [logs]
    lines = "\n".join(describe(jobs))
    say(f"these are the logs of {len(jobs)} jobs:\n{lines}")
    if not options.each and not options.json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"Upload them as {len(jobs)} runs? [Y/n] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("n", "no"):
            return [logs]
    else:
        say(f"they become {len(jobs)} runs. To upload one run: --each none")
    return [job.files for job in jobs]


def _send(call: _Call) -> int:
    options = call.options
    with _copied(options.logs) as logs:
        upload = read_upload(
            logs=logs, configs=options.config, events=options.events, meta=call.meta,
            job_key=call.job.key if call.job else "", key=options.key,
        )  # fmt: skip
        upload = replace(upload, strict=_strict(options))
        if options.offline:
            return _keep(call, upload, None)
        with Service(call.settings, say=call.progress.line) as service:
            try:
                run = deliver(service, upload, call.progress)
            except (Unreachable, Refused) as error:
                return _keep(call, upload, error)
            call.progress.clear()
            return _done(call, service, run)


def _follow(call: _Call) -> int:
    options, say = call.options, call.progress.line
    path = _growing_log(options)
    stop = threading.Event()
    with Service(replace(call.settings, retries=0)) as quick, Service(call.settings, say=say) as patient:
        follower = Follower(
            quick=quick, patient=patient, path=path, meta=call.meta, documents=_documents(call),
            until=StopCondition(options.until_pid, options.until_idle, options.until_text.encode()),
            interval=options.interval, job_key=options.key or (call.job.key if call.job else socket.gethostname()),
            say=say, sleep=stop.wait,
        )  # fmt: skip
        with _stopped_by_signals(follower, stop):
            follower.follow()
            if not path.exists():
                raise UsageError(f"The job ended before the file {path} appeared. Check the path of the log.")
            try:
                run = follower.finish()
            except (Unreachable, Refused) as error:
                return _keep(call, follower.rest(), error)
        return _done(call, patient, run)


def _documents(call: _Call) -> Upload:
    """Read the files that are sent with the first request of a growing log."""
    documents = Upload("", call.meta, ())
    if call.options.config or call.options.events:
        documents = read_upload(logs=[], configs=call.options.config, events=call.options.events, meta=call.meta)
    return replace(documents, strict=_strict(call.options))


def _strict(options: argparse.Namespace) -> tuple[str, ...]:
    return () if options.lenient else tuple(setting.partition("=")[0] for setting in options.set)


def _growing_log(options: argparse.Namespace) -> Path:
    if len(options.logs) != 1 or options.logs[0].is_dir() or options.logs[0] == _STANDARD_INPUT:
        raise UsageError("--follow takes exactly one file. Start one command per log, each with its own --name.")
    path: Path = options.logs[0]
    try:
        compressed = path.exists() and is_compressed(path)
    except OSError as error:
        raise UnreadableLogError(f"{path} cannot be read: {error.strerror or error}.") from None
    if compressed:
        raise UsageError(f"{path} is compressed, so it cannot grow. Upload it without --follow.")
    if options.offline:
        raise UsageError("--follow and --offline are mutually exclusive. Use --offline for a complete log.")
    return path


@contextmanager
def _stopped_by_signals(follower: Follower, stop: threading.Event) -> Iterator[None]:
    """Close the run at the first Ctrl-C or SIGTERM (a time limit, a cancelled job); do not catch the second."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def on_signal(*_: object) -> None:
        follower.stopped = True
        stop.set()
        for number in numbers:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _copied(logs: list[Path]) -> Iterator[list[Path]]:
    """Copy pipes (`-`, named pipes, `<(...)`) into temporary files, because a log is read twice."""
    if not any(map(_is_pipe, logs)):
        yield logs
        return
    with tempfile.TemporaryDirectory() as folder:
        yield [_copy(log, Path(folder) / str(index)) if _is_pipe(log) else log for index, log in enumerate(logs)]


def _is_pipe(log: Path) -> bool:
    try:
        return log == _STANDARD_INPUT or stat.S_ISFIFO(log.stat().st_mode)
    except (OSError, ValueError):  # `read_upload` reports the error
        return False


def _copy(log: Path, folder: Path) -> Path:
    """Copy a pipe into a file. A named pipe keeps its name."""
    is_named = log != _STANDARD_INPUT and log.parent not in (Path("/dev/fd"), Path("/proc/self/fd"))
    copy = folder / (log.name if is_named else "train.log")
    try:
        folder.mkdir()
        with copy.open("wb") as into:
            if log != _STANDARD_INPUT:
                with log.open("rb") as pipe:
                    shutil.copyfileobj(pipe, into)
            elif sys.stdin is not None:
                shutil.copyfileobj(sys.stdin.buffer, into)
            else:
                raise UnreadableLogError("Standard input is closed. Pipe the log into the command, or name a file.")
    except OSError as error:
        raise UnreadableLogError(f"{log} cannot be copied to {folder}: {error.strerror or error}.") from error
    return copy


def _keep(call: _Call, upload: Upload, error: Unreachable | Refused | None) -> int:
    """Spool an upload that the service may accept later, and return the exit code. Raise other refusals."""
    options, env = call.options, call.env
    call.progress.clear()
    if isinstance(error, Refused) and not error.may_pass:
        raise error
    failed = None if error is None else failure(error, call.settings.url, of_upload=True)
    if options.no_spool:
        raise ThreewallsError(f"{failed.message if failed else ''} Nothing was saved.", failed.errors if failed else ())
    try:
        folder = spool.put(spool.spool_folder(env, options.spool), upload, call.settings.url)
    except spool.SpoolError as spool_error:
        message = f"{failed.message if failed else ''} {spool_error.detail}".strip()
        raise spool.SpoolError(message) from spool_error
    # A refusal needs someone to act first, so it never exits with 0.
    code = SERVICE if isinstance(error, Refused) else _waiting_exit_code(options)
    if options.json:
        fields = failed.as_json() if failed else {}
        out(json.dumps(upload_document(**{**fields, "spooled": str(folder), "exit_code": code})))
    advice = f"The upload waits in {folder}. Send it with: {_sync_command(options, env)}"
    if options.profile:
        advice += " The spool does not store the profile: attach it to the run afterwards."
    say(f"{failed.lines if failed else ''} {advice}".strip())
    return code


def _sync_command(options: argparse.Namespace, env: Mapping[str, str]) -> str:
    return f"threewalls sync --spool {spool.spool_folder(env, options.spool)}" if options.spool or env.get(SPOOL) else (
        "threewalls sync"
    )  # fmt: skip


def _waiting_exit_code(options: argparse.Namespace) -> int:
    if options.wait is not None:
        return apply_allow(options.allow, NO_VERDICT, SERVICE)
    return FINE if options.spool_ok or options.offline else SERVICE


def upload_document(**fields: Any) -> dict[str, Any]:
    """Return the JSON document of `upload --json`: `fields`, and null for every other field."""
    empty: dict[str, Any] = {
        "id": None,
        "url": None,
        "created": None,
        "warnings": [],
        "spooled": None,
        "report": None,
    }
    return {"schema": SCHEMA, **empty, "exit_code": SERVICE, "error": None, "errors": []} | fields


def _done(call: _Call, service: Service, run: DeliveredRun) -> int:
    """Print the address of the run, and with `--wait` its report. Return the exit code."""
    options = call.options
    if not options.json:
        out(run.line)
    for warning in run.warnings:
        say(f"note: {one_line(warning)}")
    report, failed, code = None, None, FINE
    warnings = list(run.warnings)
    profile = _attached(call, service, run) if options.profile else None
    if options.wait is not None:
        try:
            report = report_of(service, run.id, options.wait)
            code = apply_allow(options.allow, outcome_of(report), exit_code_of(report))
            later = [str(warning) for warning in report.get("warnings") or () if str(warning) not in warnings]
            for warning in later:
                say(f"note: {one_line(warning)}")
            warnings += later
        except ThreewallsError as error:  # the run is uploaded, so its number is still printed
            failed = failure(error, call.settings.url, of_upload=True)
            code = apply_allow(options.allow, NO_VERDICT, SERVICE)
            say(f"no verdict: {failed.lines}")
    if options.json:
        fields = {"id": run.id, "url": run.url, "created": run.created, "warnings": warnings, "report": report}
        if options.profile:
            fields["profile"] = profile
        out(json.dumps(upload_document(**{**(failed.as_json() if failed else {}), **fields, "exit_code": code})))
    elif report is not None:
        out("\n".join(verdict_text(report)))
    if report is not None and report.get("status") == "pending":
        say(f"no verdict after {options.wait:g} s. To wait longer: threewalls report {run.id} --wait")
    _remind(options, call.env)
    return SERVICE if options.profile and profile is None and code == FINE else code


def _attached(call: _Call, service: Service, run: DeliveredRun) -> str | None:
    """Attach the profile and return its address; None when the service did not take it. The run stays uploaded."""
    try:
        address = attach_profile(service, run.id, call.options.profile)
    except ThreewallsError as error:
        say(f"the run is uploaded, its profile is not: {failure(error, call.settings.url, of_upload=True).lines}")
        return None
    except OSError as error:
        say(f"the run is uploaded, its profile is not: {error.filename} cannot be read: {error.strerror}.")
        return None
    if not call.options.json:
        out(f"profile: {address}")
    return address


def _remind(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    folder = spool.spool_folder(env, options.spool)
    try:
        count = len(spool.waiting(folder)[0])
    except spool.SpoolError:  # irrelevant for this upload
        return
    if count:
        waits = "1 earlier upload waits" if count == 1 else f"{count} earlier uploads wait"
        say(f"{waits} in {folder}. Send with: {_sync_command(options, env)} (--list shows them)")

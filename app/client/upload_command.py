"""`threewalls upload`: reads the files, sends them or keeps them for later, and waits for the verdict if asked to."""

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.client import spool
from app.client.checkout import surrounding_job
from app.client.ci import CiJob
from app.client.deliver import Delivered, deliver
from app.client.errors import Unreachable, UsageError
from app.client.exit_codes import FINE, SERVICE
from app.client.follow import Follower, Until
from app.client.log_bytes import is_compressed
from app.client.metadata import upload_metadata
from app.client.plain import one_line, out
from app.client.progress import Progress
from app.client.service import Service
from app.client.settings import SPOOL, ClientSettings
from app.client.upload import Upload, read_upload
from app.client.verdict import as_text, code_of, report_of
from app.errors import ThreewallsError

SCHEMA = "threewalls.upload/1"
_STANDARD_INPUT = Path("-")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the command, read and understood."""

    options: argparse.Namespace
    settings: ClientSettings
    env: Mapping[str, str]
    job: CiJob | None
    meta: Mapping[str, object]
    told: Progress


def upload(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    """Raises UsageError, Refused, or SpoolError; a service that is away is what the spool is for."""
    job = None if options.no_ci else surrounding_job(env)
    stated = {"name": options.name, "purpose": options.purpose, "project": options.project or ""}
    meta = upload_metadata(job=job, documents=options.meta, settings=options.set, stated=stated, tags=options.tag)
    if settings.project:
        meta.setdefault("project", settings.project)
    call = _Call(options, settings, env, job, meta, Progress(sys.stderr))
    return _follow(call) if options.follow else _send(call)


def _send(call: _Call) -> int:
    options = call.options
    with _from_standard_input(options.logs) as logs:
        known = read_upload(
            logs=logs, configs=options.config, events=options.events, meta=call.meta,
            job_key=call.job.key if call.job else "", key=options.key,
        )  # fmt: skip
        if options.offline:
            return _keep(call, known, "")
        with Service(call.settings, told=call.told.line) as service:
            try:
                run = deliver(service, known, call.told)
            except Unreachable as error:
                call.told.clear()
                return _keep(call, known, error.detail)
            call.told.clear()
            return _done(call, service, run)


def _follow(call: _Call) -> int:
    options, told = call.options, call.told.line
    path = _only_growing_log(options)
    stop = threading.Event()
    with Service(replace(call.settings, retries=0)) as quick, Service(call.settings, told=told) as patient:
        follower = Follower(
            quick=quick, patient=patient, path=path, meta=call.meta, documents=_documents(call),
            until=Until(options.until_pid, options.until_idle, options.until_text.encode()),
            interval=options.interval, job_key=options.key or (call.job.key if call.job else socket.gethostname()),
            told=told, sleep=stop.wait,
        )  # fmt: skip
        with _stopped_by_signals(follower, stop):
            follower.follow()
            if not path.exists():
                raise UsageError(f"There is no file {path} yet, and what was waited for is over.")
            try:
                run = follower.finish()
            except Unreachable as error:
                return _keep(call, follower.rest(), error.detail)
        return _done(call, patient, run)


def _documents(call: _Call) -> Upload:
    """What is sent beside a log that grows, when the run begins."""
    if not (call.options.config or call.options.events):
        return Upload("", call.meta, ())
    return read_upload(logs=[], configs=call.options.config, events=call.options.events, meta=call.meta)


def _only_growing_log(options: argparse.Namespace) -> Path:
    if len(options.logs) != 1 or options.logs[0].is_dir() or options.logs[0] == _STANDARD_INPUT:
        raise UsageError("--follow follows one file. Start one for each log, each with its own --name.")
    path: Path = options.logs[0]
    if path.exists() and is_compressed(path):
        raise UsageError(f"{path} is compressed, so it does not grow. Upload it without --follow.")
    if options.offline:
        raise UsageError("--follow needs the service; --offline is for a log that is complete.")
    return path


@contextmanager
def _stopped_by_signals(follower: Follower, stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM (a time limit, a cancelled job) closes the run; the second one is not caught."""
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
def _from_standard_input(logs: list[Path]) -> Iterator[list[Path]]:
    """`-` stands for what a pipe brings, kept in a file because it is read twice."""
    if _STANDARD_INPUT not in logs:
        yield logs
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "train.log"
        with copy.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        yield [copy if log == _STANDARD_INPUT else log for log in logs]


def _keep(call: _Call, upload: Upload, why: str) -> int:
    """Into the spool. A verdict that was to be waited for does not come, and that is nobody's green."""
    options, env = call.options, call.env
    if options.no_spool:
        _say(f"{why} Nothing was kept.")
        return SERVICE
    folder = spool.put(spool.spool_folder(env, options.spool), upload, call.settings.url)
    where = folder.parent if options.spool or env.get(SPOOL) else None
    command = f"threewalls sync --spool {where}" if where else "threewalls sync"
    told = f"The upload waits in {folder}. Send it with: {command}"
    if options.json:
        out(json.dumps({"schema": SCHEMA, "spooled": str(folder), "exit_code": _kept_code(options)}))
    _say(f"{why} {told}".strip())
    return _kept_code(options)


def _kept_code(options: argparse.Namespace) -> int:
    return FINE if (options.spool_ok or options.offline) and options.wait is None else SERVICE


def _done(call: _Call, service: Service, run: Delivered) -> int:
    """Say where it is, and with `--wait` what became of it."""
    options = call.options
    if not options.json:
        was_there = "" if run.created else " (was there already)"
        out(f"run {run.id}: {run.url}{was_there}")
    for warning in run.warnings:
        _say(f"note: {one_line(warning)}")
    report, code = None, FINE
    if options.wait is not None:
        try:
            report = report_of(service, run.id, options.wait)
            code = code_of(report)
        except ThreewallsError as error:  # it was uploaded all the same, and its number is not to be lost
            _say(f"no verdict came: {one_line(error.detail)}")
            code = SERVICE
    if options.json:
        document: dict[str, Any] = {"schema": SCHEMA, "id": run.id, "url": run.url, "created": run.created}
        document |= {"warnings": run.warnings, "spooled": None, "report": report, "exit_code": code}
        out(json.dumps(document))
    elif report is not None:
        out("\n".join(as_text(report)))
        if report.get("status") == "pending":
            _say(f"no verdict after {options.wait:g} s. Ask again: threewalls report {run.id} --wait")
    _remind(options, call.env)
    return code


def _remind(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    folder = spool.spool_folder(env, options.spool)
    if folder.is_dir() and os.access(folder, os.R_OK) and (count := len(spool.waiting(folder)[0])):
        _say(f"{count} earlier uploads wait in {folder}. Send them with: threewalls sync")


def _say(text: str) -> None:
    print(f"threewalls: {text}", file=sys.stderr, flush=True)

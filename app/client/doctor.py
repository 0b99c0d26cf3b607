"""`threewalls doctor`: checks everything that an upload from this machine needs, with advice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from app.client import account, spool
from app.client.ci import surrounding_job
from app.client.errors import NotThreewalls, Refused, Unreachable
from app.client.service import ClientSettings, Service, client_version, proxies
from app.client.terminal import one_line
from app.client.upload import LogText
from app.errors import ThreewallsError
from threewalls.transport import Response

GOOD, MIND, BAD = "ok", "mind", "bad"
_SKEW = timedelta(minutes=2)
_SOON = timedelta(days=14)
_HEAD_BYTES, _STRANGE_SHARE = 1 << 20, 0.30
_HOLE = re.compile(rb"\0{8,}")
"""The service refuses a file if more than this share of its first megabyte, NUL bytes aside, is not text."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. `state` is ok, mind (a warning) or bad; `do` is the advice."""

    state: str
    what: str
    result: str
    do: str = ""


def examine(settings: ClientSettings, env: Mapping[str, str], folder: Path, logs: Sequence[Path]) -> list[Finding]:
    return [
        *_service(settings),
        *_proxies(env),
        *_job(env),
        *_spool(folder),
        *(finding for log in logs for finding in _log(log)),
    ]


def _service(settings: ClientSettings) -> Iterator[Finding]:
    with Service(settings) as service:
        try:
            answer = service.get("/healthz")
            if answer.json().get("status") != "ok":
                raise NotThreewalls(settings.url, "its /healthz has no status")
        except (Unreachable, Refused) as error:
            problem = error.detail if isinstance(error, Unreachable) else f"{settings.url} {error.detail}"
            yield Finding(
                BAD, "service", one_line(problem),
                f"Check THREEWALLS_URL. Try on this machine: curl -v {settings.url}/healthz",
            )  # fmt: skip
            return
        yield Finding(GOOD, "service", f"{settings.url} answers")
        yield from _clock(answer, datetime.now(timezone.utc))
        yield from _ready(service)
        yield from _token(service)


def _ready(service: Service) -> Iterator[Finding]:
    try:
        readiness = service.get("/readyz").json()
    except ThreewallsError:
        yield Finding(
            BAD, "readiness", "the service accepts no uploads now",
            "Its /readyz names the part that is down. Until then, uploads are spooled.",
        )  # fmt: skip
        return
    if readiness.get("status") != "ok":
        yield Finding(
            MIND, "readiness", "uploads are stored but processed later", "Its /readyz names the part that is down."
        )


def _clock(answer: Response, now: datetime) -> Iterator[Finding]:
    try:
        service_time = parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return
    skew = now - service_time
    if abs(skew) > _SKEW:
        direction = "ahead of" if skew > _SKEW else "behind"
        yield Finding(
            MIND, "clock", f"{abs(skew).total_seconds():,.0f} s {direction} the clock of the service",
            "Synchronise the clock with NTP: token expiry and run times depend on it.",
        )  # fmt: skip
    else:
        yield Finding(GOOD, "clock", "within two minutes of the clock of the service")


def _token(service: Service) -> Iterator[Finding]:
    try:
        caller = account.whoami(service)
    except Refused as error:
        if error.status == 404:
            yield Finding(MIND, "version", "the service is older than this client", "Update the service.")
        else:
            yield Finding(BAD, "token", one_line(error.detail), "Ask a maintainer of the project for a new token.")
        return
    except Unreachable as error:
        yield Finding(BAD, "token", one_line(error.detail), "Retry when the service is available.")
        return
    own_version, service_version = client_version(), str(caller.get("version"))
    match = own_version.split(".")[:1] == service_version.split(".")[:1]
    yield Finding(
        GOOD if match else MIND, "version", f"client {one_line(own_version)}, service {one_line(service_version)}",
        "" if match else "Install the client of the same version as the service.",
    )  # fmt: skip
    yield from _scopes(caller, service.settings, datetime.now(timezone.utc))


def _scopes(caller: Mapping[str, Any], settings: ClientSettings, now: datetime) -> Iterator[Finding]:
    if caller["kind"] == "everyone":
        yield Finding(GOOD, "token", "not needed: this service has no log-ins")
        return
    if caller["kind"] != "token":
        yield Finding(BAD, "token", "no token was sent", "Set THREEWALLS_TOKEN to a token of the project.")
        return
    scopes, project = [one_line(str(scope)) for scope in caller["scopes"]], one_line(str(caller["project"]))
    yield Finding(GOOD, "token", f"{one_line(caller['name'])}, project {project}, scopes {', '.join(scopes)}")
    if "upload" not in scopes:
        yield Finding(
            BAD, "token", "this token cannot upload (no `upload` scope)", "Ask a maintainer for one with that scope."
        )
    elif "read" not in scopes:
        yield Finding(GOOD, "token", "it can read reports of its own uploads; `threewalls runs` needs the `read` scope")
    if settings.project and settings.project != caller["project"]:
        mismatch = f"THREEWALLS_PROJECT is {one_line(settings.project)}, but the token belongs to {project}"
        yield Finding(BAD, "project", mismatch, "Unset THREEWALLS_PROJECT: the token determines the project.")
    if caller["expires_at"]:
        left = datetime.fromisoformat(str(caller["expires_at"])) - now
        if left < _SOON:
            yield Finding(MIND, "token", f"expires in {left.days} days", "Ask a maintainer for a new token.")


def _proxies(env: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in proxies(env):
        yield Finding(
            MIND, "proxy", f"{name}={one_line(value)}", "Requests use this proxy unless NO_PROXY lists the host."
        )


def _job(env: Mapping[str, str]) -> Iterator[Finding]:
    job = surrounding_job(env, Path.cwd())
    if job is None:
        yield Finding(GOOD, "job", "no CI job; state the code with --set branch=... and --set commit=...")
        return
    metadata = job.metadata()
    missing = [name for name in ("branch", "commit", "commit_time") if name not in metadata]
    summary = f"{job.system}, " + ", ".join(f"{name} {one_line(str(value))}" for name, value in metadata.items())
    advice = f"Unknown: {', '.join(missing)}. State them with --set; they set the history position." if missing else ""
    yield Finding(MIND if missing else GOOD, "job", summary, advice)


def _spool(folder: Path) -> Iterator[Finding]:
    try:
        uploads, unreadable = spool.waiting(folder)
    except spool.SpoolError as error:
        yield Finding(BAD, "spool", one_line(error.detail), "Set THREEWALLS_SPOOL to another folder.")
        return
    for sentence in unreadable:
        yield Finding(MIND, "spool", one_line(sentence), "Inspect it, and delete it if you do not need it.")
    if uploads:
        size = sum(upload.size_bytes for upload in uploads) / 1e6
        yield Finding(
            MIND, "spool", f"{len(uploads)} uploads ({size:,.1f} MB) wait in {folder}", "Run threewalls sync."
        )
    elif not _is_writable(folder):
        yield Finding(BAD, "spool", f"{folder} is not writable", "Set THREEWALLS_SPOOL to another folder.")
    else:
        yield Finding(GOOD, "spool", f"nothing waits in {folder}")


def _is_writable(folder: Path) -> bool:
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _log(log: Path) -> Iterator[Finding]:
    text, size, head = LogText(log), 0, b""
    try:
        for chunk in text:
            head = head or _HOLE.sub(b"", chunk[:_HEAD_BYTES])
            size += len(chunk)
    except ThreewallsError as error:
        yield Finding(
            BAD, "log", one_line(error.detail), "Check that the job wrote the whole file, and its permissions."
        )
        return
    if not head.strip():
        yield Finding(BAD, "log", f"{log} is empty", "Check that the job wrote it.")
    elif head.decode("utf-8", "replace").count("\ufffd") + head.count(0) > len(head) * _STRANGE_SHARE:
        yield Finding(BAD, "log", f"{log} is not text", "The service would refuse it. Name the training log.")
    elif text.cut:
        yield Finding(
            MIND, "log", f"{log}: {size:,} bytes of text, truncated {text.cut}", "Wait until the job has written it."
        )
    else:
        yield Finding(GOOD, "log", f"{log}: {size:,} bytes of text")

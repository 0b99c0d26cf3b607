"""`threewalls doctor`: what stands between this machine and an upload, each with what to do about it."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2

from app.client import account, spool
from app.client.ci import surrounding_job
from app.client.errors import Refused, Strange, Unreachable
from app.client.service import ClientSettings, Service, client_version, proxies
from app.client.terminal import one_line
from app.client.upload import LogText
from app.errors import ThreewallsError

GOOD, MIND, BAD = "ok", "mind", "bad"
_SKEW = timedelta(minutes=2)
_SOON = timedelta(days=14)
_HEAD_BYTES, _STRANGE_SHARE = 1 << 20, 0.30
_HOLE = re.compile(rb"\0{8,}")
"""The service takes no file of whose first megabyte, without holes of NUL bytes, more than this share is no text."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`state` is ok, mind or bad; `do` what helps."""

    state: str
    what: str
    said: str
    do: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


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
                raise Strange(settings.url, "its /healthz is no word of health")
        except (Unreachable, Refused) as error:
            said = error.detail if isinstance(error, Unreachable) else f"{settings.url} {error.detail}"
            yield Finding(
                BAD, "service", one_line(said),
                "Check THREEWALLS_URL, and from this machine: curl -v " + settings.url + "/healthz",
            )  # fmt: skip
            return
        yield Finding(GOOD, "service", f"{settings.url} answers")
        yield from _clock(answer, datetime.now(UTC))
        yield from _ready(service)
        yield from _token(service)


def _ready(service: Service) -> Iterator[Finding]:
    try:
        said = service.get("/readyz").json()
    except ThreewallsError:
        yield Finding(
            BAD, "readiness", "it takes no uploads now", "Its /readyz says what is down. Uploads are spooled."
        )
        return
    if said.get("status") != "ok":
        yield Finding(MIND, "readiness", "uploads are kept, but processed later", "Its /readyz says what is down.")


def _clock(answer: httpx2.Response, now: datetime) -> Iterator[Finding]:
    try:
        there = parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return
    skew = now - there
    if abs(skew) > _SKEW:
        yield Finding(
            MIND, "clock", f"it is {abs(skew).total_seconds():,.0f} s {'ahead' if skew > _SKEW else 'behind'} here",
            "Set the clock by NTP: expiry of tokens and times of runs are read by it.",
        )  # fmt: skip
    else:
        yield Finding(GOOD, "clock", "agrees with the service's within two minutes")


def _token(service: Service) -> Iterator[Finding]:
    try:
        me = account.own(service)
    except Refused as error:
        if error.status == 404:
            yield Finding(MIND, "version", "the service is older than this client", "Ask for an update of the service.")
        else:
            yield Finding(BAD, "token", one_line(error.detail), "Ask a maintainer of the project for a new one.")
        return
    except Unreachable as error:
        yield Finding(BAD, "token", one_line(error.detail), "Ask again when the service is well.")
        return
    mine, theirs = client_version(), str(me.get("version"))
    agree = mine.split(".")[:1] == theirs.split(".")[:1]
    yield Finding(
        GOOD if agree else MIND, "version", f"client {one_line(mine)}, service {one_line(theirs)}",
        "" if agree else "Use a client of the service's own version.",
    )  # fmt: skip
    yield from _scopes(me, service.settings, datetime.now(UTC))


def _scopes(me: Mapping[str, Any], settings: ClientSettings, now: datetime) -> Iterator[Finding]:
    if me["kind"] == "everyone":
        yield Finding(GOOD, "token", "none is needed: this service asks nobody to log in")
        return
    if me["kind"] != "token":
        yield Finding(BAD, "token", "none was sent", "Put one of the project into THREEWALLS_TOKEN.")
        return
    scopes, project = [one_line(str(scope)) for scope in me["scopes"]], one_line(str(me["project"]))
    yield Finding(GOOD, "token", f"{one_line(me['name'])}, project {project}, may {', '.join(scopes)}")
    if "upload" not in scopes:
        yield Finding(BAD, "token", "it may not upload", "Ask a maintainer for one with the scope upload.")
    elif "read" not in scopes:
        yield Finding(GOOD, "token", "it reads the reports of what it uploads; `threewalls runs` would need read")
    if settings.project and settings.project != me["project"]:
        said = f"THREEWALLS_PROJECT is {one_line(settings.project)}, and the token is of {project}"
        yield Finding(BAD, "project", said, "Leave the project out: the token says which it is.")
    if me["expires_at"]:
        left = datetime.fromisoformat(str(me["expires_at"])) - now
        if left < _SOON:
            yield Finding(MIND, "token", f"it ends in {left.days} days", "Ask a maintainer for a new one in time.")


def _proxies(env: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in proxies(env):
        yield Finding(
            MIND, "proxy", f"{name}={one_line(value)}", "Requests go through it, unless NO_PROXY names the host."
        )


def _job(env: Mapping[str, str]) -> Iterator[Finding]:
    job = surrounding_job(env)
    if job is None:
        yield Finding(GOOD, "job", "no CI job; --set branch=... and commit=... say what the run is of")
        return
    known = job.metadata()
    missing = [name for name in ("branch", "commit", "commit_time") if name not in known]
    said = f"{job.system}, " + ", ".join(f"{name} {one_line(str(value))}" for name, value in known.items())
    do = (
        f"Not known: {', '.join(missing)}. State what matters with --set, for the place in the history."
        if missing
        else ""
    )
    yield Finding(MIND if missing else GOOD, "job", said, do)


def _spool(folder: Path) -> Iterator[Finding]:
    try:
        uploads, strange = spool.waiting(folder)
    except spool.SpoolError as error:
        yield Finding(BAD, "spool", one_line(error.detail), "Name another folder by THREEWALLS_SPOOL.")
        return
    for sentence in strange:
        yield Finding(MIND, "spool", one_line(sentence), "Look at it, and delete it when it is of no use.")
    if uploads:
        size = sum(one.size_bytes for one in uploads) / 1e6
        yield Finding(
            MIND, "spool", f"{len(uploads)} uploads ({size:,.1f} MB) wait in {folder}", "Run threewalls sync."
        )
    elif not _is_writable(folder):
        yield Finding(BAD, "spool", f"{folder} cannot be written", "Name another folder by THREEWALLS_SPOOL.")
    else:
        yield Finding(GOOD, "spool", f"nothing waits in {folder}")


def _is_writable(folder: Path, access: Callable[[Path, int], bool] = os.access) -> bool:
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), None)
    return there is not None and there.is_dir() and access(there, os.W_OK | os.X_OK)


def _log(log: Path) -> Iterator[Finding]:
    text, size, head = LogText(log), 0, b""
    try:
        for chunk in text:
            head = head or _HOLE.sub(b"", chunk[:_HEAD_BYTES])
            size += len(chunk)
    except ThreewallsError as error:
        yield Finding(BAD, "log", one_line(error.detail), "Check that the job wrote it whole, and who may read it.")
        return
    if not head.strip():
        yield Finding(BAD, "log", f"{log} is empty", "Check that the job wrote it.")
    elif head.decode("utf-8", "replace").count("\ufffd") + head.count(0) > len(head) * _STRANGE_SHARE:
        yield Finding(BAD, "log", f"{log} is no text", "It would be refused. Name the log itself.")
    elif text.cut:
        yield Finding(
            MIND, "log", f"{log}: {size:,} bytes of text, and {text.cut} that ends early", "Wait for its end."
        )
    else:
        yield Finding(GOOD, "log", f"{log}: {size:,} bytes of text")

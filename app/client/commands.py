"""What each client command does with its options: settings read, service opened, exit code chosen."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.client import doctor, report, run_list, token
from app.client.errors import Refused, Unreachable, UsageError
from app.client.exit_codes import FINE, SERVICE, USAGE
from app.client.plain import one_line
from app.client.service import Service
from app.client.settings import ClientSettings, read_settings
from app.client.spool import spool_folder, waiting
from app.client.sync import sync
from app.client.upload_command import upload
from app.errors import ThreewallsError


def run(options: argparse.Namespace, env: Mapping[str, str] | None = None) -> int:
    """One command of the client; its exit code."""
    env = os.environ if env is None else env
    try:
        settings = read_settings(env, url=options.url, project=options.project, retries=max(0, options.retries))
        return _COMMANDS[options.command](options, settings, env)
    except UsageError as error:
        _say(error.detail)
        return USAGE
    except Refused as error:
        _say(f"{settings.url} {error.detail}" + "".join(f"\n  {one.field}: {one.message}" for one in error.errors))
        return USAGE if error.status == 422 else SERVICE
    except ThreewallsError as error:
        _say(error.detail)
        return SERVICE
    except BrokenPipeError:
        return FINE


def _sync(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    folder = spool_folder(env, options.spool)
    uploads, strange = waiting(folder)
    if options.list:
        return _listed(options, uploads, strange)
    if not uploads and not strange:
        _out(options, {"sent": [], "waiting": 0, "failed": []}, f"nothing waits in {folder}")
        return FINE
    with Service(settings, told=_say) as service:
        try:
            done = sync(service, folder, everything=options.all, told=(lambda _: None) if options.json else _print)
        except Unreachable as error:
            _say(f"{error.detail} What was not sent stays in {folder}.")
            return SERVICE
    left, _ = waiting(folder)
    if options.json:
        runs = [{"id": one.id, "url": one.url, "created": one.created} for one in done.sent]
        _print(json.dumps({"sent": runs, "waiting": len(left), "failed": done.failed}))
    for failed in done.failed:
        _say(failed)
    for url, count in done.elsewhere.items():
        _say(f"{count} for {one_line(url)} left alone: state it with --url, or send them here with --all.")
    if done.busy:
        _say(f"{done.busy} are being sent by another sync.")
    return SERVICE if done.failed else FINE


def _listed(options: argparse.Namespace, uploads: list[Any], strange: list[str]) -> int:
    rows = [
        {"folder": str(one.folder), "url": one.url, "created_at": one.created_at, "size_bytes": one.size_bytes}
        | {"files": [file.name for file in one.upload.files], "key": one.upload.key}
        for one in uploads
    ]
    text = "\n".join(
        f"{row['folder']}  {row['size_bytes']:,} bytes for {one_line(row['url'])}: {', '.join(row['files'])}"
        for row in rows
    )
    _out(options, {"waiting": rows, "strange": strange}, text or "nothing waits")
    for sentence in strange:
        _say(sentence)
    return FINE


def _doctor(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    findings = doctor.examine(replace(settings, retries=0), env, spool_folder(env, options.spool), options.logs)
    lines = [f"{one.state:<4}  {one.what}: {one.said}" + (f"\n      {one.do}" if one.do else "") for one in findings]
    _out(options, {"findings": [one.as_json() for one in findings]}, "\n".join(lines))
    return SERVICE if any(one.state == doctor.BAD for one in findings) else FINE


def _report(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    with Service(settings, told=_say) as service:
        return report.report(options, service, env)


def _runs(options: argparse.Namespace, settings: ClientSettings, _: Mapping[str, str]) -> int:
    with Service(settings, told=_say) as service:
        found = run_list.runs(service, options)
    _out(options, found, "\n".join(run_list.as_text(found)))
    return FINE


def _token(options: argparse.Namespace, settings: ClientSettings, _: Mapping[str, str]) -> int:
    with Service(settings, told=_say) as service:
        found = token.own(service)
    _out(options, found, "\n".join(token.as_text(found)))
    return FINE


def _upload(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    return upload(options, settings, env)


def _out(options: argparse.Namespace, document: Mapping[str, Any], text: str) -> None:
    _print(json.dumps(document) if options.json else text)


def _print(text: str) -> None:
    print(text, flush=True)


def _say(text: str) -> None:
    print(f"threewalls: {text}", file=sys.stderr, flush=True)


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, ClientSettings, Mapping[str, str]], int]] = {
    "upload": _upload,
    "sync": _sync,
    "report": _report,
    "runs": _runs,
    "token": _token,
    "doctor": _doctor,
}

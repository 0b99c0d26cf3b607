"""What each client command does with its options: settings read, service opened, exit code chosen."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.client import account, doctor, report
from app.client.account import logged_in
from app.client.delivery import sync
from app.client.errors import FINE, NO_VERDICT, SERVICE, Strange, Unreachable, allowing, failure
from app.client.options import RUN_FILTERS
from app.client.service import ClientSettings, Service, read_settings
from app.client.spool import spool_folder, waiting
from app.client.terminal import one_line, out
from app.client.upload_command import upload, upload_document

# --- `threewalls runs`: the list of runs, as a table.

_WIDEST = 40
_HEAD = ("run", "created", "name", "branch", "step time", "verdict", "state")


def runs(service: Service, options: argparse.Namespace) -> dict[str, Any]:
    """What `GET /api/v1/runs` answers. The project is that of the settings, if they name one."""
    wanted = {name: getattr(options, name) for name in (*RUN_FILTERS, "q", "sort")}
    params = {name: value for name, value in wanted.items() if value}
    if service.settings.project:
        params["project"] = service.settings.project
    found: dict[str, Any] = service.get(
        "/api/v1/runs", {**params, "page": options.page, "page_size": options.limit}
    ).json()
    if not isinstance(found.get("items"), list):
        raise Strange(service.settings.url, "what it sent is no list of runs")
    return found


def runs_table(found: Mapping[str, Any]) -> list[str]:
    rows = [_HEAD, *(_row(item) for item in found["items"])]
    if not found["items"]:
        return ["no run fits these filters"]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if found["pages"] > 1:
        lines.append(f"page {found['page']} of {found['pages']}; {found['total']:,} runs. --page shows others")
    return lines


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    metric = (item.get("metrics") or {}).get("step_time_ms")
    state = item["status"] if item["status"] != "ready" else item.get("outcome") or "ready"
    texts = (
        item["id"], str(item["created_at"])[:16].replace("T", " "), item["name"], item["branch"],
        f"{metric['value']:,.1f} ms" if metric else "", item["verdict"], state,
    )  # fmt: skip
    return tuple(one_line(str(text))[:_WIDEST] for text in texts)


def run(options: argparse.Namespace, env: Mapping[str, str] | None = None) -> int:
    """One command of the client; its exit code."""
    env = os.environ if env is None else env
    url = ""
    try:
        settings = read_settings(env, url=options.url, project=options.project, retries=max(0, options.retries))
        url = settings.url
        return _COMMANDS[options.command](options, settings, env)
    except Exception as error:  # Python's own exit code would be 1, and that is a regression
        of_upload = options.command == "upload"
        failed = failure(error, url, of_upload=of_upload)
        _say(failed.lines)
        if options.command == "report" and isinstance(error, Unreachable):
            failed = replace(failed, exit_code=allowing(options.allow, NO_VERDICT, failed.exit_code))
        if options.json:
            out(json.dumps(upload_document(**failed.as_json()) if of_upload else failed.as_json()))
        return failed.exit_code


def _sync(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    folder = spool_folder(env, options.spool)
    uploads, strange = waiting(folder)
    if options.list:
        return _listed(options, uploads, strange)
    if not uploads and not strange:
        _out(options, {"sent": [], "waiting": 0, "failed": [], "elsewhere": {}}, f"nothing waits in {folder}")
        return FINE
    with Service(settings, told=_say) as service:
        try:
            done = sync(service, folder, everything=options.all, told=(lambda _: None) if options.json else out)
        except Unreachable as error:
            _say(f"{error.detail} What was not sent stays in {folder}.")
            return SERVICE
    left, _ = waiting(folder)
    if options.json:
        runs = [{"id": one.id, "url": one.url, "created": one.created} for one in done.sent]
        document = {"sent": runs, "waiting": len(left), "failed": done.failed, "elsewhere": done.elsewhere}
        out(json.dumps(document))
    for failed in done.failed:
        _say(failed)
    for url, count in done.elsewhere.items():
        waits = "1 upload waits" if count == 1 else f"{count} uploads wait"
        _say(f"{waits} for {one_line(url)}: state that address with --url, or send here what is there with --all.")
    if done.busy:
        _say(f"{done.busy} are being sent by another sync.")
    return SERVICE if done.failed or done.elsewhere else FINE


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
        found = runs(service, options)
    _out(options, found, "\n".join(runs_table(found)))
    return FINE


def _token(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    if options.of_project:
        return _tokens(options, settings, env)
    with Service(settings, told=_say) as service:
        found = account.own(service)
    _out(options, found, "\n".join(account.token_text(found)))
    return FINE


def _tokens(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    """Of a project, by a person."""
    page = account.tokens_address(settings, "/settings")
    if options.of_project == "create" and options.expires:
        account.ends(options.expires, datetime.now(UTC))  # before anybody is asked for a password
    with logged_in(settings, options.user, env, page, _say) as service:
        match options.of_project:
            case "list":
                found = account.list_tokens(service)
                _out(options, {"items": found}, "\n".join(map(account.as_line, found)) or "no tokens yet")
            case "create":
                made = account.create_token(service, options)
                _say(f"{account.as_line(made)}. Nobody can see the token again.")
                _out(options, made, made["token"])  # alone, so that $(...) takes it
            case "revoke":
                revoked = account.revoke_token(service, options.which)
                _out(options, revoked, f"revoked: {account.as_line(revoked)}")
    return FINE


def _upload(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    return upload(options, settings, env)


def _out(options: argparse.Namespace, document: Mapping[str, Any], text: str) -> None:
    out(json.dumps(document) if options.json else text)


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

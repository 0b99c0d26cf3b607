"""Runs the commands of the client: reads the settings, calls the service, returns the exit code."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any

from app.client import account, doctor, report
from app.client.account import logged_in
from app.client.bisect import bisect, rerun
from app.client.delivery import sync
from app.client.errors import FINE, NO_VERDICT, SERVICE, NotThreewalls, Unreachable, apply_allow, failure
from app.client.history_import import import_runs
from app.client.options import CORRECTED, RUN_FILTERS
from app.client.service import ClientSettings, Service, read_settings
from app.client.spool import WaitingUpload, spool_folder, waiting
from app.client.terminal import one_line, out, say
from app.client.upload_command import upload, upload_document
from app.errors import UsageError

# --- `threewalls runs`

_WIDEST = 40
_HEAD = ("run", "created", "name", "branch", "step time", "verdict", "state")


def runs(service: Service, options: argparse.Namespace) -> dict[str, Any]:
    """Return the answer of `GET /api/v1/runs`, limited to the project of the settings, if any."""
    filters = {name: getattr(options, name) for name in (*RUN_FILTERS, "q", "sort")}
    params = {name: value for name, value in filters.items() if value}
    if service.settings.project:
        params["project"] = service.settings.project
    page: dict[str, Any] = service.get(
        "/api/v1/runs", {**params, "page": options.page, "page_size": options.limit}
    ).json()
    if not isinstance(page.get("items"), list):
        raise NotThreewalls(service.settings.url, "its answer is not a list of runs")
    return page


def runs_table(page: Mapping[str, Any]) -> list[str]:
    rows = [_HEAD, *(_row(item) for item in page["items"])]
    if not page["items"]:
        return ["no runs match these filters"]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    if page["pages"] > 1:
        lines.append(f"page {page['page']} of {page['pages']}, {page['total']:,} runs (next: --page)")
    return lines


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    metric = (item.get("metrics") or {}).get("step_time_ms")
    state = item["status"] if item["status"] != "ready" else item.get("outcome") or "ready"
    texts = (
        item["id"], str(item["created_at"])[:16].replace("T", " "), item["name"], item["branch"],
        f"{metric['value']:,.1f} ms" if metric else "", _verdict(item), state,
    )  # fmt: skip
    return tuple(one_line(str(text))[:_WIDEST] for text in texts)


def _verdict(item: Mapping[str, Any]) -> str:
    """Return the words of the pages: `slower, unconfirmed`, `inconclusive, alternates`, `B of experiment #4`."""
    badge, label, side = (str(item.get(name) or "") for name in ("badge", "label", "side"))
    if side and not badge:
        return f"{'A' if side == 'baseline' else 'B'} of experiment #{item.get('experiment_id')}"
    is_more = badge == "inconclusive" and label
    return f"{badge}, {label}" if is_more else label or (badge or str(item["verdict"])).replace("_", " ")


def run(options: argparse.Namespace, env: Mapping[str, str] | None = None) -> int:
    """Run one command of the client and return its exit code."""
    env = os.environ if env is None else env
    url = ""
    try:
        settings = read_settings(env, url=options.url, project=options.project, retries=max(0, options.retries))
        url = settings.url
        return _COMMANDS[options.command](options, settings, env)
    except Exception as error:  # Python would exit with 1, which means a regression
        of_upload = options.command == "upload"
        failed = failure(error, url, of_upload=of_upload)
        say(failed.lines)
        if options.command == "report" and isinstance(error, Unreachable):
            failed = replace(failed, exit_code=apply_allow(options.allow, NO_VERDICT, failed.exit_code))
        if options.json:
            out(json.dumps(upload_document(**failed.as_json()) if of_upload else failed.as_json()))
        return failed.exit_code


def _rerun(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    with Service(settings, say=say) as service:
        return rerun(options, service, env)


def _bisect(options: argparse.Namespace, settings: ClientSettings, _: Mapping[str, str]) -> int:
    with Service(settings, say=say) as service:
        return bisect(options, service)


def _sync(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    folder = spool_folder(env, options.spool)
    uploads, unreadable = waiting(folder)
    if options.list:
        return _listed(options, uploads, unreadable)
    if not uploads and not unreadable:
        _out(options, {"sent": [], "waiting": 0, "failed": [], "elsewhere": {}}, f"nothing waits in {folder}")
        return FINE
    with Service(settings, say=say) as service:
        try:
            result = sync(service, folder, everything=options.all, say=(lambda _: None) if options.json else out)
        except Unreachable as error:
            say(f"{error.detail} Unsent uploads stay in {folder}.")
            return SERVICE
    left, _ = waiting(folder)
    if options.json:
        runs = [{"id": run.id, "url": run.url, "created": run.created} for run in result.sent]
        document = {"sent": runs, "waiting": len(left), "failed": result.failed, "elsewhere": result.elsewhere}
        out(json.dumps(document))
    for failed in result.failed:
        say(failed)
    for url, count in result.elsewhere.items():
        waits = "1 upload waits" if count == 1 else f"{count} uploads wait"
        say(f"{waits} for {one_line(url)}. Send to that address with --url, or send all uploads here with --all.")
    if result.busy:
        say(f"another sync is sending {result.busy} of them.")
    return SERVICE if result.failed or result.elsewhere else FINE


def _listed(options: argparse.Namespace, uploads: list[WaitingUpload], unreadable: list[str]) -> int:
    rows: list[dict[str, Any]] = [
        {
            "folder": str(waiting_upload.folder),
            "url": waiting_upload.url,
            "created_at": waiting_upload.created_at,
            "size_bytes": waiting_upload.size_bytes,
            "files": [file.name for file in waiting_upload.upload.files],
            "key": waiting_upload.upload.key,
        }
        for waiting_upload in uploads
    ]
    text = "\n".join(
        f"{row['folder']}  {row['size_bytes']:,} bytes for {one_line(row['url'])}: {', '.join(row['files'])}"
        for row in rows
    )
    _out(options, {"waiting": rows, "strange": unreadable}, text or "nothing waits")
    for sentence in unreadable:
        say(sentence)
    return FINE


def _doctor(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    findings = doctor.examine(replace(settings, retries=0), env, spool_folder(env, options.spool), options.logs)
    lines = [
        f"{finding.state:<4}  {finding.what}: {finding.result}" + (f"\n      {finding.do}" if finding.do else "")
        for finding in findings
    ]
    _out(options, {"findings": [asdict(finding) for finding in findings]}, "\n".join(lines))
    return SERVICE if any(finding.state == doctor.BAD for finding in findings) else FINE


def _report(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    with Service(settings, say=say) as service:
        return report.report(options, service, env)


def _runs(options: argparse.Namespace, settings: ClientSettings, _: Mapping[str, str]) -> int:
    with Service(settings, say=say) as service:
        page = runs(service, options)
    _out(options, page, "\n".join(runs_table(page)))
    return FINE


def _correct(options: argparse.Namespace, settings: ClientSettings, _: Mapping[str, str]) -> int:
    """Make the same correction to all named runs. Only options that were given change something."""
    names = (*CORRECTED, "tags", "project")
    changes = {name: value for name in names if (value := getattr(options, f"new_{name}")) is not None}
    if not changes:
        raise UsageError("Nothing to correct. Name what changes, for example --branch main.")
    body = {"runs": [report.run_number(run) for run in options.runs], **changes, "note": options.reason}
    body["author"] = account.account_name()
    with Service(settings, say=say) as service:
        answer = service.send(lambda: service.request("PATCH", "/api/v1/runs", json=body)).json()
    _out(options, answer, f"{answer['changed']} of {len(body['runs'])} runs changed")
    return FINE


def _token(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    if options.of_project:
        return _tokens(options, settings, env)
    with Service(settings, say=say) as service:
        caller = account.whoami(service)
    _out(options, caller, "\n".join(account.caller_text(caller)))
    return FINE


def _tokens(options: argparse.Namespace, settings: ClientSettings, env: Mapping[str, str]) -> int:
    """Manage the tokens of a project, logged in as a user."""
    page = account.tokens_address(settings, "/settings")
    if options.of_project == "create" and options.expires:
        account.expiry(options.expires, datetime.now(timezone.utc))  # validated before the password prompt
    with logged_in(settings, options.user, env, page, say) as service:
        if options.of_project == "list":
            tokens = account.list_tokens(service)
            _out(options, {"items": tokens}, "\n".join(map(account.token_line, tokens)) or "no tokens")
        elif options.of_project == "create":
            token = account.create_token(service, options)
            say(f"{account.token_line(token)}. The token is shown only once.")
            _out(options, token, token["token"])  # nothing else on standard output, for $(...)
        else:
            revoked = account.revoke_token(service, options.which)
            _out(options, revoked, f"revoked: {account.token_line(revoked)}")
    return FINE


def _out(options: argparse.Namespace, document: Mapping[str, Any], text: str) -> None:
    out(json.dumps(document) if options.json else text)


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, ClientSettings, Mapping[str, str]], int]] = {
    "upload": upload,
    "sync": _sync,
    "import": import_runs,
    "report": _report,
    "rerun": _rerun,
    "bisect": _bisect,
    "runs": _runs,
    "correct": _correct,
    "token": _token,
    "doctor": _doctor,
}

"""`threewalls report RUN`: the report of a run as text, Markdown or JSON. The verdict sets the exit code."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from app.client import github, gitlab
from app.client.ci import ci_job
from app.client.errors import (
    FINE,
    NO_VERDICT,
    OUTCOME_OF_CODE,
    SERVICE,
    NotThreewalls,
    Refused,
    apply_allow,
)
from app.client.forge import (
    ForgeApi,
    ForgeError,
    ForgeOptions,
    Message,
    PostedReport,
    PostTarget,
    github_target,
    gitlab_target,
    no_verdict,
    read_event,
)
from app.client.forge import message as make_message
from app.client.options import PROJECT
from app.client.service import Service
from app.client.terminal import one_line, out, say
from app.errors import ThreewallsError, UsageError

# --- `threewalls report --github` and `--gitlab`: posts the report of one job's runs as a comment and a check.

NO_KEY = (
    "the run has not been processed and its upload names no CI job, so its comment could not be updated later. Repeat "
    "the command after the run was processed, or use --key NAME."
)


@dataclass
class PostResult:
    """A line for each action, and for each failure."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Forge(Protocol):
    def post_comment(self, api: ForgeApi, target: PostTarget, message: Message) -> str: ...

    def post_check(self, api: ForgeApi, target: PostTarget, message: Message) -> str: ...

    def post_label(self, api: ForgeApi, target: PostTarget, message: Message, name: str) -> str: ...


def find_target(options: argparse.Namespace, env: Mapping[str, str]) -> PostTarget:
    """Return where the report is posted. Raises UsageError for missing information."""
    if options.label and options.no_comment:
        raise UsageError("A label follows the comments of all jobs, so --label needs the comment: omit --no-comment.")
    stated = ForgeOptions(options.forge_url, options.repo, options.change, options.sha)
    return github_target(env, read_event(env), stated) if options.forge == "github" else gitlab_target(env, stated)


def post(
    options: argparse.Namespace,
    target: PostTarget,
    service: Service,
    reports: Mapping[int, Mapping[str, Any]],
    env: Mapping[str, str],
) -> None:
    """Post the reports of at least one run as one message. Failures are printed, never raised."""
    try:
        message = make_message([_read_run(service, run_id, report) for run_id, report in reports.items()], options.key)
        _write_summary(env, message)
        result = _posted(options, target, message)
    except ThreewallsError as error:
        result = PostResult(problems=[error.detail])
    _print_result(result, env)


def post_no_verdict(
    options: argparse.Namespace, target: PostTarget, why: str, url: str, env: Mapping[str, str]
) -> None:
    """Post a neutral check for a run without report (not uploaded, or service unreachable). Any verdict replaces it."""
    job = ci_job(env, read_event(env))
    key = options.key or (job.job if job else "")
    address = (job.ci_url if job else "") or url
    message = no_verdict(key, options.project or env.get(PROJECT, ""), why, address)
    _write_summary(env, message)
    write_outcome(env, NO_VERDICT)
    result = PostResult()
    if not options.no_check and key:
        try:
            forge, make_api = _forge(options)
            with make_api(target) as api:
                result.done.append(forge.post_check(api, target, message))
        except ForgeError as error:
            result.problems.append(error.detail)
    _print_result(result, env)


def _forge(options: argparse.Namespace) -> tuple[_Forge, Callable[[PostTarget], ForgeApi]]:
    return (github, github.github_api) if options.forge == "github" else (gitlab, gitlab.gitlab_api)


def _read_run(service: Service, run_id: int, report: Mapping[str, Any]) -> PostedReport:
    """Combine the JSON and the Markdown report of a run. Raises Refused or Unreachable."""
    run = report["run"]
    return PostedReport(
        run_id=run_id,
        project=run["project"],
        key=run["report_key"],
        url=run["address"],
        headline=report["headline"],
        exit_code=report["exit_code"],
        badge=report["badge"],
        markdown=service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text,
    )


def _posted(options: argparse.Namespace, target: PostTarget, message: Message) -> PostResult:
    """Post the check, the comment and the label. A failure of one does not prevent the other."""
    if not message.key:
        return PostResult(problems=[NO_KEY])
    forge, make_api = _forge(options)
    result = PostResult()
    posts: list[Callable[[ForgeApi, PostTarget, Message], str]] = [] if options.no_check else [forge.post_check]
    if not options.no_comment and target.change:
        posts.append(forge.post_comment)
        if options.label:
            posts.append(partial(forge.post_label, name=options.label))
    elif not options.no_comment:
        result.done.append("no comment: this job has no change (use --change N)")
    with make_api(target) as api:
        for post_to in posts:
            try:
                result.done.append(post_to(api, target, message))
            except ForgeError as error:
                result.problems.append(error.detail)
    return result


def _write_summary(env: Mapping[str, str], message: Message) -> None:
    """Write to the summary page of a GitHub job, which jobs of forks may do as well."""
    if path := env.get("GITHUB_STEP_SUMMARY", ""):
        with suppress(OSError), Path(path).open("a", encoding="utf-8") as file:
            file.write(message.text)


def write_outcome(env: Mapping[str, str], outcome: str) -> None:
    """Set the step output `outcome` of GitHub Actions. `--allow` does not change it."""
    if path := env.get("GITHUB_OUTPUT", ""):
        with suppress(OSError), Path(path).open("a", encoding="utf-8") as file:
            file.write(f"outcome={outcome}\n")


def _print_result(result: PostResult, env: Mapping[str, str]) -> None:
    """Print the result on standard error, because standard output contains the report."""
    for line in result.done:
        say(one_line(line))
    for problem in result.problems:
        text = one_line(problem)
        say(f"not posted: {text}")
        if env.get("GITHUB_ACTIONS") == "true":  # a job annotation; GitHub reads both streams
            print(f"::warning title=Threewalls::{text.replace('%', '%25')}", file=sys.stderr, flush=True)


# --- The report of a run.

_REQUEST_SECONDS = 60.0
"""Longest wait of one request: proxies drop longer ones."""

_SUSPECTS = 3


def report_of(service: Service, run_id: int, wait: float) -> dict[str, Any]:
    """Return `GET /api/v1/runs/{id}/report`, after at most `wait` seconds while its `status` is `pending`."""
    end = time.monotonic() + wait
    while True:
        seconds = max(0.0, min(_REQUEST_SECONDS, end - time.monotonic()))
        path = f"/api/v1/runs/{run_id}/report"
        report: dict[str, Any] = service.get(path, {"wait": f"{seconds:g}"} if seconds else None, wait=seconds).json()
        if not (isinstance(report.get("headline"), str) and isinstance(report.get("run"), dict)):
            raise NotThreewalls(service.settings.url, "its answer is not a report")
        if report.get("status") != "pending" or time.monotonic() >= end:
            return report


def exit_code_of(report: Mapping[str, Any]) -> int:
    """Return the exit code of a verdict. A run without a verdict never exits with 0."""
    code = report.get("exit_code")
    return code if isinstance(code, int) else SERVICE


def outcome_of(report: Mapping[str, Any]) -> str:
    """Return the outcome as `--allow` names it."""
    return NO_VERDICT if report.get("exit_code") is None else OUTCOME_OF_CODE.get(exit_code_of(report), "")


def verdict_text(report: Mapping[str, Any]) -> list[str]:
    """Render a report in lines for a terminal: verdict, baseline, changes, broken limits, suspects, next step."""
    lines = [one_line(str(report.get("headline", ""))), one_line(str(report.get("baseline", "")))]
    verdict = report.get("verdict") or {}
    if fields := verdict.get("fields_to_supply"):
        named = " ".join(
            f"--set {'env.NAME' if field == 'env' else one_line(str(field))}=VALUE" for field in fields[:3]
        )
        lines.append(f"to state what is missing, upload it with: {named}{' ...' if fields[3:] else ''}")
    if moved := report.get("moved"):
        columns = ("figure", "baseline", "candidate", "change", "interval", "decision")
        lines += ["", *_table([[str(row.get(name) or "") for name in columns] for row in moved])]
    if decides := report.get("what_would_decide"):
        lines += ["", one_line(str(decides))]
        if report.get("rerun"):
            number = (report.get("run") or {}).get("id")
            lines.append(f"start them: threewalls rerun {number} --exec 'your command'")
    if limits := verdict.get("limits_broken"):
        lines += ["", *(one_line(str(limit)) for limit in limits)]
    suspects = [_suspect(suspect) for suspect in verdict.get("suspects") or ()][:_SUSPECTS]
    lines += ["", *(f"suspect: {reason}" for reason in suspects)] if suspects else []
    for regression in report.get("regressions") or ():
        address = one_line(str(regression.get("address", "")))
        summary = regression.get("summary") or {}
        text = one_line(str(summary.get("text", "")))
        lines.append(f"regression {regression.get('id')} ({summary.get('state_text')}): {text} {address}")
    lines += [one_line(str(problem)) for problem in report.get("problems") or ()]
    for line in report.get("step_lines") or ():
        lines.append(f"looks like a step: line {line.get('line')}: {one_line(str(line.get('example')))}")
    if draft := report.get("suggested_read_as"):
        lines.append(f"to read it, upload it with: --read-as {shlex.quote(one_line(str(draft)))}")
    if step := report.get("next_step"):
        lines.append(f"next step: {one_line(str(step.get('title')))}: {one_line(str(step.get('url')))}")
    return lines


def _suspect(suspect: Mapping[str, Any]) -> str:
    parts = (suspect.get("label"), suspect.get("field"), suspect.get("reason"))
    return ": ".join(one_line(str(part)) for part in parts if part)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    plain = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in plain) for column in range(len(plain[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in plain]


_ADDRESS = re.compile(r"(?P<service>https?://\S+?)/runs/(?P<number>\d+)(?:[/?#]\S*)?")


WORST_FIRST = (1, SERVICE, 6, 5, 4, FINE)


def report(options: argparse.Namespace, service: Service, env: Mapping[str, str]) -> int:
    """Print the report of each run, post them as one with `--github` or `--gitlab`, and return the worst exit code.

    Raises UsageError, Refused or Unreachable.
    """
    if bool(options.run) == bool(options.no_verdict) or (options.no_verdict and not options.forge):
        raise UsageError("Name a RUN. If none was uploaded, use --no-verdict WHY with --github or --gitlab.")
    target = find_target(options, env) if options.forge else None  # before a long wait
    if target is not None and options.no_verdict:
        post_no_verdict(options, target, options.no_verdict, service.settings.url, env)
        return apply_allow(options.allow, NO_VERDICT, SERVICE)
    try:
        reports = _reports(options, service)
    except ThreewallsError as error:
        if target is not None and not isinstance(error, UsageError):
            post_no_verdict(options, target, error.detail, service.settings.url, env)
        raise
    for run_id, document in reports.items():
        if options.markdown:
            out(service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text, end="")
        elif options.json:
            out(json.dumps(document))
        else:
            out("\n".join([*verdict_text(document), str(document["run"]["address"])]))
    worst_first = sorted(reports.values(), key=_badness)
    if target is not None:
        post(options, target, service, reports, env)  # a failed post does not change the exit code
        write_outcome(env, outcome_of(worst_first[0]))
    codes = (apply_allow(options.allow, outcome_of(report), exit_code_of(report)) for report in worst_first)
    return next((code for code in codes if code != FINE), FINE)


def _badness(report: Mapping[str, Any]) -> int:
    """Sort key, worst first. An unknown code of a newer service counts as no verdict."""
    code = exit_code_of(report)
    return WORST_FIRST.index(code if code in WORST_FIRST else SERVICE)


def _reports(options: argparse.Namespace, service: Service) -> dict[int, dict[str, Any]]:
    """Return the report of each run by its number, after `--wait` seconds at most."""
    runs = [(text, run_number(text)) for text in options.run]
    for text, number in runs:
        _check_address(service, text, number)
    numbers = list(dict.fromkeys(number for _, number in runs))
    return {number: report_of(service, number, options.wait or 0) for number in numbers}


def _check_address(service: Service, text: str, number: int) -> None:
    """Raise UsageError for the address of a run on another service, where the same number means another run."""
    base, url = service_of(text), service.settings.url
    if base in ("", service_of(f"{url}/runs/1")):
        return
    with suppress(Refused):
        run = service.get(f"/api/v1/runs/{number}/report").json().get("run")
        if isinstance(run, dict) and base == service_of(str(run.get("address", ""))):
            return
    raise UsageError(f"{text} does not belong to the service {url}. Set --url to the service of this run.")


def service_of(text: str) -> str:
    """Return the normalised address of the service in the address of a run; empty for a number."""
    match = _ADDRESS.fullmatch(text)
    if not match:
        return ""
    parts = urlsplit(match["service"])
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:
        raise UsageError(f"Invalid address of a run: {text!r}.") from None
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def run_number(text: str) -> int:
    """Return the number in `17` or in the address of a run. Raises UsageError."""
    match = _ADDRESS.fullmatch(text)
    number = match["number"] if match else text
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**31):
        raise UsageError(f"Invalid run {text!r}. Use its number or address, as printed by `threewalls upload`.")
    return int(number)

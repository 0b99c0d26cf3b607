"""`threewalls report --github` and `--gitlab`: posts the report of one job's runs as a comment and a check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from app.client import github, gitlab
from app.client.ci import ci_job
from app.client.errors import NO_VERDICT
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
from app.client.terminal import one_line, say
from app.errors import ThreewallsError, UsageError

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

"""`threewalls report --github` and `--gitlab`: what is posted where, and what becomes of it."""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from app.client import github, gitlab
from app.client.ci import ci_job
from app.client.errors import NO_VERDICT
from app.client.forge import (
    ForgeApi,
    ForgeError,
    Message,
    Place,
    RunSaid,
    Stated,
    github_place,
    gitlab_place,
    message,
    no_verdict,
    read_event,
)
from app.client.service import PROJECT, Service
from app.client.terminal import one_line
from app.errors import ThreewallsError

NOT_TO_BE_TOLD_APART = (
    "the run has not been read yet, and its upload names no CI job, so its comment could not be found again. Report it "
    "again when it was read, or name it: --key NAME."
)


@dataclass
class Posted:
    """What was done, a line each, and what could not be."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Forge(Protocol):
    def post_comment(self, api: ForgeApi, place: Place, message: Message) -> str: ...

    def post_check(self, api: ForgeApi, place: Place, message: Message) -> str: ...


def find_place(options: argparse.Namespace, env: Mapping[str, str]) -> Place:
    """Where it is to be posted. Raises UsageError when that is not known."""
    stated = Stated(options.forge_url, options.repo, options.change, options.sha)
    return github_place(env, read_event(env), stated) if options.forge == "github" else gitlab_place(env, stated)


def post(
    options: argparse.Namespace,
    place: Place,
    service: Service,
    found: Mapping[int, Mapping[str, Any]],
    env: Mapping[str, str],
) -> None:
    """The reports of these runs, by number, at least one; what becomes of it is said and raises nothing."""
    try:
        said = message([_read_run(service, run_id, one) for run_id, one in found.items()], options.key)
        _keep_summary(env, said)
        posted = _posted(options, place, said)
    except ThreewallsError as error:
        posted = Posted(problems=[error.detail])
    _say(posted, env)


def post_no_verdict(options: argparse.Namespace, place: Place, why: str, url: str, env: Mapping[str, str]) -> None:
    """Of a run that the service did not take, or cannot tell of now: a neutral check, which any verdict replaces."""
    job = ci_job(env, read_event(env))
    key = options.key or (job.job if job else "")
    address = (job.ci_url if job else "") or url
    said = no_verdict(key, options.project or env.get(PROJECT, ""), why, address)
    _keep_summary(env, said)
    keep_outcome(env, NO_VERDICT)
    posted = Posted()
    if not options.no_check and key:
        try:
            forge, make_api = _forge(options)
            with make_api(place) as api:
                posted.done.append(forge.post_check(api, place, said))
        except ForgeError as error:
            posted.problems.append(error.detail)
    _say(posted, env)


def _forge(options: argparse.Namespace) -> tuple[_Forge, Callable[[Place], ForgeApi]]:
    return (github, github.github_api) if options.forge == "github" else (gitlab, gitlab.gitlab_api)


def _read_run(service: Service, run_id: int, report: Mapping[str, Any]) -> RunSaid:
    """`report`: its report as values. Raises Refused or Unreachable."""
    run = report["run"]
    return RunSaid(
        run_id=run_id,
        project=run["project"],
        key=run["report_key"],
        url=run["address"],
        headline=report["headline"],
        exit_code=report["exit_code"],
        markdown=service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text,
    )


def _posted(options: argparse.Namespace, place: Place, said: Message) -> Posted:
    if not said.key:
        return Posted(problems=[NOT_TO_BE_TOLD_APART])
    forge, make_api = _forge(options)
    with make_api(place) as api:
        return _both(options, forge, api, place, said)


def _both(options: argparse.Namespace, forge: _Forge, api: ForgeApi, place: Place, said: Message) -> Posted:
    """The one is worth posting without the other."""
    posted = Posted()
    wanted = [] if options.no_check else [forge.post_check]
    if not options.no_comment and place.change:
        wanted.append(forge.post_comment)
    elif not options.no_comment:
        posted.done.append("no comment: this job belongs to no change (--change N names one)")
    for post_it in wanted:
        try:
            posted.done.append(post_it(api, place, said))
        except ForgeError as error:
            posted.problems.append(error.detail)
    return posted


def _keep_summary(env: Mapping[str, str], said: Message) -> None:
    """On the page of a job of GitHub, which also a job of a fork may write."""
    if path := env.get("GITHUB_STEP_SUMMARY", ""):
        with suppress(OSError), Path(path).open("a", encoding="utf-8") as file:
            file.write(said.text)


def keep_outcome(env: Mapping[str, str], outcome: str) -> None:
    """Set the output `outcome` of a step of GitHub Actions, which `--allow` does not change."""
    if path := env.get("GITHUB_OUTPUT", ""):
        with suppress(OSError), Path(path).open("a", encoding="utf-8") as file:
            file.write(f"outcome={outcome}\n")


def _say(posted: Posted, env: Mapping[str, str]) -> None:
    """On standard error alone: standard output is the report's, which may be JSON."""
    for line in posted.done:
        print(f"threewalls: {one_line(line)}", file=sys.stderr, flush=True)
    for problem in posted.problems:
        said = one_line(problem)
        print(f"threewalls: not posted: {said}", file=sys.stderr, flush=True)
        if env.get("GITHUB_ACTIONS") == "true":  # shown beside the job; GitHub reads both streams
            print(f"::warning title=Threewalls::{said.replace('%', '%25')}", file=sys.stderr, flush=True)

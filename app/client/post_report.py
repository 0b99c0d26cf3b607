"""`threewalls report --github` and `--gitlab`: what is posted where, and what becomes of it."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from app.client import github, gitlab
from app.client.forge import Message, RunSaid, message
from app.client.forge_api import ForgeApi, ForgeError
from app.client.forge_place import Place, Stated, github_place, gitlab_place, read_event
from app.client.service import Service


@dataclass
class Posted:
    """What was done, a line each, and what could not be."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Forge(Protocol):
    def post_comment(self, api: ForgeApi, place: Place, message: Message) -> str: ...

    def post_check(self, api: ForgeApi, place: Place, message: Message) -> str: ...


def read_run(service: Service, run_id: int, report: Mapping[str, Any]) -> RunSaid:
    """`report`: its report as values. Raises Refused or Unreachable."""
    run = report["run"]
    return RunSaid(
        run_id=run_id,
        project=run["project"],
        stack_key=run["stack_key"],
        url=run["address"],
        headline=report["headline"],
        exit_code=report["exit_code"],
        markdown=service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text,
    )


def find_place(options: argparse.Namespace, env: Mapping[str, str]) -> Place:
    """Where it is to be posted. Raises UsageError when that is not known."""
    stated = Stated(options.forge_url, options.repo, options.change, options.sha)
    return github_place(env, read_event(env), stated) if options.forge == "github" else gitlab_place(env, stated)


def post(options: argparse.Namespace, place: Place, runs: Sequence[RunSaid], env: Mapping[str, str]) -> Posted:
    """The report of these runs, at least one."""
    said = message(runs, options.key)
    if options.forge == "github":
        _keep_summary(env, said)
        with github.github_api(place) as api:
            return _both(options, github, api, place, said)
    with gitlab.gitlab_api(place) as api:
        return _both(options, gitlab, api, place, said)


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
    """On the page of the job, which also a job of a fork may write."""
    if path := env.get("GITHUB_STEP_SUMMARY", ""):
        with suppress(OSError), Path(path).open("a", encoding="utf-8") as file:
            file.write(said.text)

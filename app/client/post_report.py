"""`threewalls report --github` and `--gitlab`: options, and what is posted where."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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


def add_post_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on the change", "Post it, or bring up to date what an earlier run posted.")
    forge = group.add_mutually_exclusive_group()
    forge.add_argument("--github", dest="forge", action="store_const", const="github", help="a comment and a check")
    forge.add_argument("--gitlab", dest="forge", action="store_const", const="gitlab", help="a note and a status")
    group.add_argument("--repo", default="", metavar="OWNER/NAME", help="repository (default: that of the job)")
    group.add_argument(
        "--change", default=0, type=_number, metavar="N", help="pull or merge request (default: the job's)"
    )
    group.add_argument("--sha", default="", help="commit of the check (default: the head of the change)")
    group.add_argument("--key", default="", metavar="NAME", help="name of this comment and check (default: the stack)")
    group.add_argument("--forge-url", default="", metavar="URL", help="a forge of your own (default: that of the job)")
    group.add_argument("--no-comment", action="store_true", help="only the check")
    group.add_argument("--no-check", action="store_true", help="only the comment")
    parser.set_defaults(forge=None)


def read_run(service: Service, run_id: int, *, wait: float = 0) -> RunSaid:
    """Raises Refused or Unreachable."""
    path = f"/api/v1/runs/{run_id}"
    report = service.get(f"{path}/report", {"wait": wait}, wait=wait).json()
    run = service.get(path).json()
    return RunSaid(
        run_id=run_id,
        project=run["project"],
        stack_key=run["stack_key"],
        url=report["run"]["address"],
        headline=report["headline"],
        exit_code=report["exit_code"],
        markdown=service.get(f"{path}/report.md", accept="text/markdown").text,
    )


def post(options: argparse.Namespace, runs: Sequence[RunSaid], env: Mapping[str, str]) -> Posted:
    """Post the report of these runs, at least one. Raises UsageError when it is not known where."""
    stated = Stated(options.forge_url, options.repo, options.change, options.sha)
    said = message(runs, options.key)
    if options.forge == "github":
        place = github_place(env, read_event(env), stated)
        _keep_summary(env, said)
        with github.github_api(place) as api:
            return _both(options, github, api, place, said)
    place = gitlab_place(env, stated)
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


def _number(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError("a change has a number")
    return int(text)

"""`threewalls report RUN`: the report of a run as text, Markdown or JSON; its verdict is the exit code."""

import argparse
import json
import re
import sys
from collections.abc import Mapping

from app.client.errors import UsageError
from app.client.exit_codes import SERVICE
from app.client.plain import one_line, out
from app.client.post_report import Posted, find_place, post, read_run
from app.client.service import Service
from app.client.verdict import as_text, code_of, report_of

_ADDRESS = re.compile(r"https?://\S+?/runs/(\d+)(?:[/?#]\S*)?")


_WORST_FIRST = (1, SERVICE, 5, 4, 0)


def report(options: argparse.Namespace, service: Service, env: Mapping[str, str]) -> int:
    """Print each, and post them all as one where that is asked for; the worst decides. Raises Refused, Unreachable."""
    place = find_place(options, env) if options.forge else None  # before a long wait
    numbers = list(dict.fromkeys(run_number(text) for text in options.run))
    found = {number: report_of(service, number, options.wait or 0) for number in numbers}
    for number, one in found.items():
        if options.markdown:
            out(markdown_of(service, number), end="")
        elif options.json:
            out(json.dumps(one))
        else:
            out("\n".join([*as_text(one), str(one["run"]["address"])]))
    if place is not None:
        # What the forge did not take changes no exit code: that one is the verdict's.
        _say(post(options, place, [read_run(service, number, one) for number, one in found.items()], env), env)
    codes = {code_of(one) for one in found.values()}
    return next((code for code in _WORST_FIRST if code in codes), SERVICE)


def _say(posted: Posted, env: Mapping[str, str]) -> None:
    for line in posted.done:
        print(f"threewalls: {one_line(line)}", file=sys.stderr, flush=True)
    for problem in posted.problems:
        said = one_line(problem)
        print(f"threewalls: not posted: {said}", file=sys.stderr, flush=True)
        if env.get("GITHUB_ACTIONS") == "true":  # shown beside the job
            out(f"::warning title=Threewalls::{said.replace('%', '%25')}")


def markdown_of(service: Service, run_id: int) -> str:
    """The comment to post on a change."""
    return service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text


def run_number(text: str) -> int:
    """Of `17` or of the address of a run. Raises UsageError."""
    found = _ADDRESS.fullmatch(text)
    number = found[1] if found else text
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**31):
        raise UsageError(f"{text!r} is no run. Give its number or its address, as `threewalls upload` printed it.")
    return int(number)

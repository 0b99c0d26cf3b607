"""`threewalls report RUN`: the report of a run as text, Markdown or JSON; its verdict is the exit code."""

import argparse
import json
import re
from collections.abc import Mapping

from app.client.errors import UsageError
from app.client.service import Service
from app.client.verdict import as_text, code_of, report_of

_ADDRESS = re.compile(r"https?://\S+?/runs/(\d+)(?:[/?#]\S*)?")


def report(options: argparse.Namespace, service: Service, env: Mapping[str, str]) -> int:  # noqa: ARG001  for forges
    """Print it. Raises Refused and Unreachable."""
    run_id = run_number(options.run)
    found = report_of(service, run_id, options.wait or 0)
    if options.markdown:
        print(markdown_of(service, run_id), end="", flush=True)
    elif options.json:
        print(json.dumps(found), flush=True)
    else:
        print("\n".join([*as_text(found), str(found["run"]["address"])]), flush=True)
    return code_of(found)


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

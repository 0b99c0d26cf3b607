"""`threewalls report RUN`: the report of a run as text, Markdown or JSON; its verdict is the exit code."""

import argparse
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from app.client.errors import Refused, UsageError
from app.client.exit_codes import FINE, NO_VERDICT, SERVICE, allowing
from app.client.plain import out
from app.client.post_report import find_place, keep_outcome, post, post_no_verdict
from app.client.service import Service
from app.client.verdict import as_text, code_of, outcome_of, report_of
from app.errors import ThreewallsError

_ADDRESS = re.compile(r"(?P<service>https?://\S+?)/runs/(?P<number>\d+)(?:[/?#]\S*)?")


_WORST_FIRST = (1, SERVICE, 6, 5, 4, FINE)


def report(options: argparse.Namespace, service: Service, env: Mapping[str, str]) -> int:
    """Print each, and post them all as one where that is asked for; the worst decides. Raises Refused, Unreachable."""
    if bool(options.run) == bool(options.no_verdict) or (options.no_verdict and not options.forge):
        raise UsageError("State a RUN; or, where none could be uploaded, --no-verdict WHY with --github or --gitlab.")
    place = find_place(options, env) if options.forge else None  # before a long wait
    if place is not None and options.no_verdict:
        post_no_verdict(options, place, options.no_verdict, service.settings.url, env)
        return allowing(options.allow, NO_VERDICT, SERVICE)
    try:
        found = _reports(options, service)
    except ThreewallsError as error:
        if place is not None and not isinstance(error, UsageError):
            post_no_verdict(options, place, error.detail, service.settings.url, env)
        raise
    for number, one in found.items():
        if options.markdown:
            out(markdown_of(service, number), end="")
        elif options.json:
            out(json.dumps(one))
        else:
            out("\n".join([*as_text(one), str(one["run"]["address"])]))
    if place is not None:
        # What the forge did not take changes no exit code: that one is the verdict's.
        post(options, place, service, found, env)
    worst_first = sorted(found.values(), key=_badness)
    if place is not None:
        keep_outcome(env, outcome_of(worst_first[0]))
    codes = (allowing(options.allow, outcome_of(report), code_of(report)) for report in worst_first)
    return next((code for code in codes if code != FINE), FINE)


def _badness(report: Mapping[str, Any]) -> int:
    """The order of reports, the worst first; a code of a later service is as bad as no verdict."""
    code = code_of(report)
    return _WORST_FIRST.index(code if code in _WORST_FIRST else SERVICE)


def _reports(options: argparse.Namespace, service: Service) -> dict[int, dict[str, Any]]:
    """By number, once they are judged."""
    named = [(text, run_number(text)) for text in options.run]
    for text, number in named:
        _check_address(service, text, number)
    numbers = list(dict.fromkeys(number for _, number in named))
    return {number: report_of(service, number, options.wait or 0) for number in numbers}


def markdown_of(service: Service, run_id: int) -> str:
    """The comment to post on a change."""
    return service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text


def _check_address(service: Service, text: str, number: int) -> None:
    """An address is that of this service, as it was stated or as it gives its own; a run of another one has the same
    number and another verdict. Raises UsageError."""
    base, url = service_of(text), service.settings.url
    if base in ("", service_of(f"{url}/runs/1")):
        return
    with suppress(Refused):
        found = service.get(f"/api/v1/runs/{number}/report").json().get("run")
        if isinstance(found, dict) and base == service_of(str(found.get("address", ""))):
            return
    raise UsageError(f"{text} is a run of another service than {url}. State its address with --url.")


def service_of(text: str) -> str:
    """The address of the service in that of a run, in one spelling; empty for a number."""
    found = _ADDRESS.fullmatch(text)
    if not found:
        return ""
    parts = urlsplit(found["service"])
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:
        raise UsageError(f"{text!r} is no address of a run.") from None
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def run_number(text: str) -> int:
    """Of `17` or of the address of a run. Raises UsageError."""
    found = _ADDRESS.fullmatch(text)
    number = found["number"] if found else text
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**31):
        raise UsageError(f"{text!r} is no run. Give its number or its address, as `threewalls upload` printed it.")
    return int(number)

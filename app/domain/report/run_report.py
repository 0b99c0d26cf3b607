"""The report of a run: what its verdict says, what changed, and which regression it is part of; or why it has none."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.domain.numbers import absolute
from app.domain.report.text import VerdictText
from app.domain.report.what_changed import WhatChanged
from app.domain.run import LineExample

Status = Literal["judged", "pending", "failed", "unread"]


@dataclass(frozen=True, slots=True)
class LinkedRun:
    id: str
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class RegressionOfRun:
    """A regression that covers the run's stack. `opened_by_it`: this run, or a rerun of it, made its stack a member."""

    id: int
    address: str
    state: str
    cause: str
    stacks: int
    assignee: str
    external_url: str
    gpu_hours_per_day: float | None
    opened_by_it: bool


@dataclass(frozen=True, slots=True)
class RunReport:
    """`headline` and `baseline` are lines 1 and 2, whatever the run's state. `text` is None unless it was judged.

    `problems`: what went wrong in a run without figures, with advice. `step_lines`: of a log that no reader knows,
    lines that look like steps. `baseline_runs`: those that counted. `nothing_processed_since`: of a pending run, when
    a worker was last at work; None while one is.
    """

    run: LinkedRun
    status: Status
    decision: str
    headline: str
    baseline: str
    text: VerdictText | None = None
    changed: WhatChanged | None = None
    baseline_runs: tuple[LinkedRun, ...] = ()
    regressions: tuple[RegressionOfRun, ...] = ()
    problems: tuple[str, ...] = ()
    step_lines: tuple[LineExample, ...] = ()
    nothing_processed_since: datetime | None = None


def pending_report(run: LinkedRun, status: str, nothing_processed_since: datetime | None) -> RunReport:
    """Of a run that was not judged yet; `status` is that of the run."""
    waits = {"received": "the run waits to be read", "processing": "the run is being read"}
    headline = f"pending: {waits.get(status, 'the run was read and waits for its verdict')}"
    baseline = "baseline: not chosen yet; ask again in a minute"
    if nothing_processed_since is not None:
        headline += f". Nothing has been processed since {absolute(nothing_processed_since)}: no worker takes work"
        baseline = "baseline: not chosen yet; ask again when a worker runs"
    return RunReport(run, "pending", "", headline, baseline, nothing_processed_since=nothing_processed_since)


def failed_report(run: LinkedRun, error: str, problems: tuple[str, ...]) -> RunReport:
    """Of a run from which no figure could be read."""
    headline = f"failed: {error or 'no iteration could be read from this run.'}"
    return RunReport(run, "failed", "failed", headline, "baseline: none is needed", problems=problems)


def unread_report(run: LinkedRun, error: str, step_lines: tuple[LineExample, ...]) -> RunReport:
    """Of a run of whose log no reader knows a line."""
    headline = f"{error[:1].lower()}{error[1:]}"
    return RunReport(run, "unread", "unread", headline, "baseline: none is needed", step_lines=step_lines)

"""What can be told, and which of it a receiver wants."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

EVENTS: Mapping[str, str] = {
    "regression.opened": "A regression was opened, or another stack joined one",
    "regression.reopened": "A regression is open again: the slow level is back, or somebody opened it",
    "regression.recovered": "The figures of a regression are back, so it is proposed as fixed",
    "regression.fixed": "Somebody called a regression fixed",
    "run.failed": "A run failed, or no figure of it could be read",
    "verdict.regression": "The verdict of a run is regression",
    "verdict.improvement": "The verdict of a run is improvement",
    "verdict.no_change": "The verdict of a run is no change",
    "verdict.inconclusive": "The verdict of a run is inconclusive",
    "verdict.no_baseline": "A run has no baseline",
}
"""By name, as it stands in every message."""
TEST = "test"
"""The event of a test message; nobody can leave it out."""
USUAL = ("regression.opened", "regression.reopened", "regression.recovered", "regression.fixed", "run.failed")
"""What a receiver gets unless told otherwise: what somebody should look at, and nothing of what is fine."""
FRESH = timedelta(days=7)
"""Verdicts of runs that were uploaded longer ago are no news: they are made again when a rule or a baseline changes."""


@dataclass(frozen=True, slots=True)
class Wants:
    """`stacks`: keys of the stacks that it is for; none: all of the project."""

    events: tuple[str, ...] = USUAL
    stacks: tuple[str, ...] = ()

    def takes(self, event: str, stacks: Collection[str]) -> bool:
        if event == TEST:
            return True
        return event in self.events and (not self.stacks or any(stack in self.stacks for stack in stacks))

    def as_json(self) -> dict[str, Any]:
        return {"events": list(self.events), "stacks": list(self.stacks)}

    @classmethod
    def read(cls, rules: Mapping[str, Any]) -> Self:
        return cls(tuple(rules.get("events", USUAL)), tuple(rules.get("stacks", ())))


class UnreadableNotice(Exception):  # noqa: N818
    """It was kept in another form than this version's. The message says so to a person."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. `lines` are sentences under the title; `path` is the page of it, from the service's address.

    `data` is the same for programs. Text in it is untrusted, whatever channel it goes to.
    """

    event: str
    project: str
    title: str
    lines: tuple[str, ...]
    path: str
    at: datetime
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "event": self.event, "project": self.project, "title": self.title, "lines": list(self.lines),
            "path": self.path, "at": self.at.isoformat(), "data": dict(self.data),
        }  # fmt: skip

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Self:
        """Raises UnreadableNotice."""
        try:
            return cls(
                kept["event"], kept["project"], kept["title"], tuple(kept["lines"]), kept["path"],
                datetime.fromisoformat(kept["at"]), kept["data"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableNotice("What was kept of this message cannot be read.") from error


def event_of_verdict(decision: str, *, raises_regression: bool, purpose: str, quarantined: bool) -> str:
    """The event that a verdict is; empty when it is none: an experiment's A/B, or a run that counts for nothing."""
    if quarantined:
        return ""
    if decision == "failed":
        return "run.failed"
    if purpose == "experiment" or (decision == "regression" and not raises_regression):
        return ""
    event = f"verdict.{decision}"
    return event if event in EVENTS else ""


def is_fresh(uploaded_at: datetime, now: datetime) -> bool:
    return now - uploaded_at < FRESH

"""What can be told, and which of it a receiver wants."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from app.domain.numbers import change_text, counted, daily_cost
from app.domain.text import one_line
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.words import baseline_line, decision_word, headline

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


# --- The words of a message: what happened in its title, what it rests on below.

MOST_LINE = 500
_MOST_STACKS = 5
_HAPPENED = {
    "regression.opened": "Regression",
    "regression.reopened": "Regression is back",
    "regression.recovered": "Regression seems fixed",
    "regression.fixed": "Regression fixed",
}
_METRICS = {"step_time_ms": "step time", "peak_memory_gib": "peak memory"}


def regression_notice(
    event: str,
    *,
    project: str,
    number: int,
    metric: str,
    cause: str,
    delta_pct: float | None,
    hours_per_day: float | None,
    stacks: Sequence[tuple[str, str]],
    note: str,
    at: datetime,
) -> Notice:
    """`stacks`: key and name of each stack that it slowed down. `note`: why it changed, else empty."""
    figure = _METRICS.get(metric, metric.replace("_", " "))
    size = "" if delta_pct is None else f": {figure} {change_text(delta_pct, None, None, metric).figure}"
    names = [name for _, name in stacks]
    more = f" and {counted(len(names) - _MOST_STACKS, 'more stack')}" if len(names) > _MOST_STACKS else ""
    where = f"Where: {', '.join(names[:_MOST_STACKS])}{more}." if names else ""
    cost = "" if hours_per_day is None else f"It costs {daily_cost(hours_per_day)}."
    return Notice(
        event=event,
        project=project,
        title=_line(f"{_HAPPENED[event]}{size} in {project}"),
        lines=_lines(f"Cause: {cause}", where, cost, note),
        path=f"/regressions/{number}",
        at=at,
        data={
            "regression": {
                "id": number, "metric": metric, "cause": cause, "worst_delta_pct": delta_pct,
                "gpu_hours_per_day": hours_per_day, "stacks": [key for key, _ in stacks],
            }
        },
    )  # fmt: skip


def verdict_notice(
    event: str,
    document: VerdictDocument,
    *,
    project: str,
    run_id: int,
    name: str,
    stack: tuple[str, str],
    branch: str,
    commit: str,
    at: datetime,
) -> Notice:
    """`stack`: its key and its name."""
    word = decision_word(document.decision)
    return Notice(
        event=event,
        project=project,
        title=_line(f"{word[:1].upper()}{word[1:]}: {name} in {project}"),
        lines=_lines(
            _sentence(headline(document, _run)),
            _sentence(baseline_line(document, _run)),
            _where(stack[1], branch, commit),
        ),
        path=f"/runs/{run_id}",
        at=at,
        data={
            "run": {"id": run_id, "name": name, "branch": branch, "commit": commit, "stack": stack[0]},
            "verdict": {
                "decision": document.decision,
                "delta_pct": None if document.verdict.step_time is None else document.verdict.step_time.delta_pct,
                "provisional": document.provisional,
            },
        },
    )


def failed_notice(
    *,
    project: str,
    run_id: int,
    name: str,
    error: str,
    stack: tuple[str, str],
    branch: str,
    commit: str,
    at: datetime,
) -> Notice:
    """Of a run of which nothing could be read. `stack`: its key and its name, as far as they are known."""
    return Notice(
        event="run.failed",
        project=project,
        title=_line(f"Failed: {name} in {project}"),
        lines=_lines(error or "No figure could be read from its files.", _where(stack[1], branch, commit)),
        path=f"/runs/{run_id}",
        at=at,
        data={
            "run": {"id": run_id, "name": name, "branch": branch, "commit": commit, "stack": stack[0]},
            "verdict": None,
        },
    )


def trial_notice(*, project: str, receiver: str, path: str, by: str, at: datetime) -> Notice:
    """The test message."""
    return Notice(
        event=TEST,
        project=project,
        title=_line(f"Test message for {receiver} of {project}"),
        lines=_lines(f"{by or 'Somebody'} asked for it. News of {project} will look like this."),
        path=path,
        at=at,
    )


def _where(stack: str, branch: str, commit: str) -> str:
    """`On Qwen3-30B-A3B · 16 × H100, branch main, commit 0f3c2a9d.`; empty when nothing is known."""
    told = [stack, f"branch {branch}" if branch else "", f"commit {commit}" if commit else ""]
    text = ", ".join(part for part in told if part)
    return f"On {text}." if text else ""


def _run(number: str) -> str:
    return f"run {number}"


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _lines(*texts: str) -> tuple[str, ...]:
    return tuple(_line(text) for text in texts if text)


def _line(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= MOST_LINE else f"{text[: MOST_LINE - 1]}…"

"""The events of notifications, the subscription of a receiver, and the text of each notification."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from app.domain.numbers import change_text, plural
from app.domain.text import capitalized, cut, one_line
from app.domain.verdict.document import RerunRequest, VerdictDocument
from app.domain.verdict.regression_text import RegressionSummary
from app.domain.verdict.words import baseline_line

EVENTS: Mapping[str, str] = {
    "regression.opened": "A regression was opened, or another stack joined one",
    "regression.reopened": "A regression is open again: it is slow again, or a user reopened it",
    "regression.recovered": "The figures of a regression recovered, so it is proposed as fixed",
    "regression.fixed": "A user marked a regression as fixed",
    "upgrade.improvement": "An upgrade made a stack faster",
    "run.failed": "A run failed, or none of its figures could be read",
    "verdict.regression": "A run got the verdict regression",
    "verdict.improvement": "A run got the verdict improvement",
    "verdict.no_change": "A run got the verdict no change",
    "verdict.inconclusive": "A run got the verdict inconclusive",
    "verdict.no_baseline": "A run has no baseline",
    "rerun.requested": "A verdict requests reruns that would decide or confirm it",
    "golden.proposed": "A run is proposed as golden baseline of its stack",
    "limit.broken": "A figure breaks a fixed limit of the project, or a stack has not run for too long",
}
"""Meaning of each event, by name. Messages show it."""
TEST = "test"
"""The event of test messages, which every receiver gets."""
USUAL = ("regression.opened", "regression.reopened", "regression.recovered", "regression.fixed", "run.failed")
"""Default events of a receiver: those that need attention."""
FRESH = timedelta(days=7)
"""Verdicts of older runs send no notifications, because rule and baseline changes update them."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The selection of a receiver. `stacks`: keys of stacks; none means all stacks of the project."""

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


class UnreadableNotification(Exception):  # noqa: N818
    """Another version stored the notification in a form that this one cannot read. The text is for users."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification, independent of the channel. Its texts are untrusted.

    `lines`: sentences below the title. `path`: the page about it. `data`: the same content for programs.
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
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return the stored notification. Raises UnreadableNotification."""
        try:
            return cls(
                stored["event"], stored["project"], stored["title"], tuple(stored["lines"]), stored["path"],
                datetime.fromisoformat(stored["at"]), stored["data"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableNotification("The stored message cannot be read.") from error


def event_of_verdict(decision: str, *, raises_regression: bool, purpose: str, quarantined: bool) -> str:
    """Return the event of a verdict; empty for quarantined runs and for runs of experiments that did not fail."""
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


# --- The notification of each event.

MOST_LINE = 500
_MOST_STACKS = 5
_HAPPENED = {
    "regression.opened": "Regression",
    "regression.reopened": "Regression is back",
    "regression.recovered": "Regression seems fixed",
    "regression.fixed": "Regression fixed",
}


def regression_notification(
    event: str,
    *,
    project: str,
    number: int,
    metric: str,
    cause: str,
    summary: RegressionSummary,
    stacks: Sequence[tuple[str, str]],
    note: str,
    at: datetime,
) -> Notification:
    """Return the notification about a regression. `stacks`: keys and names of the affected stacks."""
    size = "" if summary.delta_pct is None else f": {summary.change}"
    names = [name for _, name in stacks]
    more = f" and {plural(len(names) - _MOST_STACKS, 'more stack')}" if len(names) > _MOST_STACKS else ""
    where = f"Where: {', '.join(names[:_MOST_STACKS])}{more}." if names else ""
    return Notification(
        event=event,
        project=project,
        title=_line(f"{_HAPPENED[event]}{size} in {project}"),
        lines=_lines(f"Cause: {cause}", where, summary.text, note),
        path=f"/regressions/{number}",
        at=at,
        data={
            "regression": {
                "id": number, "metric": metric, "cause": cause, "worst_delta_pct": summary.delta_pct,
                "gpu_hours_per_day": summary.gpu_hours_per_day, "stacks": [key for key, _ in stacks],
                "summary": asdict(summary),
            }
        },
    )  # fmt: skip


def verdict_notification(
    event: str,
    document: VerdictDocument,
    *,
    badge: str,
    lead: str,
    needs_confirmation: bool,
    project: str,
    run_id: int,
    name: str,
    stack: tuple[str, str],
    branch: str,
    commit: str,
    at: datetime,
) -> Notification:
    """Return the notification about a verdict. `badge`, `lead` and `needs_confirmation`: of the run's answer;
    `stack`: key and name.
    """
    return Notification(
        event=event,
        project=project,
        title=_line(f"{capitalized(badge)}: {name} in {project}"),
        lines=_lines(
            lead.replace("`", ""),
            _sentence(baseline_line(document, "run {}".format)),
            _where(stack[1], branch, commit),
        ),
        path=f"/runs/{run_id}",
        at=at,
        data={
            "run": {"id": run_id, "name": name, "branch": branch, "commit": commit, "stack": stack[0]},
            "verdict": {
                "decision": document.decision,
                "badge": badge,
                "needs_confirmation": needs_confirmation,
                "delta_pct": None if document.verdict.step_time is None else document.verdict.step_time.delta_pct,
                "provisional": document.provisional,
            },
        },
    )


def rerun_notification(
    request: RerunRequest, *, project: str, run_id: int, name: str, stack: tuple[str, str], at: datetime
) -> Notification:
    """Return the notification that requests reruns. `stack`: key and name."""
    return Notification(
        event="rerun.requested",
        project=project,
        title=_line(f"Reruns requested: {plural(request.runs, 'more run')} of {name} in {project}"),
        lines=_lines(
            "They would decide or confirm its verdict.",
            f"Start them with: threewalls rerun {run_id} --exec CMD",
            _where(stack[1], "", request.commit),
        ),
        path=f"/runs/{run_id}",
        at=at,
        data={
            "run": {"id": run_id, "name": name, "commit": request.commit, "stack": stack[0]},
            "rerun": asdict(request),
        },
    )


def proposal_notification(
    *, project: str, run_id: int, name: str, stack: tuple[str, str], commit: str, who: str, note: str, at: datetime
) -> Notification:
    """Return the notification that requests a decision about a proposed golden run. `stack`: key and name."""
    return Notification(
        event="golden.proposed",
        project=project,
        title=_line(f"Golden baseline proposed: {name} in {project}"),
        lines=_lines(f"{who} proposes this run{f': {note}' if note else '.'}", _where(stack[1], "", commit)),
        path=f"/runs/{run_id}?tab=record#decisions",
        at=at,
        data={
            "run": {"id": run_id, "name": name, "commit": commit, "stack": stack[0]},
            "proposal": {"proposed_by": who, "note": note},
        },
    )


def upgrade_notification(
    *,
    project: str,
    run_id: int,
    stack: tuple[str, str],
    field: str,
    values: tuple[str, str],
    change: tuple[float, float, float],
    runs: tuple[int, int],
    at: datetime,
) -> Notification:
    """Return the notification about an upgrade that made a stack faster. `stack`: key and name; `values` and `runs`:
    before and after; `change`: in percent of step time, with its interval.
    """
    return Notification(
        event="upgrade.improvement",
        project=project,
        title=_line(f"Upgrade of the {field}: step time {change_text(change[0]).figure} in {project}"),
        lines=_lines(
            f"{field.capitalize()}: {values[0] or 'unknown'} → {values[1] or 'unknown'}.",
            f"Step time {change_text(*change).text}, over {plural(runs[0], 'run')} against {runs[1]} before.",
            _where(stack[1], "", ""),
        ),
        path=f"/runs/{run_id}",
        at=at,
        data={
            "upgrade": {
                "field": field, "from": values[0], "to": values[1], "stack": stack[0], "run": run_id,
                "delta_pct": change[0], "ci_low_pct": change[1], "ci_high_pct": change[2],
            }
        },
    )  # fmt: skip


def limit_notification(
    sentences: Sequence[str], *, project: str, name: str, path: str, stack: tuple[str, str], at: datetime
) -> Notification:
    """Return the notification about broken limits. `name`: of the run or stack; `stack`: key and name."""
    return Notification(
        event="limit.broken",
        project=project,
        title=_line(f"Limit broken: {name} in {project}"),
        lines=_lines(*sentences, _where(stack[1], "", "")),
        path=path,
        at=at,
        data={"stack": stack[0], "limits": list(sentences)},
    )


def failed_notification(
    *,
    project: str,
    run_id: int,
    name: str,
    error: str,
    stack: tuple[str, str],
    branch: str,
    commit: str,
    at: datetime,
) -> Notification:
    """Return the notification about a run without figures. `stack`: key and name, empty where unknown."""
    return Notification(
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


def trial_notification(*, project: str, receiver: str, path: str, by: str, at: datetime) -> Notification:
    """Return the notification that tests a receiver."""
    return Notification(
        event=TEST,
        project=project,
        title=_line(f"Test message for {receiver} of {project}"),
        lines=_lines(f"Sent by {by or 'an unknown user'}. Notifications about {project} will look like this."),
        path=path,
        at=at,
    )


def _where(stack: str, branch: str, commit: str) -> str:
    """Return `On Qwen3-30B-A3B · 16 × H100, branch main, commit 0f3c2a9d.`; empty when all are unknown."""
    parts = [stack, f"branch {branch}" if branch else "", f"commit {commit}" if commit else ""]
    text = ", ".join(filter(None, parts))
    return f"On {text}." if text else ""


def _sentence(text: str) -> str:
    text = capitalized(text)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _lines(*texts: str) -> tuple[str, ...]:
    return tuple(_line(text) for text in texts if text)


def _line(text: str) -> str:
    return cut(one_line(text), MOST_LINE)

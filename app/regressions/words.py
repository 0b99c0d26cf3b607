"""Sentences of the regression pages: the summary, the calculation of a cost, and changes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from app.domain.numbers import (
    THIN,
    change_text,
    gpu_hours,
    grouped,
    plural,
    significant,
    step_time,
)
from app.domain.performance.cost import Cost
from app.domain.verdict.regression import Regression, SlowJob, common_end
from app.regressions.commands import RegressionChange
from app.regressions.queries import ACTIVE_STATES, StateCounts
from app.storage.audit import AuditEvent


def first_seen(metric: str, job: SlowJob) -> str:
    """Return the change in the first slow run (`6.1 %`) if it differs from that of the history; else empty."""
    if job.worst.delta_pct is None or job.first.first_delta_pct is None:
        return ""
    first, now = (change_text(delta, metric=metric).size for delta in (job.first.first_delta_pct, job.worst.delta_pct))
    return "" if first == now else first


def list_answer(counted: StateCounts, listed: Iterable[Regression], *, is_filtered: bool) -> str:
    """Return the number of regressions to triage and the cost of active ones as a sentence."""
    cost = counted.cost
    end = common_end(listed, cost.costly)
    if not counted.by_state[ACTIVE_STATES]:
        return f"No {'matching ' if is_filtered else ''}active regressions."
    others = ((counted.in_work, "in work"), (counted.proposed, "to close"))
    parts = [f"{counted.triage - counted.proposed or 'Nothing'} to triage", *(f"{n} {what}" for n, what in others if n)]
    if cost.hours is None and cost.unknown:
        return f"{', '.join(parts)}; cost unknown."
    if not cost.hours:
        return f"{', '.join(parts)}; no current cost."
    if counted.in_work or counted.triage == counted.proposed:
        return f"{', '.join(parts)}; {cost.text} in all{end}."
    return f"{', '.join([f'{parts[0]} ({cost.text}{end})', *parts[1:]])}."


def cost_factors(cost: Cost) -> str:
    """Format the factors: `1.5 runs/day × 12.5 ms/step × 50 steps/run × 16 GPUs`; empty if one is unknown or 0."""
    if not cost.gpu_hours_per_day:
        return ""
    runs, extra, steps, gpus = cost.runs_per_day, cost.extra_ms_per_step, cost.steps_per_run, cost.gpus
    assert runs is not None and extra is not None and steps is not None and gpus is not None  # noqa: S101, PT018
    return (
        f"{_rate(runs)}/day × {step_time(extra)}/step × {plural(steps, 'step')}/run × "
        f"{plural(gpus, 'GPU')} = {gpu_hours(cost.gpu_hours_per_day)}{THIN}GPU-h/day"
    )


def _rate(runs: float) -> str:
    text = grouped(runs, 1) if runs >= 1 else significant(round(runs, 2))
    return f"{text.removesuffix('.0')} {plural(runs, 'run', number=False)}"


def decided(regression: Regression, change: RegressionChange) -> str:
    """Return the message after a change of one regression: `Taken by Ada.`"""
    if change.answer is not None:
        if change.answer == "decline":
            return "Proposal declined."
        return "Closed as stale." if regression.state == "stale" else "Proposal accepted."
    if change.state is None:
        return "Note added." if change.note else "Saved."
    if change.state == "acknowledged":
        return f"Taken by {regression.assignee}." if regression.assignee else "Acknowledged."
    return _DECIDED[change.state]


_DECIDED: Mapping[str, str] = {
    "open": "Reopened.",
    "expected": "Marked as expected.",
    "fixed": "Marked as fixed. The next runs must confirm it.",
    "stale": "Closed as stale.",
    "invalid": "Marked as not a regression.",
}


@dataclass(frozen=True, slots=True)
class Done:
    """An entry of the discussion: the action, and each changed field with its old and new value."""

    event: AuditEvent
    words: str
    fields: tuple[tuple[str, str, str], ...]


_WORDS: Mapping[str, str] = {
    "opened": "opened the regression",
    "reopened": "reopened the regression",
    "moved": "changed the first run",
    "continued": "followed its job to another stack",
    "taken_back": "returned to its stack, which runs again",
    "left": "removed a job",
    "withdrawn": "withdrew the regression",
    "proposal_made": "proposed a fix",
    "proposal_withdrawn": "withdrew the proposal",
    "changed": "changed the regression",
    "noted": "added a note",
    "fix_confirmed": "confirmed the fix",
    "proposal_accepted": "accepted the proposal",
    "proposal_declined": "declined the proposal",
    "undone": "undid the last change",
}
_NAMES: Mapping[str, str] = {
    "state": "state",
    "assignee": "assignee",
    "external_url": "link",
    "proposal": "proposal",
}


def discussion(events: Iterable[AuditEvent]) -> tuple[Done, ...]:
    """Return the entries of a discussion, oldest first. Jobs that joined or ended one after another are one entry."""
    entries: list[Done] = []
    for action, together in groupby(events, key=lambda event: event.action):
        group = list(together)
        many = len(group)
        if action == "joined":
            jobs = "a job" if many == 1 else f"{many} jobs"
            entries.append(Done(replace(group[-1], note=""), f"added {jobs} for the same reason", ()))
        elif action == "continued" and many > 1:
            entries.append(Done(replace(group[-1], note=""), f"followed its jobs to {many} newer stacks", ()))
        else:
            entries += map(history_entry, group)
    return tuple(entries)


def history_entry(event: AuditEvent) -> Done:
    is_stale = event.action == "proposal_made" and event.after.get("proposal") == "stale"
    words = "proposed to close it as stale" if is_stale else _WORDS.get(event.action, event.action.replace("_", " "))
    return Done(event, words, tuple(_fields(event)))


def _fields(event: AuditEvent) -> Iterator[tuple[str, str, str]]:
    """Yield the changed fields in display order, without an answered proposal."""
    for name, label in _NAMES.items():
        is_shown_already = event.action == "opened" or (name == "proposal" and event.action.startswith("proposal_"))
        if name not in event.after or is_shown_already:
            continue
        yield label, _value(name, event.before.get(name)), _value(name, event.after[name])


def _value(name: str, value: object) -> str:
    return str(value) if value else {"assignee": "unassigned"}.get(name, "none")

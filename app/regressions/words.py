"""Sentences of the regression pages: the summary, the calculation of a cost, and changes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from app.domain.numbers import (
    THIN,
    change_text,
    change_words,
    daily_cost,
    days_text,
    gpu_hours,
    grouped,
    plural,
    significant,
    slow_or_affected,
    step_time,
)
from app.domain.performance.cost import Cost
from app.domain.verdict.evidence import alternates_text
from app.domain.verdict.triage import FIX_CLAIMED, is_up_to, recovery_text
from app.regressions.commands import RegressionChange
from app.regressions.queries import ACTIVE_STATES, StateCounts
from app.regressions.regression import Regression, RunOfJob, SlowJob, stacks_of
from app.storage.audit import AuditEvent


def what(regression: Regression) -> str:
    """Format a change for the list: `Up to 9.8 % slower`, `3.3 % more memory`; with `was` once it is over."""
    text = change(regression)
    if regression.is_once:
        text += " in one run each" if len(regression.counted_jobs) > 1 else " in one run"
    return text


def change(regression: Regression) -> str:
    """Return the largest change of the counted jobs, without the number of their runs."""
    delta = regression.worst_delta_pct
    up_to = is_up_to(delta, (job.worst.delta_pct for job in regression.counted_jobs))
    text = f"{'was ' if regression.is_back else ''}{change_words(delta, regression.metric, up_to=up_to)}"
    return f"{text[0].upper()}{text[1:]}"


def first_seen(metric: str, job: SlowJob) -> str:
    """Return the change in the first slow run (`6.1 %`) if it differs from that of the history; else empty."""
    if job.worst.delta_pct is None or job.first.first_delta_pct is None:
        return ""
    first, now = (change_text(delta, metric=metric).size for delta in (job.first.first_delta_pct, job.worst.delta_pct))
    return "" if first == now else first


def list_answer(counted: StateCounts, *, is_filtered: bool) -> str:
    """Return the number of regressions to triage and the cost of active ones as a sentence."""
    cost = counted.cost
    if not counted.by_state[ACTIVE_STATES]:
        return f"No {'matching ' if is_filtered else ''}active regressions."
    others = ((counted.in_work, "in work"), (counted.proposed, "to close"))
    parts = [f"{counted.triage - counted.proposed or 'Nothing'} to triage", *(f"{n} {what}" for n, what in others if n)]
    if cost.hours is None and cost.unknown:
        return f"{', '.join(parts)}; cost unknown."
    if not cost.hours:
        return f"{', '.join(parts)}; no current cost."
    if counted.in_work or counted.triage == counted.proposed:
        return f"{', '.join(parts)}; {cost.text} in all."
    return f"{', '.join([f'{parts[0]} ({cost.text})', *parts[1:]])}."


def answer(
    regression: Regression, first_elsewhere: int | None = None, alternating: tuple[float, float] | None = None
) -> str:
    """Return number of slow jobs, first run and cost in one sentence; the title states the size of the change.

    `first_elsewhere`: the run that was as slow before them in another stack, if any. `alternating`: the levels of a
    job that moves between two of them, which a second sentence names.
    """
    text = _answer(regression, first_elsewhere)
    if alternating is None:
        return text
    return f"{text} {'A' if len(regression.jobs) > 1 else 'The'} job {alternates_text(alternating)}."


def _answer(regression: Regression, first_elsewhere: int | None) -> str:
    since, counted, jobs = regression.since, regression.counted_jobs, regression.jobs
    if regression.is_back:
        each = f" in one run{' each' if len(jobs) > 1 else ''}" if regression.is_once else ""
        when = recovery_text(since.ordered_at, regression.back) if since else ""
        place = f" ({regression.back_in})" if regression.back_in else ""
        return f"{plural(len(jobs), 'job')} {slow_or_affected(regression.metric)}{each}{when}{place}."
    if regression.again:
        back = f"Recovered in #{regression.back[0]}; " if regression.back else ""
        text = f"{slow_or_affected(regression.metric)} again since {run_in(regression.again)}"
        return f"{back}{text if back else text.capitalize()}.{_claim(regression)}"
    if regression.is_once:
        return f"{_once(regression)}{'' if regression.idle_since else _cost(regression)}.{_claim(regression)}"
    is_stale_part = regression.proposal == "stale" and len(counted) < len(jobs)
    is_named = bool(regression.newest and regression.newest.ordered_at == regression.last_ran)
    end = f"; {_others(regression)}" if is_stale_part and not is_named else _cost(regression)
    text = slow_or_affected(regression.metric)
    if is_part(regression) or len(jobs) == 1:
        text = text.capitalize()
    elif is_stale_part or len(counted) == len(jobs):
        text = f"{plural(len(counted), 'job')} {text}"
    else:
        text = f"{len(counted)} of {plural(len(jobs), 'job')} {text}"
    first = f" since #{first_elsewhere or since.run_id}" if since else ""
    return f"{text}{first}{end}.{_claim(regression)}"


def run_in(run: RunOfJob) -> str:
    """Return `#410 (26.04)`: a run and its container or cluster, if the regression has no member there."""
    return f"#{run.id} ({run.place})" if run.place else f"#{run.id}"


def _others(regression: Regression) -> str:
    """Return `2 more in one run only`, of the jobs that do not count; with their change if it may be the larger one."""
    counted = regression.counted_jobs
    others = [job for job in regression.jobs if job not in counted]
    once = sum(job.is_once for job in others)
    how = "temporarily" if not once else "in one run only" if once == len(others) else "in one run or temporarily"
    if not is_part(regression):
        return f"{len(others)} more {how}"
    most = change_words(max(job.worst.delta_pct or 0.0 for job in others), regression.metric)
    return f"{plural(len(others), 'other was', 'others were')} up to {most}, {how}"


def is_part(regression: Regression) -> bool:
    """Return whether several of more slow jobs count; the page lists the others with larger changes."""
    return regression.metric == "step_time_ms" and 1 < len(regression.counted_jobs) < len(regression.slow_jobs)


def of_jobs(regression: Regression) -> str:
    """Return `4 jobs 4.6 to 6.1 % slower`, of the counted jobs."""
    metric, jobs = regression.metric, plural(len(regression.counted_jobs), "job")
    changes = sorted(delta for job in regression.counted_jobs if (delta := job.worst.delta_pct) is not None)
    sizes = [change_text(delta, metric=metric).size for delta in changes]
    text = change_words(changes[-1] if changes else None, metric)
    if len(sizes) > 1 and sizes[0] != sizes[-1]:
        return f"{jobs} {sizes[0].removesuffix(f'{THIN}%')} {'and' if len(sizes) == 2 else 'to'} {text}"
    return f"{jobs} {text}"


def _once(regression: Regression) -> str:
    """Return `2 jobs slow on 8 Jul, one run each` or `Slow on 8 Jul, in one run (#431)`."""
    jobs = regression.counted_jobs
    at = sorted(job.first.ordered_at for job in jobs)
    when = f"on {days_text(at[0], at[0])}" if at[0].date() == at[-1].date() else days_text(at[0], at[-1])
    slow = slow_or_affected(regression.metric)
    if len(jobs) > 1:
        return f"{plural(len(jobs), 'job')} {slow} {when}, one run each"
    return f"{slow.capitalize()} {when}, in one run (#{jobs[0].first.run_id})"


def _claim(regression: Regression) -> str:
    return " Marked as fixed; waiting for a run to confirm it." if regression.shown_state == FIX_CLAIMED else ""


def _cost(regression: Regression) -> str:
    if regression.idle_since:
        slow, newest = regression.counted_jobs, regression.newest
        if newest and newest.ordered_at == regression.last_ran:
            figure = change_text(newest.change_pct, metric=regression.metric).delta
            return f", last in {run_in(newest)}, {regression.idle_since}: {figure}"
        if len(slow) == len(regression.jobs):
            return f", no runs since {regression.idle_since}"
        stacks = plural(stacks_of(slow), "stack", number=False)
        return f", {slow_or_affected(regression.metric)} {stacks} last ran {regression.idle_since}"
    if regression.metric != "step_time_ms":
        return ""
    if regression.gpu_hours_per_day is None:
        return ", at unknown cost"
    return f", {daily_cost(regression.gpu_hours_per_day)}" if regression.gpu_hours_per_day else ", no cost now"


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
    "left": "removed a stack",
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
    """Return the entries of a discussion, oldest first. Stacks that joined one after another are one entry."""
    entries: list[Done] = []
    for action, together in groupby(events, key=lambda event: event.action):
        group = list(together)
        if action != "joined":
            entries += map(history_entry, group)
            continue
        stacks = "a stack" if len(group) == 1 else f"{len(group)} stacks"
        last = replace(group[-1], note="")
        entries.append(Done(last, f"added {stacks} for the same reason", ()))
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

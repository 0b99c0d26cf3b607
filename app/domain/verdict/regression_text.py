"""A regression in sentences: its size, its jobs, when it began and ended, and its cost."""

from collections import Counter
from dataclasses import dataclass

from app.domain.numbers import (
    THIN,
    change_text,
    change_words,
    daily_cost,
    days_text,
    levels_text,
    plural,
    slow_or_affected,
)
from app.domain.text import capitalized
from app.domain.verdict.regression import Regression, RunOfJob, SlowJob
from app.domain.verdict.triage import FIX_CLAIMED, recovery_text


@dataclass(frozen=True, slots=True)
class RegressionSummary:
    """What pages, reports, messages and the API state about a regression.

    `state_text`: the state that pages name. `change`: its size, `up to 9.8 % slower`; `delta_pct`: the same in percent.
    `since_run`: the first slow run of its counted jobs. `recovered_run`: the run since which it has recovered.
    `last_run`: its newest run, if nothing is lost now. `text`: the lead of its page.
    """

    state_text: str
    change: str
    delta_pct: float | None
    gpu_hours_per_day: float | None
    jobs: int
    since_run: int | None
    recovered_run: int | None
    last_run: int | None
    text: str


def summarize(regression: Regression) -> RegressionSummary:
    """Return the summary of a regression that was read with its evidence."""
    return RegressionSummary(
        state_text=regression.state_text,
        change=_change(regression),
        delta_pct=regression.worst_delta_pct,
        gpu_hours_per_day=regression.gpu_hours_per_day,
        jobs=len(regression.counted_jobs),
        since_run=regression.since.run_id if regression.since else None,
        recovered_run=regression.back[0] if regression.back and regression.is_back else None,
        last_run=regression.last_run,
        text=_text(regression),
    )


def what(regression: Regression) -> str:
    """Format a change for the list: `Up to 9.8 % slower`, `3.3 % more memory`; with `was` once it is over."""
    return " ".join(filter(None, (change(regression), how_often(regression))))


def how_often(regression: Regression) -> str:
    """Return how often the jobs were slow, if no stack shows it in several runs: `in one run each`; else empty.

    If one alternates, they are slow `at times`; a single job that is as slow elsewhere later, `in one run, again
    elsewhere`.
    """
    if not regression.is_once:
        return ""
    if regression.alternates is not None:
        return "at times"
    if regression.slow_after:
        return "in one run, again elsewhere"
    return "in one run each" if len(regression.counted_jobs) > 1 else "in one run"


def how_often_here(job: SlowJob, *, is_slow_elsewhere: bool) -> str:
    """Return ` in one run` of a job that a single run shows, ` in one run here` if others do elsewhere; else empty."""
    if not job.is_once:
        return ""
    return f" in one run{' here' if is_slow_elsewhere else ''}"


def change(regression: Regression) -> str:
    """Return the largest change of the counted jobs, without the number of their runs."""
    return capitalized(_change(regression))


def _change(regression: Regression) -> str:
    words = change_words(regression.worst_delta_pct, regression.metric, up_to=regression.is_up_to)
    return f"{'was ' if regression.is_back else ''}{words}"


def _text(regression: Regression) -> str:
    """Return the number of slow jobs, the first run and the cost in one sentence; the title states the change.

    A second sentence names a job that alternates between two levels.
    """
    text = _answer(regression)
    if regression.alternates is None:
        return text
    counted, jobs = len(regression.counted_jobs), len(regression.jobs)
    if regression.is_once and counted > 1:
        return f"{text} One alternates, whatever its code."
    words = f"alternates between {levels_text(regression.alternates)}, whatever its code"
    if regression.is_once and counted < jobs and not (regression.is_back or regression.again):
        others, there = f"The other{'s' if jobs > 2 else ''} recovered", regression.slow_there
        if there is None:
            return f"One job {words}. {others}.{_claim(regression)}"
        slow = f"{run_in(there)} slower{'' if there.is_steady else ', unconfirmed'}"
        return f"One job alternates, whatever its code. {others}; {slow}.{_claim(regression)}"
    return f"{text} {'A' if jobs > 1 else 'The'} job {words}."


def _answer(regression: Regression) -> str:
    since, counted, jobs = regression.since, regression.counted_jobs, regression.jobs
    if regression.is_back:
        often = how_often(regression)
        when = recovery_text(since.ordered_at, regression.back, of_many=len(jobs) > 1) if since else ""
        place = f" ({regression.back_in})" if regression.back_in else ""
        return f"{plural(len(jobs), 'job')} {slow_or_affected(regression.metric)}{often and f' {often}'}{when}{place}."
    if regression.again:
        back = f"Recovered in #{regression.back[0]}; " if regression.back else ""
        text = f"{slow_or_affected(regression.metric)} again since {run_in(regression.again)}"
        return f"{back}{text if back else text.capitalize()}.{_claim(regression)}"
    if regression.is_once:
        return f"{_once(regression)}{'' if regression.idle_since else _cost(regression)}.{_claim(regression)}"
    is_stale_part = regression.proposal == "stale" and len(counted) < len(jobs)
    is_named = bool(regression.newest and regression.newest.ordered_at == regression.last_ran)
    others = f"; {other_jobs(regression)}"
    end = others if is_stale_part and not is_named else _cost(regression)
    text = slow_or_affected(regression.metric)
    if is_part(regression) or len(jobs) == 1:
        text = text.capitalize()
        end += others if is_part(regression) and end != others else ""
    elif is_stale_part or len(counted) == len(jobs):
        text = f"{plural(len(counted), 'job')} {text}"
    else:
        text = f"{len(counted)} of {plural(len(jobs), 'job')} {text}"
    first = f" since #{since.run_id}" if since else ""
    return f"{text}{first}{end}.{_claim(regression)}"


def idle_text(regression: Regression) -> str:
    """Return what a rerun of a run of an idle regression shows."""
    since = f"since {regression.idle_since}" if regression.idle_since else "for a month"
    return (
        f"Regression {regression.id}, idle {since}: rerun this commit to confirm it, the newest commit to check a fix."
    )


def run_in(run: RunOfJob) -> str:
    """Return `#410 (26.04)`: a run and its container or cluster, if the regression has no member there."""
    return f"#{run.id} ({run.place})" if run.place else f"#{run.id}"


def other_jobs(regression: Regression) -> str:
    """Return `2 more in one run only`, of the jobs that do not count; with their size if it may be the larger one.

    Several kinds are counted: `3 others up to 45.1 %: 2 in one run, 1 mostly recovered`. Empty if all count.
    """
    counted = regression.counted_jobs
    others = [job for job in regression.jobs if job not in counted]
    if not others:
        return ""
    kinds = Counter(_kind_of_other(job) for job in others)
    are_once = [*kinds] == [_IN_ONE_RUN]
    listed = ", ".join(f"{jobs} {kind}" for kind, jobs in kinds.most_common())
    if not is_part(regression):
        return f"{len(others)} more in one run only" if are_once else listed
    most = change_text(max(job.worst.delta_pct or 0.0 for job in others), metric=regression.metric).size
    number = f"{plural(len(others), 'other')} up to {most}"
    if are_once:
        return f"{number} in one run only"
    return f"{number}: {listed}" if len(kinds) > 1 else f"{number}, {next(iter(kinds))}"


_IN_ONE_RUN = "in one run"
"""The kind of a job that a single run shows; the others recovered, at least mostly."""


def _kind_of_other(job: SlowJob) -> str:
    """Return why a job does not count. Less than half of its change is left in a job that mostly recovered."""
    if job.is_once:
        return _IN_ONE_RUN
    return "recovered" if job.is_back else "mostly recovered"


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
    """Return `2 jobs slow on 8 Jul, one run each` or `Slow on 8 Jul, in one run (#431)`.

    A job that is as slow elsewhere later: `Slow on 8 Jul, in one run here (#431), again in #475`; one that alternates:
    `Slow on 8 Jul (#431)`, before the sentence on its levels.
    """
    jobs = regression.counted_jobs
    at = sorted(job.first.ordered_at for job in jobs)
    when = f"on {days_text(at[0], at[0])}" if at[0].date() == at[-1].date() else days_text(at[0], at[-1])
    slow = slow_or_affected(regression.metric)
    if len(jobs) > 1:
        return f"{plural(len(jobs), 'job')} {slow} {when}, one run each"
    run = f"#{jobs[0].first.run_id}"
    if regression.alternates is not None:
        return f"{slow.capitalize()} {when} ({run})"
    if regression.slow_after:
        again = ", ".join(f"#{number}" for number in regression.slow_after)
        return f"{slow.capitalize()} {when}, in one run here ({run}), again in {again}"
    return f"{slow.capitalize()} {when}, in one run ({run})"


def _claim(regression: Regression) -> str:
    return " Marked as fixed; waiting for a run to confirm it." if regression.shown_state == FIX_CLAIMED else ""


def _cost(regression: Regression) -> str:
    if regression.idle_since:
        slow, newest = regression.counted_jobs, regression.newest
        if newest and newest.ordered_at == regression.last_ran:
            delta = change_text(newest.change_pct, metric=regression.metric).delta
            now = delta if newest.is_steady else "not steady"
            return f", last in {run_in(newest)}, {regression.idle_since}: {now}"
        if len(slow) == len(regression.jobs):
            return f", no runs since {regression.idle_since}"
        return f", last ran {regression.idle_since}"
    if regression.metric != "step_time_ms":
        return ""
    if regression.gpu_hours_per_day is None:
        return ", at unknown cost"
    hours = regression.gpu_hours_per_day
    return f", {daily_cost(hours)}{regression.cost_end}" if hours else ", no cost now"

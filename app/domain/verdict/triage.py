"""The states of a regression and their transitions. Users decide; the service opens, proposes and reopens."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, Self, TypeVar

from app.domain.numbers import daily_cost, days_text, gpu_hours, plural
from app.domain.performance.cost import RATE_DAYS

State = Literal["open", "acknowledged", "expected", "fixed", "stale", "invalid"]

STATES: tuple[State, ...] = ("open", "acknowledged", "expected", "fixed", "stale", "invalid")
ACTIVE: tuple[State, ...] = ("open", "acknowledged")
"""States that still need attention."""
NOT_CLOSED: tuple[State, ...] = (*ACTIVE, "expected")
"""States whose members the service follows."""
ENDED: tuple[State, ...] = ("fixed", "stale")
"""States that later slow runs reopen."""
Proposal = Literal["", "fixed", "stale"]
"""A state that the service proposes: `fixed` after runs that are back, `stale` after a month without runs."""
MEANING: Mapping[State, str] = {
    "open": "not yet triaged",
    "acknowledged": "being worked on",
    "expected": "accepted as the cost of an intended change",
    "fixed": "a fix is in; the next runs must confirm it",
    "stale": "closed because its jobs no longer run",
    "invalid": "not a regression, for example a bad node",
}
NEEDS_NOTE: tuple[State, ...] = ("expected",)
"""Accepting a slowdown is a decision, so the reason must be on record."""
FIX_CLAIMED = "fix claimed"
"""How pages and reports show a regression that a user marked fixed before its runs recovered."""

_NEXT: Mapping[State, tuple[State, ...]] = {
    "open": ("acknowledged", "expected", "fixed", "stale", "invalid"),
    "acknowledged": ("open", "expected", "fixed", "stale", "invalid"),
    "expected": ("open", "fixed", "stale", "invalid"),
    # A closed regression must be reopened first, so that its history shows that it came back.
    "fixed": ("open",),
    "stale": ("open",),
    "invalid": ("open",),
}


def next_states(state: str) -> tuple[State, ...]:
    """Return the states that may follow `state`, in the order in which pages offer them."""
    return next((after for before, after in _NEXT.items() if before == state), STATES)


def refused_because(before: str, after: str) -> str:
    """Say why a regression cannot change from `before` to `after`; empty when it can or stays the same."""
    if before == after or after in next_states(before):
        return ""
    allowed = next_states(before)
    names = f"{', '.join(allowed[:-1])} or {allowed[-1]}" if len(allowed) > 1 else allowed[0]
    return f"it is {before} and can only become {names}"


def state_text(shown_state: str, proposal: str) -> str:
    """Return the state that pages name: `recovered` or `idle` for an active regression that the service proposes to
    close as fixed or stale."""
    return {"fixed": "recovered", "stale": "idle"}.get(proposal, shown_state) if shown_state in ACTIVE else shown_state


Member = TypeVar("Member")


def members_by_job(
    members: Iterable[Member], place_of: Callable[[Member], tuple[str, str, float]]
) -> list[list[Member]]:
    """Group the members of a regression, in the order in which they joined, by the job that became slower.

    `place_of` returns the stack key of a member, that of the stack in which its job was slow before (empty where the
    job became slow), and its usual level.
    """
    jobs: list[list[Member]] = []
    for member in members:
        _, follows, usual = place_of(member)
        before = [job for job in jobs if follows and place_of(job[-1])[0] == follows]
        if before:
            # The usual level is copied from stack to stack, so it identifies the jobs of one stack.
            min(before, key=lambda job: abs(place_of(job[-1])[2] - usual)).append(member)
        else:
            jobs.append([member])
    return jobs


class MeasuredMember(Protocol):
    """A stack of a regression. `newest_pct`: change of its newest run against its usual level, None if unknown."""

    @property
    def delta_pct(self) -> float | None: ...
    @property
    def proposal(self) -> str: ...
    @property
    def is_once(self) -> bool: ...
    @property
    def newest_pct(self) -> float | None: ...


MeasuredJob = TypeVar("MeasuredJob", bound=Sequence[MeasuredMember])


def change_of_job(job: Sequence[MeasuredMember]) -> float | None:
    """Return the largest change of the job's stacks, in percent."""
    return max((member.delta_pct for member in job if member.delta_pct is not None), default=None)


def is_back(job: Sequence[MeasuredMember]) -> bool:
    """Return whether the runs of a job have recovered."""
    return job[-1].proposal == "fixed"


def is_once(job: Sequence[MeasuredMember]) -> bool:
    """Return whether a single run was slow; its node may have been slow."""
    return all(member.is_once for member in job)


def is_half_gone(change_pct: float | None, newest_pct: float | None) -> bool:
    """Return whether less than half of a change is left in the newest run; both are against the usual level."""
    return change_pct is not None and newest_pct is not None and newest_pct < change_pct / 2


OUTGROWN = 1.5
"""Multiple of the change of a job from which a run shows a further one."""


def is_nearly_back(job: Sequence[MeasuredMember]) -> bool:
    """Return whether a job that has not recovered has less than half of its change in its newest run."""
    return not is_back(job) and is_half_gone(change_of_job(job), job[-1].newest_pct)


def slow_jobs(jobs: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
    """Return the jobs that are still slow; all jobs if none is."""
    return [job for job in jobs if not is_back(job)] or jobs


def counted_jobs(jobs: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
    """Return the slow jobs that give a regression its size: without those that one run shows or that are nearly back.

    Such jobs count if there are no others. If only single runs were slow and none lasted, those of recovered jobs count
    as well.
    """
    slow = slow_jobs(jobs)
    several = [job for job in slow if not is_once(job)] or slow
    lasting = [job for job in several if not is_nearly_back(job)]
    if not lasting and all(is_once(job) for job in several):
        return [job for job in jobs if is_once(job)]
    return lasting or several


def size_pct(jobs: Sequence[Sequence[MeasuredMember]]) -> float | None:
    """Return the percentage of a regression that pages, the API, reports and messages state."""
    changes = (change_of_job(job) for job in counted_jobs(jobs))
    return max((change for change in changes if change is not None), default=None)


def is_up_to(worst: float | None, changes: Iterable[float | None]) -> bool:
    """Return whether `worst` is the largest of several changes in percent, so that texts say `up to` before it.

    Else the first slow run, which pages also name, would seem to have changed that much.
    """
    return worst is not None and any(change is not None and round(change, 1) < round(worst, 1) for change in changes)


@dataclass(frozen=True, slots=True)
class SumOfCosts:
    """Costs of active regressions. `hours`: of `costly` ones, in GPU-hours per day; None if no cost is known.

    `unknown`: regressions of step time without a known cost; those of memory or loss cost no time.
    """

    hours: float | None
    costly: int
    unknown: int

    @classmethod
    def total(cls, sums: Sequence[tuple[float | None, int, int]]) -> Self:
        """Add up (hours, costly, unknown) of groups of regressions."""
        all_hours = [hours for hours, _, _ in sums if hours is not None]
        return cls(sum(all_hours) if all_hours else None, sum(row[1] for row in sums), sum(row[2] for row in sums))

    @property
    def text(self) -> str:
        """Return the sum: `about 1.2 GPU-h/day`; `at least` if more costs are unknown."""
        hours = self.hours or 0.0
        return f"at least {gpu_hours(hours)} GPU-h/day" if self.unknown and hours >= 0.1 else daily_cost(hours)


def active_text(number: int, cost: SumOfCosts, newest: str = "", *, to_close: int = 0) -> str:
    """Summarise `number` active regressions by their cost: `2 regressions cost about 1.2 GPU-h/day.`

    Those without cost are counted only if none has a cost. `newest`: the day of the newest run, if that is more than
    RATE_DAYS ago. `to_close`: the number of those that the service proposes to close, named only if no other is open.
    """
    if not number:
        return "No active regressions."
    if cost.hours is None and cost.unknown:
        return f"{plural(cost.unknown, 'regression')} of unknown cost."
    if not cost.hours:
        why = f"none ran in the last {RATE_DAYS} days (newest run {newest})" if newest else "none costs GPU time now"
        is_open = number > to_close
        which = plural(number - to_close, "open regression") if is_open else f"{plural(number, 'regression')} to close"
        return f"{which}; {why}."
    return f"{plural(cost.costly, 'regression costs', 'regressions cost')} {cost.text}."


def recovery_text(since: datetime, back: tuple[int, datetime] | None, *, of_many: bool = False) -> str:
    """Return when a change that is over lasted: ` from 13 Sep; recovered since #79 on 16 Sep`.

    `back`: the run and its position. `of_many`: it was of several jobs, of which that run is the last to be back:
    `; all recovered since #79 on 16 Sep`.
    """
    recovered = f"{'all ' if of_many else ''}recovered"
    if back is None:
        return f" since {days_text(since, since)}; {recovered}"
    return f" from {days_text(since, since)}; {recovered} since #{back[0]} on {days_text(back[1], back[1])}"

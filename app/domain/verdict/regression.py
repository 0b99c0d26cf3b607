"""The read model of a regression, with the stack and the first slow run of each member."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.naming import SEPARATOR, common_parts, without_common
from app.domain.numbers import days_text, plural
from app.domain.verdict import triage
from app.domain.verdict.assess import UPGRADES
from app.domain.verdict.comparability import AXES, Axis, axis_of
from app.domain.verdict.triage import FIX_CLAIMED, members_by_job


@dataclass(frozen=True, slots=True)
class RegressionMember:
    """One stack that became slower, with its first slow run and its `title`.

    `usual`, `slow`: its levels in the unit of the metric (ms, GiB). `quarantine`: reason why the run does not count.
    `first_delta_pct`: change measured in the first slow run. `follows`: the stack in which its job was already slow
    before; empty if it became slow here. `is_once`: no other run of its job is as slow. `newest_pct`: change of its
    newest run.
    """

    run_id: int
    run_name: str
    job: str
    branch: str
    commit: str
    ordered_at: datetime
    quarantine: str
    model: str | None
    gpu: str | None
    gpus: int | None
    dispatcher: str | None
    stack_key: str
    config_key: str
    title: str
    usual: float | None
    slow: float | None
    delta_pct: float | None
    first_delta_pct: float | None
    gpu_hours_per_day: float | None
    proposal: str
    joined_at: datetime
    follows: str = ""
    is_once: bool = False
    newest_pct: float | None = None


@dataclass(frozen=True, slots=True)
class SlowJob:
    """A job that became slower in the first of its stacks and continued in the others."""

    stacks: tuple[RegressionMember, ...]

    @property
    def first(self) -> RegressionMember:
        return self.stacks[0]

    @property
    def last(self) -> RegressionMember:
        return self.stacks[-1]

    @property
    def worst(self) -> RegressionMember:
        """Return the stack in which the change is largest."""
        return max(self.stacks, key=lambda member: -math.inf if member.delta_pct is None else member.delta_pct)

    @property
    def is_back(self) -> bool:
        """Return whether its runs have recovered."""
        return triage.is_back(self.stacks)

    @property
    def is_once(self) -> bool:
        """Return whether a single run was slow; its node may have been slow."""
        return triage.is_once(self.stacks)

    @property
    def has_returned(self) -> bool:
        """Return whether it has recovered, or less than half of its change is left in its newest run."""
        return self.is_back or triage.is_nearly_back(self.stacks)

    @property
    def newest_change(self) -> float | None:
        """Return the change of its newest run in percent, if less than half of that of the job is left."""
        return self.last.newest_pct if triage.is_nearly_back(self.stacks) else None

    @property
    def has_outgrown(self) -> bool:
        """Return whether its newest run is so much slower that the change of the job is not all of it."""
        newest, change = self.last.newest_pct, triage.change_of_job(self.stacks)
        return not self.is_back and newest is not None and change is not None and newest > triage.OUTGROWN * change

    @property
    def title(self) -> str:
        """Return the parts that the titles of its stacks share."""
        return SEPARATOR.join(common_parts([member.title for member in self.stacks])) or self.first.title

    @property
    def moves(self) -> tuple[str, ...]:
        """Return the parts that distinguish its stacks, such as containers; empty for a single stack."""
        return tuple(without_common([member.title for member in self.stacks])) if len(self.stacks) > 1 else ()


def stacks_of(jobs: Iterable[SlowJob]) -> int:
    """Return the number of stacks that became slower. A stack to which a job moved later does not count again."""
    return len({job.first.stack_key for job in jobs})


@dataclass(frozen=True, slots=True)
class RunOfJob:
    """A run that shows where a slow job is now. `place`: container or cluster, if it is none of the members'.

    `is_steady`: its change is measured; else texts name the run only.
    """

    id: int
    ordered_at: datetime
    change_pct: float
    place: str
    is_steady: bool


@dataclass(frozen=True, slots=True)
class Regression:
    """A regression with its members, oldest first.

    `back`: number and history position of the run since which all of its stacks have recovered; `back_in`: the
    container or cluster of that run, if it is none of the members'.
    `last_run`, `last_ran`: the newest run of its counted jobs and its position, if nothing is lost now. `newest`: the
    newest run in a later container or cluster, if any. `again`: the run since which a recovered job is slow there.
    `slow_before`: the first run of a counted job that was as slow in another stack before it became slow in the
    members, without those that are not steady. `slow_after`: later runs in other stacks that are as slow as the single
    slow run. `alternates`: the levels (ms) of a job that moves between two of them; `alternating`: its first slow run.
    `slow_there`: the newest run of another job, which is back in the members but slow in a later stack, if any.
    Lists without evidence have none.
    `cost_until`: the position of the newest run of its counted jobs, if it costs time in a history that ended.
    """

    id: int
    project_id: int
    project: str
    generated: bool
    kind: str
    cause: str
    cause_key: str
    axis: str
    metric: str
    state: str
    assignee: str
    note: str
    external_url: str
    opened_at: datetime
    changed_at: datetime
    proposal: str
    proposal_run_id: int | None
    gpu_hours_per_day: float | None
    members: tuple[RegressionMember, ...]
    back: tuple[int, datetime] | None = None
    last_run: int | None = None
    last_ran: datetime | None = None
    cost_until: datetime | None = None
    back_in: str = ""
    newest: RunOfJob | None = None
    again: RunOfJob | None = None
    slow_before: RunOfJob | None = None
    slow_after: tuple[int, ...] = ()
    alternates: tuple[float, float] | None = None
    alternating: int | None = None
    slow_there: RunOfJob | None = None

    @property
    def idle_since(self) -> str:
        """Return the day of `last_ran`: `8 Jul`; empty without it."""
        return days_text(self.last_ran, self.last_ran) if self.last_ran else ""

    @property
    def cost_end(self) -> str:
        """Return `, last run 30 Sep`, which follows its cost; empty if that is of now."""
        return f", last run {days_text(self.cost_until, self.cost_until)}" if self.cost_until else ""

    @property
    def jobs(self) -> tuple[SlowJob, ...]:
        """Return its members by job. A stack is grouped with the stack in which its job ran before."""
        return tuple(SlowJob(tuple(stacks)) for stacks in self._jobs)

    @property
    def _jobs(self) -> list[list[RegressionMember]]:
        return members_by_job(self.members, lambda member: (member.stack_key, member.follows, member.usual or 0.0))

    @property
    def worst_delta_pct(self) -> float | None:
        """Return the percentage that the regression is said to have."""
        return triage.size_pct([job.stacks for job in self.counted_jobs])

    @property
    def is_up_to(self) -> bool:
        """Return whether its counted jobs changed by different amounts, so that its size is the largest of them."""
        return triage.is_up_to(self.worst_delta_pct, (job.worst.delta_pct for job in self.counted_jobs))

    @property
    def is_back(self) -> bool:
        """Return whether all of its stacks have recovered and no user has decided otherwise."""
        return self.proposal == "fixed" or self.shown_state == "fixed"

    @property
    def slow_jobs(self) -> Sequence[SlowJob]:
        """Return the jobs that are still slow; all jobs if none is."""
        return [SlowJob(tuple(stacks)) for stacks in triage.slow_jobs(self._jobs)]

    @property
    def counted_jobs(self) -> Sequence[SlowJob]:
        """Return the slow jobs that give it its size: neither shown by one run nor nearly back, if there are such.

        Beside a job that alternates, those that were slow once and are back do not count.
        """
        counted = [SlowJob(tuple(stacks)) for stacks in triage.counted_jobs(self._jobs)]
        if self.alternating is None or self.is_back or not self.is_once:
            return counted
        return [job for job in counted if job.first.run_id == self.alternating or not job.has_returned]

    @property
    def first_job(self) -> SlowJob | None:
        """Return the counted job that became slow first: it began with the run of `since`."""
        return min(self.counted_jobs, key=lambda job: (job.first.ordered_at, job.first.run_id), default=None)

    @property
    def spread(self) -> str:
        """Return `4 jobs on A100, 1 on GB200`, of the counted jobs; empty if they have one model and GPU."""
        firsts = [job.first for job in self.counted_jobs]
        if len({(first.model, first.gpu) for first in firsts}) < 2:
            return ""
        (gpu, most), *others = Counter(first.gpu or "unknown GPU" for first in firsts).most_common()
        return ", ".join([f"{plural(most, 'job')} on {gpu}", *(f"{number} on {name}" for name, number in others)])

    @property
    def is_once(self) -> bool:
        """Return whether only a single run of each slow job shows it."""
        return bool(self.slow_jobs) and all(job.is_once for job in self.slow_jobs)

    @property
    def link(self) -> str:
        """Return the external issue if it is a web address, else an empty text."""
        return self.external_url if self.external_url.startswith(("https://", "http://")) else ""

    @property
    def since(self) -> RegressionMember | None:
        """Return the earliest first slow run of its counted jobs."""
        return self.first_job.first if self.first_job else None

    @property
    def shown_state(self) -> str:
        """Return its state; `fix claimed` if a user marked it fixed and not all of its runs have recovered."""
        claimed = self.state == "fixed" and any(member.proposal != "fixed" for member in self.members)
        return FIX_CLAIMED if claimed else self.state

    @property
    def state_text(self) -> str:
        """Return the state that pages name."""
        return triage.state_text(self.shown_state, self.proposal)


def common_end(regressions: Iterable[Regression], costly: int) -> str:
    """Return `, last run 30 Sep` if all `costly` regressions are among these and their cost ended then; else empty."""
    ends = [regression.cost_end for regression in regressions if regression.gpu_hours_per_day]
    return ends[0] if len(ends) == costly and len({*ends}) == 1 else ""


def figure_of(level: float | None) -> float | None:
    """Return the figure of a level, which is stored as its logarithm."""
    return None if level is None else math.exp(level)


# --- The axis of a cause, by the key that groups members (`alarms.py`).
#
# The key begins with an axis (`code:0f3c2a9d...`), or with `upgrade` and the upgraded field.

UPGRADE_CAUSE = "upgrade"


def axis_of_cause(cause_key: str) -> Axis | None:
    """Return the axis of a cause; None if unknown."""
    name, _, rest = cause_key.partition(":")
    field = rest.partition(":")[0]
    if name == UPGRADE_CAUSE and field in UPGRADES:
        return axis_of(field)
    return next((axis for axis in AXES if axis == name), None)

"""Bisect a change of step time or peak memory: the commit of a range to measure next, from the runs so far."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Literal

State = Literal["good", "bad", "unclear", "failed"]

LIKELY = 2.576
"""Standard errors from the midpoint at which a commit counts as good or bad: 99 %, as for verdicts."""
MOST_LAUNCHES = 20
"""A change that needs more launches of each commit is too small to bisect."""


@dataclass(frozen=True, slots=True)
class CommitLaunch:
    """A run of a commit. `log_value`: ln of the metric, NaN for a run that failed. `gpu_hours`: its cost, NaN if
    unknown."""

    run: int
    commit: str
    log_value: float
    gpu_hours: float = math.nan


@dataclass(frozen=True, slots=True)
class MeasuredCommit:
    """`delta_pct`: change of the metric against the good commit; None if every launch failed."""

    commit: str
    state: State
    runs: tuple[int, ...]
    delta_pct: float | None


@dataclass(frozen=True, slots=True)
class Bisection:
    """The progress of a bisection. Commits are in order, oldest first.

    `left`: commits that may have caused the change, the last of them measured as bad. `next`: the commit to measure;
    empty when one commit is left, or nothing more can be measured. `launches`: runs of a commit that decide it.
    `steps`: commits to measure until one is left. `is_mixed`: a good commit follows a bad one, so there is more
    than one change.
    """

    change_pct: float
    measured: tuple[MeasuredCommit, ...]
    left: tuple[str, ...]
    next: str
    launches: int
    steps: int
    gpu_hours_each: float
    is_mixed: bool

    @property
    def first_bad(self) -> str:
        """Return the commit that caused the change; empty while several are left."""
        return self.left[0] if len(self.left) == 1 else ""


class NotBisectableError(ValueError):
    """The range cannot be bisected. The text states the reason and what to do."""


def bisect(commits: Sequence[str], launches: Sequence[CommitLaunch], variance: float) -> Bisection:
    """Return the next commit to measure. Raises NotBisectableError.

    `commits`: the range, oldest first; the first is good, the last bad. `variance`: of `log_value` between launches.
    """
    by_commit: dict[str, list[CommitLaunch]] = {}
    for launch in launches:
        by_commit.setdefault(launch.commit, []).append(launch)
    good, bad = (_values(by_commit.get(commit, ())) for commit in (commits[0], commits[-1]))
    if not good or not bad:
        side = commits[0] if not good else commits[-1]
        raise NotBisectableError(
            f"No run of this configuration measured {side[:12]}. Measure it first, or choose another end."
        )
    low, high = statistics.fmean(good), statistics.fmean(bad)
    half = (high - low) / 2
    needed = math.ceil(variance * (LIKELY / half) ** 2) if half else MOST_LAUNCHES + 1
    if needed > MOST_LAUNCHES:
        raise NotBisectableError(
            f"The two ends differ by {100 * math.expm1(2 * half):.2f} %, and launches vary by "
            f"{100 * math.sqrt(variance):.2f} %: a commit would need more than {MOST_LAUNCHES} runs."
        )
    states = {
        commit: _state(_values(runs), (low + high) / 2, half, variance)
        for commit, runs in by_commit.items()
        if commit in commits
    }
    states |= {commits[0]: "good", commits[-1]: "bad"}
    first_bad = next(position for position, commit in enumerate(commits) if states.get(commit) == "bad")
    last_good = max(position for position in range(first_bad) if states.get(commits[position]) == "good")
    is_mixed = any(states.get(commit) == "good" for commit in commits[first_bad:])
    hours = [launch.gpu_hours for launch in launches if math.isfinite(launch.gpu_hours)]
    measured = tuple(
        MeasuredCommit(
            commit, states[commit], tuple(run.run for run in by_commit[commit]), _delta(by_commit[commit], low)
        )
        for commit in commits
        if commit in by_commit
    )
    return Bisection(
        change_pct=100 * math.expm1(high - low),
        measured=measured,
        left=tuple(commits[last_good + 1 : first_bad + 1]),
        next=_next(commits[last_good : first_bad + 1], states, by_commit, 2 * max(needed, 1)),
        launches=max(needed, 1),
        steps=math.ceil(math.log2(first_bad - last_good)),
        gpu_hours_each=statistics.median(hours) if hours else math.nan,
        is_mixed=is_mixed,
    )


def commands_in(container: str, commit: str) -> str:
    """Return the commands that measure a commit in another container, which tells code and container apart.

    `commit`: empty if the run states none.
    """
    stated = f" --set {quote(f'commit={commit}')}" if commit else ""
    lines = [
        f"# start the job in {' '.join(container.split())}, with its output in train.log",
        f"threewalls upload train.log --set {quote(f'container={container}')}{stated} --purpose experiment --wait",
    ]
    return "\n".join([f"git checkout {quote(commit)}", *lines] if commit else lines)


def _values(launches: Sequence[CommitLaunch]) -> list[float]:
    return [launch.log_value for launch in launches if math.isfinite(launch.log_value)]


def _state(values: Sequence[float], middle: float, half: float, variance: float) -> State:
    """Return on which side of the middle a commit is, if it is beyond chance."""
    if not values:
        return "failed"
    away = (statistics.fmean(values) - middle) * math.copysign(1, half)
    if abs(away) < LIKELY * math.sqrt(variance / len(values)):
        return "unclear"
    return "bad" if away > 0 else "good"


def _delta(launches: Sequence[CommitLaunch], low: float) -> float | None:
    values = _values(launches)
    return 100 * math.expm1(statistics.fmean(values) - low) if values else None


def _next(
    open_range: Sequence[str], states: Mapping[str, State], by_commit: Mapping[str, Sequence[CommitLaunch]], most: int
) -> str:
    """Return the open commit nearest to the middle between both ends.

    One that stayed unclear after `most` launches is not open.
    """
    positions = [
        position
        for position, commit in enumerate(open_range[:-1])
        if (state := states.get(commit)) is None or (state == "unclear" and len(by_commit[commit]) < most)
    ]
    return open_range[min(positions, key=lambda position: abs(2 * position + 1 - len(open_range)))] if positions else ""

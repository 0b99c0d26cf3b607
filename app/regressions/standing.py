"""Where a stack stands with regard to its regressions: the levels of its history after the run that was slow."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.history import FollowUp, History, OpenedRegression, find_changes, follow_up, settled_levels
from app.domain.history.follow_up import SAME_LEVEL
from app.domain.matching import BaselineRules
from app.regressions.members import Member
from app.regressions.stack import Candidate, Place, candidates, place_of
from app.storage.run_records import aware
from app.storage.stack_runs import StackRun

_MEMORY_PRIOR = Prior(variance=0.001**2, degrees_of_freedom=4)
"""Peak memory is all but deterministic: equal within 0.1 % in most adjacent versions of one job."""


class Standing:
    """`runs`: all of the stack, in order, with their new verdicts; `priors`: by config key, as verdicts used them."""

    def __init__(self, runs: Sequence[StackRun], rules: BaselineRules, priors: Mapping[str, Prior]) -> None:
        self._runs, self._rules, self._priors = runs, rules, priors
        self._places = {run.id: place_of(run) for run in runs}
        self._candidates = {run.id: one for one in candidates(runs) for run in one.runs}
        self._levels: dict[tuple[object, ...], tuple[list[StackRun], History] | None] = {}

    def place_of_run(self, run_id: int) -> Place | None:
        """None when the run belongs to another stack now, or is gone."""
        return self._places.get(run_id)

    def candidate_of(self, run_id: int) -> Candidate | None:
        """The run with its reruns; None when it belongs to another stack now, or is gone."""
        return self._candidates.get(run_id)

    def reaches(self, origin: Candidate, other: Candidate) -> bool:
        """Whether what slows `origin` down may be in `other`: the baseline branch is in every branch; what was found on
        another one is on that branch alone, or in the same commit.
        """
        main = self._rules.branch
        if main is None or main in origin.branches or origin.branches & other.branches:
            return True
        return bool(origin.newest.commit) and origin.newest.commit == other.newest.commit

    def has_ended(self, member: Member, before: Place) -> bool:
        """Whether it was over before that place: somebody says so, or three runs stood at the usual level again."""
        if member.regression.state == "fixed":
            return True
        found = self._follow_up(member, before=before)
        return found is not None and found[0].state == "fixed"

    def returned(self, member: Member) -> StackRun | None:
        """The first run of the level that is back where it was; None while it is slow."""
        found = self._follow_up(member)
        return found[1][found[0].run] if found is not None and found[0].state == "fixed" else None

    def came_back(self, member: Member, said_at: datetime) -> StackRun | None:
        """The first run of a slow level after somebody held it to be fixed; runs from before that prove nothing."""
        found = self._follow_up(member, said_at=said_at)
        return found[1][found[0].run] if found is not None and found[0].state == "reopened" else None

    def next_slow(self, member: Member) -> Candidate | None:
        """The next candidate that is a regression to about the same level."""
        place = self._places.get(member.row.run_id)
        origin = self.candidate_of(member.row.run_id)
        config = [run for run in self._runs if run.config_key == member.row.config_key]
        for one in candidates(config):
            slow = one.newest.verdict == "regression" and not one.newest.quarantine
            later = (place is None or one.place > place) and (origin is None or self.reaches(origin, one))
            if slow and later and self._is_as_slow(one.newest, member):
                return one
        return None

    def _is_as_slow(self, run: StackRun, member: Member) -> bool:
        usual, slow = member.usual_level, member.slow_level
        value = _value(run, member.regression.metric)
        return abs(value - slow) <= max(SAME_LEVEL, (slow - usual) / 2)

    def settled(self, member: Member) -> tuple[float, float] | None:
        """The usual and the slow level of its history, in ln; None while it has none."""
        found = self._opened(member)
        return None if found is None else settled_levels(found[0], found[1][1])

    def _follow_up(
        self, member: Member, before: Place | None = None, said_at: datetime | None = None
    ) -> tuple[FollowUp, list[StackRun]] | None:
        """With the runs that make the levels; None when there are none, or the slow run is gone."""
        found = self._opened(member, before)
        if found is None:
            return None
        opened, (runs, history) = found
        said = None if said_at is None else sum(run.created_at <= aware(said_at) for run in runs)
        return follow_up(opened, history, said), runs

    def _opened(
        self, member: Member, before: Place | None = None
    ) -> tuple[OpenedRegression, tuple[list[StackRun], History]] | None:
        place = self._places.get(member.row.run_id)
        found = None if place is None else self._levels_of(member, before)
        if place is None or found is None:
            return None
        slow = sum(place_of(run) <= place for run in found[0]) - 1
        return OpenedRegression(slow, member.usual_level, member.slow_level), found

    def _levels_of(self, member: Member, before: Place | None) -> tuple[list[StackRun], History] | None:
        """The runs that make the levels, and these; found once for all members that share them."""
        metric = member.regression.metric
        key = (member.row.config_key, metric, self.branches_of(member), before)
        if key not in self._levels:
            runs = [run for run in self._runs if self._makes_levels(run, member, metric)]
            runs = [run for run in runs if before is None or place_of(run) < before]
            self._levels[key] = (runs, self._history(runs, member, metric)) if runs else None
        return self._levels[key]

    def _makes_levels(self, run: StackRun, member: Member, metric: str) -> bool:
        branches = self.branches_of(member)
        return (
            run.config_key == member.row.config_key
            and run.makes_levels
            and (branches is None or run.branch in branches)
            and math.isfinite(_value(run, metric))
        )

    def branches_of(self, member: Member) -> frozenset[str] | None:
        """Whose runs tell what became of it: the baseline branch, or the branch that it was found on; None: any."""
        main, origin = self._rules.branch, self.candidate_of(member.row.run_id)
        if main is None:
            return None
        return frozenset((main,)) if origin is None or main in origin.branches else origin.branches

    def _history(self, runs: Sequence[StackRun], member: Member, metric: str) -> History:
        prior = self._priors.get(member.row.config_key, DEFAULT_PRIOR) if metric == "step_time_ms" else _MEMORY_PRIOR
        return find_changes([_value(run, metric) for run in runs], prior)


def _value(run: StackRun, metric: str) -> float:
    """ln of the metric, NaN where it is unknown."""
    if metric == "step_time_ms":
        return run.log_step_time
    return math.log(run.peak_memory_gib) if run.peak_memory_gib else math.nan

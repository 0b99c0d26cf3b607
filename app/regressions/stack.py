"""What is read of a stack to judge it: its runs as far as they matter, grouped into candidates, and its rules.

However long the history is, only the runs to be judged and some hundreds before them are looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, bindparam, or_, select
from sqlmodel import Session, col

from app.domain.matching import BaselineRules
from app.storage.decisions import ANY_BRANCH
from app.storage.judging_tables import PinRow
from app.storage.stack_runs import StackRun, read_runs, runs_where
from app.storage.stack_work import StackClaim
from app.storage.tables import ProjectRow, RunRow

LOOK_BACK = 300
"""The newest earlier runs of the stack that are looked at, and as many of the run's own configuration."""
LEAST_OF_CONFIGURATION = 40
"""Where fewer than these are among them, so many more of the same configuration are read: it may have rested long."""

# Made once, with the values left open: putting one of them together takes as long as running it.
_IS_UNJUDGED = and_(col(RunRow.verdict) == "", col(RunRow.reception) != "receiving")
_IS_LATER = col(RunRow.ordered_at) >= bindparam("first")
_IS_EARLIER = col(RunRow.ordered_at) < bindparam("first")
_UNJUDGED = runs_where(_IS_UNJUDGED)
_FROM = runs_where(_IS_LATER)
_TO_JUDGE = runs_where(or_(_IS_UNJUDGED, _IS_LATER))
_BEFORE = runs_where(_IS_EARLIER, newest=LOOK_BACK)
_LIKE = runs_where(_IS_EARLIER, col(RunRow.config_key) == bindparam("config"), newest=LEAST_OF_CONFIGURATION)
_PINNED = runs_where(col(RunRow.id).in_(bindparam("pinned", expanding=True)))
_RULES: Select[Any] = (
    select(ProjectRow.slug, ProjectRow.baseline_branch, PinRow.run_id)  # type: ignore[call-overload]
    .join(
        PinRow,
        and_(
            col(PinRow.project_id) == ProjectRow.id,
            col(PinRow.stack_key) == bindparam("stack"),
            col(PinRow.unpinned_at).is_(None),
        ),
        isouter=True,
    )
    .where(col(ProjectRow.id) == bindparam("project"))
)

Place = tuple[datetime, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Reruns of one commit and configuration, oldest first, judged as one. A quarantined run stands alone."""

    runs: tuple[StackRun, ...]

    @property
    def place(self) -> Place:
        return place_of(self.runs[0])

    @property
    def newest(self) -> StackRun:
        return self.runs[-1]

    @property
    def config_key(self) -> str:
        return self.newest.config_key

    @property
    def branches(self) -> frozenset[str]:
        """One commit may have run on its own branch and, once it was merged, on the baseline branch."""
        return frozenset(run.branch for run in self.runs)

    @property
    def ids(self) -> list[int]:
        return [run.id for run in self.runs]


@dataclass(frozen=True, slots=True)
class Stack:
    """`runs`: in the order of the history, those to be judged and those before them; `to_judge`: oldest first."""

    project_id: int
    project: str
    stack_key: str
    rules: BaselineRules
    runs: tuple[StackRun, ...]
    to_judge: tuple[Candidate, ...]

    def before(self, candidate: Candidate) -> list[StackRun]:
        """The runs that came before it: the newest of the stack, and the newest of its configuration."""
        own, place = set(candidate.ids), candidate.place
        earlier = [run for run in self.runs if place_of(run) < place and run.id not in own]
        pinned = self.rules.pinned
        if len(earlier) <= LOOK_BACK:
            return earlier
        recent = {run.id for run in earlier[-LOOK_BACK:]}
        same = [run for run in earlier if run.config_key == candidate.config_key][-LOOK_BACK:]
        kept = recent | {run.id for run in same}
        return [run for run in earlier if run.id in kept or run.facts.run in pinned]


def place_of(run: StackRun) -> Place:
    return run.ordered_at, run.id


def read_stack(session: Session, held: StackClaim) -> Stack:
    found = session.execute(_RULES, {"project": held.project_id, "stack": held.stack_key}).all()
    project, branch = found[0].slug, found[0].baseline_branch
    pinned = frozenset(str(row.run_id) for row in found if row.run_id is not None)
    rules = BaselineRules(None if branch == ANY_BRANCH else branch, pinned)
    runs = _runs(session, held, rules)
    wanted = [one for one in candidates(runs) if _is_wanted(one, held.judge_from)]
    return Stack(held.project_id, project, held.stack_key, rules, tuple(runs), tuple(wanted))


def candidates(runs: Sequence[StackRun]) -> list[Candidate]:
    """All runs that can be judged, pooled where they are reruns, in the order of their places."""
    groups: dict[tuple[str, str, str, int], list[StackRun]] = {}
    for run in runs:
        if run.reception != "receiving":
            alone = run.id if run.quarantine or not run.commit else 0
            groups.setdefault((run.config_key, run.commit, run.purpose, alone), []).append(run)
    return sorted((Candidate(tuple(group)) for group in groups.values()), key=lambda one: one.place)


def _is_wanted(candidate: Candidate, judge_from: datetime | None) -> bool:
    again = judge_from is not None and candidate.place[0] >= judge_from
    return again or any(not run.verdict for run in candidate.runs)


def _runs(session: Session, held: StackClaim, rules: BaselineRules) -> list[StackRun]:
    key = held.project_id, held.stack_key
    since = _since(session, held)
    if not since:
        return []
    first = since[0].ordered_at
    before = read_runs(session, _BEFORE, key, first=first)
    found = {run.id: run for run in (*before, *since)}
    if len(before) == LOOK_BACK:
        for config in {run.config_key for run in since}:
            if sum(run.config_key == config for run in before) < LEAST_OF_CONFIGURATION:
                found |= {run.id: run for run in read_runs(session, _LIKE, key, first=first, config=config)}
        if rules.pinned:
            pinned = [int(run) for run in rules.pinned]
            found |= {run.id: run for run in read_runs(session, _PINNED, key, pinned=pinned)}
    return sorted(found.values(), key=place_of)


def _since(session: Session, held: StackClaim) -> list[StackRun]:
    """The runs from the first one on that is to be judged."""
    key = held.project_id, held.stack_key
    if held.judge_from is None:
        found = read_runs(session, _UNJUDGED, key)
        return read_runs(session, _FROM, key, first=found[0].ordered_at) if found else []
    found = read_runs(session, _TO_JUDGE, key, first=held.judge_from)
    earlier = found and found[0].ordered_at < held.judge_from
    return read_runs(session, _FROM, key, first=found[0].ordered_at) if earlier else found

"""Runs of other stacks and configurations, for a run that has no baseline: who comes nearest, and what it measured."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, bindparam, or_, select
from sqlmodel import Session, col

from app.domain.matching import BaselineRules, RunFacts, RunRecord, compare_contracts
from app.domain.matching.selection import unfit_because
from app.regressions.stack import LOOK_BACK, Candidate, Place
from app.storage.pass_reading import PassReading
from app.storage.run_records import aware
from app.storage.stack_runs import COMPARED, StackRun, facts_of, stack_runs
from app.storage.tables import RunFileRow, RunRow

MOST_RUNS = 1000
"""The newest earlier runs of the project that are looked at."""
MOST_CONFIGURATIONS = 60
"""Whose contracts are compared: those that have most in common with the run, as far as columns tell."""


# Made once: putting it together takes as long as running it, and every pass asks.
_WITHOUT_BASELINE: Select[Any] = (
    select(RunRow.stack_key, RunRow.id, RunRow.ordered_at)  # type: ignore[call-overload]
    .where(
        col(RunRow.project_id) == bindparam("project"),
        col(RunRow.stack_key) != bindparam("stack"),
        col(RunRow.verdict) == "no_baseline",
        or_(
            col(RunRow.ordered_at) > bindparam("at"),
            and_(col(RunRow.ordered_at) == bindparam("at"), col(RunRow.id) > bindparam("first")),
        ),
    )
    .order_by(col(RunRow.ordered_at), col(RunRow.id))
    .limit(MOST_RUNS)
)


@dataclass(frozen=True, slots=True)
class Newest:
    """One run of each configuration, oldest first: the newest that the run can be measured against, else the newest.
    `counts`: how many there are of each config key.
    """

    runs: list[RunRecord]
    counts: Mapping[str, int]


def newest_of_each(
    session: Session, reading: PassReading, project_id: int, candidate: Candidate, rules: BaselineRules
) -> Newest:
    run = candidate.newest
    same = session.execute(
        select(RunRow.model, RunRow.gpu, RunRow.gpus).where(col(RunRow.id) == run.id)  # type: ignore[call-overload]
    ).one()
    at, first = candidate.place
    rows = session.execute(
        select(*COMPARED, RunRow.model, RunRow.gpu, RunRow.gpus)  # type: ignore[call-overload]
        .where(
            col(RunRow.project_id) == project_id,
            col(RunRow.status) == "ready",
            # One that was begun, and of which never a byte came, is nothing to come near to.
            or_(
                col(RunRow.step_time_ms).is_not(None),
                select(RunFileRow.id).where(col(RunFileRow.run_id) == RunRow.id).exists(),  # type: ignore[call-overload]
            ),
            col(RunRow.id).not_in(candidate.ids),
            or_(col(RunRow.ordered_at) < at, and_(col(RunRow.ordered_at) == at, col(RunRow.id) < first)),
        )
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(MOST_RUNS)
    ).all()
    best: dict[str, tuple[int, RunFacts, int]] = {}  # by config key: age, the run, how much its columns differ
    for age, row in enumerate(rows):
        facts = facts_of(row)
        known = best.get(facts.config_key)
        if known is None or (unfit_because(known[1], run.facts, rules) and not unfit_because(facts, run.facts, rules)):
            apart = sum(a != b for a, b in zip((row.model, row.gpu, row.gpus), same, strict=True))
            best[facts.config_key] = (age, facts, apart)
    nearest = sorted(best.values(), key=lambda one: (one[2], one[0]))[:MOST_CONFIGURATIONS]
    oldest_first = sorted(nearest, key=lambda one: -one[0])
    return Newest(reading.records([facts.run for _, facts, _ in oldest_first]), Counter(row.config_key for row in rows))


def waiting_for_contrast(session: Session, project_id: int, stack_key: str, since: Place) -> dict[str, datetime]:
    """The stacks that differ from this one in one field and have runs without a baseline after `since`: what was
    measured in place of a verdict may be another now. With the place of the first of these runs.
    """
    at, first = since
    later = session.execute(
        _WITHOUT_BASELINE, {"project": project_id, "stack": stack_key, "at": at, "first": first}
    ).all()
    firsts: dict[str, tuple[str, datetime]] = {}
    for stack, run_id, place in later:
        firsts.setdefault(stack, (str(run_id), aware(place)))
    own = select(col(RunRow.id)).where(col(RunRow.project_id) == project_id, col(RunRow.stack_key) == stack_key)
    run = session.execute(own.limit(1)).scalar_one_or_none() if firsts else None
    if run is None:
        return {}
    asked = dict(list(firsts.items())[:MOST_CONFIGURATIONS])
    record, *others = PassReading(session).records([str(run), *(name for name, _ in asked.values())])
    return {
        stack: place
        for (stack, (_, place)), other in zip(asked.items(), others, strict=True)
        if compare_contracts(record, other).kind == "contrast"
    }


def runs_like(session: Session, project_id: int, run: RunRecord, candidate: Candidate) -> list[StackRun]:
    """The runs of another stack that have the configuration of `run` and came before the candidate, oldest first."""
    found = stack_runs(
        session,
        project_id,
        run.stack_key,
        col(RunRow.config_key) == run.config_key,
        col(RunRow.ordered_at) <= candidate.place[0],
        with_metrics=False,
        newest=LOOK_BACK,
    )
    return [one for one in found if (one.ordered_at, one.id) < candidate.place]

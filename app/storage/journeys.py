"""Reads the journey of a run: the experiments that lead to it and those that continue from it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import and_, or_, select
from sqlmodel import Session, col

from app.domain.experiments.journey import Journey, JourneyRun, JourneyStep, make_journey
from app.domain.experiments.values import ExperimentResult
from app.domain.verdict.step_time import centre
from app.errors import NotFound
from app.storage.experiments import knobs_of
from app.storage.json_text import from_json
from app.storage.tables import ExperimentRow, ExperimentRunRow, ProjectRow, RunRow, select_any

MOST_STEPS = 500
"""Most experiments shown in one journey."""


def journey_of(session: Session, run_id: int) -> Journey:
    """Return the journey of a run from its root; a run without experiments is its own journey. Raises NotFound."""
    root_id = _root_of(session, run_id)
    steps: list[ExperimentRow] = []
    began_here = col(ExperimentRow.baseline_run_id) == root_id
    waiting = _experiments(session, began_here, col(ExperimentRow.parent_id).is_(None))
    while waiting and len(steps) < MOST_STEPS:
        ids = {row.id for row in steps}
        steps += [row for row in waiting if row.id not in ids][: MOST_STEPS - len(steps)]
        waiting = _experiments(session, col(ExperimentRow.parent_id).in_([row.id for row in waiting]))
    results = {row.id: from_json(ExperimentResult, row.result or {}) for row in steps}
    counted: dict[int | None, dict[str, None]] = {None: {str(root_id): None}}
    counted |= {number: {} for number, result in results.items() if result.candidate}
    for row in steps:  # the baseline of an experiment is the candidate that it started from
        result = results[row.id or 0]
        start = row.parent_id if row.parent_id in counted else None
        counted.get(row.id, {}).update(dict.fromkeys(result.candidate))
        counted[start].update(dict.fromkeys(result.baseline))
    runs = _runs(session, {int(run) for names in counted.values() for run in names})
    if root_id not in runs:
        raise NotFound.of(f"Run {run_id}")
    existing = {number: [runs[int(run)] for run in names if int(run) in runs] for number, names in counted.items()}
    configurations = {number: _configuration(of_number) for number, of_number in existing.items() if of_number}
    journey_steps = [_step(row, results[row.id or 0], configurations.get(row.id), runs) for row in steps]
    return make_journey(run_id, runs[root_id].slug, configurations[None], journey_steps)


def runs_not_to_tune(session: Session, run_ids: Sequence[int]) -> frozenset[int]:
    """Return those of the runs whose configuration is not the one to tune.

    An experiment replaced it, started from it and is not finished, or tried it without accepting it. The configuration
    counts, because nightly runs of it belong to no experiment.
    """
    joined_as_candidate = and_(
        col(ExperimentRunRow.experiment_id) == ExperimentRow.id,
        col(ExperimentRunRow.run_id) == RunRow.id,
        col(ExperimentRunRow.side) == "candidate",
    )
    has_key, state = col(RunRow.config_key) != "", col(ExperimentRow.state)
    is_baseline = or_(
        col(ExperimentRow.baseline_run_id) == RunRow.id,
        and_(has_key, col(ExperimentRow.baseline_key) == RunRow.config_key),
    )
    is_candidate = or_(
        col(ExperimentRunRow.run_id).is_not(None),
        and_(has_key, col(ExperimentRow.candidate_key) == RunRow.config_key),
    )
    chosen = (
        select_any(RunRow.id)
        .join(ExperimentRow, col(ExperimentRow.project_id) == RunRow.project_id)
        .outerjoin(ExperimentRunRow, joined_as_candidate)
        .where(
            col(RunRow.id).in_(run_ids),
            or_(
                and_(is_baseline, state.not_in(("rejected", "withdrawn"))),
                and_(is_candidate, state != "accepted"),
            ),
        )
    )
    return frozenset(session.execute(chosen).scalars())


def _configuration(runs: Sequence[Any]) -> JourneyRun:
    """Return the means of a configuration over its runs, as an A/B takes them, and its newest run."""
    timed = sorted((run for run in runs if run.step_time_ms), key=lambda run: run.id)
    times = [run.step_time_ms for run in timed]
    tokens = [run.tokens_per_s_per_gpu for run in timed if run.tokens_per_s_per_gpu]
    step_time_ms, rate = (math.exp(centre(np.log(values))) if values else None for values in (times, tokens))
    newest = max(timed or runs, key=lambda run: run.id)
    return JourneyRun(newest.id, newest.name, step_time_ms, rate, tuple(run.id for run in timed))


def _root_of(session: Session, run_id: int) -> int:
    """Return the run from which the first experiment of the journey started."""
    here = run_id
    seen: set[int] = set()
    while True:
        row = _experiment_of(session, here)
        if row is None or row.id in seen:
            return here
        seen.add(row.id)
        if row.baseline_run_id == here:  # a run of the baseline's side, or the root of the journey
            return here
        here = row.baseline_run_id


def _experiment_of(session: Session, run_id: int) -> Any:
    """Return the newest experiment with the run as candidate, else the newest with it as baseline."""
    for side in ("candidate", "baseline"):
        row = session.execute(
            select_any(ExperimentRow.id, ExperimentRow.baseline_run_id)
            .join(ExperimentRunRow, col(ExperimentRunRow.experiment_id) == ExperimentRow.id)
            .where(col(ExperimentRunRow.run_id) == run_id, col(ExperimentRunRow.side) == side)
            .order_by(col(ExperimentRow.id).desc())
            .limit(1)
        ).one_or_none()
        if row is not None:
            return row
    return None


def _experiments(session: Session, *conditions: Any) -> Sequence[ExperimentRow]:
    chosen = select(ExperimentRow).where(*conditions).order_by(col(ExperimentRow.id)).limit(MOST_STEPS)
    return session.execute(chosen).scalars().all()


def _runs(session: Session, run_ids: set[int]) -> dict[int, Any]:
    rows = session.execute(
        select_any(RunRow.id, RunRow.name, RunRow.step_time_ms, RunRow.tokens_per_s_per_gpu, ProjectRow.slug)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id).in_(sorted(run_ids)))
    )
    return {row.id: row for row in rows}


def _step(
    row: ExperimentRow, result: ExperimentResult, candidate: JourneyRun | None, runs: Mapping[int, Any]
) -> JourneyStep:
    sides = [[runs[int(run)] for run in names if int(run) in runs] for names in (result.baseline, result.candidate)]
    before, after = (_configuration(side).step_time_ms if side else None for side in sides)
    return JourneyStep(
        experiment_id=row.id or 0,
        parent_id=row.parent_id,
        title=row.title,
        knobs=knobs_of(row.knobs),
        state=row.state,  # type: ignore[arg-type]
        gain=result.gain,
        evidence_level=result.evidence_level,
        winner=result.winner,
        candidate=candidate,
        level_pct=result.verdict.step_time.interval_level_pct if result.verdict and result.verdict.step_time else None,
        compared_ms=(before, after) if before and after else None,
    )

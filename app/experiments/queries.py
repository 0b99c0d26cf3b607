"""Reads experiments for pages and API: the filters of the list, and the journey of a run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from sqlalchemy import Engine, select
from sqlmodel import Session, col

from app.domain.experiments.journey import Journey, JourneyRun, JourneyStep, make_journey
from app.domain.experiments.values import STATES, ExperimentResult
from app.domain.verdict.step_time import centre
from app.errors import NotFound
from app.storage.database import read_session
from app.storage.experiments import ExperimentFilter, ExperimentItem, find_experiments, knobs_of
from app.storage.json_text import from_json
from app.storage.runs import RunListItem, latest_runs
from app.storage.tables import ExperimentRow, ExperimentRunRow, ProjectRow, RunRow, StackRow, not_indexed, select_any
from app.web.lists import CellKind, ListQuery, OneOf, Passes

# --- Filters of the list of experiments. The query string is its whole state, so it is validated as input.


def _run_problem(text: str) -> str:
    is_number = text.isascii() and text.isdigit() and len(text) < 19
    return "" if is_number else f"must be the number of a run, not {text[:40]!r}"


class ExperimentQuery(ListQuery):
    max_text = 100
    not_narrowing = ("state",)

    project: str = ""
    state: Annotated[str, OneOf(STATES)] = ""
    rule: str = ""
    run: Annotated[str, Passes(_run_problem)] = Field("", description="Experiments that this run belongs to.")

    @property
    def filter(self) -> ExperimentFilter:
        run_id = int(self.run) if self.run else None
        return ExperimentFilter(project=self.project, state=self.state, rule=self.rule, run_id=run_id)


EXPERIMENT_COLUMNS: Mapping[str, CellKind] = {
    "id": "int", "project": "text", "title": "text", "rule": "text", "state": "text", "tag": "text", "knobs": "text",
    "baseline_run": "int", "parent": "int", "sweep": "int", "stack_key": "text", "runs_each": "int",
    "created_by": "text", "created_at": "time", "decided_by": "text", "decided_at": "time", "note": "text",
    "winner": "text", "gain_pct": "float", "gain_low_pct": "float", "gain_high_pct": "float", "result": "text",
}  # fmt: skip
"""Columns of the list as a table."""
_ROWS_AT_ONCE = 200


def experiment_rows(engine: Engine, query: ExperimentQuery) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all matching experiments in batches, each in its own read."""
    page_number, is_last = 1, False
    while not is_last:
        with read_session(engine) as session:
            page = find_experiments(session, query.filter, page_number, _ROWS_AT_ONCE)
        yield [_cells(item) for item in page.items]
        page_number, is_last = page_number + 1, page_number * _ROWS_AT_ONCE >= page.total


def _cells(item: ExperimentItem) -> tuple[Any, ...]:
    knobs = "; ".join(f"{knob.field}: {knob.before_text} → {knob.after_text}" for knob in item.knobs)
    gain = item.result.gain
    return (
        item.id, item.project, item.title, item.rule_id, item.state, item.tag, knobs, item.baseline_run_id,
        item.parent_id, item.sweep_id, item.stack_key, item.runs_each, item.created_by, item.created_at,
        item.decided_by, item.decided_at, item.note, item.result.winner,
        *((gain.pct, gain.low_pct, gain.high_pct) if gain else (None, None, None)), item.result.sentence,
    )  # fmt: skip


# --- Runs to plan an experiment on.

_NEWEST_STACKS = 200


def newest_of_workloads(session: Session, most: int) -> list[RunListItem]:
    """Return the newest run of each stack by project, each with the same share of the list."""
    newest_of_stack = (
        select(col(RunRow.id))
        .where(
            # Makes SQLite look up the runs of the stack instead of reading all of the project.
            not_indexed(col(RunRow.project_id)) == col(StackRow.project_id),
            col(RunRow.stack_key) == col(StackRow.stack_key),
            col(RunRow.status) == "ready",
        )
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(1)
        .correlate(StackRow)
        .scalar_subquery()
    )
    stacks = select_any(newest_of_stack).where(col(StackRow.runs) > 0).order_by(col(StackRow.last_at).desc())
    run_ids = session.execute(stacks.limit(_NEWEST_STACKS)).scalars().all()
    newest = latest_runs(session, _NEWEST_STACKS, col(RunRow.id).in_(run_ids))
    of_project: dict[str, list[RunListItem]] = {}
    for run in newest:
        of_project.setdefault(run.project, []).append(run)
    share = max(1, most // max(1, len(of_project)))
    return [run for runs in of_project.values() for run in runs[:share]][:most]


# --- The journey of a run.

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
    newest: dict[int | None, int] = {None: root_id}
    newest |= {number: int(result.candidate[-1]) for number, result in results.items() if result.candidate}
    counted: dict[int | None, dict[str, None]] = {number: {str(run): None} for number, run in newest.items()}
    for row in steps:  # the baseline of an experiment is the candidate that it started from
        result = results[row.id or 0]
        start = row.parent_id if row.parent_id in counted else None
        counted.get(row.id, {}).update(dict.fromkeys(result.candidate))
        counted[start].update(dict.fromkeys(result.baseline))
    runs = _runs(session, {int(run) for names in counted.values() for run in names})
    if root_id not in runs:
        raise NotFound.of(f"Run {run_id}")
    configurations = {
        number: _configuration(runs[newest[number]], [runs[int(run)] for run in names if int(run) in runs])
        for number, names in counted.items()
        if newest[number] in runs
    }
    journey_steps = [_step(row, results[row.id or 0], configurations.get(row.id)) for row in steps]
    return make_journey(run_id, runs[root_id].slug, configurations[None], journey_steps)


def _configuration(newest: Any, runs: Sequence[Any]) -> JourneyRun:
    """Return the means of a configuration over its runs, as an A/B takes them."""
    timed = sorted((run for run in runs if run.step_time_ms), key=lambda run: run.id)
    times = [run.step_time_ms for run in timed]
    tokens = [run.tokens_per_s_per_gpu for run in timed if run.tokens_per_s_per_gpu]
    step_time_ms, rate = (math.exp(centre(np.log(values))) if values else None for values in (times, tokens))
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


def _step(row: ExperimentRow, result: ExperimentResult, candidate: JourneyRun | None) -> JourneyStep:
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
    )

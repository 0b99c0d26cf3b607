"""Reads experiments for pages and API: the filters of the list, and runs to plan on."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Engine, select
from sqlmodel import Session, col

from app.domain.experiments.values import STATES
from app.storage.database import read_session
from app.storage.experiments import ExperimentFilter, ExperimentItem, find_experiments
from app.storage.journeys import journey_of
from app.storage.runs import RunListItem, latest_runs
from app.storage.tables import ExperimentRow, RunRow, StackRow, not_indexed, select_any
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


def last_tuned(session: Session) -> RunListItem | None:
    """Return the run from which the journey of the newest experiment continues; None without an experiment."""
    newest = select_any(ExperimentRow.baseline_run_id).order_by(col(ExperimentRow.id).desc()).limit(1)
    baseline = session.execute(newest).scalar()
    if baseline is None:
        return None
    current = journey_of(session, baseline).current_run_id
    return next(iter(latest_runs(session, 1, col(RunRow.id) == current)), None)


def newest_of_workloads(session: Session, most: int, *, first: str = "") -> list[RunListItem]:
    """Return the newest run of each stack by project, each with the same share of the list. `first`: a project."""
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
    return [
        run for project in sorted(of_project, key=lambda name: name != first) for run in of_project[project][:share]
    ][:most]

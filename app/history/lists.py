"""The list of stacks, newest runs first: fields, number of runs and current state."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.naming import stack_title
from app.domain.numbers import plural, step_time
from app.domain.run import Stated
from app.history.queries import VERDICTS
from app.storage.database import ListPage
from app.storage.runs import aware, stored_contract
from app.storage.tables import ProjectRow, RunResultRow, RunRow, select_any
from app.web.lists import ListQuery, OneOf

# --- Filters of the list of stacks. The query string is its whole state, so it is validated as input.

UNKNOWN = "unknown"
"""Value of the model, gpu and dispatcher filters for unknown."""


class StackQuery(ListQuery):
    """Filters of the list of stacks. `q`: words that must all occur; `verdict`: that of the last judged run."""

    page_size: int = 25
    q: str = ""
    project: str = ""
    model: str = ""
    gpu: str = ""
    dispatcher: str = ""
    verdict: Annotated[str, OneOf(VERDICTS)] = ""


# --- Sparkline: the last steady step times of a stack on a few pixels.

WIDTH, HEIGHT, EDGE = 120, 28, 3
_LEAST_RANGE = 0.02
"""Least range of the axis as a share of the value: noise must not look like a change."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`points` as in SVG; `last_x`, `last_y`: the newest; `label`: the same in words."""

    points: str
    last_x: float
    last_y: float
    label: str


def sparkline(milliseconds: Sequence[float]) -> Sparkline | None:
    """Return the sparkline, oldest first; None for fewer than two values."""
    if len(milliseconds) < 2:
        return None
    low, high = min(milliseconds), max(milliseconds)
    middle = (low + high) / 2
    span = max(high - low, _LEAST_RANGE * middle) or 1.0
    places = [
        (
            round(EDGE + k * (WIDTH - 2 * EDGE) / (len(milliseconds) - 1), 1),
            round(HEIGHT / 2 - (value - middle) / span * (HEIGHT - 2 * EDGE), 1),
        )
        for k, value in enumerate(milliseconds)
    ]
    label = (
        f"Step time of the last {plural(len(milliseconds), 'run')}: {step_time(milliseconds[0])} first, "
        f"{step_time(milliseconds[-1])} last, between {step_time(low)} and {step_time(high)}"
    )
    return Sparkline(" ".join(f"{x},{y}" for x, y in places), *places[-1], label)


SPARK_RUNS = 40
_READ = col(RunRow.status).in_(("ready", "failed"))
_IS_JUDGED = and_(col(RunRow.verdict) != "", col(RunRow.purpose) != "experiment")
_TOLD = ("cluster", "seq_len", "gbs", "mbs", "precision", "pp", "pp_layout", "graph_modules", "task", "data_mode")
"""Fields that distinguish stacks with the same title, where known."""


@dataclass(frozen=True, slots=True)
class StackItem:
    """One row of the list. `container` empty, `model` etc. None: unknown. `also`: further distinguishing fields.

    `last_run`: the newest in history order; `verdict`: that of the last judged run.
    """

    stack_key: str
    title: str
    project: str
    generated: bool
    model: str | None
    gpu: str | None
    gpus: int | None
    container: str
    also: tuple[tuple[str, Any], ...]
    dispatchers: tuple[str, ...]
    runs: int
    last_run_id: int
    last_at: datetime
    verdict: str
    verdict_delta_pct: float | None
    verdict_run_id: int | None
    step_time_ms: float | None
    spark: Sparkline | None


@dataclass(frozen=True, slots=True)
class StackOptions:
    """Choices of the select boxes."""

    projects: tuple[str, ...]
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    dispatchers: tuple[str, ...]


def find_stacks(session: Session, query: StackQuery) -> ListPage[StackItem]:
    """Return the matching stacks. A page past the end is empty, with the true total."""
    last_at = func.max(col(RunRow.ordered_at)).label("last_at")
    grouped: Any = (
        select_any(RunRow.stack_key, last_at, func.count().label("runs"))
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(_READ, col(RunRow.stack_key) != "", *_conditions(query))
        .group_by(col(RunRow.stack_key))
    )
    total = session.execute(select(func.count()).select_from(grouped.subquery())).scalar_one()
    wanted = (
        grouped.order_by(last_at.desc(), col(RunRow.stack_key))
        .limit(query.page_size)
        .offset((query.page - 1) * query.page_size)
    )
    keys = {row.stack_key: row.runs for row in session.execute(wanted)}
    return ListPage(tuple(_items(session, keys)), total, query.page, query.page_size)


def stack_options(session: Session) -> StackOptions:
    projects = tuple(session.execute(select_any(ProjectRow.slug).order_by(ProjectRow.slug)).scalars())
    model, gpu, dispatcher = (
        tuple(value for value in session.execute(select(column).distinct().order_by(column)).scalars() if value)
        for column in (col(RunRow.model), col(RunRow.gpu), col(RunRow.dispatcher))
    )
    return StackOptions(projects, model, gpu, dispatcher)


def stacks_of(session: Session, keys: Sequence[str]) -> tuple[StackItem, ...]:
    """Return the stacks of these keys, those with the newest runs first."""
    counted = select_any(RunRow.stack_key, func.count()).where(col(RunRow.stack_key).in_(keys), _READ)
    runs: dict[str, int] = dict(session.execute(counted.group_by(col(RunRow.stack_key))).all())
    return tuple(sorted(_items(session, runs), key=lambda item: item.last_at, reverse=True))


def _items(session: Session, runs: dict[str, int]) -> list[StackItem]:
    """Return one row for each key, in their order."""
    recent: dict[str, list[Any]] = {key: [] for key in runs}
    for row in session.execute(_recent(list(runs))):
        recent[row.stack_key].append(row)
    newest = {key: rows[0].id for key, rows in recent.items() if rows}
    judged = {row.stack_key: row for row in session.execute(_judged(list(runs)))}
    contracts = _contracts(session, list(newest.values()))
    dispatchers = _dispatchers(session, list(runs))
    return [
        _item(recent[key], runs[key], contracts[newest[key]], dispatchers.get(key, ()), judged.get(key))
        for key in runs
        if recent[key]
    ]


def _item(
    rows: Sequence[Any], runs: int, contract: dict[str, Stated], dispatchers: tuple[str, ...], judged: Any
) -> StackItem:
    """Return the row of a stack. `rows`: its newest runs, newest first."""
    newest = rows[0]
    # The line is of one job and configuration: a step between two would look like a code change.
    leading = next((row for row in rows if _counts(row)), newest)
    own = (leading.config_key, leading.job)
    values = [row.step_time_ms for row in reversed(rows) if _counts(row) and (row.config_key, row.job) == own]
    container = contract.get("container")
    return StackItem(
        stack_key=newest.stack_key,
        title=stack_title(contract, dispatcher=False),
        project=newest.slug,
        generated=newest.generated,
        model=newest.model,
        gpu=newest.gpu,
        gpus=newest.gpus,
        container=str(container.value) if container and container.value is not None else "",
        also=tuple((name, contract[name].value) for name in _TOLD if name in contract and FIELDS[name].role == "stack"),
        dispatchers=dispatchers,
        runs=runs,
        last_run_id=newest.id,
        last_at=aware(newest.ordered_at),
        verdict=judged.verdict if judged else "",
        verdict_delta_pct=judged.verdict_delta_pct if judged else None,
        verdict_run_id=judged.id if judged else None,
        step_time_ms=values[-1] if values else None,
        spark=sparkline(values),
    )


def _counts(row: Any) -> bool:
    """Return whether a run roughly counts for levels; the page of the stack decides exactly."""
    return bool(row.step_time_ms and row.is_steady and not row.short and not row.quarantine and row.purpose == "ci")


def _recent(keys: Sequence[str]) -> Any:
    """Select the newest runs of each stack, newest first."""
    order = (col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    number = func.row_number().over(partition_by=col(RunRow.stack_key), order_by=order).label("number")
    columns = (
        RunRow.id, RunRow.stack_key, RunRow.config_key, RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.ordered_at,
        RunRow.step_time_ms, RunRow.is_steady, RunRow.short, RunRow.quarantine, RunRow.purpose, RunRow.job,
        ProjectRow.slug, ProjectRow.generated,
    )  # fmt: skip
    numbered = (
        select_any(*columns, number)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.stack_key).in_(keys), _READ)
        .subquery()
    )
    return select(numbered).where(numbered.c.number <= SPARK_RUNS).order_by(numbered.c.stack_key, numbered.c.number)


def _judged(keys: Sequence[str]) -> Any:
    """Select the last judged run of each stack in history order."""
    order = (col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    number = func.row_number().over(partition_by=col(RunRow.stack_key), order_by=order).label("number")
    numbered = (
        select_any(RunRow.id, RunRow.stack_key, RunRow.verdict, RunRow.verdict_delta_pct, number)
        .where(col(RunRow.stack_key).in_(keys), _IS_JUDGED)
        .subquery()
    )
    return select(numbered).where(numbered.c.number == 1)


def _contracts(session: Session, run_ids: Sequence[int]) -> dict[int, dict[str, Stated]]:
    rows = session.execute(
        select_any(RunResultRow.run_id, RunResultRow.contract).where(col(RunResultRow.run_id).in_(run_ids))
    )
    return {run_id: stored_contract(contract) for run_id, contract in rows}


def _dispatchers(session: Session, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    chosen = select_any(RunRow.stack_key, RunRow.dispatcher).where(
        col(RunRow.stack_key).in_(keys), _READ, col(RunRow.dispatcher).is_not(None)
    )
    dispatchers: dict[str, list[str]] = {}
    for key, dispatcher in session.execute(chosen.distinct().order_by(col(RunRow.dispatcher))):
        dispatchers.setdefault(key, []).append(dispatcher)
    return {key: tuple(names) for key, names in dispatchers.items()}


def _conditions(query: StackQuery) -> list[ColumnElement[bool]]:
    """Return conditions on single runs, which hold for all runs of a stack (dispatcher and names excepted)."""
    conditions: list[ColumnElement[bool]] = []
    if query.project:
        conditions.append(col(ProjectRow.slug) == query.project)
    for name, column in (("model", col(RunRow.model)), ("gpu", col(RunRow.gpu))):
        if value := getattr(query, name):
            conditions.append(column.is_(None) if value == UNKNOWN else column == value)
    if query.dispatcher:
        column = col(RunRow.dispatcher)
        conditions.append(_some_run(column.is_(None) if query.dispatcher == UNKNOWN else column == query.dispatcher))
    if query.verdict:
        conditions.append(_last_verdict() == query.verdict)
    return conditions + [_some_run(_mentions(word)) for word in query.q.split()]


def _some_run(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Select stacks with at least one run that meets the condition."""
    newest = select_any(RunRow.stack_key).join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    return col(RunRow.stack_key).in_(newest.where(_READ, condition))


def _last_verdict() -> Any:
    """Return the verdict of the last judged run of a stack, by one index lookup per stack."""
    other = aliased(RunRow, name="judged")
    return (
        select(col(other.verdict))
        .where(
            col(other.project_id) == RunRow.project_id,
            col(other.stack_key) == RunRow.stack_key,
            col(other.verdict) != "",
            col(other.purpose) != "experiment",
        )
        .order_by(col(other.ordered_at).desc(), col(other.id).desc())
        .limit(1)
        .scalar_subquery()
    )


def _mentions(word: str) -> ColumnElement[bool]:
    """Runs that a word of the search box names, by part of a name or by the first digits of the stack's key."""
    texts = (RunRow.name, RunRow.branch, RunRow.model, RunRow.gpu, RunRow.dispatcher, ProjectRow.slug)
    by_text = (func.lower(col(text)).contains(word.lower(), autoescape=True) for text in texts)
    return or_(col(RunRow.stack_key).startswith(word.lower(), autoescape=True), *by_text)

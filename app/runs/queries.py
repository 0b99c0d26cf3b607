"""What pages and the API read about runs: filters in, selects, read models out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import ColumnElement, and_, false, func, or_, select
from sqlmodel import Session, col

from app.errors import NotFound
from app.pipeline.work import WAITS_FOR_VERDICTS
from app.storage import readings
from app.storage.database import ListPage
from app.storage.runs import (
    WITH_RESULT,
    FilterOptions,
    Judged,
    RunDetail,
    RunListItem,
    RunState,
    Series,
    amendment,
    aware,
    count_runs,
    detail,
    files_of,
    is_updating,
    list_item,
    list_runs,
)
from app.storage.tables import AmendmentRow, ProjectRow, RunRow, SeriesRow, StackWorkRow, VerdictRow, select_any
from app.web.lists import ListQuery, OneOf
from app.web.templating import OUTCOMES

# --- Filters of the run list. The query string is the whole state of the list, so it is validated as input.

STATUSES = ("received", "processing", "ready", "failed", "unread")
PURPOSES = ("ci", "experiment", "release")
VERDICTS = ("regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed", "none")
"""`none`: not judged."""
EVIDENCE_LEVELS = ("smoke", "screen", "matched_ab", "validated")
SORTS = ("created", "name", "step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib")
UNKNOWN = "unknown"
"""Value of the model, gpu and dispatcher filters for unknown."""


class RunQuery(ListQuery):
    """Filters of the list of runs. `unknown` selects runs without a model, GPU or dispatcher."""

    q: str = Field("", description="Words that must all occur in the name, branch, commit, model, GPU or project.")
    project: str = ""
    model: str = ""
    gpu: str = ""
    dispatcher: str = ""
    status: Annotated[str, OneOf(STATUSES)] = Field("", description="received, processing, ready or failed.")
    outcome: Annotated[str, OneOf(tuple(OUTCOMES))] = Field(
        "", description=f"How the job itself ended: {', '.join(OUTCOMES)}."
    )
    verdict: Annotated[str, OneOf(VERDICTS)] = Field("", description=f"{', '.join(VERDICTS[:-1])}; none: not judged.")
    purpose: Annotated[str, OneOf(PURPOSES)] = Field("", description="ci, experiment or release.")
    branch: str = ""
    evidence: Annotated[str, OneOf(EVIDENCE_LEVELS)] = Field("", description="smoke, screen, matched_ab or validated.")
    sort: Annotated[str, OneOf(tuple(sign + name for name in SORTS for sign in ("", "-")))] = Field(
        "-created", description="Column to sort by, with `-` in front for descending."
    )


def find_runs(session: Session, query: RunQuery) -> ListPage[RunListItem]:
    """Return the matching runs in the requested order. A page past the end is empty, with the true total."""
    conditions = _conditions(query)
    total = count_runs(session, *conditions)
    wanted = list_runs().where(*conditions).order_by(*_order(query.sort))
    rows = session.execute(wanted.limit(query.page_size).offset((query.page - 1) * query.page_size))
    return ListPage(tuple(list_item(row) for row in rows), total, query.page, query.page_size)


def get_run(session: Session, run_id: int) -> RunDetail:
    """Raises NotFound."""
    row = session.execute(
        select(RunRow, ProjectRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .options(WITH_RESULT)
        .where(col(RunRow.id) == run_id)
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    amended = session.execute(
        select(AmendmentRow).where(col(AmendmentRow.run_id) == run_id).order_by(col(AmendmentRow.id))
    ).scalars()
    run = detail(row[0], row[1], files_of(session, run_id), tuple(amendment(row) for row in amended))
    return replace(run, judged=_judged(session, run_id))


def get_state(session: Session, run_id: int) -> RunState:
    """Return only the processing state, which is cheap enough to poll. Raises NotFound."""
    row = session.execute(
        select_any(
            RunRow.id, RunRow.status, RunRow.attempts, RunRow.created_at, RunRow.processed_at, RunRow.reception,
            RunRow.work,
        ).where(col(RunRow.id) == run_id)
    ).one_or_none()  # fmt: skip
    if row is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    return RunState(
        id=row.id,
        status=row.status,
        attempts=row.attempts,
        created_at=aware(row.created_at),
        processed_at=aware(row.processed_at) if row.processed_at else None,
        receiving=row.reception == "receiving",
        updating=is_updating(row.status, row.work),
        judged=_judged(session, run_id),
    )


def _judged(session: Session, run_id: int) -> Judged:
    verdict = select(col(VerdictRow.id)).where(col(VerdictRow.run_id) == run_id, col(VerdictRow.current))
    work = (
        select(col(StackWorkRow.work))
        .join(
            RunRow,
            and_(
                col(RunRow.project_id) == col(StackWorkRow.project_id), col(RunRow.stack_key) == StackWorkRow.stack_key
            ),
        )
        .where(col(RunRow.id) == run_id)
    )
    verdict_id, working = session.execute(select(verdict.scalar_subquery(), work.scalar_subquery())).one()
    return Judged(verdict_id or 0, waiting=working in WAITS_FOR_VERDICTS)


def get_series(session: Session, run_id: int) -> Series:
    """Return every stored column in canonical order; no columns until the run is ready. Raises NotFound."""
    get_state(session, run_id)
    rows = session.execute(select(SeriesRow).where(col(SeriesRow.run_id) == run_id)).scalars().all()
    ordered = sorted(rows, key=lambda row: (_column_rank(row.metric), row.metric))
    return Series(
        {row.metric: readings.unpack_series(row.blob) for row in ordered}, {row.metric: row.unit for row in ordered}
    )


def filter_options(session: Session) -> FilterOptions:
    """Return all values that occur, sorted, so that no choice of a select box gives an empty list."""
    projects = tuple(session.execute(select_any(ProjectRow.slug).order_by(ProjectRow.slug)).scalars())
    model, gpu, dispatcher, branch = (
        tuple(value for value in session.execute(select(column).distinct().order_by(column)).scalars() if value)
        for column in (col(RunRow.model), col(RunRow.gpu), col(RunRow.dispatcher), col(RunRow.branch))
    )
    return FilterOptions(projects, model, gpu, dispatcher, branch)


def _conditions(query: RunQuery) -> list[ColumnElement[bool]]:
    equal = {
        "project": col(ProjectRow.slug),
        "status": col(RunRow.status),
        "purpose": col(RunRow.purpose),
        "branch": col(RunRow.branch),
        "evidence": col(RunRow.evidence_level),
        "outcome": col(RunRow.outcome),
    }
    conditions: list[ColumnElement[bool]] = [
        column == query.active[name] for name, column in equal.items() if name in query.active
    ]
    if verdict := query.active.get("verdict"):
        conditions.append(col(RunRow.verdict) == ("" if verdict == "none" else verdict))
    may_be_unknown = {"model": col(RunRow.model), "gpu": col(RunRow.gpu), "dispatcher": col(RunRow.dispatcher)}
    for name, column in may_be_unknown.items():
        if value := query.active.get(name):
            conditions.append(column.is_(None) if value == UNKNOWN else column == value)
    return conditions + [_mentions(word) for word in query.q.split()]


def _mentions(word: str) -> ColumnElement[bool]:
    """Runs that a word of the search box names: by part of a name, or by number (`1842`, `#1842`)."""
    texts = (RunRow.name, RunRow.branch, RunRow.commit, RunRow.model, RunRow.gpu, RunRow.dispatcher, ProjectRow.slug)
    number = word.removeprefix("#")
    # Ids fit in 63 bits; a longer number is part of a name, not an id.
    by_id = col(RunRow.id) == int(number) if number.isascii() and number.isdigit() and len(number) < 19 else false()
    by_text = (func.lower(col(text)).contains(word.lower(), autoescape=True) for text in texts)
    return or_(by_id, col(RunRow.stack_key).startswith(word, autoescape=True), *by_text)


def _order(sort: str) -> tuple[ColumnElement[Any], ...]:
    name = sort.removeprefix("-")
    columns: dict[str, Any] = {"created": col(RunRow.id), "name": func.lower(col(RunRow.name))}
    column: Any = columns[name] if name in columns else col(getattr(RunRow, name))
    # `is null` first in the order puts runs without the figure last in both directions, on both databases.
    return (column.is_(None), column.desc() if sort.startswith("-") else column.asc(), col(RunRow.id).desc())


_CANONICAL: Sequence[str] = (
    "iteration", "step_time_ms", "step_time_true_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "lm_loss",
    "load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss", "z_loss", "mtp_1_loss",
    "learning_rate", "global_batch_size", "consumed_samples", "loss_scale", "grad_norm", "num_zeros", "params_norm",
    "skipped_iterations", "nan_iterations", "energy_j_per_gpu", "power_w_per_gpu", "peak_memory_bytes",
)  # fmt: skip


def _column_rank(name: str) -> int:
    """Rank columns: the canonical order, then other columns by name, then the line numbers."""
    if name in _CANONICAL:
        return _CANONICAL.index(name)
    return len(_CANONICAL) + (name == "log_line")

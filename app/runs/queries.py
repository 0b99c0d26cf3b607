"""What pages and the API read about runs: filters in, selects, read models out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, and_, false, func, or_, select
from sqlmodel import Session, col

from app.errors import FieldError, InvalidQuery, NotFound
from app.pipeline.work import WAITS_FOR_VERDICTS
from app.storage import readings
from app.storage.runs import (
    FilterOptions,
    Judged,
    RunDetail,
    RunPage,
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
from app.storage.tables import AmendmentRow, ProjectRow, RunRow, SeriesRow, StackWorkRow, VerdictRow
from app.web.templating import OUTCOMES

# --- What the run list can be asked for. The query string is the whole state of the list, so it is checked as input.

STATUSES = ("received", "processing", "ready", "failed", "unread")
PURPOSES = ("ci", "experiment", "release")
VERDICTS = ("regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed", "none")
"""`none`: not judged."""
EVIDENCE_LEVELS = ("smoke", "screen", "matched_ab", "validated")
SORTS = ("created", "name", "step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib")
NEWEST_FIRST = "-created"
UNKNOWN = "unknown"
"""A value of the model, gpu and dispatcher filters: the runs of which it is not known."""

_CHOICES = {
    "status": STATUSES,
    "outcome": tuple(OUTCOMES),
    "verdict": VERDICTS,
    "purpose": PURPOSES,
    "evidence": EVIDENCE_LEVELS,
    "sort": tuple(sign + name for name in SORTS for sign in ("", "-")),
}
_MAX_TEXT = 300


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Empty text means "any". `q` is words that must all occur; `sort` is a name of SORTS, `-` first for descending."""

    q: str = ""
    project: str = ""
    model: str = ""
    gpu: str = ""
    dispatcher: str = ""
    status: str = ""
    outcome: str = ""
    verdict: str = ""
    purpose: str = ""
    branch: str = ""
    evidence: str = ""
    sort: str = NEWEST_FIRST

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Filters of a query string; other names are left alone. Raises InvalidQuery naming each bad field."""
        given = {f.name: params.get(f.name, "").strip() for f in fields(cls)}
        errors = tuple(error for name, value in given.items() if (error := _check(name, value)))
        if errors:
            raise InvalidQuery("The address of this list asks for what there is not.", errors)
        return cls(**{name: value for name, value in given.items() if value})

    @property
    def active(self) -> dict[str, str]:
        """The filters that narrow the list, by name: sorting does not."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) and f.name != "sort"}

    def query(self, page: int = 1, **changes: str) -> str:
        """The query string of this list with `changes` applied; defaults are left out, so that addresses stay short."""
        changed = replace(self, **changes)
        pairs = changed.active
        if changed.sort != NEWEST_FIRST:
            pairs["sort"] = changed.sort
        if page > 1:
            pairs["page"] = str(page)
        return urlencode(pairs)

    def without(self, name: str) -> str:
        """The query string of this list with one filter taken away."""
        return replace(self, **{name: ""}).query()

    def sorted_by(self, name: str, descending_first: bool) -> str:
        """The value of `sort` that a click on the column `name` asks for."""
        first, second = (f"-{name}", name) if descending_first else (name, f"-{name}")
        return second if self.sort == first else first


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
        raise InvalidQuery("The address of this list asks for what there is not.", (error,))
    return int(text)


def _check(name: str, value: str) -> FieldError | None:
    if name in _CHOICES and value and value not in _CHOICES[name]:
        return FieldError(name, f"must be one of {', '.join(_CHOICES[name])}, not {value[:40]!r}")
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    # PostgreSQL refuses NUL in a text; no name holds any control character.
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    return None


PAGE_SIZE = 50


def find_runs(session: Session, filters: RunFilters, page: int = 1, page_size: int = PAGE_SIZE) -> RunPage:
    """The runs that match, in the order asked for. A page past the end is empty, with the true total."""
    conditions = _conditions(filters)
    total = count_runs(session, *conditions)
    wanted = list_runs().where(*conditions).order_by(*_order(filters.sort))
    rows = session.execute(wanted.limit(page_size).offset((page - 1) * page_size))
    return RunPage(tuple(list_item(row) for row in rows), total, page, page_size)


def get_run(session: Session, run_id: int) -> RunDetail:
    """Raises NotFound."""
    found = session.execute(
        select(RunRow, ProjectRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id) == run_id)
    ).one_or_none()
    if found is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    amended = session.execute(
        select(AmendmentRow).where(col(AmendmentRow.run_id) == run_id).order_by(col(AmendmentRow.id))
    ).scalars()
    run = detail(found[0], found[1], files_of(session, run_id), tuple(amendment(row) for row in amended))
    return replace(run, judged=_judged(session, run_id))


def get_state(session: Session, run_id: int) -> RunState:
    """The processing state alone: cheap enough to be polled. Raises NotFound."""
    found = session.execute(
        select(  # type: ignore[call-overload]
            RunRow.id, RunRow.status, RunRow.attempts, RunRow.created_at, RunRow.processed_at, RunRow.reception,
            RunRow.work,
        ).where(col(RunRow.id) == run_id)
    ).one_or_none()  # fmt: skip
    if found is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    return RunState(
        id=found.id,
        status=found.status,
        attempts=found.attempts,
        created_at=aware(found.created_at),
        processed_at=aware(found.processed_at) if found.processed_at else None,
        receiving=found.reception == "receiving",
        updating=is_updating(found.status, found.work),
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
    """Every stored column of a run, in the canonical order; no columns at all before it is ready. Raises NotFound."""
    get_state(session, run_id)
    rows = session.execute(select(SeriesRow).where(col(SeriesRow.run_id) == run_id)).scalars().all()
    ordered = sorted(rows, key=lambda row: (_column_rank(row.metric), row.metric))
    return Series(
        {row.metric: readings.unpack_series(row.blob) for row in ordered}, {row.metric: row.unit for row in ordered}
    )


def filter_options(session: Session) -> FilterOptions:
    """All values that occur, sorted: what a select box may offer without ever giving an empty list."""
    projects = tuple(session.execute(select(ProjectRow.slug).order_by(ProjectRow.slug)).scalars())  # type: ignore[call-overload]
    model, gpu, dispatcher, branch = (
        tuple(value for value in session.execute(select(column).distinct().order_by(column)).scalars() if value)
        for column in (col(RunRow.model), col(RunRow.gpu), col(RunRow.dispatcher), col(RunRow.branch))
    )
    return FilterOptions(projects, model, gpu, dispatcher, branch)


def _conditions(filters: RunFilters) -> list[ColumnElement[bool]]:
    equal = {
        "project": col(ProjectRow.slug),
        "status": col(RunRow.status),
        "purpose": col(RunRow.purpose),
        "branch": col(RunRow.branch),
        "evidence": col(RunRow.evidence_level),
        "outcome": col(RunRow.health)["outcome"].as_string(),
    }
    conditions: list[ColumnElement[bool]] = [
        column == filters.active[name] for name, column in equal.items() if name in filters.active
    ]
    if verdict := filters.active.get("verdict"):
        conditions.append(col(RunRow.verdict) == ("" if verdict == "none" else verdict))
    may_be_unknown = {"model": col(RunRow.model), "gpu": col(RunRow.gpu), "dispatcher": col(RunRow.dispatcher)}
    for name, column in may_be_unknown.items():
        if value := filters.active.get(name):
            conditions.append(column.is_(None) if value == UNKNOWN else column == value)
    return conditions + [_mentions(word) for word in filters.q.split()]


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
    """Columns that are not of the canonical list follow it by name; the line numbers come last of all."""
    if name in _CANONICAL:
        return _CANONICAL.index(name)
    return len(_CANONICAL) + (name == "log_line")

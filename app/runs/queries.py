"""What pages and the API read about runs: filters in, selects, read models out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import (
    ColumnElement,
    Engine,
    Row,
    Select,
    String,
    and_,
    bindparam,
    func,
    literal,
    not_,
    null,
    select,
    tuple_,
)
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.run import EVIDENCE_LEVELS
from app.errors import InvalidQuery, NotFound
from app.pipeline.work import WAITS_FOR_VERDICTS
from app.storage import readings
from app.storage.database import ListPage, read_session
from app.storage.runs import (
    MOST_COUNTED,
    WITH_RESULT,
    FilterOptions,
    Judged,
    RunDetail,
    RunListItem,
    RunState,
    StoredSeries,
    amendment,
    count_up_to,
    detail,
    files_of,
    filter_values,
    is_updating,
    runs_by_id,
)
from app.storage.search import (
    LABEL_NAMES,
    MOST_COMPLETIONS,
    completions,
    has_contract_value,
    has_label,
    search_conditions,
)
from app.storage.suspect_evidence import with_alternation
from app.storage.tables import (
    AmendmentRow,
    ExperimentRunRow,
    ProjectRow,
    RunRow,
    SeriesRow,
    StackWorkRow,
    VerdictRow,
    from_row,
    not_indexed,
    select_any,
    utc_now,
)
from app.web.lists import CellKind, ListQuery, OneOf, Passes, did_you_mean, invalid_filter, meant_name
from app.web.templating import OUTCOMES

# --- Filters of the run list. The query string is the whole state of the list, so it is validated as input.

STATUSES = ("received", "processing", "ready", "failed", "unread")
PURPOSES = ("ci", "experiment", "release")
VERDICTS = ("regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed", "none")
"""`none`: not judged."""
SORTS = ("created", "commit_time", "name", "step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct",
         "peak_memory_gib")  # fmt: skip
UNKNOWN = "unknown"
"""Value of the model, gpu and dispatcher filters for unknown."""


def _cursor_problem(value: str) -> str:
    number = value.partition(",")[0]
    is_one = number.isascii() and number.isdigit() and 0 < len(number) < 19
    return "" if is_one else "is not a cursor of this list"


_AGO = re.compile(r"(\d{1,4})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}


def read_moment(text: str, now: datetime) -> datetime:
    """Return a time: ISO 8601, in UTC without a zone, or how long ago (`12h`, `7d`, `2w`). Raises ValueError."""
    if ago := _AGO.fullmatch(text):
        return now - timedelta(hours=int(ago[1]) * _HOURS[ago[2]])
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _time_problem(value: str) -> str:
    try:
        read_moment(value, utc_now())
    except (ValueError, OverflowError):
        return "must be a time, for example 2026-11-18, 2026-11-18T04:12:00Z or 7d"
    return ""


LIST_COLUMNS: Mapping[str, str] = {
    "verdict": "Verdict", "step_time_ms": "Step time", "model": "Model", "gpus": "GPUs", "dispatcher": "Dispatcher",
    "commit_time": "Committed", "created": "Uploaded", "tokens_per_s_per_gpu": "tokens/s/GPU",
    "tflops_per_gpu": "TFLOP/s/GPU", "mfu_pct": "MFU", "peak_memory_gib": "Memory",
    "evidence": "Evidence", "purpose": "Purpose", "branch": "Branch",
}  # fmt: skip
"""Columns of the list page after the name."""
DEFAULT_COLUMNS = ("verdict", "step_time_ms", "gpus", "commit_time", "created")


def _columns_problem(value: str) -> str:
    wrong = next((name for name in value.split(",") if name not in LIST_COLUMNS), None)
    return "" if wrong is None else f"must be some of {', '.join(LIST_COLUMNS)}, not {wrong[:40]!r}"


class RunQuery(ListQuery):
    """Filters of the list of runs. `unknown` selects runs without a model, GPU or dispatcher."""

    q: str = Field(
        "",
        description="Words that must all occur in the name, branch, commit, model, GPU or project. `field:value` "
        "filters by any filter or contract field; quotes search a text with a colon.",
    )
    project: str = ""
    model: str = ""
    gpu: str = ""
    dispatcher: str = ""
    status: Annotated[str, OneOf(STATUSES)] = Field("", description="received, processing, ready or failed.")
    outcome: Annotated[str, OneOf(tuple(OUTCOMES))] = Field(
        "", description=f"How the job itself ended: {', '.join(OUTCOMES)}."
    )
    verdict: Annotated[str, OneOf(VERDICTS)] = Field(
        "",
        description=f"What lists show as the verdict, the field `badge`: {', '.join(VERDICTS[:-1])}; none: not judged. "
        "Leaves out runs of planned experiments.",
    )
    purpose: Annotated[str, OneOf(PURPOSES)] = Field("", description="ci, experiment or release.")
    branch: str = ""
    evidence: Annotated[str, OneOf(EVIDENCE_LEVELS)] = Field("", description="smoke, screen, matched_ab or validated.")
    sort: Annotated[str, OneOf(tuple(sign + name for name in SORTS for sign in ("", "-")))] = Field(
        "-created", description="Column to sort by, with `-` in front for descending."
    )
    after: Annotated[str, Passes(_cursor_problem)] = Field("", description="`after` of the page before this one.")
    before: Annotated[str, Passes(_cursor_problem)] = Field("", description="`before` of the page after this one.")

    tag: str = Field("", description="Runs with this tag.")
    commit: str = Field("", description="Beginning of a commit.")
    job: str = Field("", description="CI job or test, as stated.")
    user: str = Field("", description="User or token that uploaded the run.")
    cluster: str = ""
    container: str = ""
    since: Annotated[str, Passes(_time_problem)] = Field("", description="Uploaded at or after; ISO 8601 or `7d`.")
    until: Annotated[str, Passes(_time_problem)] = Field("", description="Uploaded before; ISO 8601 or `7d`.")

    columns: Annotated[str, Passes(_columns_problem)] = Field(
        "", description="Columns of the list as a page, separated by commas."
    )

    not_narrowing = ("sort", "after", "before", "columns")
    refuses_unknown = True
    further_names = ("view",)

    @property
    def shown_columns(self) -> tuple[str, ...]:
        chosen = self.columns.split(",") if self.columns else DEFAULT_COLUMNS
        return tuple(name for name in LIST_COLUMNS if name in chosen)

    def with_column(self, name: str) -> str:
        """Return the value of `columns` that adds the column, or leaves it out."""
        changed = {*self.shown_columns} ^ {name}
        return "" if changed in ({*DEFAULT_COLUMNS}, set()) else ",".join(c for c in LIST_COLUMNS if c in changed)

    def query(self, page: int = 1, **changes: str) -> str:
        """Return the query string; a cursor belongs to one page, so that other pages name theirs."""
        return super().query(page, **({"after": "", "before": ""} | changes))

    def address(self, path: str) -> str:
        query = self.query(self.page, after=self.after, before=self.before)
        return f"{path}?{query}" if query else path


MOST_SKIPPED = 10_000
"""Rows that `page` may skip; deeper pages need the cursor of the page before them."""


def find_runs(session: Session, query: RunQuery) -> ListPage[RunListItem]:
    """Return the matching runs in the requested order. A page past the end is empty, with the true total.

    Only narrow rows are searched and sorted; the rest is read for the runs of the page. Raises InvalidQuery for a page
    too deep to reach without a cursor.
    """
    query, words, fields = _with_words(query)
    filters, mentions = _conditions(query, fields), search_conditions(session, words)
    order = _Order.of(query.sort)
    words_match = [*(mentions.filtered if filters or order.column is not None else ()), *mentions.conditions]
    conditions = [*filters, *words_match]
    is_many = mentions.is_frequent and not filters  # counting them again would read the runs
    most = mentions.most or MOST_COUNTED
    total = most + 1 if is_many else count_up_to(session, *conditions, most=most)
    is_exact = total <= most
    skipped = 0 if query.after or query.before else (query.page - 1) * query.page_size
    if skipped >= MOST_SKIPPED and not is_exact:
        most = MOST_SKIPPED // query.page_size
        message = f"must be at most {most:,} here; follow the links from page to page, or pass their `after`"
        raise invalid_filter("page", message)
    if not is_exact and order.column is not None:
        conditions = [*_conditions(query, fields, in_order=True), *words_match]
    rows = (
        order.read(session, conditions, query.page_size + 1, skipped, after=query.after, before=query.before)
        if total
        else []
    )
    shown = rows[-query.page_size :] if query.before else rows[: query.page_size]
    has_more = len(rows) > query.page_size
    is_first = not skipped and not query.after and not (query.before and has_more)
    return ListPage(
        with_alternation(session, runs_by_id(session, [row.id for row in shown])),
        min(total, most),
        query.page,
        query.page_size,
        is_exact=is_exact,
        before="" if is_first or not shown else order.cursor(shown[0]),
        after=order.cursor(shown[-1]) if shown and (query.before or has_more) else "",
    )


RUN_COLUMNS: Mapping[str, CellKind] = {
    "id": "int", "name": "text", "project": "text", "purpose": "text", "branch": "text", "commit": "text",
    "commit_time": "time", "created_at": "time", "status": "text", "outcome": "text",
    "model": "text", "gpu": "text", "gpus": "int", "dispatcher": "text", "evidence_level": "text",
    "verdict": "text", "badge": "text", "verdict_delta_pct": "float", "quarantine": "text", "notes": "text",
    "step_time_ms": "float", "tokens_per_s_per_gpu": "float", "tflops_per_gpu": "float",
    "mfu_pct": "float", "peak_memory_gib": "float",
}  # fmt: skip
"""Columns of the list as a table."""
_ROWS_AT_ONCE = 200


def run_rows(engine: Engine, query: RunQuery) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all matching runs in batches, each in its own read, so that a slow reader holds no transaction."""
    query = query.model_copy(update={"page": 1, "page_size": _ROWS_AT_ONCE, "before": ""})
    while True:
        with read_session(engine) as session:
            page = find_runs(session, query)
        yield [tuple(_cell(item, name) for name in RUN_COLUMNS) for item in page.items]
        if not page.after:
            return
        query = query.model_copy(update={"after": page.after})


def selected_rows(engine: Engine, run_ids: Sequence[int]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield these runs as `run_rows` does."""
    with read_session(engine) as session:
        items = runs_by_id(session, run_ids)
    yield [tuple(_cell(item, name) for name in RUN_COLUMNS) for item in items]


def _cell(item: RunListItem, name: str) -> Any:
    if not hasattr(item, name):
        metric = item.metrics.get(name)
        return None if metric is None else metric.value
    return getattr(item, name)


def get_run(session: Session, run_id: int) -> RunDetail:
    """Return a run with its result. Raises NotFound."""
    row = session.execute(
        select(RunRow, ProjectRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .options(WITH_RESULT)
        .where(col(RunRow.id) == run_id)
    ).one_or_none()
    if row is None:
        raise NotFound.of(f"Run {run_id}")
    amended = session.execute(
        select(AmendmentRow).where(col(AmendmentRow.run_id) == run_id).order_by(col(AmendmentRow.id))
    ).scalars()
    run = detail(row[0], row[1], files_of(session, run_id), tuple(amendment(row) for row in amended))
    return replace(run, judged=get_state(session, run_id).judged)


_VERDICT_ID = (
    select(col(VerdictRow.id))
    .where(col(VerdictRow.run_id) == col(RunRow.id), col(VerdictRow.current))
    .scalar_subquery()
)
_STACK_WORK = (
    select(col(StackWorkRow.work))
    .where(col(StackWorkRow.project_id) == RunRow.project_id, col(StackWorkRow.stack_key) == RunRow.stack_key)
    .scalar_subquery()
)
# Built once: clients that wait poll several times.
_STATE: Select[Any] = select_any(
    RunRow.id, RunRow.status, RunRow.attempts, RunRow.created_at, RunRow.processed_at, RunRow.reception, RunRow.work,
    _VERDICT_ID.label("verdict_id"), _STACK_WORK.label("stack_work"),
).where(col(RunRow.id) == bindparam("run_id"))  # fmt: skip


def get_state(session: Session, run_id: int) -> RunState:
    """Return only the processing state, which is cheap enough to poll. Raises NotFound."""
    row = session.execute(_STATE, {"run_id": run_id}).one_or_none()
    if row is None:
        raise NotFound.of(f"Run {run_id}")
    return from_row(
        RunState,
        row,
        receiving=row.reception == "receiving",
        updating=is_updating(row.status, row.work),
        judged=Judged(row.verdict_id or 0, waiting=row.stack_work in WAITS_FOR_VERDICTS),
    )


def get_series(session: Session, run_id: int, *metrics: str) -> StoredSeries:
    """Return every stored column, or those of `metrics`, in canonical order; no columns until the run is ready.

    Raises NotFound.
    """
    get_state(session, run_id)
    chosen = select(SeriesRow).where(col(SeriesRow.run_id) == run_id)
    if metrics:
        chosen = chosen.where(col(SeriesRow.metric).in_(metrics))
    rows = session.execute(chosen).scalars().all()
    ordered = sorted(rows, key=lambda row: (_column_rank(row.metric), row.metric))
    return StoredSeries(
        {row.metric: readings.unpack_series(row.blob) for row in ordered}, {row.metric: row.unit for row in ordered}
    )


def filter_options(session: Session) -> FilterOptions:
    """Return all values that occur, sorted: the choices of select boxes."""
    projects = tuple(session.execute(select_any(ProjectRow.slug).order_by(ProjectRow.slug)).scalars())
    values = filter_values(session, "model", "gpu", "dispatcher", "branch")
    return FilterOptions(projects, values["model"], values["gpu"], values["dispatcher"], values["branch"])


_WORD = re.compile(r'([A-Za-z_][A-Za-z0-9_]*):(?:"([^"]*)"|(\S+))|"([^"]*)"|(\S+)')
_OWN = ("tag", "commit", "job", "user", "cluster", "container")
SEARCHED = ("project", "model", "gpu", "dispatcher", "status", "outcome", "verdict", "purpose", "branch",
            "evidence", "since", "until", *_OWN)  # fmt: skip
"""Filters that the search box accepts as `name:value`, in addition to contract fields."""


def _with_words(query: RunQuery) -> tuple[RunQuery, str, dict[str, str]]:
    """Return the query with the filters of its search box, the other words, and values of contract fields.

    Raises InvalidQuery for a name similar to that of a filter. Any other `name:value` is a container.
    """
    words, filters, fields = [], {}, {}
    for name, quoted, plain, text, word in _WORD.findall(query.q):
        value = quoted or plain
        if not name:
            words.append(text or word)
        elif name in SEARCHED:
            filters[name] = value
        elif name in FIELDS:
            fields[name] = value
        elif meant := meant_name(name, SEARCHED):
            raise invalid_filter("q", f'There is no filter "{name[:40]}"{did_you_mean(meant)}')
        else:
            fields["container"] = f"{name}:{value}"  # as in `train:2026.10`
    if filters:
        query = RunQuery(**(query.model_dump() | filters))  # validated like filters of their own
    return query, " ".join(words), fields


def with_other_filter(query: RunQuery) -> dict[str, str]:
    """Return the query string by each filter that could replace the unknown one of the search box."""
    queries: dict[str, str] = {}
    unknown = next((word for word in _WORD.finditer(query.q) if word[1] and word[1] not in (*SEARCHED, *FIELDS)), None)
    if unknown is None:
        return queries
    before, after = query.q[: unknown.start()], query.q[unknown.end(1) :]
    for name in SEARCHED:
        tried = query.model_copy(update={"q": before + name + after})
        with suppress(InvalidQuery):
            _with_words(tried)
            queries[name] = tried.query()
    return queries


def complete(session: Session, text: str) -> list[str]:
    """Return what may follow the last word of a search: names of filters, or values of one, as `name:value`."""
    name, colon, begin = text.rpartition(" ")[2].partition(":")
    if not colon:
        names = [candidate for candidate in (*SEARCHED, *FIELDS) if candidate.startswith(name.lower())] if name else []
        return [f"{candidate}:" for candidate in dict.fromkeys(names)][:MOST_COMPLETIONS]
    fixed = {"status": STATUSES, "purpose": PURPOSES, "evidence": EVIDENCE_LEVELS}
    fixed |= {"outcome": tuple(OUTCOMES), "verdict": VERDICTS}
    begin = begin.removeprefix('"')
    values = [value for value in fixed[name] if value.startswith(begin)] if name in fixed else None
    values = completions(session, name, begin) if values is None else values
    return [f'{name}:"{value}"' if " " in value else f"{name}:{value}" for value in values]


_IS_SIDE = and_(
    col(RunRow.purpose) == "experiment",
    select(col(ExperimentRunRow.run_id)).where(col(ExperimentRunRow.run_id) == col(RunRow.id)).exists(),
)
"""The run shows its side of an experiment in place of a verdict."""


def _conditions(query: RunQuery, fields: Mapping[str, str], *, in_order: bool = False) -> list[ColumnElement[bool]]:
    """Return the conditions of the filters.

    `in_order`: so many runs match that SQLite must find the first ones in the order of the list. By itself it would
    look up all matches and sort them.
    """
    active = query.active

    def looked_up(column: Any, *, unless: bool = False) -> ColumnElement[Any]:
        return not_indexed(column) if in_order or unless else column

    equal = {
        "status": col(RunRow.status),
        "purpose": col(RunRow.purpose),
        "branch": col(RunRow.branch),
        "evidence": col(RunRow.evidence_level),
        "outcome": col(RunRow.outcome),
    }
    conditions: list[ColumnElement[bool]] = [
        looked_up(column) == active[name] for name, column in equal.items() if name in active
    ]
    if project := active.get("project"):
        number = select_any(ProjectRow.id).where(col(ProjectRow.slug) == project)
        # The index of such a filter has the project too. By itself SQLite would read all runs of the project.
        by_filter = not active.keys().isdisjoint((*equal, "verdict", "model", "gpu", "dispatcher"))
        conditions.append(looked_up(col(RunRow.project_id), unless=by_filter) == number.scalar_subquery())
    if verdict := active.get("verdict"):
        conditions += [looked_up(col(RunRow.badge)) == ("" if verdict == "none" else verdict), not_(_IS_SIDE)]
    may_be_unknown = {"model": col(RunRow.model), "gpu": col(RunRow.gpu), "dispatcher": col(RunRow.dispatcher)}
    by_verdict = query.verdict not in ("", *_USUAL_VERDICTS)
    for name, listed in may_be_unknown.items():
        if value := active.get(name):
            column = looked_up(listed, unless=by_verdict)
            conditions.append(column.is_(None) if value == UNKNOWN else column == value)
    conditions += [has_label(name, value) for name in LABEL_NAMES if (value := active.get(name))]
    of_contract = {name: value for name in ("cluster", "container") if (value := active.get(name))}
    conditions += [has_contract_value(name, value) for name, value in {**of_contract, **fields}.items()]
    if query.since:
        conditions.append(col(RunRow.created_at) >= read_moment(query.since, utc_now()))
    if query.until:
        conditions.append(col(RunRow.created_at) < read_moment(query.until, utc_now()))
    return conditions


_SORTED: Mapping[str, Any] = {"name": func.lower(col(RunRow.name), type_=String())}


@dataclass(frozen=True, slots=True)
class _Order:
    """An order of runs: those with a value by it and their number, then those without by their number.

    Each half is read in the order of an index, which `column IS NULL` in ORDER BY would prevent. `column` is None when
    the number alone is the order. A cursor is the number of a run and its value.
    """

    column: Any
    descending: bool

    @classmethod
    def of(cls, sort: str) -> "_Order":
        name = sort.removeprefix("-")
        column = None if name == "created" else _SORTED[name] if name in _SORTED else col(getattr(RunRow, name))
        return cls(column, sort.startswith("-"))

    def read(
        self, session: Session, conditions: Sequence[ColumnElement[bool]], limit: int, skipped: int, *,
        after: str = "", before: str = "",
    ) -> list[Row[Any]]:  # fmt: skip
        """Return at most `limit` rows (id, value) after or before a cursor, or after `skipped` rows."""
        backwards = bool(before)
        number, value = self._read_cursor(before or after)
        halves = [False, True] if self.column is not None else [True]
        if number and value is None:
            halves = [True, False][: 2 if backwards and self.column is not None else 1]
        elif backwards:
            halves = [False]
        rows: list[Row[Any]] = []
        for k, without_value in enumerate(halves):
            start = (number, value) if number and k == 0 else None
            chosen = self._half(conditions, without_value, start, backwards=backwards)
            rows += session.execute(chosen.limit(limit - len(rows)).offset(skipped)).all()
            if len(rows) == limit:
                break
            if skipped:
                skipped = 0 if rows else skipped - self._count(session, conditions)
        return rows[::-1] if backwards else rows

    def cursor(self, row: Row[Any]) -> str:
        if self.column is None:
            return str(row.id)
        return f"{row.id}," + ("" if row.value is None else str(row.value))

    def _read_cursor(self, cursor: str) -> tuple[int, Any]:
        """Return 0 for no cursor."""
        number, _, value = cursor.partition(",")
        if not number or not value or self.column is None:
            return int(number or 0), None
        if isinstance(self.column.type, String):
            return int(number), value
        try:
            return int(number), float(value) if self.column.type.python_type is float else datetime.fromisoformat(value)
        except ValueError:
            message = "is a cursor of another order"
            raise invalid_filter("after", message) from None

    def _half(
        self, conditions: Sequence[ColumnElement[bool]], without_value: bool, start: tuple[int, Any] | None, *,
        backwards: bool,
    ) -> Select[Any]:  # fmt: skip
        down = self.descending != backwards
        keys: list[Any] = [col(RunRow.id)] if without_value else [self.column, col(RunRow.id)]
        chosen = select_any(RunRow.id, (null() if without_value else self.column).label("value")).where(*conditions)
        if self.column is not None:
            chosen = chosen.where(self.column.is_(None) if without_value else self.column.is_not(None))
        if start is not None:
            left, right = (
                (keys[0], start[0])
                if without_value
                else (tuple_(*keys), tuple_(literal(start[1], self.column.type), start[0]))
            )
            chosen = chosen.where(left < right if down else left > right)
        return chosen.order_by(*(key.desc() if down else key.asc() for key in keys))

    def _count(self, session: Session, conditions: Sequence[ColumnElement[bool]]) -> int:
        return count_up_to(session, *conditions, self.column.is_not(None)) if self.column is not None else 0


_USUAL_VERDICTS = ("no_change", "none")
"""Runs of the other verdicts are fewer than those of a model, so SQLite looks them up by the verdict."""
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

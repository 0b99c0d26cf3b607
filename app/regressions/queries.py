"""Reading regressions for pages and the API: filters, selects and read models."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import ColumnElement, Engine, exists, false, func, or_, select
from sqlmodel import Session, col

from app.domain.verdict.assess import UPGRADES
from app.domain.verdict.comparability import AXES, axis_of
from app.domain.verdict.regression import UPGRADE_CAUSE, Regression, stacks_of
from app.domain.verdict.triage import ACTIVE, STATES, SumOfCosts
from app.storage.database import ListPage, read_session
from app.storage.regressions import add_evidence, joined_regressions, regressions_of_rows
from app.storage.runs import filter_values
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunRow, StackRow, select_any
from app.storage.verdicts import (
    SUMS_OF_COSTS,
    ProposedClosing,
    proposed_closings,
)
from app.web.lists import CellKind, ListQuery, OneOf


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of the select boxes."""

    projects: tuple[str, ...]
    assignees: tuple[str, ...]
    gpus: tuple[str, ...]
    models: tuple[str, ...]


# --- Filters of the list of regressions. The query string is the whole state of the page, so it is validated as input.

ACTIVE_STATES, TO_CLOSE, CLOSED, ANY_STATE = "active", "to_close", "closed", "any"
METRICS = {"step_time_ms": "step time", "peak_memory_gib": "peak memory", "lm_loss": "loss"}
KINDS = {"run": "a run", "upgrade": "an upgrade"}
SORTS = {"cost": "cost", "age": "age", "size": "size"}
NOBODY = "nobody"
"""Value of the assignee filter for unassigned regressions."""
UNKNOWN = "unknown"
"""Value of the filters `gpu` and `model` for unknown."""


class RegressionQuery(ListQuery):
    """Filters of the list of regressions; an empty one means any. Its page shows the active ones first."""

    page_defaults = {"state": ACTIVE_STATES, "page_size": "25"}  # noqa: RUF012  # a class variable of the base
    not_narrowing = ("state", "sort")
    refuses_unknown = True
    further_names = ("format", "changed")

    q: str = Field("", description="Words that must all occur in the cause, note, assignee, link or names of a run.")
    state: Annotated[str, OneOf((ACTIVE_STATES, TO_CLOSE, CLOSED, *STATES, ANY_STATE))] = Field(
        ANY_STATE,
        description="A state, `active` (open or acknowledged), `to_close` (those of them with a proposal), `closed` "
        "(all others) or `any`.",
    )
    project: str = ""
    assignee: str = Field("", description="`nobody`: unassigned ones.")
    metric: Annotated[str, OneOf(tuple(METRICS))] = ""
    kind: Annotated[str, OneOf(tuple(KINDS))] = Field("", description="`run` or `upgrade`.")
    axis: Annotated[str, OneOf(AXES)] = Field(
        "", description="Axis of the cause: `container`, `recipe`, `code`, `place` or `workload`."
    )
    gpu: str = Field("", description="`unknown`: regressions without a known value.")
    model: str = ""
    sort: Annotated[str, OneOf(tuple(sign + name for name in SORTS for sign in ("-", "")))] = Field(
        "-cost", description="`cost`, `age` or `size`, with `-` for descending."
    )


def find_regressions(
    session: Session, query: RegressionQuery, total: int | None = None, *, with_evidence: bool = True
) -> ListPage[Regression]:
    """Return the matching regressions in the requested order. A page past the end is empty, with the true total.

    Without evidence, their causes are those recorded when they opened, which are much faster to read.
    `total`: the number of matches, if it was counted before.
    """
    conditions = [*_conditions(query), *_in_state(query.state)]
    if total is None:
        total = session.execute(joined_regressions(select(func.count())).where(*conditions)).scalar_one()
    # Finds ids first, because sorting the wide rows of all earlier pages costs more than reading one page.
    numbers = joined_regressions(select(col(RegressionRow.id))).where(*conditions).order_by(*_order(query.sort))
    on_page = numbers.limit(query.page_size).offset((query.page - 1) * query.page_size)
    chosen = col(RegressionRow.id).in_(session.execute(on_page).scalars().all())
    rows = session.execute(
        joined_regressions(select(RegressionRow, ProjectRow)).where(chosen).order_by(*_order(query.sort))
    ).all()
    regressions = regressions_of_rows(session, rows)
    if with_evidence:
        regressions = tuple(add_evidence(session, item) for item in regressions)
    return ListPage(regressions, total, query.page, query.page_size)


REGRESSION_COLUMNS: Mapping[str, CellKind] = {
    "id": "int", "project": "text", "state": "text", "kind": "text", "metric": "text", "cause": "text", "axis": "text",
    "stacks": "int", "first_run": "int", "worst_delta_pct": "float", "gpu_hours_per_day": "float", "assignee": "text",
    "note": "text", "external_url": "text", "opened_at": "time", "changed_at": "time",
}  # fmt: skip
"""Columns of the list as a table. `cause`: as recorded when the regression opened."""
_ROWS_AT_ONCE = 200


def regression_rows(engine: Engine, query: RegressionQuery) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all matching regressions in batches. Each batch is read in its own session."""
    page_number, is_last = 1, False
    while not is_last:
        with read_session(engine) as session:
            numbered = query.model_copy(update={"page": page_number, "page_size": _ROWS_AT_ONCE})
            page = find_regressions(session, numbered, with_evidence=False)
        yield [tuple(_cell(item, name) for name in REGRESSION_COLUMNS) for item in page.items]
        page_number, is_last = page_number + 1, not page.has_next


def _cell(item: Regression, name: str) -> Any:
    if name == "stacks":
        return stacks_of(item.jobs)
    return min((member.run_id for member in item.members), default=None) if name == "first_run" else getattr(item, name)


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Counts of all matches of a query whatever their state, and the cost of its active ones.

    `by_state`: by state filter. `proposed`, `in_work`: active ones with a proposal, and acknowledged ones without.
    """

    by_state: Mapping[str, int]
    proposed: int
    in_work: int
    cost: SumOfCosts

    @property
    def triage(self) -> int:
        """Return the number of active regressions that wait for a decision: open ones, and those with a proposal."""
        return self.by_state[ACTIVE_STATES] - self.in_work


def count_states(session: Session, query: RegressionQuery) -> StateCounts:
    """Count the matches by state, ignoring the state filter of the query, and add up the costs of the active ones."""
    state, is_proposed = col(RegressionRow.state), col(RegressionRow.proposal) != ""
    counted = joined_regressions(select_any(state, is_proposed, func.count(), *SUMS_OF_COSTS)).where(
        *_conditions(query)
    )
    counts = dict.fromkeys((*STATES, ACTIVE_STATES, TO_CLOSE, CLOSED, ANY_STATE), 0)
    in_work, costs = 0, []
    for name, has_proposal, number, *cost in session.execute(counted.group_by(state, is_proposed)):
        is_active = name in ACTIVE
        shown = (name, ANY_STATE, ACTIVE_STATES if is_active else CLOSED)
        for counter in (*shown, TO_CLOSE) if is_active and has_proposal else shown:
            counts[counter] += number
        if is_active:
            costs.append(tuple(cost))
            in_work += number if name != "open" and not has_proposal else 0
    return StateCounts(counts, counts[TO_CLOSE], in_work, SumOfCosts.total(costs))


def to_close(session: Session, query: RegressionQuery) -> tuple[ProposedClosing, ...]:
    """Return the matching active regressions that the service proposes to close."""
    return proposed_closings(session, *_conditions(query), *_in_state(query.state))


def options_of(session: Session) -> Options:
    """Return sorted values for select boxes. GPUs and models are those of all runs, because reading members is slow."""
    of_runs = filter_values(session, "gpu", "model")
    has_any = exists(select(col(RegressionRow.id)).where(col(RegressionRow.project_id) == ProjectRow.id))
    projects = select(col(ProjectRow.slug)).where(has_any).order_by(col(ProjectRow.slug))
    assignees = select(col(RegressionRow.assignee)).distinct().where(col(RegressionRow.assignee) != "")
    return Options(
        tuple(session.execute(projects).scalars()),
        tuple(sorted(session.execute(assignees).scalars())),
        of_runs["gpu"],
        of_runs["model"],
    )


def _in_state(state: str) -> list[ColumnElement[bool]]:
    if state == ANY_STATE:
        return []
    if state == CLOSED:
        return [col(RegressionRow.state).not_in(ACTIVE)]
    if state == TO_CLOSE:
        return [*_in_state(ACTIVE_STATES), col(RegressionRow.proposal) != ""]
    return [col(RegressionRow.state).in_(ACTIVE if state == ACTIVE_STATES else (state,))]


def has_axis(axis: str) -> ColumnElement[bool]:
    upgrades = [f"{UPGRADE_CAUSE}:{field}" for field in UPGRADES if axis_of(field) == axis]
    return or_(*(col(RegressionRow.cause_key).startswith(f"{key}:", autoescape=True) for key in (axis, *upgrades)))


def _conditions(query: RegressionQuery) -> list[ColumnElement[bool]]:
    """Return the conditions of all filters except the state."""
    equal = {"project": col(ProjectRow.slug), "metric": col(RegressionRow.metric), "kind": col(RegressionRow.kind)}
    active = query.active
    conditions: list[ColumnElement[bool]] = [column == active[name] for name, column in equal.items() if name in active]
    if query.assignee:
        conditions.append(col(RegressionRow.assignee) == ("" if query.assignee == NOBODY else query.assignee))
    if query.axis:
        conditions.append(has_axis(query.axis))
    for value, column in ((query.gpu, col(StackRow.gpu)), (query.model, col(StackRow.model))):
        if value:
            # All runs of a stack have one GPU and model, and there are far fewer stacks than runs.
            stacks = select(col(StackRow.stack_key)).where(column.is_(None) if value == UNKNOWN else column == value)
            members = select(col(RegressionMemberRow.regression_id)).where(
                col(RegressionMemberRow.stack_key).in_(stacks)
            )
            conditions.append(col(RegressionRow.id).in_(members))
    return conditions + [_mentions(word) for word in query.q.split()]


def _some_member(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that one of the regression's slow runs matches."""
    return exists(
        select(col(RunRow.id))
        .join(RegressionMemberRow, col(RegressionMemberRow.run_id) == RunRow.id)
        .where(col(RegressionMemberRow.regression_id) == RegressionRow.id, condition)
    )


def _mentions(word: str) -> ColumnElement[bool]:
    """Return the condition that a regression matches a word of the search: part of a text, a number or a stack key."""
    number = word.removeprefix("#")
    # Ids fit in 63 bits; a longer number is part of a text, not an id.
    is_number = number.isascii() and number.isdigit() and len(number) < 19
    by_id = col(RegressionRow.id) == int(number) if is_number else false()
    by_run = col(RunRow.id) == int(number) if is_number else false()
    own = (RegressionRow.cause, RegressionRow.assignee, RegressionRow.note, RegressionRow.external_url, ProjectRow.slug)
    of_run = (RunRow.name, RunRow.branch, RunRow.commit, RunRow.model, RunRow.gpu, RunRow.dispatcher)
    by_stack = col(RunRow.stack_key).startswith(word, autoescape=True)
    return or_(by_id, *_contain(own, word), _some_member(or_(by_run, by_stack, *_contain(of_run, word))))


def _contain(columns: Iterable[Any], word: str) -> list[ColumnElement[bool]]:
    return [func.lower(col(column)).contains(word.lower(), autoescape=True) for column in columns]


def _order(sort: str) -> tuple[ColumnElement[Any], ...]:
    columns: dict[str, Any] = {
        "cost": col(RegressionRow.gpu_hours_per_day),
        "age": col(RegressionRow.opened_at),
        "size": col(RegressionRow.worst_delta_pct),
    }
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    column = columns[name]
    # The oldest regression has the earliest time.
    ordered = column.desc() if descending != (name == "age") else column.asc()
    # Sorting by `is null` first puts missing figures last in both directions and on both databases.
    # Regressions with a proposal only wait for a click.
    over = [col(RegressionRow.proposal) != ""] if name == "cost" else []
    return (*over, column.is_(None), ordered, col(RegressionRow.id).desc())

"""What a comparison reads: the runs of both sides, those of their series that it needs, and runs to choose from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, false, func, or_, select
from sqlmodel import Session, col

from app.domain.matching import RunRecord, shared_losses
from app.domain.run import FloatArray
from app.errors import NotFound, NotReady
from app.storage import series
from app.storage.run_list import RunListItem, list_item, list_runs
from app.storage.run_records import RunDetail, detail
from app.storage.stack_runs import facts_of
from app.storage.tables import ProjectRow, RunRow, SeriesRow

MOST_OFFERED = 12
_WINDOW = ("iteration", "step_time_ms", "step_time_true_ms")
_LOSSES = ("lm_loss", "loss", "reduced_train_loss")
_HIDDEN = ("iteration", "log_line", "log_file", "step_time_true_ms")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run as pages show it and as matching sees it; `columns` of its series that every comparison needs."""

    detail: RunDetail
    record: RunRecord
    columns: Mapping[str, FloatArray]

    @property
    def id(self) -> int:
        return self.detail.id


def read_runs(session: Session, run_ids: Sequence[int]) -> dict[int, ComparedRun]:
    """By number, with losses over iterations that all of them have. Raises NotFound and NotReady, naming the runs."""
    rows = session.execute(
        select(RunRow, ProjectRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id).in_(run_ids))
    ).all()
    details = {row.id or 0: (row, detail(row, project, ())) for row, project in rows}
    _check(run_ids, {number: found for number, (_, found) in details.items()})
    columns = read_columns(session, run_ids, (*_WINDOW, *_LOSSES))
    losses = shared_losses([columns[number] for number in run_ids])
    return {
        number: ComparedRun(details[number][1], _record(*details[number], loss), columns[number])
        for number, loss in zip(run_ids, losses, strict=True)
    }


def read_columns(session: Session, run_ids: Sequence[int], names: Iterable[str]) -> dict[int, dict[str, FloatArray]]:
    """Of each run those of the columns that it has; in one query for all of them."""
    found: dict[int, dict[str, FloatArray]] = {number: {} for number in run_ids}
    rows = session.execute(
        select(SeriesRow.run_id, SeriesRow.metric, SeriesRow.blob).where(  # type: ignore[call-overload]
            col(SeriesRow.run_id).in_(run_ids), col(SeriesRow.metric).in_(tuple(names))
        )
    )
    for row in rows:
        found[row.run_id][row.metric] = series.unpack(row.blob)
    return found


def series_of(session: Session, run_ids: Sequence[int]) -> dict[str, str]:
    """Names of the series that any of the runs has, with their units; step time first."""
    rows = session.execute(
        select(SeriesRow.metric, func.max(SeriesRow.unit).label("unit"))  # type: ignore[call-overload]
        .where(col(SeriesRow.run_id).in_(run_ids), col(SeriesRow.metric).not_in(_HIDDEN))
        .group_by(SeriesRow.metric)
        .order_by(SeriesRow.metric != "step_time_ms", SeriesRow.metric)
    )
    return {row.metric: row.unit for row in rows}


def offered_runs(session: Session, q: str, *, near: int | None, without: Sequence[int]) -> tuple[RunListItem, ...]:
    """Runs to choose from that every word of `q` names: those of the stack of run `near` first, then the newest."""
    chosen = list_runs().where(col(RunRow.status).in_(("ready", "failed")), col(RunRow.id).not_in(without))
    for word in q.split():
        chosen = chosen.where(_mentions(word))
    if near is not None:
        stack = select(RunRow.stack_key).where(col(RunRow.id) == near).scalar_subquery()  # type: ignore[call-overload]
        chosen = chosen.order_by((col(RunRow.stack_key) != stack).asc())
    rows = session.execute(chosen.order_by(col(RunRow.id).desc()).limit(MOST_OFFERED))
    return tuple(list_item(row) for row in rows)


def in_order(session: Session, run_ids: Sequence[int]) -> list[tuple[int, str, str]]:
    """Runs with their config key and commit, by their place in the history. Raises NotFound."""
    rows = session.execute(
        select(RunRow.id, RunRow.config_key, RunRow.commit)  # type: ignore[call-overload]
        .where(col(RunRow.id).in_(run_ids))
        .order_by(RunRow.ordered_at, RunRow.id)
    ).all()
    _missing(set(run_ids) - {row.id for row in rows})
    return [(row.id, row.config_key, row.commit) for row in rows]


def _check(run_ids: Sequence[int], details: Mapping[int, RunDetail]) -> None:
    _missing(set(run_ids) - set(details))
    waiting = [number for number in run_ids if not details[number].done]
    if waiting:
        named = ", ".join(f"#{number}" for number in waiting)
        raise NotReady(
            f"{named} {'is' if len(waiting) == 1 else 'are'} not read yet, so there is nothing to compare. Ask again "
            "in a moment."
        )


def _missing(numbers: set[int]) -> None:
    if numbers:
        named = ", ".join(f"#{number}" for number in sorted(numbers))
        raise NotFound(f"There is no run {named}. It may have been deleted, or the address is mistyped.")


def _record(row: RunRow, found: RunDetail, loss: float | None) -> RunRecord:
    facts = facts_of(row)  # type: ignore[arg-type]  # a whole row has the columns of a slim one
    facts = replace(facts, estimate=replace(facts.estimate, loss=loss))
    return RunRecord.of(facts, found.project, found.contract)


def _mentions(word: str) -> ColumnElement[bool]:
    """Runs that a word names: by part of a text, or by number (`1842`, `#1842`)."""
    number = word.removeprefix("#")
    by_id = col(RunRow.id) == int(number) if number.isascii() and number.isdigit() and len(number) < 10 else false()
    texts = (RunRow.name, RunRow.branch, RunRow.commit, RunRow.model, RunRow.gpu, RunRow.dispatcher, ProjectRow.slug)
    return or_(by_id, *(func.lower(col(text)).contains(word.lower(), autoescape=True) for text in texts))

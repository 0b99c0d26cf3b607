"""What the service knows about the suspects of a verdict: earlier A/Bs of the project, and its other stacks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Select, and_, false, or_, select
from sqlmodel import Session, col

from app.domain.detection.step_time import EQUIVALENCE_LIMIT, RELEVANT_SHIFT
from app.domain.matching import Suspect
from app.domain.matching.differences import COMMIT
from app.domain.suspect_evidence import (
    OtherStacks,
    PastResult,
    PastResults,
    RankedSuspect,
    StackMove,
    change_pct,
    other_stacks,
    past_results,
    rank_suspects,
    suspects_of,
    value_text,
)
from app.domain.verdict_document import VerdictDocument
from app.storage.judging_tables import VerdictRow
from app.storage.tables import RunRow

MOST_RESULTS = 200
"""Newest A/Bs of a field, and newest runs of other stacks, that are looked at."""


def suspects_with_evidence(session: Session, run_id: int, document: VerdictDocument) -> tuple[RankedSuspect, ...]:
    """The suspects of the run's verdict, each with what else is known, the best supported first."""
    suspects, run = suspects_of(document), session.get(RunRow, run_id)
    if run is None or not suspects:
        return ()
    slower = (change_pct(document) or 0.0) >= 0
    at_the_time = _at_the_time(session, run, document, suspects)

    def elsewhere(suspect: Suspect) -> OtherStacks | None:
        if suspect.difference is None or not suspect.difference.is_certain:
            return None
        if suspect.difference.role == "info":
            rows: Iterable[Row[Any]] = _with_same_change(at_the_time, suspect)
        else:
            rows = session.execute(_same_contrast(run, suspect)) if suspect.difference.role == "stack" else ()
        return other_stacks(_moves(rows, slower=slower))

    return rank_suspects(change_pct(document), [(one, _past(session, run, one), elsewhere(one)) for one in suspects])


def _past(session: Session, run: RunRow, suspect: Suspect) -> PastResults | None:
    """A/Bs on the suspect's field between the same values, anywhere in the project; not this one itself."""
    if suspect.difference is None or not suspect.difference.is_certain or suspect.axis == "code":
        return None
    values = value_text(suspect.difference.a), value_text(suspect.difference.b)
    rows = session.execute(
        _current(run)
        .where(
            col(VerdictRow.attributed_to) == suspect.field,
            col(VerdictRow.comparison).in_(("matched_ab", "contrast")),
            col(VerdictRow.from_value).in_(values),
            col(VerdictRow.to_value).in_(values),
            col(VerdictRow.delta_pct).is_not(None),
        )
        .order_by(col(VerdictRow.run_id).desc())
        .limit(MOST_RESULTS)
    )
    return past_results(_one_a_candidate(rows, run), *values)


def _one_a_candidate(rows: Iterable[Row[Any]], run: RunRow) -> Iterator[PastResult]:
    """Reruns share one verdict, so they are one result; those of `run` are what is to be explained."""
    seen = {_candidate(run.stack_key, run.config_key, run.commit, run.id)}
    for row in rows:
        candidate = _candidate(row.stack_key, row.config_key, row.commit, row.run_id)
        if candidate not in seen:
            seen.add(candidate)
            yield PastResult(str(row.run_id), row.stack_key, row.from_value, row.to_value, row.delta_pct)


def _candidate(stack_key: str, config_key: str, commit: str, run_id: int | None) -> tuple[object, ...]:
    return stack_key, config_key, commit or run_id


def _at_the_time(
    session: Session, run: RunRow, document: VerdictDocument, suspects: Iterable[Suspect]
) -> Sequence[Row[Any]]:
    """CI runs of other stacks in the same range of commits; with their documents when versions are suspected, too."""
    beside = {one.field for one in suspects if one.difference is not None and one.difference.role == "info"}
    if not beside:
        return ()
    wanted = _in_commit_range(session, run, document)
    return session.execute(wanted.add_columns(VerdictRow.document) if beside - {COMMIT} else wanted).all()  # type: ignore[arg-type]


def _with_same_change(rows: Iterable[Row[Any]], suspect: Suspect) -> Iterator[Row[Any]]:
    """Those whose own verdict has the same difference. A commit is the same for all that lie in its range."""
    assert suspect.difference is not None  # noqa: S101  # the caller looked
    one = suspect.difference
    sides = tuple(None if side is None else side.value for side in (one.a, one.b))
    for row in rows:
        if suspect.field == COMMIT or (suspect.field, *sides) in _beside(row.document):
            yield row


def _beside(document: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Field and values of the differences beside the keys, from a document as it is stored."""
    found = (document.get("comparability") or {}).get("beside") or ()
    return [(one["field"], *((one.get(side) or {}).get("value") for side in ("a", "b"))) for one in found]


def _in_commit_range(session: Session, run: RunRow, document: VerdictDocument) -> Select[Any]:
    """CI runs of other stacks at the same commit, or at one between the newest baseline run and this one."""
    newest = session.get(RunRow, int(document.baseline[-1])) if document.baseline else None
    between: ColumnElement[bool] = false()
    if newest is not None:
        between = and_(col(RunRow.ordered_at) > newest.ordered_at, col(RunRow.ordered_at) <= run.ordered_at)
    return (
        _current(run)
        .where(
            col(RunRow.stack_key) != run.stack_key,
            col(RunRow.purpose) == "ci",
            or_(between, col(RunRow.commit) == run.commit),
        )
        .order_by(col(RunRow.ordered_at).desc())
        .limit(MOST_RESULTS)
    )


def _same_contrast(run: RunRow, suspect: Suspect) -> Select[Any]:
    """Other stacks that were measured across the same two values of a field of the stack."""
    assert suspect.difference is not None  # noqa: S101  # the caller looked
    return (
        _current(run)
        .where(
            col(VerdictRow.comparison) == "contrast",
            col(VerdictRow.attributed_to) == suspect.field,
            col(VerdictRow.from_value) == value_text(suspect.difference.a),
            col(VerdictRow.to_value) == value_text(suspect.difference.b),
            col(RunRow.stack_key) != run.stack_key,
        )
        .order_by(col(VerdictRow.run_id).desc())
        .limit(MOST_RESULTS)
    )


def _current(run: RunRow) -> Select[Any]:
    """Current verdicts of the run's project; quarantined runs are evidence of nothing."""
    columns = (
        VerdictRow.run_id, VerdictRow.decision, VerdictRow.delta_pct, VerdictRow.ci_low_pct, VerdictRow.ci_high_pct,
        VerdictRow.from_value, VerdictRow.to_value, RunRow.stack_key, RunRow.config_key, RunRow.commit,
    )  # fmt: skip
    chosen: Select[Any] = select(*columns)  # type: ignore[call-overload]
    return (
        chosen.select_from(VerdictRow)
        .join(RunRow, col(RunRow.id) == col(VerdictRow.run_id))
        .where(col(VerdictRow.current), col(RunRow.project_id) == run.project_id, col(RunRow.quarantine) == "")
    )


def _moves(rows: Iterable[Row[Any]], *, slower: bool) -> Iterator[StackMove]:
    for row in rows:
        if row.delta_pct is not None:
            yield StackMove(str(row.run_id), row.stack_key, _move(row, slower=slower), row.delta_pct)


def _move(row: Row[Any], *, slower: bool) -> Literal["moved", "still", "undecided"]:
    """`moved`: certainly in the direction asked about. A contrast is no verdict, so its interval decides."""
    decision = row.decision if row.decision in ("regression", "improvement", "no_change") else _by_interval(row)
    if decision == ("regression" if slower else "improvement"):
        return "moved"
    return "undecided" if decision == "inconclusive" else "still"


def _by_interval(row: Row[Any]) -> str:
    if row.decision != "no_baseline" or row.ci_low_pct is None or row.ci_high_pct is None:
        return "inconclusive"
    if abs(row.delta_pct) >= 100 * RELEVANT_SHIFT and row.ci_low_pct * row.ci_high_pct > 0:
        return "regression" if row.delta_pct > 0 else "improvement"
    return "no_change" if max(abs(row.ci_low_pct), abs(row.ci_high_pct)) <= 100 * EQUIVALENCE_LIMIT else "inconclusive"

"""The verdicts of runs as they are stored: one of a run is current; of the older ones those stay that somebody knows.

A run is judged again whenever something before it changes, so most older verdicts were never looked at. What stays: the
first, which the report of the job told; those that decided otherwise than the next; and those that stood when a person
changed something about the run or its regressions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Integer,
    Select,
    String,
    Table,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    insert,
    or_,
    select,
    update,
)
from sqlmodel import Session, col

from app.domain.contract.values import shown
from app.domain.definitions import VERDICT_VERSION
from app.domain.matching import Difference
from app.domain.verdict_document import VerdictDocument
from app.storage.audit import SERVICE
from app.storage.judging_tables import AuditEventRow, RegressionMemberRow, VerdictRow
from app.storage.run_records import aware
from app.storage.tables import RunRow, utc_now
from app.storage.typed_json import from_json, to_json

_AT_ONCE = 500
_MOST_VALUE = 500


# As tables, and made once: putting these together takes several times as long as running them.
_VERDICTS: Table = VerdictRow.__table__  # type: ignore[attr-defined]
_RUNS: Table = RunRow.__table__  # type: ignore[attr-defined]
_EVENTS: Table = AuditEventRow.__table__  # type: ignore[attr-defined]
_MEMBERS: Table = RegressionMemberRow.__table__  # type: ignore[attr-defined]
_INSERT = insert(_VERDICTS)
_EARLIER = _VERDICTS.alias()
_CHANGED_BY_A_PERSON = (
    select(_EVENTS.c.id)
    .where(
        _EVENTS.c.who != SERVICE,
        _EVENTS.c.at >= _VERDICTS.c.made_at,
        or_(
            and_(_EVENTS.c.subject == "run", _EVENTS.c.subject_id == cast(bindparam("of_run", type_=Integer), String)),
            and_(
                _EVENTS.c.subject == "regression",
                _EVENTS.c.subject_id.in_(
                    select(cast(_MEMBERS.c.regression_id, String)).where(_MEMBERS.c.run_id == bindparam("of_run"))
                ),
            ),
        ),
    )
    .correlate(_VERDICTS)
)
_FORGET = delete(_VERDICTS).where(
    _VERDICTS.c.run_id == bindparam("of_run"),
    _VERDICTS.c.current,
    _VERDICTS.c.decision == bindparam("decided"),
    exists().where(_EARLIER.c.run_id == _VERDICTS.c.run_id, _EARLIER.c.id < _VERDICTS.c.id),
    ~_CHANGED_BY_A_PERSON.exists(),
)
"""Delete the current verdict of a run if the next one decides the same and no person or report refers to it."""
_SUPERSEDE = (
    update(_VERDICTS).where(_VERDICTS.c.run_id == bindparam("of_run"), _VERDICTS.c.current).values(current=False)
)
_SHOW = (
    update(_RUNS)
    .where(_RUNS.c.id == bindparam("of_run"))
    .values(verdict=bindparam("decision"), verdict_delta_pct=bindparam("delta"))
)


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """`because`: why it was made, a sentence."""

    id: int
    run_id: int
    made_at: datetime
    because: str
    document: VerdictDocument


def current_verdict(session: Session, run_id: int) -> StoredVerdict | None:
    """None until the run was judged."""
    return current_verdicts(session, [run_id]).get(run_id)


def current_verdicts(session: Session, run_ids: Sequence[int]) -> dict[int, StoredVerdict]:
    """By run; those that were not judged are left out."""
    found: dict[int, StoredVerdict] = {}
    for start in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[start : start + _AT_ONCE]
        rows = session.execute(_select().where(col(VerdictRow.run_id).in_(some), col(VerdictRow.current)))
        found |= {verdict.run_id: verdict for verdict in _stored(rows.scalars())}
    return found


def verdicts_of(session: Session, run_id: int) -> tuple[StoredVerdict, ...]:
    """What was said about a run and is still known, newest first."""
    rows = session.execute(_select().where(col(VerdictRow.run_id) == run_id).order_by(col(VerdictRow.id).desc()))
    return tuple(_stored(rows.scalars()))


def put_verdict(
    session: Session,
    run_id: int,
    document: VerdictDocument,
    because: str,
    *,
    is_first: bool = False,
    stored: Any = None,
) -> None:
    """Make `document` the current verdict of a run; the one before stays in its record if somebody knows it.

    Where there is no baseline, the row shows what a contrast measured. `is_first`: it has none yet. `stored`: the
    document as JSON, where somebody has it already.
    """
    if not is_first:
        session.execute(_FORGET, {"of_run": run_id, "decided": document.decision})
        session.execute(_SUPERSEDE, {"of_run": run_id})
    time, found = document.measured, document.compared
    made = {
        "run_id": run_id,
        "current": True,
        "made_at": utc_now(),
        "because": because[:300],
        "decision": document.decision,
        "delta_pct": None if time is None else time.delta_pct,
        "ci_low_pct": None if time is None else time.ci_low_pct,
        "ci_high_pct": None if time is None else time.ci_high_pct,
        "baseline_kind": document.baseline_kind,
        "comparison": "" if found is None else found.kind,
        "definition_version": document.definition_version,
        "verdict_version": VERDICT_VERSION,
        "document": to_json(document) if stored is None else stored,
    }
    session.execute(_INSERT, made | _attribution(document))
    judged = document.verdict.step_time
    delta = None if judged is None else judged.delta_pct
    session.execute(_SHOW, {"of_run": run_id, "decision": document.decision, "delta": delta})


def stored_documents(session: Session, run_ids: Sequence[int]) -> dict[int, tuple[dict[str, Any], int]]:
    """Of each run that was judged the current document as it is stored, and the version of the rules behind it."""
    found: dict[int, tuple[dict[str, Any], int]] = {}
    for start in range(0, len(run_ids), _AT_ONCE):
        rows = session.execute(
            select(VerdictRow.run_id, VerdictRow.document, VerdictRow.verdict_version).where(  # type: ignore[call-overload]
                col(VerdictRow.run_id).in_(run_ids[start : start + _AT_ONCE]), col(VerdictRow.current)
            )
        )
        found |= {row.run_id: (row.document, row.verdict_version) for row in rows}
    return found


def _attribution(document: VerdictDocument) -> dict[str, Any]:
    """The one field that explains the difference, with its values on both sides; empty where none may be named."""
    found = document.compared
    field = None if found is None else found.attributed_to
    if found is None or field is None:
        return {"attributed_to": "", "from_value": "", "to_value": ""}
    one: Difference = next(one for one in (*found.stack, *found.knobs) if one.field == field)
    sides: Mapping[str, str] = {
        name: shown(side.value)[:_MOST_VALUE] if side is not None else ""
        for name, side in (("from_value", one.a), ("to_value", one.b))
    }
    return {"attributed_to": field[:100], **sides}


def _select() -> Select[Any]:
    return select(VerdictRow)


def _stored(rows: Iterable[VerdictRow]) -> Iterable[StoredVerdict]:
    return (
        StoredVerdict(
            row.id or 0, row.run_id, aware(row.made_at), row.because, from_json(VerdictDocument, row.document)
        )
        for row in rows
    )

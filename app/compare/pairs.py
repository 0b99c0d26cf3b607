"""Comparisons that are worth offering: the newest runs of a stack that differ in their knobs."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.compare.selection import Selection
from app.domain.matching import RunRecord, compare_contracts
from app.domain.verdict_words import differences
from app.storage.stack_runs import full_records
from app.storage.tables import RunRow

MOST_PAIRS = 6
_LOOKED_AT = 60


@dataclass(frozen=True, slots=True)
class Pair:
    """`a` is the earlier one. `differs` in words; `matched`: exactly one knob does."""

    a: int
    b: int
    name_a: str
    name_b: str
    differs: str
    matched: bool
    address: str


def recent_pairs(session: Session) -> tuple[Pair, ...]:
    """Among the newest runs with figures: each with the one before it in its stack, if that has other knobs."""
    rows = session.execute(
        select(RunRow.id, RunRow.name, RunRow.stack_key, RunRow.config_key)  # type: ignore[call-overload]
        .where(col(RunRow.status) == "ready", col(RunRow.quarantine) == "", col(RunRow.step_time_ms).is_not(None))
        .order_by(col(RunRow.id).desc())
        .limit(_LOOKED_AT)
    ).all()
    found: list[tuple[int, int]] = []
    newer: dict[str, tuple[int, str]] = {}
    for row in rows:
        if row.stack_key in newer and newer[row.stack_key][1] != row.config_key:
            found.append((row.id, newer[row.stack_key][0]))
        newer[row.stack_key] = (row.id, row.config_key)
    found = found[:MOST_PAIRS]
    records = full_records(session, sorted({number for pair in found for number in pair}))
    names = {row.id: row.name for row in rows}
    return tuple(pair for a, b in found if (pair := _pair(a, b, records, names)) is not None)


def _pair(a: int, b: int, records: dict[str, RunRecord], names: dict[int, str]) -> Pair | None:
    comparability = compare_contracts(records[str(a)], records[str(b)])
    if comparability.kind not in ("matched_ab", "side_by_side"):
        return None
    return Pair(
        a=a,
        b=b,
        name_a=names[a],
        name_b=names[b],
        differs=differences(comparability.knobs),
        matched=comparability.kind == "matched_ab",
        address=Selection(a=(a,), b=(b,)).address(),
    )

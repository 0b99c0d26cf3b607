"""Who took a run out of every ranking, and when: the reason alone does not say whom to ask."""

from collections.abc import Iterable, Mapping

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.ranking import StackStandings
from app.domain.ranking.eligibility import Refusal
from app.storage.run_records import Quarantine, aware
from app.storage.standings import KeptStandings
from app.storage.tables import RunRow


def quarantines_of(session: Session, stacks: Iterable[KeptStandings]) -> Mapping[str, Quarantine]:
    """By run, of the runs of these stacks that are left out because of it."""
    left_out = (one for kept in stacks for one in _left_out(kept.standings) if one.why == "quarantined")
    runs = sorted({int(one.run) for one in left_out})
    if not runs:
        return {}
    columns = (RunRow.id, RunRow.quarantine, RunRow.quarantined_by, RunRow.quarantined_at)
    chosen = select(*columns).where(col(RunRow.id).in_(runs), col(RunRow.quarantine) != "")  # type: ignore[call-overload]
    return {
        str(run): Quarantine(reason, who, aware(at) if at else None) for run, reason, who, at in session.execute(chosen)
    }


def _left_out(standings: StackStandings) -> Iterable[Refusal]:
    return (*standings.refused, *(one for board in standings.boards for one in board.unranked))

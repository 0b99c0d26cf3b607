"""The place of a run in the history of its stack: when its commit was made, else when it was uploaded.

A rerun takes the place of the first run of its commit and configuration, so that what came after it stays after it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, update
from sqlmodel import Session, col

from app.domain.metadata import read_metadata
from app.storage.run_records import aware
from app.storage.tables import RunRow


def settle_places(session: Session, project_id: int, config_key: str, commit: str) -> datetime | None:
    """Give all runs of one commit and configuration the place of the first; the earliest that one of them left or took.

    None when nothing moved. The stack must be locked (`ask_to_judge`), or two reruns that are read at once miss each
    other.
    """
    rows: Sequence[Row[Any]] = session.execute(
        select(RunRow.id, RunRow.created_at, RunRow.ordered_at, RunRow.metadata_stated)  # type: ignore[call-overload]
        .where(col(RunRow.config_key) == config_key, col(RunRow.project_id) == project_id, col(RunRow.commit) == commit)
        .order_by(col(RunRow.id))
    ).all()
    if not rows:
        return None
    place = read_metadata(rows[0].metadata_stated).commit_time or aware(rows[0].created_at)
    moved = [row for row in rows if aware(row.ordered_at) != place]
    if not moved:
        return None
    statement = update(RunRow).where(col(RunRow.id).in_([row.id for row in moved])).values(ordered_at=place)
    session.execute(statement.execution_options(synchronize_session=False))
    return min(place, *(aware(row.ordered_at) for row in moved))

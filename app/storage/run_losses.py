"""The losses of runs by iteration, read from their series: whoever compares them reads nothing else."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.matching.shared_loss import LOSS_NAMES, Losses, losses_of
from app.domain.run import FloatArray
from app.storage import series
from app.storage.tables import SeriesRow


def losses_of_runs(session: Session, names: Sequence[str]) -> dict[str, Losses]:
    """By the names of runs, as text; empty losses of those that printed none."""
    columns: dict[str, dict[str, FloatArray]] = {str(int(name)): {} for name in names}
    if columns:
        rows = session.execute(
            select(SeriesRow.run_id, SeriesRow.metric, SeriesRow.blob).where(  # type: ignore[call-overload]
                col(SeriesRow.run_id).in_([int(name) for name in columns]),
                col(SeriesRow.metric).in_(("iteration", *LOSS_NAMES)),
            )
        )
        for row in rows:
            columns[str(row.run_id)][row.metric] = series.unpack(row.blob)
    return {name: losses_of(found) for name, found in columns.items()}

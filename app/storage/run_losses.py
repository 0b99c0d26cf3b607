"""The losses of runs by iteration, read from their series: whoever compares them reads nothing else."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, bindparam, select
from sqlmodel import Session, col

from app.domain.matching.shared_loss import LOSS_NAMES, Losses, losses_of
from app.domain.run import FloatArray
from app.storage import series
from app.storage.tables import SeriesRow

_LOSSES: Select[Any] = select(SeriesRow.run_id, SeriesRow.metric, SeriesRow.blob).where(  # type: ignore[call-overload]
    col(SeriesRow.run_id).in_(bindparam("run_ids", expanding=True)),
    col(SeriesRow.metric).in_(("iteration", *LOSS_NAMES)),
)


def losses_of_runs(session: Session, names: Sequence[str]) -> dict[str, Losses]:
    """By the names of runs, as text; empty losses of those that printed none."""
    columns: dict[str, dict[str, FloatArray]] = {str(int(name)): {} for name in names}
    if columns:
        rows = session.execute(_LOSSES, {"run_ids": [int(name) for name in columns]}).all()
        for row, values in zip(rows, series.unpack_all(row.blob for row in rows), strict=True):
            columns[str(row.run_id)][row.metric] = values
    return {name: losses_of(found) for name, found in columns.items()}

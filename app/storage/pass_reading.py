"""What one pass over a stack reads of single runs: whole contracts and losses; each run once."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.matching import RunFacts, RunRecord
from app.domain.matching.shared_loss import LOSS_NAMES, Losses, losses_of, typical_losses
from app.domain.run import FloatArray
from app.storage import series
from app.storage.stack_runs import full_records
from app.storage.tables import SeriesRow


class PassReading:
    """Runs go by their names, as text. A history that is judged whole meets each of them twenty times."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records: dict[str, RunRecord] = {}
        self._losses: dict[str, Losses] = {}

    def records(self, names: Sequence[str]) -> list[RunRecord]:
        missing = [int(name) for name in names if name not in self._records]
        if missing:
            self._records |= full_records(self._session, missing)
        return [self._records[name] for name in names]

    def record(self, name: str) -> RunRecord:
        return self.records([name])[0]

    def with_losses(self, runs: Sequence[RunFacts]) -> list[RunFacts]:
        """The same runs with their typical losses over the iterations that all of them have."""
        self._read_losses([run.run for run in runs])
        losses = typical_losses([self._losses[run.run] for run in runs])
        return [
            run if loss is None else replace(run, estimate=replace(run.estimate, loss=loss))
            for run, loss in zip(runs, losses, strict=True)
        ]

    def _read_losses(self, names: Sequence[str]) -> None:
        missing = [int(name) for name in names if name not in self._losses]
        columns: dict[str, dict[str, FloatArray]] = {str(name): {} for name in missing}
        if missing:
            rows = self._session.execute(
                select(SeriesRow.run_id, SeriesRow.metric, SeriesRow.blob).where(  # type: ignore[call-overload]
                    col(SeriesRow.run_id).in_(missing), col(SeriesRow.metric).in_(("iteration", *LOSS_NAMES))
                )
            )
            for row in rows:
                columns[str(row.run_id)][row.metric] = series.unpack(row.blob)
        self._losses |= {name: losses_of(found) for name, found in columns.items()}

"""What one pass over a stack reads of single runs: whole contracts and losses; each run once."""

from collections.abc import Sequence
from dataclasses import replace

from sqlmodel import Session

from app.domain.matching import RunFacts, RunRecord
from app.domain.matching.shared_loss import Losses, typical_losses
from app.storage.run_losses import losses_of_runs
from app.storage.stack_runs import full_records


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
        missing = [name for name in names if name not in self._losses]
        self._losses |= losses_of_runs(self._session, missing)

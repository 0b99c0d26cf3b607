"""How much launches of a family vary: other configurations of the project on the same GPU and of the same class.

Only what came before a run counts, so that judging it again later gives the same answer.
"""

from bisect import bisect_left
from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.detection import DEFAULT_PRIOR, Prior, RunEstimate, family_prior
from app.domain.detection.values import FEWEST_ITERATIONS
from app.domain.matching import RunFacts
from app.domain.matching.record import UNFIT
from app.domain.matching.selection import current_level
from app.storage.run_records import aware
from app.storage.stack_runs import COMPARED, StackRun, facts_of
from app.storage.tables import RunRow

MOST_RUNS = 200
"""The newest runs of the family that are looked at: ten configurations of 20 runs, of which five are enough."""


class Family:
    """The priors for runs of one configuration at places from `first` to `last`, all of them like `run`.

    A run whose GPU is unknown has no family.
    """

    def __init__(self, session: Session, run: StackRun, first: datetime, last: datetime) -> None:
        chosen = (
            select(*COMPARED, RunRow.ordered_at)  # type: ignore[call-overload]
            .where(
                col(RunRow.project_id) == run.project_id,
                col(RunRow.gpu) == (run.gpu or ""),
                col(RunRow.semantic_class) == run.semantic_class,
                col(RunRow.definition_version) == run.definition_version,
                col(RunRow.config_key) != run.config_key,
                col(RunRow.purpose) == "ci",
                col(RunRow.status) == "ready",
                col(RunRow.is_steady),
                col(RunRow.short).is_(False),
                col(RunRow.quarantine) == "",
                col(RunRow.outcome).not_in(UNFIT),
                col(RunRow.not_finite) == 0,
                col(RunRow.window_length) >= FEWEST_ITERATIONS,
                col(RunRow.log_step_time).is_not(None),
            )
            .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        )
        rows = list(session.execute(chosen.where(col(RunRow.ordered_at) < first).limit(MOST_RUNS)).all()[::-1])
        if last > first:
            between = chosen.where(col(RunRow.ordered_at) >= first, col(RunRow.ordered_at) < last)
            rows += session.execute(between).all()[::-1]
        self._places = [aware(row.ordered_at) for row in rows]
        self._facts = [facts_of(row) for row in rows]
        self._levels: dict[tuple[str, ...], list[RunEstimate]] = {}
        self._priors: dict[int, Prior] = {}

    def prior(self, place: datetime) -> Prior:
        end = bisect_left(self._places, place)
        if end not in self._priors:
            groups: dict[str, list[RunFacts]] = {}
            for one in self._facts[max(0, end - MOST_RUNS) : end]:
                groups.setdefault(one.config_key, []).append(one)
            self._priors[end] = family_prior([self._level(group) for group in groups.values()])
        return self._priors[end]

    def _level(self, group: list[RunFacts]) -> list[RunEstimate]:
        """The runs of the current level: a change of speed is no variation of launches."""
        key = tuple(one.run for one in group)
        if key not in self._levels:
            self._levels[key] = [one.estimate for one in current_level(group, DEFAULT_PRIOR)]
        return self._levels[key]

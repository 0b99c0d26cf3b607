"""How much launches of a family vary: other configurations of the project on the same GPU and of the same class.

Only what came before a run counts, so that judging it again later gives the same answer.
"""

from bisect import bisect_left
from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.detection import DEFAULT_PRIOR, Prior, RunEstimate, family_prior
from app.domain.matching import RunFacts
from app.domain.matching.selection import current_level
from app.storage.run_records import aware
from app.storage.stack_runs import COMPARED, StackRun, facts_of
from app.storage.tables import RunRow

MOST_RUNS = 300
"""The newest runs of the family that are looked at: 15 configurations of 20 runs, of which five are enough."""


class Family:
    """The priors of one family, for runs of one stack that are judged in the order of their places."""

    def __init__(self, session: Session, project_id: int, run: StackRun, first: datetime) -> None:
        gpu = session.execute(select(RunRow.gpu).where(col(RunRow.id) == run.id)).scalar_one()  # type: ignore[call-overload]
        chosen = (
            select(*COMPARED, RunRow.ordered_at)  # type: ignore[call-overload]
            .where(
                col(RunRow.project_id) == project_id,
                col(RunRow.gpu) == gpu,
                col(RunRow.semantic_class) == run.semantic_class,
                col(RunRow.definition_version) == run.definition_version,
                col(RunRow.purpose) == "ci",
                col(RunRow.status) == "ready",
                col(RunRow.is_steady),
                col(RunRow.short).is_(False),
                col(RunRow.quarantine) == "",
            )
            .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        )
        # SQL comparisons with None are never true: runs of an unknown GPU have no family.
        before = session.execute(chosen.where(col(RunRow.ordered_at) < first).limit(2 * MOST_RUNS)).all()[::-1]
        since = session.execute(chosen.where(col(RunRow.ordered_at) >= first)).all()[::-1]
        rows = [(aware(row.ordered_at), facts_of(row)) for row in (*before, *since)]
        rows = [(at, one) for at, one in rows if not one.never_a_baseline_because]
        self._places = [at for at, _ in rows]
        self._facts = [one for _, one in rows]
        self._levels: dict[tuple[str, ...], list[RunEstimate]] = {}
        self._priors: dict[tuple[tuple[str, ...], ...], Prior] = {}

    def prior(self, config_key: str, place: datetime) -> Prior:
        """For a run of `config_key` at `place`."""
        groups: dict[str, list[RunFacts]] = {}
        end = bisect_left(self._places, place)
        for one in self._facts[max(0, end - MOST_RUNS) : end]:
            if one.config_key != config_key:
                groups.setdefault(one.config_key, []).append(one)
        key = tuple(tuple(one.run for one in group) for group in groups.values())
        if key not in self._priors:
            self._priors[key] = family_prior([self._level(group) for group in groups.values()])
        return self._priors[key]

    def _level(self, group: list[RunFacts]) -> list[RunEstimate]:
        """The runs of the current level: a change of speed is no variation of launches."""
        key = tuple(one.run for one in group)
        if key not in self._levels:
            self._levels[key] = [one.estimate for one in current_level(group, DEFAULT_PRIOR)]
        return self._levels[key]

"""How much launches of a family vary: other configurations of the project on the same GPU and of the same class.

Only what came before a run counts, so that judging it again later gives the same answer.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, Select, bindparam, select
from sqlmodel import Session, col

from app.domain.detection import DEFAULT_PRIOR, Prior, RunEstimate
from app.domain.detection.prior import Sample, prior_of, sample_of
from app.domain.detection.values import FEWEST_ITERATIONS
from app.domain.history import find_changes
from app.domain.matching.record import UNFIT
from app.storage.judging_tables import EVERYTHING
from app.storage.run_records import aware
from app.storage.stack_runs import StackRun
from app.storage.tables import RunRow

MOST_RUNS = 200
"""The newest runs of the family that are looked at: ten configurations of 20 runs, of which five are enough."""
_REMEMBERED = 4096

_CHOSEN: Select[Any] = (
    select(  # type: ignore[call-overload]
        RunRow.config_key, RunRow.ordered_at, RunRow.log_step_time
    )
    .where(
        col(RunRow.project_id) == bindparam("project_id"),
        col(RunRow.gpu) == bindparam("gpu"),
        col(RunRow.semantic_class) == bindparam("semantic_class"),
        col(RunRow.definition_version) == bindparam("definition_version"),
        col(RunRow.config_key) != bindparam("config_key"),
        col(RunRow.ordered_at) >= bindparam("since"),
        col(RunRow.ordered_at) < bindparam("until"),
        col(RunRow.purpose) == "ci",
        col(RunRow.status) == "ready",
        # What can be a baseline (`RunFacts.never_a_baseline_because`), for the database.
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
_NEWEST = _CHOSEN.limit(MOST_RUNS)


@dataclass(frozen=True, slots=True)
class Relative:
    """What a run's family is known by; `config_key` is its own, which teaches nothing about itself."""

    project_id: int
    gpu: str | None
    semantic_class: str
    definition_version: int
    config_key: str


class Family:
    """The priors for runs of one configuration at places from `first` to `last`, all of them like `run`.

    A run whose GPU is unknown has no family.
    """

    def __init__(self, session: Session, run: StackRun | Relative, first: datetime, last: datetime) -> None:
        like = {
            "project_id": run.project_id,
            "gpu": run.gpu or "",
            "semantic_class": run.semantic_class,
            "definition_version": run.definition_version,
            "config_key": run.config_key,
        }
        rows = list(session.execute(_NEWEST, like | {"since": EVERYTHING, "until": first}).all()[::-1])
        if last > first:
            rows += session.execute(_CHOSEN, like | {"since": first, "until": last}).all()[::-1]
        self._rows: Sequence[Row[Any]] = rows
        self._places = [aware(row.ordered_at) for row in rows]
        self._priors: dict[int, Prior] = {}

    def prior(self, place: datetime) -> Prior:
        end = bisect_left(self._places, place)
        if end not in self._priors:
            groups: dict[str, list[float]] = {}
            for row in self._rows[max(0, end - MOST_RUNS) : end]:
                groups.setdefault(row.config_key, []).append(row.log_step_time)
            self._priors[end] = prior_of(sample_of_level(tuple(group)) for group in groups.values())
        return self._priors[end]


@lru_cache(maxsize=_REMEMBERED)
def sample_of_level(log_step_times: tuple[float, ...]) -> Sample | None:
    """What the current level of a configuration tells: a change of speed is no variation of launches.

    Of runs that can be a baseline. Remembered by the process: every stack of a family looks at the same runs.
    """
    start = find_changes(log_step_times, DEFAULT_PRIOR).current.start
    level = enumerate(log_step_times[start:])
    return sample_of([RunEstimate(str(run), value, 0.0, FEWEST_ITERATIONS) for run, value in level])

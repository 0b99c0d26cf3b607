"""One comparison, from the database to its answer: what the page and the API both show."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from sqlmodel import Session

from app.compare.queries import ComparedRun, read_runs
from app.compare.selection import Selection
from app.domain.comparison import MetricOutcome, SideComparison, Told, compare_sides, metric_outcomes, told
from app.domain.comparison.distribution import Distribution, distribution, window_step_times
from app.domain.comparison.same import SameField, same_fields
from app.domain.detection import Prior
from app.domain.run import FloatArray
from app.storage.family import Family, Relative


@dataclass(frozen=True, slots=True)
class LossAtEnd:
    """Medians over the last iterations that all runs share; None where a side has no loss."""

    baseline: float | None
    candidate: float | None
    delta_pct: float | None
    alarm_pct: float | None
    decision: str


class Comparison:
    """Both sides of a selection that has something on each. Raises NotFound and NotReady when it is made."""

    def __init__(self, session: Session, selection: Selection) -> None:
        found = read_runs(session, selection.runs)
        # Oldest first by their place in the history, as verdicts take them.
        self.a, self.b = (
            tuple(sorted((found[number] for number in side), key=lambda run: (run.detail.ordered_at, run.id)))
            for side in (selection.a, selection.b)
        )
        self.selection = selection
        records_a, records_b = ([run.record for run in side] for side in (self.a, self.b))
        self.sides: SideComparison = compare_sides(records_a, records_b, _prior(session, self.newest_b))

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        return (*self.a, *self.b)

    @property
    def newest_a(self) -> ComparedRun:
        return self.a[-1]

    @property
    def newest_b(self) -> ComparedRun:
        return self.b[-1]

    @property
    def left_out(self) -> Mapping[int, str]:
        """Why a run counts for nothing in the figures of its side, by its number."""
        refused = {int(one.run): one.why for one in self.sides.left_out}
        outliers = self.sides.measured.dropped if self.sides.measured is not None else ()
        return refused | {int(one.run): one.why for one in outliers}

    @cached_property
    def told(self) -> Told:
        return told(self.sides)

    @cached_property
    def same(self) -> tuple[SameField, ...]:
        return same_fields(self.newest_a.record.contract, self.newest_b.record.contract)

    @cached_property
    def outcomes(self) -> Mapping[str, MetricOutcome | None]:
        return metric_outcomes(self.sides, {str(run.id): run.detail.metrics for run in self.runs})

    @property
    def loss(self) -> LossAtEnd | None:
        """None where no run has one."""
        a, b = (_middle([run.record.estimate.loss for run in side]) for side in (self.a, self.b))
        if a is None and b is None:
            return None
        measured = self.sides.measured and self.sides.measured.loss
        if not measured:
            return LossAtEnd(a, b, None, None, "not_judged")
        return LossAtEnd(a, b, measured.delta_pct, measured.alarm_pct, measured.decision)

    @cached_property
    def windows(self) -> Mapping[int, FloatArray]:
        """Step times of each run's steady window, in ms."""
        return {run.id: window_step_times(dict(run.columns), run.detail.steady_state) for run in self.runs}

    @cached_property
    def distributions(self) -> Mapping[int, Distribution | None]:
        return {run.id: distribution(self.windows[run.id], run.detail.steady_state) for run in self.runs}


def _middle(values: list[float | None]) -> float | None:
    """The median, with None for a set of which a run knows nothing."""
    known = sorted(value for value in values if value is not None)
    if not known or len(known) < len(values):
        return None
    half = len(known) // 2
    return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2


def _prior(session: Session, run: ComparedRun) -> Prior:
    """That of the verdict of side b, so that a comparison says of a run and its baseline what its verdict says."""
    detail, record = run.detail, run.record
    gpu = record.contract.get("gpu")
    place = detail.ordered_at or detail.created_at
    relative = Relative(
        detail.project_id,
        None if gpu is None else str(gpu.value),
        record.semantic_class,
        record.definition_version,
        record.config_key,
    )
    return Family(session, relative, place, place).prior(place)

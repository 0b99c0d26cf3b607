"""All that `compare` knows when it prints."""

from dataclasses import dataclass

from app.analysis.reading import Analysis
from app.domain.detection import Verdict
from app.domain.detection.metric_changes import MetricChange, metric_changes
from app.domain.matching import Assessment


@dataclass(frozen=True, slots=True)
class Comparison:
    """`candidates`: reruns of the run to judge. `earlier`: what was named as baseline, oldest first.

    `of_other_stacks`: those of them that matching passed over, each with the reason.
    """

    assessment: Assessment
    candidates: tuple[Analysis, ...]
    earlier: tuple[Analysis, ...]
    of_other_stacks: tuple[tuple[str, str], ...]
    exit_code: int

    def changes(self, verdict: Verdict) -> dict[str, MetricChange | None]:
        """Of each headline figure, by the verdict or by a measured contrast."""
        return metric_changes(verdict, {run.name: run.summary.metrics for run in (*self.candidates, *self.earlier)})

    @property
    def provisional(self) -> bool:
        found = self.assessment.choice.comparability
        return found is not None and found.provisional

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Runs that count on neither side, each with the reason."""
        chosen = [(one.run, one.why) for one in self.assessment.choice.left_out]
        judged = [(one.run, one.why) for one in self.assessment.verdict.dropped]
        return list(dict.fromkeys([*chosen, *judged, *self.of_other_stacks]))

    @property
    def to_supply(self) -> tuple[str, ...]:
        """Fields to state: those of the comparison, or without one those that hide a near miss."""
        found = self.assessment.choice.comparability
        if found is not None:
            return found.unknown
        missing = (
            name for miss in self.assessment.misses for name in _uncertain(miss.comparability.unknown, miss.fields)
        )
        return tuple(dict.fromkeys(missing))


def _uncertain(unknown: tuple[str, ...], differing: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in unknown if name in differing or name == "env")

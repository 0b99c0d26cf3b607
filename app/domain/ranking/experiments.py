"""A/Bs of two dispatchers, and whether they contradict a ranking."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.numbers import gain_change, level_text
from app.domain.ranking.pairwise import PairwiseComparison

INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class DispatcherExperiment:
    """A finished A/B of two dispatchers alone, the candidate first. `runs`: by dispatcher, those that count.

    `comparison`: None if the step times cannot be compared; `level_pct`: of its interval; `excluded_gain_pct`: the gain
    that an undecided one excludes, as its page says, else None.
    """

    id: int
    dispatchers: tuple[str, str]
    comparison: PairwiseComparison | None = None
    runs: Mapping[str, Collection[str]] = field(default_factory=dict)
    level_pct: float = 0.0
    excluded_gain_pct: float | None = None

    @property
    def faster(self) -> str:
        """Return the dispatcher that it found faster; empty without one."""
        return self.comparison.winner if self.comparison else ""

    @property
    def keeps(self) -> str:
        """Return the baseline if the A/B excludes a relevant gain of the candidate; else empty."""
        return self.dispatchers[1] if self.excluded_gain_pct is not None else ""

    @property
    def result(self) -> str:
        pair = self.comparison
        if pair is None or pair.outcome == "undecided":
            return INCONCLUSIVE if self.excluded_gain_pct is None else "no gain"
        return "equal" if pair.tie else gain_change(pair.gain_pct).figure

    @property
    def interval(self) -> str:
        """Return the interval of an inconclusive one."""
        pair = self.comparison
        text = gain_change(pair.gain_pct, pair.low_pct, pair.high_pct).interval if pair and not self.faster else ""
        return f"{text} at {level_text(self.level_pct)}" if text else ""

    @property
    def text(self) -> str:
        """Return `A/B #6: inconclusive`, or `A/B #6: hybridep 1.5 % faster`."""
        return f"A/B #{self.id}: {f'{self.dispatchers[0]} {self.result}' if self.faster else self.result}"

    @property
    def than(self) -> str:
        """Return the change of the candidate as on the page of the A/B: `1.9 % slower than`; empty without one."""
        return gain_change(self.comparison.gain_pct).than if self.comparison else ""

    @property
    def outcome(self) -> str:
        """Return `deepep 17.0 % faster than alltoall`, or `hybridep 1.9 % slower than deepep, inconclusive`."""
        pair = self.comparison
        if pair is None or not self.faster:
            return f"{self.dispatchers[0]} {self.than or 'against'} {self.dispatchers[1]}, {self.result}"
        ahead = pair if pair.first == self.faster else pair.turned()
        return f"{ahead.first} {gain_change(ahead.gain_pct).than} {ahead.second}"


def contradictions(experiments: Iterable[DispatcherExperiment], winner: str, rival: str) -> list[DispatcherExperiment]:
    """Return the A/Bs of the two that neither found `winner` faster nor found no gain from `rival`."""
    of_both = [item for item in experiments if {winner, rival} == set(item.dispatchers)]
    return [item for item in of_both if winner not in (item.faster, item.keeps)]


def without_gain(experiments: Iterable[DispatcherExperiment], winner: str, rival: str) -> DispatcherExperiment | None:
    """Return the first A/B of the two that found no relevant gain from `rival`."""
    return next((item for item in experiments if item.keeps == winner and rival in item.dispatchers), None)


def ab_at_equal_knobs(
    experiments: Iterable[DispatcherExperiment], pair: PairwiseComparison, runs: Sequence[str]
) -> tuple[DispatcherExperiment, PairwiseComparison] | None:
    """Return the A/B of the pair, whose first dispatcher made `runs`, with its comparison in that order.

    Its result is the one figure of two configurations at equal knobs: its runs alternate, and more runs of one side do
    not change it.
    """
    for item in experiments:
        own = item.runs.get(pair.first)
        if item.comparison and own and set(item.dispatchers) == {pair.first, pair.second} and set(own) <= set(runs):
            return item, item.comparison if item.comparison.first == pair.first else item.comparison.turned()
    return None

"""Where nothing may be compared: the earlier runs that came closest, and the fields that stand between."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.matching.comparability import Comparability, compare_contracts
from app.domain.matching.record import RunRecord

MOST_MISSES = 3


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The newest run of a stack that is not the run's own, or of its own when none of that can be a baseline.

    `alike`: how many of the runs looked at have its config key. `never_a_baseline_because`: empty when the contract is
    all that stands between.
    """

    run: str
    comparability: Comparability
    alike: int
    never_a_baseline_because: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Members of the keys that differ or may differ, those of the stack first."""
        return tuple(one.field for one in (*self.comparability.stack, *self.comparability.knobs))


def nearest_misses(
    run: RunRecord, earlier: Sequence[RunRecord], most: int = MOST_MISSES, counts: Mapping[str, int] | None = None
) -> tuple[NearMiss, ...]:
    """One run a stack, those first that differ in the fewest members of the stack key, then in the fewest knobs.

    `earlier`: oldest first. One comparison is made for each config key among them. `counts`: how many runs there are
    of each, where only some of them are given.
    """
    alike: dict[str, list[RunRecord]] = {}
    for one in reversed(earlier):
        if one.run != run.run:
            alike.setdefault(one.config_key, []).append(one)
    found = [_miss(run, runs, (counts or {}).get(key, len(runs))) for key, runs in alike.items()]
    # Sorting keeps the newest first among equals.
    ranked = sorted(found, key=lambda pair: (len(pair[1].comparability.stack), len(pair[1].comparability.knobs)))
    return tuple(_first_of_each_stack(ranked))[:most]


def _miss(run: RunRecord, runs: Sequence[RunRecord], count: int) -> tuple[str, NearMiss]:
    """The newest of `runs`, which share a config key, that can be a baseline; else the newest. With its stack key."""
    best = next((one for one in runs if not one.never_a_baseline_because), runs[0])
    miss = NearMiss(best.run, compare_contracts(best, run), count, best.never_a_baseline_because)
    return best.stack_key, miss


def _first_of_each_stack(ranked: Iterable[tuple[str, NearMiss]]) -> list[NearMiss]:
    first: dict[str, NearMiss] = {}
    for stack, miss in ranked:
        first.setdefault(stack, miss)
    return list(first.values())

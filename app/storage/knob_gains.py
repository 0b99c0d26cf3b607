"""What matched A/Bs of this service say of a knob: the gain of each, read in the direction of a suggestion."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from app.domain.rules.knob import Knob
from app.domain.rules.precedence import OwnResult
from app.storage.matched_abs import AB, MOST_RESULTS, matched_abs

__all__ = ["AB", "MOST_RESULTS", "Gain", "MeasuredHere", "gains_of", "matched_abs", "measured"]


@dataclass(frozen=True, slots=True)
class Gain:
    """One A/B, in percent of throughput, with its interval. `experiment_id` None: it is the verdict on that run."""

    pct: float
    low: float
    high: float
    run_id: int
    stack_key: str
    at: datetime
    experiment_id: int | None = None

    @property
    def paid_off(self) -> bool:
        """It was faster, beyond its interval."""
        return self.low > 0


@dataclass(frozen=True, slots=True)
class MeasuredHere:
    """`result`: what was gained on one stack, or on several; `runs`: the candidates of the A/Bs. `experiments`: those
    of them that were planned; the verdicts on their runs are not counted beside them."""

    result: OwnResult
    runs: tuple[int, ...]
    experiments: tuple[int, ...] = ()


def gains_of(rows: Iterable[AB], knob: Knob) -> list[Gain]:
    """Those of them that turned this knob, either way."""
    return [gain for row in rows if (gain := _gain(row, knob)) is not None]


def _gain(row: AB, knob: Knob) -> Gain | None:
    """The A/B read in the direction of the suggestion; None where it is about other values."""
    if row.attributed_to != knob.field or knob.wanted not in (row.from_value, row.to_value):
        return None
    forwards = row.to_value == knob.wanted
    if knob.now and knob.now != (row.from_value if forwards else row.to_value):
        return None
    low = row.delta_pct if row.ci_low_pct is None else row.ci_low_pct
    high = row.delta_pct if row.ci_high_pct is None else row.ci_high_pct
    if forwards:  # longer steps are less throughput
        middle, least, most = _throughput(row.delta_pct), _throughput(high), _throughput(low)
    else:
        middle, least, most = row.delta_pct, low, high
    return Gain(middle, least, most, row.run_id, row.stack_key, row.ordered_at, row.experiment_id)


def _throughput(step_time_pct: float) -> float:
    """Change of throughput, in percent, of a step time that changed by so many percent."""
    return 100 * (1 / max(1 + step_time_pct / 100, 1e-3) - 1)


def measured(
    rule: str, gains: Sequence[Gain], contract: Mapping[str, object] | None = None, *, same_contract: bool
) -> MeasuredHere:
    """Gains as one result. `contract`: under which the newest was measured; not empty."""
    result = OwnResult(
        rule=rule,
        n=len(gains),
        median_gain_pct=median(gain.pct for gain in gains),
        low_pct=min(gain.low for gain in gains),
        high_pct=max(gain.high for gain in gains),
        stacks=tuple(dict.fromkeys(gain.stack_key for gain in gains)),
        newest=f"{max(gain.at for gain in gains):%Y-%m-%d}",
        contract=contract or {},
        same_contract=same_contract,
    )
    experiments = tuple(gain.experiment_id for gain in gains if gain.experiment_id is not None)
    return MeasuredHere(result, tuple(gain.run_id for gain in gains), experiments)

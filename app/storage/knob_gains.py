"""What matched A/Bs of this service say of a knob: the gain of each, read in the direction of a suggestion."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Row, select
from sqlmodel import Session, col

from app.domain.rules.knob import Knob
from app.domain.rules.precedence import OwnResult
from app.storage.judging_tables import VerdictRow
from app.storage.tables import RunRow

MOST_RESULTS = 500
"""Newest A/Bs on the knobs in question that are looked at for one run."""

_COLUMNS = (
    VerdictRow.run_id, VerdictRow.attributed_to, VerdictRow.delta_pct, VerdictRow.ci_low_pct,
    VerdictRow.ci_high_pct, VerdictRow.from_value, VerdictRow.to_value, RunRow.stack_key, RunRow.config_key,
    RunRow.commit, RunRow.ordered_at, RunRow.project_id,
)  # fmt: skip

AB = Row[Any]
"""A matched A/B as it is stored: `_COLUMNS`."""


@dataclass(frozen=True, slots=True)
class Gain:
    """One A/B, in percent of throughput, with its interval."""

    pct: float
    low: float
    high: float
    run_id: int
    stack_key: str
    at: datetime

    @property
    def paid_off(self) -> bool:
        """It was faster, beyond its interval."""
        return self.low > 0


@dataclass(frozen=True, slots=True)
class MeasuredHere:
    """`result`: what was gained on one stack, or on several; `runs`: the candidates of the A/Bs."""

    result: OwnResult
    runs: tuple[int, ...]


def matched_abs(
    session: Session, fields: Sequence[str], project_id: int | None = None, most: int = MOST_RESULTS
) -> list[AB]:
    """Current matched A/Bs on these fields, newest first, each once; quarantined runs are evidence of nothing.

    `project_id` None: of all projects.
    """
    chosen = (
        select(*_COLUMNS)  # type: ignore[call-overload]
        .join(RunRow, col(RunRow.id) == col(VerdictRow.run_id))
        .where(
            col(VerdictRow.current),
            col(VerdictRow.comparison) == "matched_ab",
            col(VerdictRow.attributed_to).in_(fields),
            col(VerdictRow.delta_pct).is_not(None),
            col(RunRow.quarantine) == "",
        )
        .order_by(col(VerdictRow.run_id).desc())
        .limit(most)
    )
    if project_id is not None:
        chosen = chosen.where(col(RunRow.project_id) == project_id)
    return _one_a_candidate(session.execute(chosen).all())


def _one_a_candidate(rows: Iterable[AB]) -> list[AB]:
    """Reruns share one verdict, so they are one result."""
    found: dict[tuple[object, ...], AB] = {}
    for row in rows:
        found.setdefault((row.stack_key, row.config_key, row.commit or row.run_id), row)
    return list(found.values())


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
    return Gain(middle, least, most, row.run_id, row.stack_key, row.ordered_at)


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
    return MeasuredHere(result, tuple(gain.run_id for gain in gains))

"""Golden runs of a stack, and how far they are apart: a re-pinned baseline must not hide a slow drift."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from app.domain.history_view.configurations import Configuration
from app.domain.history_view.standing import HistoryRun, has_figure

P = TypeVar("P", bound="Pin")


class Pin(Protocol):
    """A run that a person made golden; `in_force` until it was unpinned. Any frozen value with these will do."""

    @property
    def id(self) -> int: ...
    @property
    def run_id(self) -> int: ...
    @property
    def pinned_by(self) -> str: ...
    @property
    def pinned_at(self) -> datetime: ...
    @property
    def in_force(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Drift:
    """Step time of `run_id` against `against_id` in percent: positive is slower.

    `other_configuration`: knobs differ between the two, so it is not drift alone.
    """

    run_id: int
    against_id: int
    delta_pct: float
    other_configuration: bool


@dataclass(frozen=True, slots=True)
class PinDrift(Generic[P]):
    """`since_last`: against the run that was pinned before; `since_release`: against the newest release before the
    run; `now`: the level on which its configuration stands today, against the run. None: no such run.
    """

    pin: P
    since_last: Drift | None
    since_release: Drift | None
    now: Drift | None


def drifts(
    pins: Sequence[P], runs: Sequence[HistoryRun], configurations: Sequence[Configuration]
) -> tuple[PinDrift[P], ...]:
    """Of each pin, newest first."""
    by_id = {run.id: run for run in runs}
    places = {run.id: place for place, run in enumerate(runs)}
    ordered = sorted((pin for pin in pins if pin.run_id in by_id), key=lambda pin: (pin.pinned_at, pin.id))
    found = []
    for number, pin in enumerate(ordered):
        run = by_id[pin.run_id]
        earlier = next((by_id[one.run_id] for one in reversed(ordered[:number]) if one.run_id != run.id), None)
        before = (one for one in reversed(runs[: places[run.id]]) if one.purpose == "release" and has_figure(one))
        found.append(
            PinDrift(pin, drift(run, earlier), drift(run, next(before, None)), _now(run, runs, configurations))
        )
    return tuple(reversed(found))


def _now(run: HistoryRun, runs: Sequence[HistoryRun], configurations: Sequence[Configuration]) -> Drift | None:
    own = next(one for one in configurations if one.config_key == run.config_key)
    return drift(runs[own.counted[-1]], run, own.now.step_time_ms) if own.now else None


def drift(run: HistoryRun | None, against: HistoryRun | None, run_ms: float | None = None) -> Drift | None:
    """`run_ms`: the step time of `run` where it is known better than by the run alone."""
    if run is None or against is None or not (has_figure(run) and has_figure(against)):
        return None
    value = run.log_step_time if run_ms is None else math.log(run_ms)
    delta = 100 * math.expm1(value - against.log_step_time)
    return Drift(run.id, against.id, delta, run.config_key != against.config_key)

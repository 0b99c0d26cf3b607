"""A sweep: several values of one knob as one plan, with successive halving.

Every value starts with one run. After each round the better half stays and gets twice as many; the last value is
confirmed against the baseline with the full number. Every value is its own experiment. The best of many values looks
better than it is, so more values make each test stricter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.contract.fields import ContractField
from app.domain.experiments.values import UNDECIDED, PlannedGain, Sizing, State
from app.domain.numbers import gain_change, plural
from app.domain.run import Value

FEWEST_VALUES, MOST_VALUES = 2, 12


def first_values(knob: ContractField, now: Value) -> tuple[str, ...]:
    """Return values to try first: every choice, or a quarter to four times the current number."""
    if knob.kind == "flag":
        return ("true", "false")
    if knob.kind == "choice":
        return knob.choices
    if knob.kind not in ("count", "whole") or not isinstance(now, int) or isinstance(now, bool) or now < 1:
        return ()
    smaller = (now // part for part in (4, 2) if now % part == 0)
    return tuple(map(str, (*smaller, 2 * now, 4 * now)))


@dataclass(frozen=True, slots=True)
class Round:
    """`values`: how many take part; `runs_each`: runs that each of them has by the end of the round."""

    values: int
    runs_each: int


def rounds(values: int, confirm: int) -> tuple[Round, ...]:
    """Return the rounds of a sweep: halved until one value is left, which is confirmed with `confirm` runs per side."""
    plan, runs_each = [], 1
    while values > 1:
        plan.append(Round(values, min(runs_each, confirm)))
        values, runs_each = math.ceil(values / 2), 2 * runs_each
    return (*plan, Round(1, confirm))


@dataclass(frozen=True, slots=True)
class SweepCost:
    """`runs`: runs to start, including those of the baseline. `full_runs`: runs of a full A/B for each value."""

    runs: int
    full_runs: int
    hours: float | None
    gpu_hours: float | None


def cost_of_sweep(values: int, sizing: Sizing) -> SweepCost:
    """Return the maximum cost of a sweep. The baseline run exists already and serves every value."""
    confirm = sizing.runs_each
    plan = rounds(values, confirm)
    before = (0, *(item.runs_each for item in plan))
    candidates = sum(item.values * (item.runs_each - done) for item, done in zip(plan, before, strict=False))
    runs, full = candidates + confirm - 1, values * confirm + confirm - 1
    hours = None if sizing.run_hours is None else runs * sizing.run_hours
    per_run = None if sizing.run_hours is None or sizing.gpus is None else sizing.run_hours * sizing.gpus
    return SweepCost(runs, full, hours, None if per_run is None else runs * per_run)


@dataclass(frozen=True, slots=True)
class Trial:
    """One value with its experiment. `planned`: runs per side currently planned; `runs`: of the candidate that
    count; `failed`: that joined and do not count."""

    experiment_id: int
    value: str
    state: State
    planned: int
    runs: int
    failed: int
    gain: PlannedGain | None
    winner: str = ""

    @property
    def is_in(self) -> bool:
        return self.state in UNDECIDED


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far a sweep is. `keep`, `drop`: what the next step does, once every value has its runs (`ready`)."""

    rounds: tuple[Round, ...]
    number: int
    trials: tuple[Trial, ...]
    keep: tuple[Trial, ...]
    drop: tuple[Trial, ...]
    ready: bool

    @property
    def round(self) -> Round:
        return self.rounds[self.number]

    @property
    def next_round(self) -> Round | None:
        return self.rounds[self.number + 1] if self.number + 1 < len(self.rounds) else None

    @property
    def behind(self) -> bool:
        """Users rejected values by hand, so the remaining ones are in a later round than was requested."""
        return any(trial.is_in and trial.planned < self.round.runs_each for trial in self.trials)

    @property
    def may_go_on(self) -> bool:
        return self.behind or (self.ready and self.next_round is not None)

    @property
    def waits_for(self) -> tuple[Trial, ...]:
        """Values that lack runs in this round."""
        return tuple(trial for trial in self.trials if trial.is_in and not _is_done(trial, self.round))

    @property
    def sentence(self) -> str:
        left = [trial for trial in self.trials if trial.is_in]
        won = next((trial for trial in self.trials if trial.state == "accepted"), None)
        if won is not None:
            return f"{won.value} was accepted{_gain_text(won.gain)}."
        if not left:
            return "Every value was rejected: the baseline stays."
        if self.next_round is None:
            if left[0].runs >= self.round.runs_each or left[0].winner:
                return f"{left[0].value} is the best value{_gain_text(left[0].gain)}. Accept or reject it."
            return f"{left[0].value} is being confirmed{_gain_text(left[0].gain)}."
        if not self.ready:
            waiting = self.waits_for
            names = ", ".join(trial.value for trial in waiting)
            return f"Round {self.number + 1} of {len(self.rounds)} waits for {plural(len(waiting), 'value')}: {names}."
        names = ", ".join(trial.value for trial in self.drop)
        return f"Round {self.number + 1} of {len(self.rounds)} is complete. Next: drop {names}."


def sweep_progress(trials: Sequence[Trial], confirm: int) -> SweepProgress:
    """Return how far a sweep is.

    `trials`: in the order of the values; `confirm`: runs per side of the last one.
    """
    plan = rounds(len(trials), confirm)
    left = [trial for trial in trials if trial.is_in]
    number = next((place for place, item in enumerate(plan) if len(left) >= item.values), len(plan) - 1)
    ready = bool(left) and all(_is_done(trial, plan[number]) for trial in left)
    keep = tuple(left)
    if ready and number + 1 < len(plan):
        best_first = sorted(left, key=lambda trial: math.inf if trial.gain is None else -trial.gain.pct)
        keep = tuple(best_first[: plan[number + 1].values])
    drop = tuple(trial for trial in left if trial not in keep)
    return SweepProgress(plan, number, tuple(trials), keep, drop, ready)


def _is_done(trial: Trial, of: Round) -> bool:
    """Return whether the trial has its runs, or its run failed: a value that does not run is the first to go."""
    return trial.runs >= of.runs_each or (trial.runs == 0 and trial.failed > 0)


def _gain_text(gain: PlannedGain | None) -> str:
    return "" if gain is None else f", {gain_change(gain.pct, gain.low_pct, gain.high_pct).text}"

"""The parts of an experiment. Frozen and stored as JSON by their types (`app/storage/json_text.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from app.domain.contract.fields import FIELDS
from app.domain.numbers import contract_value
from app.domain.run import EvidenceLevel, Value
from app.domain.verdict.decide import MetricChange
from app.domain.verdict.step_time import RELEVANT_SHIFT, Comparison, DroppedRun, Outcome, Prior, Verdict

Side = Literal["baseline", "candidate"]
State = Literal["planned", "waiting", "done", "accepted", "rejected", "withdrawn"]
JoinedBy = Literal["plan", "tag", "config"]
"""`plan`: the run that the plan is based on; `tag`: by the tag of the upload; `config`: by its config key."""
Winner = Literal["", "baseline", "candidate"]
SIDES: tuple[Side, ...] = get_args(Side)
LETTERS: Mapping[Side, str] = {"baseline": "A", "candidate": "B"}
STATES: tuple[State, ...] = get_args(State)
UNDECIDED: tuple[State, ...] = ("planned", "waiting", "done")
"""States in which runs join and the result may change; the others are decisions of users."""


DECISION_DUE = "decision due"
"""The name on pages of `done`: all planned runs are in, and a user has to decide."""


def state_text(state: State, level: str) -> str:
    """Return the state as pages name it: `decision due` for `done`, and `accepted, not full-length` where the runs are
    too short or differ in more than the change.
    """
    if state == "done":
        return DECISION_DUE
    return f"{state}, not full-length" if state == "accepted" and level != "validated" else state


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A contract field that is changed. `known`: False when the baseline run's value is unknown."""

    field: str
    before: Value
    after: Value
    known: bool = True

    @property
    def before_text(self) -> str:
        return contract_value(self.before) if self.known else "unknown"

    @property
    def after_text(self) -> str:
        return contract_value(self.after)

    @property
    def meaning(self) -> str:
        return FIELDS[self.field].meaning if self.field in FIELDS else ""


@dataclass(frozen=True, slots=True)
class Commands:
    """Text to paste for one trainer.

    `baseline`, `candidate`: complete commands, "" when the run's own is unknown. `add`: flags or overrides to add,
    `remove`: those to remove; `diff`: the changed lines, each after `-` or `+`.
    """

    trainer: str
    add: str
    remove: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()
    baseline: str = ""
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change as flags and variables.

    `environment`: changed lines; `export`: text to paste for the candidate. `open`: fields that the user must choose,
    because their value depends on unknown facts.
    """

    text: str = ""
    commands: tuple[Commands, ...] = ()
    environment: tuple[str, ...] = ()
    export: str = ""
    open: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizePoint:
    """With this number of runs per side, an effect of `smallest_pct` of step time is detected at the plan's power."""

    runs_each: int
    smallest_pct: float


SpreadSource = Literal["series", "family", "default"]


@dataclass(frozen=True, slots=True)
class Sizing:
    """The number of runs per side, and why.

    `effect_pct`: the least change of step time to detect; `power`: the probability. `needed`: runs per side for it,
    None when more than `most`; `smallest_pct`: what the chosen number detects. `noise`: standard error within a run
    (ln), the median of the configuration's runs; `spread_pct` is never smaller. `prior`: run-to-run variation assumed
    before the first run, also by the result. `spread_from`: the source of the variation: the series' own runs
    (`spread_runs` of them), its family (`prior.configurations`), or the default. `curve`: other numbers of runs.
    """

    effect_pct: float
    power: float
    runs_each: int
    needed: int | None
    most: int
    smallest_pct: float
    spread_pct: float
    spread_from: SpreadSource
    spread_runs: int
    noise: float
    prior: Prior
    curve: tuple[SizePoint, ...]
    run_hours: float | None = None
    gpus: int | None = None

    @property
    def limit_pct(self) -> float:
        """Return the change below which nothing is called, however many runs there are."""
        return 100 * RELEVANT_SHIFT

    @property
    def limit_from(self) -> int | None:
        """Return the runs per side of the table from which this limit matters more than chance; None if none does."""
        comparison = Comparison.planned(self.prior, self.noise)
        each = (point.runs_each for point in self.curve)
        return next((n for n in each if comparison.is_at_limit(n, n)), None)

    @property
    def hours(self) -> float | None:
        """Return the calendar time of all runs of both sides, one after another, with 50 steps each."""
        return None if self.run_hours is None else 2 * self.runs_each * self.run_hours

    @property
    def gpu_hours(self) -> float | None:
        return self.gpu_hours_of(2 * self.runs_each)

    def gpu_hours_of(self, runs: int) -> float | None:
        return None if self.run_hours is None or self.gpus is None else runs * self.run_hours * self.gpus


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """All displayed parts of a plan that have no column.

    `hold`: fields to keep, with their values. `verify`: how to check that the change is active. `expected`: published
    results. `meta`: what each upload of a side states, except for its commit. `warnings`: what to know before running
    it. `extensions`: how often the number of runs was changed after a result existed, and further values of a sweep.
    `confirm`: in a sweep, the runs per side of its last value; 0 otherwise.
    """

    sizing: Sizing
    change: PlannedChange = field(default_factory=PlannedChange)
    hold: tuple[tuple[str, str], ...] = ()
    verify: str = ""
    expected: str = ""
    meta: Mapping[Side, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    extensions: int = 0
    confirm: int = 0

    def resized(self, runs_each: int, smallest_pct: float, *, seen: bool) -> "ExperimentPlan":
        """Return the plan with another number of runs per side. `seen`: there is a result."""
        sizing = replace(self.sizing, runs_each=runs_each, smallest_pct=smallest_pct)
        return replace(self, sizing=sizing, extensions=self.extensions + seen)


@dataclass(frozen=True, slots=True)
class PlannedGain:
    """Percent of throughput; positive is faster. `low` and `high` bound the interval of the test."""

    pct: float
    low_pct: float
    high_pct: float


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The result of the A/B as last computed.

    `baseline`, `candidate`: names of the runs that count, oldest first. `left_out`: joined runs that do not count, each
    with the reason. `verdict`: the test of the candidate against the baseline, None while a side has no run. `gain`:
    None without a measurement. `paired`: the gain by neighbouring runs of both sides, which drift affects equally; None
    with fewer than three pairs. `finished`: enough runs exist, or the test decided earlier (`early`). `looks`: how
    often the result could be evaluated so far. `winner`: "" without one. `attributed_to`: the only knob that explains
    the difference, "" when several changed, with its values `from_value` and `to_value`. `sentence`: the result as
    text; `warnings`: its limits.
    """

    baseline: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()
    left_out: tuple[DroppedRun, ...] = ()
    verdict: Verdict | None = None
    metrics: Mapping[str, MetricChange | None] = field(default_factory=dict)
    gain: PlannedGain | None = None
    paired: PlannedGain | None = None
    evidence_level: EvidenceLevel = "smoke"
    evidence_because: str = ""
    semantic_class: str = ""
    attributed_to: str = ""
    from_value: str = ""
    to_value: str = ""
    looks: int = 0
    early: bool = False
    finished: bool = False
    winner: Winner = ""
    sentence: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def inconclusive(self) -> bool:
        """Return whether the step time was measured but not decided."""
        time = None if self.verdict is None else self.verdict.step_time
        return time is not None and time.decision == "inconclusive"

    @property
    def excluded_gain_pct(self) -> float | None:
        """Return the least gain that counts if a complete but undecided result excludes it; else None."""
        time = None if self.verdict is None else self.verdict.step_time
        if time is None or self.gain is None or not (self.finished and self.inconclusive):
            return None
        return time.equal_pct if time.reruns_apart_pct is None and self.gain.high_pct < time.equal_pct else None

    @property
    def decision(self) -> Outcome:
        """Return the decision on B against A, as that of a verdict; undecided until the experiment is finished."""
        if self.verdict is None:
            return "no_baseline"
        if self.winner:
            return "improvement" if self.winner == "candidate" else "regression"
        return "no_change" if self.finished and self.verdict.decision == "no_change" else "inconclusive"

    @property
    def judged_metrics(self) -> Mapping[str, MetricChange | None]:
        """Return the changes of the figures, `not_judged` until the experiment is finished."""
        if self.finished:
            return self.metrics
        return {name: change and replace(change, decision="not_judged") for name, change in self.metrics.items()}

    def counted(self, side: Side) -> tuple[str, ...]:
        return self.baseline if side == "baseline" else self.candidate

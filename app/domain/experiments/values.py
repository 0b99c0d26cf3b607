"""What an experiment is made of. Frozen, stored as JSON by their types (`app/storage/json_text.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import shown
from app.domain.run import EvidenceLevel, Value
from app.domain.verdict.decide import MetricChange
from app.domain.verdict.step_time import DroppedRun, Prior, Verdict

Side = Literal["baseline", "candidate"]
State = Literal["planned", "waiting", "done", "accepted", "rejected", "withdrawn"]
JoinedBy = Literal["plan", "tag", "config"]
"""`plan`: the run that it was planned from; by the `tag` of the upload; by its `config` key."""
Winner = Literal["", "baseline", "candidate"]
SIDES: tuple[Side, ...] = get_args(Side)
STATES: tuple[State, ...] = get_args(State)
UNDECIDED: tuple[State, ...] = ("planned", "waiting", "done")
"""States in which runs join and the result moves; the others are a person's decision."""


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A contract field that is turned. `known`: false where nobody states what the baseline run has."""

    field: str
    before: Value
    after: Value
    known: bool = True

    @property
    def before_text(self) -> str:
        return shown(self.before) if self.known else "unknown"

    @property
    def after_text(self) -> str:
        return shown(self.after)

    @property
    def meaning(self) -> str:
        return FIELDS[self.field].meaning if self.field in FIELDS else ""


@dataclass(frozen=True, slots=True)
class Commands:
    """What to paste for one trainer. `baseline`, `candidate`: whole commands, "" where the run's own is not known.

    `add`: flags or overrides to add to it, `remove`: those to take out; `diff`: the lines that change, each behind
    `-` or `+`.
    """

    trainer: str
    add: str
    remove: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()
    baseline: str = ""
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change as flags and variables. `environment`: lines that change; `export`: what to paste for the candidate.

    `open`: fields whose value depends on facts that nobody stated, so that a person has to choose it.
    """

    text: str = ""
    commands: tuple[Commands, ...] = ()
    environment: tuple[str, ...] = ()
    export: str = ""
    open: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizePoint:
    """With so many runs a side an effect of `smallest_pct` of step time is called, with the plan's power."""

    runs_each: int
    smallest_pct: float


SpreadSource = Literal["series", "family", "default"]


@dataclass(frozen=True, slots=True)
class Sizing:
    """How many runs a side, and why. `effect_pct`: the change of step time that is to be seen; `power`: how likely.

    `needed`: runs a side for it, None when more than `most` would be; `smallest_pct`: what the chosen number sees.
    `noise`: standard error inside one run (ln). `prior`: what is known about run-to-run variation before the first run
    of this experiment, which its result uses, too. `spread_from`: the series' own runs (`spread_runs` of them), its
    family's (`prior.configurations`), or the default where neither is known. `curve`: other numbers of runs.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything of a plan that is shown and has no column. `hold`: fields to keep as they are, with their values.

    `verify`: how to see that the change is active. `expected`: what is published of it. `meta`: what each upload of a
    side states, but for its commit. `warnings`: what to know before it is run. `extensions`: how often the number of
    runs was changed after there was something to see.
    """

    sizing: Sizing
    change: PlannedChange = field(default_factory=PlannedChange)
    hold: tuple[tuple[str, str], ...] = ()
    verify: str = ""
    expected: str = ""
    meta: Mapping[Side, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    extensions: int = 0

    def resized(self, runs_each: int, smallest_pct: float, *, seen: bool) -> "Plan":
        """With another number of runs a side, which see effects from `smallest_pct` on. `seen`: there is a result."""
        sizing = replace(self.sizing, runs_each=runs_each, smallest_pct=smallest_pct)
        return replace(self, sizing=sizing, extensions=self.extensions + seen)


@dataclass(frozen=True, slots=True)
class Gain:
    """In percent of throughput; positive is faster. `low` and `high` bound the interval of the test."""

    pct: float
    low_pct: float
    high_pct: float


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The A/B as it was last computed. `baseline`, `candidate`: names of the runs that count, oldest first.

    `left_out`: runs that joined and do not count, each with the reason. `verdict`: the verdict's own test of the
    candidate against the baseline, None while a side has no run. `gain`: None while nothing was measured. `finished`:
    enough runs are there, or it was decided before (`early`). `looks`: how often it could have been looked at so far.
    `winner`: "" while none is shown. `attributed_to`: the one knob that explains the difference, "" where several
    changed, with its values `from_value` and `to_value`. `sentence` says it; `warnings`: what it rests on.
    """

    baseline: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()
    left_out: tuple[DroppedRun, ...] = ()
    verdict: Verdict | None = None
    metrics: Mapping[str, MetricChange | None] = field(default_factory=dict)
    gain: Gain | None = None
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

    def counted(self, side: Side) -> tuple[str, ...]:
        return self.baseline if side == "baseline" else self.candidate

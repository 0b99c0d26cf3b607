"""What a rule is: a statement of the workflow with its condition, change, evidence and source. All frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from app.domain.rules.expression import Expression

Phase = Literal["contract", "fit", "scale", "profile", "retune", "validate"]
Wall = Literal["none", "memory", "communication", "compute", "host"]
Kind = Literal["blocker", "warning", "gate", "sizing", "candidate"]
"""blocker: the launch is invalid or unsafe. warning: what a figure does not say. gate: what the next phase or a claim
needs first. sizing: a quantity to work out. candidate: something to try."""
Confidence = Literal["high", "medium", "low"]
Level = Literal["code", "matched_ab", "record", "seed", "heuristic"]
"""Of published evidence, strongest first: enforced in code; a matched A/B; a record of several knobs; what the
founding documents say; a rule of thumb."""

Origin = Literal["built-in", "team"]
"""Who wrote a rule: this service, or a team in files of its own."""

PHASES: tuple[Phase, ...] = get_args(Phase)
WALLS: tuple[Wall, ...] = get_args(Wall)
KINDS: tuple[Kind, ...] = get_args(Kind)
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
LEVELS: tuple[Level, ...] = get_args(Level)

Scalar = str | int | float | bool
Setting = Scalar | tuple[Scalar, ...] | None
Facts = Mapping[str, object]
"""Facts as people write them, by name: of an example, or of a run. Absent is unknown, None is known to be unset."""


@dataclass(frozen=True, slots=True)
class Source:
    """A document that a rule rests on: `where` is an address or a path in a public repository."""

    key: str
    title: str
    where: str
    date: str

    @property
    def url(self) -> str | None:
        """The address, when `where` is one."""
        return self.where if self.where.startswith("https://") else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A prerequisite or a conflict: the text for people and the condition under which it holds.

    Without a condition nobody can tell from facts: it is for people to check.
    """

    text: str
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One published result. `at`: facts that must be equal for it to be a result on the same model, GPU and shape."""

    text: str
    setting: str
    level: Level
    source: str
    date: str = ""
    at: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effect:
    """What to expect. `evidence` is empty where nobody measured."""

    text: str = "unquantified"
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """What to change. `set`: canonical field -> value or expression; `megatron_lm`, `bridge`: further flags as written,
    with {facts} filled in; `env`: environment variables, None unsets one."""

    text: str
    set: Mapping[str, Setting | Expression] = field(default_factory=dict)
    megatron_lm: tuple[str, ...] = ()
    bridge: tuple[str, ...] = ()
    env: Mapping[str, Setting | Expression] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Examples:
    """Facts under which the rule fires, is silent, and asks."""

    fires: tuple[Facts, ...]
    silent: tuple[Facts, ...]
    asks: tuple[Facts, ...] = ()


@dataclass(frozen=True, slots=True)
class Hints:
    """What ranking takes from a rule beside its phase, wall and kind.

    `order`: place among its like, small first; an expression where it depends on facts. `bring_up`: a default of the
    first bring-up, offered before any profile. `blocks`: the phase, or `claim`, that an open gate holds up.
    `unlocks`: rules that become possible once this one is done. `hold`: fields to hold fixed beside the usual.
    """

    order: int | Expression = 50
    bring_up: bool = False
    blocks: str = ""
    unlocks: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `topic` is the file it stands in, `line` where it begins there.

    `overrides`: why a team's rule stands in place of the service's rule of the same id; "" where it does not.
    """

    id: str
    phase: Phase
    wall: Wall
    kind: Kind
    title: str
    when: Expression
    why: str
    change: Change
    verify: str
    sources: tuple[str, ...]
    valid: str
    confidence: Confidence
    examples: Examples
    needs: tuple[Requirement, ...] = ()
    conflicts: tuple[Requirement, ...] = ()
    effect: Effect = field(default_factory=Effect)
    hints: Hints = field(default_factory=Hints)
    overrides: str = ""
    topic: str = ""
    origin: Origin = "built-in"
    line: int = 0

    @property
    def changes_something(self) -> bool:
        """It turns a knob, a flag or a variable; without one it is something to look at or to provide."""
        change = self.change
        return bool(change.set or change.env or change.megatron_lm or change.bridge)

    @property
    def is_step_of_the_profile(self) -> bool:
        """What to look at in a profile: nothing of the run changes by it."""
        return self.phase == "profile" and self.kind == "candidate" and not self.changes_something


@dataclass(frozen=True, slots=True)
class RuleBook:
    """All rules by id, in the order of the files, and all sources by key."""

    rules: Mapping[str, Rule]
    sources: Mapping[str, Source]

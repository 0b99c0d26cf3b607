"""What a rule is: a statement of the workflow with its condition, change, evidence and source. All frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from app.domain.contract.values import read_value, shown
from app.domain.rules.expression import Expression, RuleError
from app.domain.run import Stated
from app.domain.verdict.differences import FOLLOWS
from app.domain.verdict.evidence import value_text

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

    Without a condition, facts cannot decide it, and people check it.
    """

    text: str
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One published result. `at`: facts that must be equal for it to be a result on the same model, GPU and shape.

    `gain`: lowest and highest change of throughput that it found, in percent, positive is faster; empty without one.
    """

    text: str
    setting: str
    level: Level
    source: str
    date: str = ""
    at: Mapping[str, Setting] = field(default_factory=dict)
    gain: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """What to expect. `evidence` is empty without a measurement."""

    text: str = "unquantified"
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """Exact commands for one tool: `run` as written, with {facts} filled in; `then` says what to do with the result.

    `when`: the situation that it is for; None: any.
    """

    title: str
    run: str
    then: str
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What to change. `set`: canonical field -> value or expression; `megatron_lm`, `bridge`: further flags as written,
    with {facts} filled in; `env`: environment variables, None unsets one; `recipes`: commands of tools to run."""

    text: str
    set: Mapping[str, Setting | Expression] = field(default_factory=dict)
    megatron_lm: tuple[str, ...] = ()
    bridge: tuple[str, ...] = ()
    env: Mapping[str, Setting | Expression] = field(default_factory=dict)
    recipes: tuple[Recipe, ...] = ()


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
    `unlocks`: rules that become possible once this one is done. `hold`: further fields to hold fixed. `urgency`: a
    rule about the health of the run, or about its regression, which comes before all tuning. `general`: it applies to
    nearly every run and has no evidence, so it comes after what is particular. `after`: rules that come first where
    they fire, too.
    """

    order: int | Expression = 50
    bring_up: bool = False
    urgency: Literal["", "health", "regression"] = ""
    general: bool | Expression = False
    after: tuple[str, ...] = ()
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


# --- The one knob that a rule turns: what an A/B has to have changed, to be evidence about the rule.

_OFF: tuple[Setting, ...] = (False, None, ())


@dataclass(frozen=True, slots=True)
class Knob:
    """The one field that is changed: what it is now ("" is unknown, or anything), and what it becomes."""

    field: str
    now: str
    wanted: str


def knob_of(settings: Mapping[str, Setting], contract: Mapping[str, Stated]) -> Knob | None:
    """Of a suggestion in a run. None where it changes nothing, or several knobs at once."""
    changes = _one_dispatcher(settings, contract)
    texts = {name: _text(value, contract.get(name)) for name, value in changes.items()}
    changed = {name for name, text in texts.items() if _is_turned(text, changes[name], contract.get(name))}
    name = _leading(changed)
    return None if name is None else Knob(name, value_text(contract.get(name)), texts[name])


def knob_of_rule(rule: Rule) -> Knob | None:
    """Of a rule by itself, where one value of one field is all that it turns on or sets, whatever the run.

    None where the value depends on the run, and where fields beside it are set to something: an A/B on the one field
    would not tell whether those were changed, too.
    """
    if any(isinstance(value, Expression) for value in rule.change.set.values()):
        return None
    fixed = {name: value for name, value in rule.change.set.items() if not isinstance(value, Expression)}
    changes = _one_dispatcher(fixed, {})
    turned = {name: value for name, value in changes.items() if value not in _OFF} or changes
    if len(turned) != 1:
        return None
    name, value = next(iter(turned.items()))
    return Knob(name, "", shown(read_value(name, value)))


def _leading(changed: set[str]) -> str | None:
    leading = [name for name in changed if FOLLOWS.get(name) not in changed]
    return leading[0] if len(leading) == 1 else None


def _is_turned(text: str, value: Setting, now: Stated | None) -> bool:
    """An unknown knob that should be off is set explicitly, not counted as turned."""
    return value not in _OFF if now is None else value_text(now) != text


def _one_dispatcher(settings: Mapping[str, Setting], contract: Mapping[str, Stated]) -> dict[str, Setting]:
    """Type and backend are one knob, the dispatcher that they name."""
    rest = {name: value for name, value in settings.items() if name not in ("dispatcher_type", "flex_backend")}
    kind, backend = settings.get("dispatcher_type"), settings.get("flex_backend")
    if len(rest) == len(settings) or "dispatcher" in rest:
        return rest
    if kind == "flex" or (kind is None and backend is not None):
        stated = contract.get("flex_backend")
        kind = backend if backend is not None else (None if stated is None else stated.value)
    return rest if kind is None else {**rest, "dispatcher": kind}


def _text(value: Setting, now: Stated | None) -> str:
    if now is not None and isinstance(now.value, tuple) and not isinstance(value, tuple):
        value = () if value is None else (value,)
    return shown(value)


# --- What is wrong with a rule file: where it stands, and what its author has to do.


@dataclass(frozen=True, slots=True)
class Mistake:
    """`line`: where the rule begins, or the file cannot be read on. `rule`: "" where the file as a whole is meant."""

    file: str
    line: int
    rule: str
    message: str

    @classmethod
    def of(cls, rule: Rule, message: str) -> Self:
        return cls(f"{rule.topic}.yaml", rule.line, rule.id, message)

    def __str__(self) -> str:
        """`ours.yaml:12: ours-tp-small: has no source`, as editors take it."""
        return f"{self.file}:{self.line}: {self.rule + ': ' if self.rule else ''}{self.message}"


class RuleFileError(RuleError):
    """Everything that is wrong with some files, one mistake a line."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)

"""Rules: statements of the workflow with condition, change, evidence and source. All values are frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value, shown
from app.domain.rules.expression import Expression, RuleError
from app.domain.run import Stated
from app.domain.verdict.comparability import FOLLOWS
from app.domain.verdict.evidence import value_text

Phase = Literal["contract", "fit", "scale", "profile", "retune", "validate"]
Wall = Literal["none", "memory", "communication", "compute", "host"]
Kind = Literal["blocker", "warning", "gate", "sizing", "candidate"]
"""blocker: the launch is invalid or unsafe. warning: a limit of a figure. gate: required before the next phase or a
claim. sizing: a value to calculate. candidate: a change to try."""
Confidence = Literal["high", "medium", "low"]
Urgency = Literal["", "health", "unjudged", "rerun", "regression", "measured", "evidence"]
"""What a rule is about that precedes the workflow: the health of the run, figures that support no tuning, a regression,
a faster run, a record."""
Level = Literal["code", "matched_ab", "record", "seed", "heuristic"]
"""Published evidence, strongest first: enforced in code; a matched A/B; a record of several knobs; a guide;
a rule of thumb."""

Origin = Literal["built-in", "team"]
"""Origin of a rule: built-in, or a team's own file."""

PHASES: tuple[Phase, ...] = get_args(Phase)
WALLS: tuple[Wall, ...] = get_args(Wall)
KINDS: tuple[Kind, ...] = get_args(Kind)
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
LEVELS: tuple[Level, ...] = get_args(Level)

Scalar = str | int | float | bool
Setting = Scalar | tuple[Scalar, ...] | None
Facts = Mapping[str, object]
"""Facts by name, as written in an example or a run. Absent means unknown, None means unset."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source document of rules. `where`: a URL or a path in a public repository."""

    key: str
    title: str
    where: str
    date: str

    @property
    def url(self) -> str | None:
        """Return the URL, if `where` is one."""
        return self.where if self.where.startswith("https://") else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A prerequisite or a conflict: its text and its condition. Without a condition, users check it manually."""

    text: str
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """One published result.

    `at`: facts that must match for it to count as the same model, GPU and shape. `gain`: lowest and highest measured
    change of throughput in percent, positive is faster; empty without one.
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
    """The expected effect. `evidence` is empty without a measurement."""

    text: str = "unquantified"
    evidence: tuple[PublishedResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """Commands for one tool.

    `run`: as written, with {facts} inserted; `then`: what to do with the result. `when`: the situation it applies to;
    None: any.
    """

    title: str
    run: str
    then: str
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change.

    `set`: canonical field -> value or expression; `megatron_lm`, `bridge`: further flags as written, with {facts}
    inserted; `env`: environment variables, None unsets one; `recipes`: commands to run.
    """

    text: str
    set: Mapping[str, Setting | Expression] = field(default_factory=dict)
    megatron_lm: tuple[str, ...] = ()
    bridge: tuple[str, ...] = ()
    env: Mapping[str, Setting | Expression] = field(default_factory=dict)
    recipes: tuple[Recipe, ...] = ()


@dataclass(frozen=True, slots=True)
class Examples:
    """Example facts under which the rule fires, is silent, or asks."""

    fires: tuple[Facts, ...]
    silent: tuple[Facts, ...]
    asks: tuple[Facts, ...] = ()


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints for ranking, in addition to phase, wall and kind.

    `order`: order among similar rules, ascending; an expression if it depends on facts. `bring_up`: a default of the
    first bring-up, suggested before any profile. `for_memory`: peak memory judges its A/Bs, not step time. `blocks`:
    the phase, or `claim`, that an open gate holds up. `unlocks`: rules that become possible afterwards. `hold`: further
    fields to hold fixed. `urgency`: its topic if it precedes the workflow. `general`: it applies to nearly every run
    and has no evidence, so it ranks last. `after`: rules that rank before it if they fire, too. `joins`: rules that
    show it as a further reason instead. `yields`: it is deferred while something stronger is suggested.
    """

    order: int | Expression = 50
    bring_up: bool = False
    for_memory: bool = False
    urgency: Urgency = ""
    general: bool | Expression = False
    after: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    yields: bool = False
    blocks: str = ""
    unlocks: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    `run_title`: its title for a run, with {facts}; empty: `title`. `topic`: its file; `line`: where it begins.
    `overrides`: why a team's rule replaces the built-in rule of the same id; empty otherwise.
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
    run_title: str = ""
    topic: str = ""
    origin: Origin = "built-in"
    line: int = 0

    @property
    def changes_something(self) -> bool:
        """Return whether it changes a knob, a flag or a variable; otherwise it is something to check or to provide."""
        change = self.change
        return bool(change.set or change.env or change.megatron_lm or change.bridge)

    @property
    def seeks_gain(self) -> bool:
        """Return whether it makes a step shorter; of the bring-up, to make a job fit or to save memory it need not."""
        return not (self.hints.bring_up or self.hints.for_memory or self.phase == "fit")

    @property
    def saves_memory(self) -> bool:
        """Return whether it is a candidate for a job that ran out of memory."""
        return self.kind == "candidate" and self.wall == "memory" and self.phase in ("fit", "scale")

    @property
    def is_step_of_the_profile(self) -> bool:
        """Return whether it is a check of a profile, which changes nothing and does not ask for one."""
        is_check = self.phase == "profile" and self.kind == "candidate" and not self.changes_something
        return is_check and not self.hints.blocks


@dataclass(frozen=True, slots=True)
class RuleBook:
    """All rules by id, in the order of the files, and all sources by key."""

    rules: Mapping[str, Rule]
    sources: Mapping[str, Source]


# --- The one knob that a rule changes: an A/B must change exactly it to be evidence for the rule.

_OFF: tuple[Setting, ...] = (False, None, ())


@dataclass(frozen=True, slots=True)
class Knob:
    """The one changed field with its old value (empty: unknown, or any) and its new value."""

    field: str
    now: str
    wanted: str


def knob_of(settings: Mapping[str, Setting], contract: Mapping[str, Stated]) -> Knob | None:
    """Return the knob of a suggestion in a run; None if it changes nothing or several knobs."""
    changes = _one_dispatcher(settings, contract)
    texts = {name: _text(value, contract.get(name)) for name, value in changes.items()}
    changed = {name for name, text in texts.items() if _is_turned(text, changes[name], contract.get(name))}
    name = _leading(changed)
    return None if name is None else Knob(name, value_text(contract.get(name)), texts[name])


def knobs_of_rule(rule: Rule) -> tuple[Knob, ...]:
    """Return the knobs of a rule independent of a run: an A/B on any of them tries the rule.

    There are several if it turns on several switches, also one after the other, or if an expression chooses one of
    several values. Without any if it sets several fields together: an A/B on one of them would not show whether the
    others were changed.
    """
    settings = rule.change.set
    expressions = {name: value for name, value in settings.items() if isinstance(value, Expression)}
    plain = {name: value for name, value in settings.items() if not isinstance(value, Expression)}
    if expressions and not plain:
        name, expression = next(iter(expressions.items()))
        return tuple(Knob(name, "", text) for text in (expression.choices if len(settings) == 1 else ()))
    if expressions and (rule.kind != "candidate" or any(FIELDS[name].kind != "flag" for name in expressions)):
        return ()
    changes = _one_dispatcher(plain | dict.fromkeys(expressions, True), {})
    turned = {name: value for name, value in changes.items() if value not in _OFF} or changes
    if len(turned) > 1 and any(value is not True for value in turned.values()):
        return ()
    return tuple(Knob(name, "", shown(read_value(name, value))) for name, value in turned.items())


def _leading(changed: set[str]) -> str | None:
    leading = [name for name in changed if FOLLOWS.get(name) not in changed]
    return leading[0] if len(leading) == 1 else None


def _is_turned(text: str, value: Setting, now: Stated | None) -> bool:
    """Return whether the knob changes; turning an unknown knob off is not a change."""
    return value not in _OFF if now is None else value_text(now) != text


def _one_dispatcher(settings: Mapping[str, Setting], contract: Mapping[str, Stated]) -> dict[str, Setting]:
    """Type and backend are one knob: the dispatcher they name."""
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


# --- Errors in rule files: location, and what the author should do.


@dataclass(frozen=True, slots=True)
class Mistake:
    """An error. `line`: where the rule begins, or where reading failed. `rule`: empty for the whole file."""

    file: str
    line: int
    rule: str
    message: str

    @classmethod
    def of(cls, rule: Rule, message: str) -> Self:
        return cls(f"{rule.topic}.yaml", rule.line, rule.id, message)

    def __str__(self) -> str:
        """Format as editors expect: `ours.yaml:12: ours-tp-small: has no source`."""
        return f"{self.file}:{self.line}: {self.rule + ': ' if self.rule else ''}{self.message}"


class RuleFileError(RuleError):
    """All errors in some files, one per line."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)

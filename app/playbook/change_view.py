"""The change of a rule by itself, without a run: its fields, and how both trainers spell them."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import shown
from app.domain.rules.expression import Expression
from app.domain.rules.flags import Spelling, written
from app.domain.rules.rule import Rule, Setting


@dataclass(frozen=True, slots=True)
class ChangedField:
    """`value`: what it becomes; `computed`: an expression over the run's facts. `megatron_lm`, `bridge`: how it is
    written, one flag or override a line; of a computed value the flags that hold it."""

    name: str
    meaning: str
    value: str
    computed: bool
    megatron_lm: tuple[str, ...]
    bridge: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable; `value` "" unsets it."""

    name: str
    value: str
    computed: bool


def changed_fields(rule: Rule) -> tuple[ChangedField, ...]:
    return tuple(_field(name, value, rule.change.set) for name, value in rule.change.set.items())


def variables(rule: Rule) -> tuple[Variable, ...]:
    return tuple(
        Variable(name, "" if value is None else _shown(value), isinstance(value, Expression))
        for name, value in rule.change.env.items()
    )


def flags_of(rule: Rule) -> tuple[str, ...]:
    """Every flag and override that the rule touches, to be searched."""
    spelled = [line for field in changed_fields(rule) for line in (*field.megatron_lm, *field.bridge, field.name)]
    return (*spelled, *rule.change.megatron_lm, *rule.change.bridge, *rule.change.env)


def _field(name: str, value: Setting | Expression, others: Mapping[str, object]) -> ChangedField:
    known = FIELDS.get(name)
    meaning = known.meaning if known is not None else ""
    if isinstance(value, Expression):
        lm, bridge = (known.megatron_lm, known.bridge) if known is not None else ("", "")
        return ChangedField(name, meaning, _shown(value), True, (lm,) if lm else (), (bridge,) if bridge else ())
    spelling = written(name, value, {key: one for key, one in others.items() if not isinstance(one, Expression)})
    return ChangedField(
        name,
        meaning,
        _shown(value),
        False,
        _lines(spelling.megatron_lm),
        tuple(f"{path}={text}" for path, text in spelling.bridge.items()),
    )


def _lines(spelling: Spelling) -> tuple[str, ...]:
    there = tuple(" ".join((flag, *values)) for flag, values in spelling.flags.items())
    return (*there, *(f"without {flag}" for flag in spelling.without if not there))


def _shown(value: Setting | Expression) -> str:
    return value.source if isinstance(value, Expression) else shown(value)

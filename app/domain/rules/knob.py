"""The one knob that a rule turns: what an A/B has to have changed, to be evidence about the rule."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.values import read_value, shown
from app.domain.matching.following import FOLLOWS
from app.domain.rules.expression import Expression
from app.domain.rules.rule import Rule, Setting
from app.domain.run import Stated
from app.domain.suspect_evidence import value_text

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
    """What nobody stated and is to be off is made sure of, not turned."""
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

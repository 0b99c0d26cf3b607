"""The thresholds that no source gives: what counts now, what this service would take by itself, and who says so."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.rules.facts import FACTS, SETTINGS
from app.storage.rules_in_force import RulesInForce


@dataclass(frozen=True, slots=True)
class Threshold:
    """`setting`: the variable that sets it."""

    name: str
    meaning: str
    value: float
    default: float
    setting: str
    rules: int

    @property
    def said(self) -> str:
        if self.value == self.default:
            return "our default, no source gives one"
        return f"set here by {self.setting}; our default is {self.default:g}, no source gives one"


def thresholds(rules: RulesInForce, names: Iterable[str] = SETTINGS) -> tuple[Threshold, ...]:
    """Those of `names` that are thresholds, with how many rules ask for each."""
    conditions = [rule.when.names for rule in rules.book.rules.values()]
    return tuple(
        Threshold(
            name=name,
            meaning=FACTS[name].meaning,
            value=rules.thresholds[name],
            default=SETTINGS[name],
            setting=f"THREEWALLS_{name.upper()}",
            rules=sum(name in asked for asked in conditions),
        )
        for name in names
        if name in SETTINGS
    )

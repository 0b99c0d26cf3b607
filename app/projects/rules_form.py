"""The form of a project's rules: what stands, what was typed, what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from app.errors import InvalidChange
from app.projects.rules import Rules

_INPUTS = ("baseline_branch", "commit_url", "compare_url", "author")


@dataclass(frozen=True, slots=True)
class RulesForm:
    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: InvalidChange) -> Self:
        return type(self)(self.values, {one.field: one.message for one in error.errors})


def read_rules_form(sent: Mapping[str, object]) -> RulesForm:
    return RulesForm({name: value.strip() for name in _INPUTS if isinstance(value := sent.get(name), str)})


def filled_rules_form(rules: Rules) -> RulesForm:
    """The form as the rules stand."""
    return RulesForm({name: getattr(rules, name) for name in ("baseline_branch", "commit_url", "compare_url")})

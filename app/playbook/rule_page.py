"""One rule whole, without a run: what it asks, what it changes, on what evidence, and what became of it here."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from app.domain.rules.contradictions import Contradiction, contradictions_of
from app.domain.rules.facts import FACTS, SETTINGS, Fact
from app.domain.rules.filling import with_names
from app.domain.rules.overruling import Overruling, overruling
from app.domain.rules.precedence import OwnResult, standing
from app.domain.rules.rule import Rule, Source
from app.errors import NotFound
from app.playbook.change_view import ChangedField, Variable, changed_fields, variables
from app.playbook.list import RuleItem, counted_project, item_of
from app.playbook.thresholds import Threshold, thresholds
from app.storage.knob_gains import MeasuredHere
from app.storage.rule_firings import FiredIn, last_fired
from app.storage.rule_results import planned
from app.storage.rules_in_force import RulesInForce

LAST_RUNS = 10
LEVELS = {
    "code": "enforced in code",
    "matched_ab": "matched A/B",
    "record": "published record, several knobs at once",
    "seed": "founding document",
    "heuristic": "rule of thumb",
}
"""Of published evidence, in words."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published result with where it stands; `href` "" where that is no address."""

    text: str
    setting: str
    level: str
    source: str
    href: str
    date: str
    at: str


@dataclass(frozen=True, slots=True)
class Dispute:
    """Two statements of the sources, and which of them counts."""

    one: Contradiction
    ruling: Overruling
    older: tuple[Source, ...]
    newer: tuple[Source, ...]


class RulePageOf:
    """What the template asks for. Raises NotFound for a rule that is none."""

    def __init__(self, session: Session, rules: RulesInForce, name: str, project: str = "") -> None:
        self.rules = rules
        self.rule: Rule = rule_of(rules, name)
        self.project = project
        self.item: RuleItem = item_of(session, rules, self.rule, project)
        self.last: tuple[FiredIn, ...] = last_fired(session, name, LAST_RUNS, counted_project(session, project))
        self.planned = planned(session, name)
        self.replaced: Rule | None = rules.team.replaced.get(name)

    @property
    def why(self) -> str:
        return with_names(self.rule.why)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the condition asks for, without thresholds."""
        return tuple(FACTS[name] for name in self.rule.when.names if name in FACTS and name not in SETTINGS)

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        return thresholds(self.rules, self.rule.when.names)

    @property
    def fields(self) -> tuple[ChangedField, ...]:
        return changed_fields(self.rule)

    @property
    def variables(self) -> tuple[Variable, ...]:
        return variables(self.rule)

    @property
    def megatron_lm(self) -> tuple[str, ...]:
        """Further flags, as written."""
        return tuple(with_names(flag).replace("`", "") for flag in self.rule.change.megatron_lm)

    @property
    def bridge(self) -> tuple[str, ...]:
        return tuple(with_names(flag).replace("`", "") for flag in self.rule.change.bridge)

    @property
    def change_text(self) -> str:
        return with_names(self.rule.change.text)

    @property
    def measured(self) -> tuple[MeasuredHere, ...]:
        """Matched A/Bs of this service on the knob, by stack, the best first."""
        return self.item.results.by_stack(self.rule.id)

    @property
    def together(self) -> OwnResult | None:
        found = self.item.results.together(self.rule.id)
        return None if found is None else found.result

    @property
    def planned_abs(self) -> tuple[int, ...]:
        """Experiments among what was measured."""
        found = self.item.results.together(self.rule.id)
        return () if found is None else found.experiments

    @property
    def overridden(self) -> str:
        """By what was measured here; "" where it was not, or agrees."""
        return standing(self.rule, {}, self._own).overridden

    @property
    def published(self) -> list[Published]:
        return [
            Published(
                text=one.text,
                setting=one.setting,
                level=LEVELS[one.level],
                source=known.title if (known := self.rules.book.sources.get(one.source)) else one.source,
                href=(known.url or "") if known else "",
                date=one.date or (known.date if known else ""),
                at=", ".join(f"{name} {value}" for name, value in one.at.items()),
            )
            for one in self.rule.effect.evidence
        ]

    @property
    def disputes(self) -> list[Dispute]:
        sources = self.rules.book.sources
        return [
            Dispute(
                one,
                overruling(one, sources, self._own),
                tuple(sources[key] for key in one.older_sources if key in sources),
                tuple(sources[key] for key in one.newer_sources if key in sources),
            )
            for one in contradictions_of(self.rule.id)
        ]

    @property
    def unlocks(self) -> list[Rule]:
        return [self.rules.book.rules[name] for name in self.rule.hints.unlocks if name in self.rules.book.rules]

    @property
    def unlocked_by(self) -> list[Rule]:
        return [rule for rule in self.rules.book.rules.values() if self.rule.id in rule.hints.unlocks]

    @property
    def _own(self) -> Sequence[OwnResult]:
        return () if self.together is None else (self.together,)


def rule_of(rules: RulesInForce, name: str) -> Rule:
    """Raises NotFound for a rule that is none."""
    if name not in rules.book.rules:
        raise NotFound(f"There is no rule {name[:60]!r}. It may have been renamed; /playbook lists all of them.")
    return rules.book.rules[name]

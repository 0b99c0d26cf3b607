"""The playbook as a list: the rules that match, what became of each here, a page of them. Evaluates no rule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.numbers import counted
from app.domain.rules.contradictions import contradictions_of
from app.domain.rules.rule import KINDS, PHASES, Rule, RuleBook, Source
from app.playbook.change_view import flags_of
from app.playbook.filters import RuleFilters
from app.storage.rule_firings import fired_counts
from app.storage.rule_results import NOTHING, RuleResults, project_id_of, rule_results
from app.storage.rules_in_force import RulesInForce
from app.storage.tables import ProjectRow

PAGE_SIZE = 50
NO_PROJECT = -1
"""Counts of a project that does not exist: of nothing."""


@dataclass(frozen=True, slots=True)
class RuleItem:
    """A rule and what became of it here. `disputed`: how many contradictions of the sources it takes part in."""

    rule: Rule
    sources: tuple[Source, ...]
    fired: int
    results: RuleResults
    disputed: int
    replaces: bool


@dataclass(frozen=True, slots=True)
class RulePage:
    """One page of the list: `page` counts from 1, `total` is over all pages."""

    items: tuple[RuleItem, ...]
    total: int
    page: int
    size: int = PAGE_SIZE

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.items else 0

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1 if self.items else 0


def find_rules(session: Session, rules: RulesInForce, filters: RuleFilters) -> tuple[RuleItem, ...]:
    """All that match, in the order that is asked for."""
    project_id = counted_project(session, filters.project)
    fired = fired_counts(session, project_id)
    results = rule_results(session, rules.book.rules.values(), project_id)
    words = filters.q.casefold().split()
    found = [
        _item(rule, rules, fired, results)
        for rule in rules.book.rules.values()
        if _matches(rule, filters) and all(word in _texts(rules)[rule.id] for word in words)
    ]
    kept = [one for one in found if _STANDINGS[filters.only](one)]
    return tuple(sorted(kept, key=_ORDERS[filters.sort]))


def item_of(session: Session, rules: RulesInForce, rule: Rule, project: str = "") -> RuleItem:
    """One rule, counted like those of the list."""
    project_id = counted_project(session, project)
    return _item(rule, rules, fired_counts(session, project_id), rule_results(session, [rule], project_id))


def counted_project(session: Session, project: str) -> int | None:
    """Whose runs count; None for all."""
    if not project:
        return None
    found = project_id_of(session, project)
    return NO_PROJECT if found is None else found


def page_of(found: tuple[RuleItem, ...], page: int, size: int = PAGE_SIZE) -> RulePage:
    """A page past the end is empty, with the true total."""
    return RulePage(found[(page - 1) * size : page * size], len(found), page, size)


def projects(session: Session) -> tuple[str, ...]:
    return tuple(session.execute(select(ProjectRow.slug).order_by(col(ProjectRow.slug))).scalars())  # type: ignore[call-overload]


def told(found: Sequence[RuleItem], rules: RulesInForce) -> str:
    """The first sentence of the page: of what was found, what became of it here."""
    if not found:
        return "No rule matches."
    team = sum(one.rule.origin == "team" for one in found)
    whose = f", {team} of them a team's own" if team else ""
    fired, tried, paid = (sum(map(test, found)) for test in (_fired, _tried, _paid_off))
    which = counted(len(found), "rule")
    of = "" if len(found) == len(rules.book.rules) else f" of {len(rules.book.rules)}"
    return f"{which}{of}{whose}. {fired} fired in runs that are kept here, {tried} were tried, {paid} paid off."


def _item(rule: Rule, rules: RulesInForce, fired: Mapping[str, int], results: Mapping[str, RuleResults]) -> RuleItem:
    return RuleItem(
        rule=rule,
        sources=tuple(rules.book.sources[key] for key in rule.sources),
        fired=fired.get(rule.id, 0),
        results=results.get(rule.id, NOTHING),
        disputed=len(contradictions_of(rule.id)),
        replaces=bool(rule.overrides),
    )


def _matches(rule: Rule, filters: RuleFilters) -> bool:
    asked = (
        (filters.phase, rule.phase),
        (filters.wall, rule.wall),
        (filters.kind, rule.kind),
        (filters.confidence, rule.confidence),
        (filters.origin, rule.origin),
    )
    return all(not wanted or wanted == has for wanted, has in asked)


@lru_cache(maxsize=4)
def _texts(rules: RulesInForce) -> Mapping[str, str]:
    """What is searched, by rule; worked out once for the rules that are in force."""
    return {rule.id: _text(rule, rules.book) for rule in rules.book.rules.values()}


def _text(rule: Rule, book: RuleBook) -> str:
    """Id, title, why, change, condition, flags, sources; what contradicts it, too, so that old flags lead here."""
    sources = [book.sources[key] for key in rule.sources]
    evidence = [one for effect in rule.effect.evidence for one in (effect.text, effect.setting)]
    disputes = [text for one in contradictions_of(rule.id) for text in (one.older, one.newer)]
    said = (
        rule.id,
        rule.title,
        rule.why,
        rule.change.text,
        rule.when.source,
        rule.effect.text,
        rule.verify,
        rule.topic,
    )
    named = [f"{one.key} {one.title} {one.where} {one.date}" for one in sources]
    return " ".join((*said, *flags_of(rule), *named, *evidence, *disputes, rule.overrides)).casefold()


def _fired(one: RuleItem) -> bool:
    return one.fired > 0


def _tried(one: RuleItem) -> bool:
    return one.results.tried > 0


def _paid_off(one: RuleItem) -> bool:
    return one.results.paid_off > 0


_STANDINGS: Mapping[str, Callable[[RuleItem], bool]] = {
    "": lambda _: True,
    "fired": _fired,
    "tried": _tried,
    "paid_off": _paid_off,
    "disputed": lambda one: one.disputed > 0,
}


def _workflow(one: RuleItem) -> tuple[int, int, str]:
    return PHASES.index(one.rule.phase), KINDS.index(one.rule.kind), one.rule.id


_ORDERS: Mapping[str, Callable[[RuleItem], tuple[object, ...]]] = {
    "": _workflow,
    "workflow": _workflow,
    "fired": lambda one: (-one.fired, *_workflow(one)),
    "tried": lambda one: (-one.results.tried, *_workflow(one)),
    "paid_off": lambda one: (-one.results.paid_off, -one.results.tried, *_workflow(one)),
    "newest": lambda one: (*(-ord(c) for c in f"{one.rule.valid:<10}"), *_workflow(one)),
}

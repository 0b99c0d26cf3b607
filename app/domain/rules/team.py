"""A team's own rules beside those of the service: read, checked, and left out by the file where something is wrong.

A file with a mistake is left out whole, because its rules may rest on each other; the others count. Nothing that a team
writes stops the service: rules advise, and an upload must not wait for somebody's comma. It is `threewalls check-rules`
that refuses, before the file gets here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.rules.lint import mistakes_of
from app.domain.rules.load import SOURCES, load_rules, load_sources
from app.domain.rules.mistakes import Mistake
from app.domain.rules.rule import Rule, RuleBook, Source

MAX_CHARACTERS = 1_000_000
"""Of one file; nobody reads more."""


@dataclass(frozen=True, slots=True)
class TeamRules:
    """`book`: the rules of the service and of the team. `mistakes`: of the files that are left out.

    `replaced`: rules of the service that a team's rule stands in place of, by id.
    """

    book: RuleBook
    mistakes: tuple[Mistake, ...] = ()
    replaced: Mapping[str, Rule] = field(default_factory=dict)

    @property
    def files_left_out(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.file for one in self.mistakes))


def with_team(own: RuleBook, texts: Mapping[str, str]) -> TeamRules:
    """The service's book `own` and the files of a team, by their name (`ours.yaml`)."""
    mistakes: list[Mistake] = []
    sources = _sources(own, texts.get(SOURCES, ""), mistakes)
    files: dict[str, list[Rule]] = {}
    for name, text in sorted(texts.items()):
        if name != SOURCES:
            wrong: list[Mistake] = []
            rules = _read(name, text, wrong)
            wrong += _names_taken(rules, own, files)
            files |= {} if wrong else {name: rules}
            mistakes += wrong
    return _linted(own, sources, files, mistakes)


def _read(name: str, text: str, wrong: list[Mistake]) -> list[Rule]:
    if len(text) > MAX_CHARACTERS:
        wrong.append(Mistake(name, 1, "", f"is longer than {MAX_CHARACTERS:,} characters; split it"))
        return []
    return load_rules(name.removesuffix(".yaml"), text, "team", wrong)


def _sources(own: RuleBook, text: str, mistakes: list[Mistake]) -> dict[str, Source]:
    found = load_sources(text, mistakes)
    for key in sorted(found.keys() & own.sources.keys()):
        del found[key]
        mistakes.append(Mistake(SOURCES, 1, key, "is a key of the service's own sources; choose another"))
    return found


def _names_taken(rules: Sequence[Rule], own: RuleBook, files: Mapping[str, Sequence[Rule]]) -> list[Mistake]:
    """Rules that stand twice, and those that would replace one of the service without saying so."""
    wrong = []
    seen = {one.id: name for name, others in files.items() for one in others}
    for rule in rules:
        if rule.id in seen:
            wrong.append(Mistake.of(rule, f"stands in {seen[rule.id]}, too; choose another id"))
        elif rule.id in own.rules and not rule.overrides:
            said = (
                "a rule of that name is built in; choose another id, or say with `overrides: why` that it replaces it"
            )
            wrong.append(Mistake.of(rule, said))
        elif rule.overrides and rule.id not in own.rules:
            wrong.append(Mistake.of(rule, "overrides a rule that the service does not have; correct the id"))
        seen[rule.id] = f"{rule.topic}.yaml"
    return wrong


def _linted(
    own: RuleBook, sources: Mapping[str, Source], files: dict[str, list[Rule]], mistakes: list[Mistake]
) -> TeamRules:
    """Until no file is wrong: one that is left out may be what another rests on."""
    while True:
        team = {rule.id: rule for rules in files.values() for rule in rules}
        book = RuleBook({**own.rules, **team}, {**sources, **own.sources})
        wrong = [mistake for rule in team.values() for mistake in mistakes_of(rule, book)]
        if not wrong:
            replaced = {name: own.rules[name] for name in team if name in own.rules}
            return TeamRules(book, tuple(mistakes), replaced)
        mistakes += wrong
        for name in {one.file for one in wrong}:
            del files[name]

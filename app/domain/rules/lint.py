"""What is wrong with a rule, beyond its form: facts that do not exist, no source, no date, an example that fails.

CI runs it over the built-in rules; a team's own files pass the same before they are used.
"""

import re
from collections.abc import Iterator, Mapping

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value
from app.domain.rules.derive import derive
from app.domain.rules.expression import Expression, Known, RuleError, Unknown
from app.domain.rules.facts import FACTS
from app.domain.rules.mistakes import Mistake
from app.domain.rules.rule import Facts, Rule, RuleBook, Setting

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+\Z")
_DATE = re.compile(r"20\d\d-(0[1-9]|1[0-2])(-\d\d)?\Z")
_PLACE = re.compile(r"\{([^{}]*)\}")
_FORMS = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::(?P<form>[^{}]*))?\Z")
MAX_TITLE = 90


def mistakes(book: RuleBook) -> list[Mistake]:
    """Every mistake of every rule."""
    return [mistake for rule in book.rules.values() for mistake in mistakes_of(rule, book)]


def mistakes_of(rule: Rule, book: RuleBook) -> list[Mistake]:
    """Every mistake of one rule, beyond what its reading refuses."""
    found = (*_form(rule), *_references(rule, book), *_names(rule), *_texts(rule), *_changes(rule), *_examples(rule))
    return [Mistake.of(rule, said) for said in found]


def _form(rule: Rule) -> Iterator[str]:
    if not _ID.match(rule.id):
        yield "its id must be words with hyphens, for instance scale-min-gpus"
    if len(rule.title) > MAX_TITLE or rule.title.endswith("."):
        yield f"its title must be at most {MAX_TITLE} characters, without a full stop"
    if not rule.sources:
        yield "has no source: name at least one key of sources.yaml under `sources`"
    if not _DATE.match(rule.valid):
        yield f"`valid` must be a month or a day, for instance 2026-08, not {rule.valid}"
    if not rule.examples.fires:
        yield "has no example under which it fires: state facts under `examples: {fires: ...}`"
    if not rule.examples.silent:
        yield "has no example under which it is silent: state facts under `examples: {silent: ...}`"


def _references(rule: Rule, book: RuleBook) -> Iterator[str]:
    for key in (*rule.sources, *(one.source for one in rule.effect.evidence)):
        if key not in book.sources:
            yield f"{key} is not in sources.yaml: add it there with title, where and date"
    for other in rule.hints.unlocks:
        if other not in book.rules:
            yield f"unlocks {other}, which is no rule"


def expressions(rule: Rule) -> Iterator[Expression]:
    """All expressions of a rule: its condition first."""
    yield rule.when
    for requirement in (*rule.needs, *rule.conflicts):
        if requirement.when is not None:
            yield requirement.when
    for value in (*rule.change.set.values(), *rule.change.env.values(), rule.hints.order):
        if isinstance(value, Expression):
            yield value


def _names(rule: Rule) -> Iterator[str]:
    for expression in expressions(rule):
        for name in expression.names:
            if name not in FACTS:
                yield f"`{expression.source}` names {name}, which is no known fact"
        if "has(" in expression.source:
            yield f"`{expression.source}` uses has(), which takes unknown for unset; name the fact instead"
    for name in rule.hints.hold:
        if name not in FACTS:
            yield f"`hold` names {name}, which is no known fact"


def places(text: str) -> list[str]:
    """The facts that a text fills in: `{gpus} GPUs` names gpus. A format may follow: `{exposed_comm_frac:.0%}`."""
    found = []
    for inner in _PLACE.findall(text):
        match = _FORMS.match(inner)
        found.append(match["name"] if match else inner)
    return found


def _texts(rule: Rule) -> Iterator[str]:
    shown = (rule.title, rule.why, rule.change.text, *rule.change.megatron_lm, *rule.change.bridge)
    for text in shown:
        for name in places(text):
            if name not in FACTS:
                yield f"the text {text[:40]!r} fills in {name}, which is no known fact"


def _changes(rule: Rule) -> Iterator[str]:
    for name, value in rule.change.set.items():
        if name not in FIELDS:
            yield f"changes {name}, which is no contract field"
        elif not isinstance(value, Expression) and (why := _refused(name, value)):
            yield f"changes {name} to {value!r}, which it does not take: {why}"
    for fact in (fact for one in rule.effect.evidence for fact in one.at):
        if fact not in FACTS:
            yield f"evidence `at` names {fact}, which is no known fact"


def _refused(name: str, value: Setting) -> str | None:
    try:
        read_value(name, value)
    except ValueError as problem:
        return str(problem)
    return None


def _examples(rule: Rule) -> Iterator[str]:
    for wanted, examples in (
        ("fires", rule.examples.fires),
        ("silent", rule.examples.silent),
        ("asks", rule.examples.asks),
    ):
        for example in examples:
            if told := _told(rule, example, wanted):
                yield f"example {dict(example)}: {told}"


def _told(rule: Rule, example: Facts, wanted: str) -> str | None:
    """Why an example does not do what it should; None when it does."""
    try:
        known = Known(derive(example))
        answer = known.ask(rule.when)
    except (RuleError, ValueError) as problem:
        return str(problem)
    got = "asks" if isinstance(answer, Unknown) else {True: "fires", False: "silent"}.get(answer)  # type: ignore[call-overload]
    if got is None:
        return f"the condition is {answer!r}, neither true nor false"
    if got != wanted:
        missing = f" for {', '.join(answer.missing)}" if isinstance(answer, Unknown) else ""
        return f"should be of kind {wanted}, but the rule {got}{missing}"
    return _parts_told(rule, known) if wanted == "fires" else None


def _parts_told(rule: Rule, known: Known) -> str | None:
    """Under an example that fires, every other expression must suit its facts, too."""
    for expression in expressions(rule):
        try:
            known.ask(expression)
        except RuleError as problem:
            return str(problem)
    values: Mapping[str, object] = known.values
    absent = [name for name in places(rule.why) if name not in values]
    return f"the reason fills in {', '.join(absent)}, which is unknown there" if absent else None

"""Read rule files: YAML, with every error named by file, rule and key.

A file is a list of rules (docs/rules.md); `sources.yaml` maps keys to documents. A team's folder has files of the same
form, which are read after the built-in ones and may add their own sources.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast, get_args

import yaml

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value
from app.domain.rules.derive import derive
from app.domain.rules.expression import Expression, FactContext, RuleError, Unknown, compile_expression
from app.domain.rules.facts import FACTS, LOADER
from app.domain.rules.rule import (
    CONFIDENCES,
    KINDS,
    LEVELS,
    PHASES,
    WALLS,
    Change,
    Effect,
    Examples,
    Facts,
    Hints,
    Mistake,
    Origin,
    PublishedResult,
    Recipe,
    Requirement,
    Rule,
    RuleBook,
    RuleFileError,
    Setting,
    Source,
    Urgency,
)

T = TypeVar("T", bound=str)
FOLDER = Path(__file__).resolve().parent
SOURCES = "sources.yaml"
NO_RULES = (SOURCES, "contradictions.yaml")
KEYS = {
    *("id", "phase", "wall", "kind", "title", "when", "why", "change", "needs", "conflicts", "effect", "verify"),
    *(
        "sources",
        "valid",
        "confidence",
        "examples",
        "order",
        "bring_up",
        "for_memory",
        "blocks",
        "unlocks",
        "hold",
        "overrides",
    ),
    *("urgency", "general", "after", "joins", "yields", "run_title"),
}


@lru_cache(maxsize=1)
def built_in_rules() -> RuleBook:
    """Return the built-in rules and their sources. Raises RuleFileError with every error, one per line."""
    paths = (path for path in sorted(FOLDER.glob("*.yaml")) if path.name not in NO_RULES)
    return load_texts({path.stem: path.read_text("utf-8") for path in paths}, (FOLDER / SOURCES).read_text("utf-8"))


def load_texts(texts: Mapping[str, str], sources: str) -> RuleBook:
    """Return the rules of several files by topic (file name without extension). Raises RuleFileError."""
    mistakes: list[Mistake] = []
    rules: dict[str, Rule] = {}
    for topic, text in texts.items():
        for rule in load_rules(topic, text, "built-in", mistakes):
            if rule.id in rules:
                mistakes.append(Mistake.of(rule, f"is already defined in {rules[rule.id].topic}.yaml"))
            rules[rule.id] = rule
    sources_by_key = load_sources(sources, mistakes)
    if mistakes:
        raise RuleFileError(mistakes)
    return RuleBook(rules, sources_by_key)


def load_rules(topic: str, text: str, origin: Origin, mistakes: list[Mistake]) -> list[Rule]:
    """Return the valid rules of one file; errors in the others are added to `mistakes`."""
    rules = []
    for number, (line, row) in enumerate(_rows(topic, text, mistakes), start=1):
        try:
            rules.append(_rule(row, topic, origin, line))
        except RuleError as problem:
            named = row.get("id") if isinstance(row, Mapping) else None
            mistakes.append(Mistake(f"{topic}.yaml", line, str(named or f"rule {number}"), str(problem)))
    return rules


def _rows(topic: str, text: str, mistakes: list[Mistake]) -> list[tuple[int, object]]:
    """Return each entry of the list with its first line."""
    file = f"{topic}.yaml"
    loader = LOADER(text)
    try:
        node = loader.get_single_node()
        rows = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as problem:  # a date such as 2026-02-30 raises ValueError
        mistakes.append(_no_yaml(file, problem))
        return []
    finally:
        loader.dispose()
    if node is None or rows is None:
        return []
    if not isinstance(rows, list):
        mistakes.append(Mistake(file, 1, "", "must be a list of rules, each beginning with `- id:`"))
        return []
    return [(entry.start_mark.line + 1, row) for entry, row in zip(node.value, rows, strict=True)]


def _no_yaml(file: str, problem: Exception) -> Mistake:
    mark = getattr(problem, "problem_mark", None)
    description = " ".join(str(getattr(problem, "problem", "") or problem).split())
    return Mistake(file, mark.line + 1 if mark is not None else 1, "", f"is not valid YAML: {description}")


def load_sources(text: str, mistakes: list[Mistake]) -> dict[str, Source]:
    """Return the valid sources of a folder, by key."""
    try:
        rows = yaml.load(text, Loader=LOADER) or {}  # noqa: S506
    except (yaml.YAMLError, ValueError) as problem:
        mistakes.append(_no_yaml(SOURCES, problem))
        return {}
    if not isinstance(rows, Mapping):
        mistakes.append(Mistake(SOURCES, 1, "", "must map the key of a source to its title, where and date"))
        return {}
    sources = {}
    for key, row in rows.items():
        entry = row if isinstance(row, Mapping) else {}
        texts = {name: str(entry.get(name, "")).strip() for name in ("title", "where", "date")}
        if missing := [name for name, value in texts.items() if not value]:
            mistakes.append(Mistake(SOURCES, _line_of(text, str(key)), str(key), f"lacks {', '.join(missing)}"))
            continue
        sources[str(key)] = Source(str(key), **texts)
    return sources


def _line_of(text: str, key: str) -> int:
    """Return the line of a key of the top-level mapping."""
    lines = (number for number, line in enumerate(text.splitlines(), 1) if line.lstrip("'\"").startswith(key))
    return next(lines, 1)


def _rule(row: object, topic: str, origin: Origin, line: int) -> Rule:
    entry = _mapping(row, "a rule", KEYS)
    return Rule(
        id=_text(entry, "id"),
        phase=_one_of(entry, "phase", PHASES),
        wall=_one_of(entry, "wall", WALLS),
        kind=_one_of(entry, "kind", KINDS),
        title=_text(entry, "title"),
        when=compile_expression(_text(entry, "when")),
        why=_text(entry, "why"),
        change=_change(entry.get("change")),
        needs=_requirements(entry, "needs"),
        conflicts=_requirements(entry, "conflicts"),
        effect=_effect(entry.get("effect")),
        verify=_text(entry, "verify"),
        sources=_texts(entry, "sources"),
        valid=_text(entry, "valid"),
        confidence=_one_of(entry, "confidence", CONFIDENCES),
        examples=_examples(entry.get("examples")),
        hints=_hints(entry),
        overrides=_overrides(entry, origin),
        run_title=_text(entry, "run_title") if "run_title" in entry else "",
        topic=topic,
        origin=origin,
        line=line,
    )


def _overrides(row: Mapping[str, object], origin: Origin) -> str:
    if "overrides" not in row:
        return ""
    if origin == "built-in":
        raise RuleError("overrides is only for team rules; correct the rule itself")
    return _text(row, "overrides")


def _mapping(raw: object, what: str, keys: Collection[str] = ()) -> Mapping[str, object]:
    """Return a mapping. `keys`: the keys that may occur; all, if empty."""
    if not isinstance(raw, Mapping):
        raise RuleError(f"{what} must be a mapping")
    if keys and (unknown := sorted(str(key) for key in raw if key not in keys)):
        raise RuleError(f"{what} has unknown keys: {', '.join(unknown)}")
    return {str(key): value for key, value in raw.items()}


def _text(row: Mapping[str, object], name: str) -> str:
    value = row.get(name)
    if isinstance(value, bool):  # `when: true`
        return str(value).lower()
    text = "" if value is None else " ".join(str(value).split())
    if not text:
        raise RuleError(f"lacks {name}")
    return text


def _texts(row: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = row.get(name, [])
    if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
        raise RuleError(f"{name} must be a list of strings")
    return tuple(str(item) for item in value)


def _one_of(row: Mapping[str, object], name: str, choices: tuple[T, ...]) -> T:
    value = row.get(name)
    if value not in choices:
        raise RuleError(f"{name} must be one of {', '.join(choices)}")
    return value


def _setting(raw: object) -> Setting | Expression:
    """Return a literal, or an expression after an equals sign."""
    if isinstance(raw, str) and raw.startswith("="):
        return compile_expression(raw[1:].strip())
    if isinstance(raw, list):
        return tuple(raw)
    if raw is None or isinstance(raw, str | int | float | bool):
        return raw
    raise RuleError(f"{raw!r} is not a valid setting")


def _settings(raw: object, what: str) -> dict[str, Setting | Expression]:
    return {name: _setting(value) for name, value in _mapping(raw or {}, what).items()}


def _change(raw: object) -> Change:
    row = _mapping(raw, "change", ("text", "set", "megatron_lm", "bridge", "env", "recipes"))
    return Change(
        text=_text(row, "text"),
        set=_settings(row.get("set"), "change.set"),
        megatron_lm=_texts(row, "megatron_lm"),
        bridge=_texts(row, "bridge"),
        env=_settings(row.get("env"), "change.env"),
        recipes=tuple(_recipe(item) for item in cast(Iterable[object], row.get("recipes") or [])),
    )


def _recipe(raw: object) -> Recipe:
    row = _mapping(raw, "change.recipes")
    when = compile_expression(_text(row, "when")) if "when" in row else None
    run = str(row.get("run") or "").strip()
    if not run:
        raise RuleError("change.recipes lacks run")
    return Recipe(_text(row, "title"), run, _text(row, "then"), when)


def _requirements(row: Mapping[str, object], name: str) -> tuple[Requirement, ...]:
    requirements = []
    for raw in cast(Iterable[object], row.get(name) or []):
        entry = _mapping(raw, name, ("text", "when"))
        when = compile_expression(_text(entry, "when")) if "when" in entry else None
        requirements.append(Requirement(_text(entry, "text"), when))
    return tuple(requirements)


def _effect(raw: object) -> Effect:
    if raw is None:
        return Effect()
    row = _mapping(raw, "effect", ("text", "evidence"))
    evidence = tuple(_evidence(item) for item in cast(Iterable[object], row.get("evidence") or []))
    return Effect(_text(row, "text"), evidence)


def _evidence(raw: object) -> PublishedResult:
    row = _mapping(raw, "effect.evidence", ("text", "setting", "level", "source", "date", "at", "gain"))
    return PublishedResult(
        text=_text(row, "text"),
        setting=_text(row, "setting"),
        level=_one_of(row, "level", LEVELS),
        source=_text(row, "source"),
        date=str(row.get("date", "")),
        at=cast(Mapping[str, Setting], _mapping(row.get("at") or {}, "effect.evidence.at")),
        gain=_gain(row.get("gain")),
    )


def _gain(raw: object) -> tuple[float, ...]:
    """Return a gain in percent: one figure, or the lowest and the highest."""
    figures: list[object] = [] if raw is None else raw if isinstance(raw, list) else [raw, raw]
    numbers = [float(figure) for figure in figures if isinstance(figure, int | float) and not isinstance(figure, bool)]
    if len(numbers) != len(figures) or len(figures) not in (0, 2):
        raise RuleError("effect.evidence.gain must be a number in percent, or a list of the lowest and the highest")
    return tuple(sorted(numbers))


def _examples(raw: object) -> Examples:
    row = _mapping(raw, "examples")
    return Examples(*(_facts(row.get(name), name) for name in ("fires", "silent", "asks")))


def _facts(raw: object, name: str) -> tuple[Facts, ...]:
    """Return one or several sets of facts."""
    if raw is None:
        return ()
    many = raw if isinstance(raw, list) else [raw]
    return tuple(_mapping(example, f"examples.{name}") for example in many)


def _general(raw: object) -> bool | Expression:
    value = _setting(raw)
    if not isinstance(value, bool | Expression):
        raise RuleError("general must be true, false or an expression")
    return value


def _hints(row: Mapping[str, object]) -> Hints:
    order = _setting(row.get("order", 50))
    if not isinstance(order, Expression | int) or isinstance(order, bool):
        raise RuleError("order must be a whole number or an expression")
    return Hints(
        order=order,
        bring_up=row.get("bring_up") is True,
        for_memory=row.get("for_memory") is True,
        blocks=str(row.get("blocks") or ""),
        unlocks=_texts(row, "unlocks"),
        hold=_texts(row, "hold"),
        urgency=_one_of(row, "urgency", get_args(Urgency)[1:]) if "urgency" in row else "",
        general=_general(row.get("general", False)),
        after=_texts(row, "after"),
        joins=_texts(row, "joins"),
        yields=row.get("yields") is True,
    )


# --- Lint rules beyond their form: unknown facts, missing sources and dates, failing examples. CI checks the built-in
# rules; files of a team pass the same check before they are used.

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+\Z")
_DATE = re.compile(r"20\d\d-(0[1-9]|1[0-2])(-\d\d)?\Z")
_PLACE = re.compile(r"\{([^{}]*)\}")
_FORMS = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::(?P<form>[^{}]*))?\Z")
MAX_TITLE = 90


def mistakes(book: RuleBook) -> list[Mistake]:
    return [mistake for rule in book.rules.values() for mistake in mistakes_of(rule, book)]


def mistakes_of(rule: Rule, book: RuleBook) -> list[Mistake]:
    """Return every error of one rule that reading does not find."""
    messages = (
        *_form(rule),
        *_references(rule, book),
        *_names(rule),
        *_lint_texts(rule),
        *_changes(rule),
        *_lint_examples(rule),
    )
    return [Mistake.of(rule, message) for message in messages]


def _form(rule: Rule) -> Iterator[str]:
    if not _ID.match(rule.id):
        yield "its id must be words with hyphens, for example scale-min-gpus"
    if len(rule.title) > MAX_TITLE or rule.title.endswith("."):
        yield f"its title must have at most {MAX_TITLE} characters, without a full stop"
    if not rule.sources:
        yield "has no source: list at least one key of sources.yaml under `sources`"
    if not _DATE.match(rule.valid):
        yield f"`valid` must be a month or a day, for example 2026-08, not {rule.valid}"
    if not rule.examples.fires:
        yield "has no example in which it fires: add facts under `examples: {fires: ...}`"
    if not rule.examples.silent:
        yield "has no example in which it stays silent: add facts under `examples: {silent: ...}`"


def _references(rule: Rule, book: RuleBook) -> Iterator[str]:
    for key in (*rule.sources, *(evidence.source for evidence in rule.effect.evidence)):
        if key not in book.sources:
            yield f"{key} is not in sources.yaml: add it there with title, where and date"
    for key, others in (("unlocks", rule.hints.unlocks), ("after", rule.hints.after), ("joins", rule.hints.joins)):
        for other in others:
            if other not in book.rules:
                yield f"{key} names {other}, which is not a rule"


def expressions(rule: Rule) -> Iterator[Expression]:
    """Yield all expressions of a rule, its condition first."""
    yield rule.when
    conditions = (
        *(need.when for need in rule.needs),
        *(conflict.when for conflict in rule.conflicts),
        *(recipe.when for recipe in rule.change.recipes),
    )
    yield from (condition for condition in conditions if condition is not None)
    for value in (*rule.change.set.values(), *rule.change.env.values(), rule.hints.order, rule.hints.general):
        if isinstance(value, Expression):
            yield value


def _names(rule: Rule) -> Iterator[str]:
    for expression in expressions(rule):
        for name in expression.names:
            if name not in FACTS:
                yield f"`{expression.source}` names {name}, which is not a known fact"
        if "has(" in expression.source:
            yield f"`{expression.source}` uses has(), which treats unknown as unset; test the fact itself"
    for name in rule.hints.hold:
        if name not in FACTS:
            yield f"`hold` names {name}, which is not a known fact"


def places(text: str) -> list[str]:
    """Return the facts that a text inserts: `{gpus} GPUs` inserts gpus. A format may follow:
    `{exposed_comm_frac:.0%}`."""
    names = []
    for inner in _PLACE.findall(text):
        match = _FORMS.match(inner)
        names.append(match["name"] if match else inner)
    return names


def _lint_texts(rule: Rule) -> Iterator[str]:
    recipes = [text for recipe in rule.change.recipes for text in (recipe.run, recipe.then)]
    shown = (
        rule.title,
        rule.run_title,
        rule.why,
        rule.change.text,
        *rule.change.megatron_lm,
        *rule.change.bridge,
        *recipes,
    )
    for text in shown:
        for name in places(text):
            if name not in FACTS:
                yield f"the text {text[:40]!r} uses {name}, which is not a known fact"


def _changes(rule: Rule) -> Iterator[str]:
    for name, value in rule.change.set.items():
        if name not in FIELDS:
            yield f"changes {name}, which is not a contract field"
        elif not isinstance(value, Expression) and (why := _refused(name, value)):
            yield f"changes {name} to {value!r}, which it does not take: {why}"
    for fact in (fact for evidence in rule.effect.evidence for fact in evidence.at):
        if fact not in FACTS:
            yield f"evidence `at` names {fact}, which is not a known fact"


def _refused(name: str, value: Setting) -> str | None:
    try:
        read_value(name, value)
    except ValueError as problem:
        return str(problem)
    return None


def _lint_examples(rule: Rule) -> Iterator[str]:
    for wanted, examples in (
        ("fires", rule.examples.fires),
        ("silent", rule.examples.silent),
        ("asks", rule.examples.asks),
    ):
        for example in examples:
            if why := _mistake(rule, example, wanted):
                yield f"example {dict(example)}: {why}"


def _mistake(rule: Rule, example: Facts, wanted: str) -> str | None:
    """Return why an example fails; None if it passes."""
    try:
        context = FactContext(derive(example))
        answer = context.ask(rule.when)
    except (RuleError, ValueError) as problem:
        return str(problem)
    if not isinstance(answer, Unknown | bool):
        return f"the condition returns {answer!r} instead of true or false"
    got = "asks" if isinstance(answer, Unknown) else "fires" if answer else "silent"
    if got != wanted:
        missing = f" for {', '.join(answer.missing)}" if isinstance(answer, Unknown) else ""
        return f"expected {wanted}, but got {got}{missing}"
    return _mistake_in_parts(rule, context) if wanted == "fires" else None


def _mistake_in_parts(rule: Rule, context: FactContext) -> str | None:
    """Return why another expression fails with the facts of an example that fires; None if none does."""
    for expression in expressions(rule):
        try:
            context.ask(expression)
        except RuleError as problem:
            return str(problem)
    values: Mapping[str, object] = context.values
    absent = [name for name in places(rule.why) if name not in values]
    return f"`why` uses {', '.join(absent)}, which is unknown in this example" if absent else None


# --- Rules of a team, in addition to the built-in ones. A file with an error is ignored entirely, because its rules may
# depend on each other; the other files count. Errors of a team never stop the service, because a typo must not delay an
# upload; use `threewalls check-rules` to validate files first.

MAX_CHARACTERS = 1_000_000
"""Maximum length of one file."""


@dataclass(frozen=True, slots=True)
class TeamRules:
    """The rules in use.

    `book`: built-in and team rules. `mistakes`: errors in the ignored files. `replaced`: built-in rules that a team's
    rule overrides, by id.
    """

    book: RuleBook
    mistakes: tuple[Mistake, ...] = ()
    replaced: Mapping[str, Rule] = field(default_factory=dict)

    @property
    def files_left_out(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(mistake.file for mistake in self.mistakes))


def with_team(own: RuleBook, texts: Mapping[str, str]) -> TeamRules:
    """Combine the built-in rules `own` with the files of a team, by file name (`ours.yaml`)."""
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
    sources = load_sources(text, mistakes)
    for key in sorted(sources.keys() & own.sources.keys()):
        del sources[key]
        mistakes.append(Mistake(SOURCES, 1, key, "is already a built-in source; choose another key"))
    return sources


def _names_taken(rules: Sequence[Rule], own: RuleBook, files: Mapping[str, Sequence[Rule]]) -> list[Mistake]:
    """Return errors of duplicate rules, and those that override a built-in rule without `overrides`."""
    wrong = []
    seen = {other.id: name for name, others in files.items() for other in others}
    for rule in rules:
        if rule.id in seen:
            wrong.append(Mistake.of(rule, f"is already defined in {seen[rule.id]}; choose another id"))
        elif rule.id in own.rules and not rule.overrides:
            message = "a built-in rule has this id; choose another id, or replace the rule with `overrides: reason`"
            wrong.append(Mistake.of(rule, message))
        elif rule.overrides and rule.id not in own.rules:
            wrong.append(Mistake.of(rule, "overrides a built-in rule that does not exist; correct the id"))
        seen[rule.id] = f"{rule.topic}.yaml"
    return wrong


def _linted(
    own: RuleBook, sources: Mapping[str, Source], files: dict[str, list[Rule]], mistakes: list[Mistake]
) -> TeamRules:
    """Repeat until all remaining files are valid, because files may depend on each other."""
    while True:
        team = {rule.id: rule for rules in files.values() for rule in rules}
        book = RuleBook({**own.rules, **team}, {**sources, **own.sources})
        wrong = [mistake for rule in team.values() for mistake in mistakes_of(rule, book)]
        if not wrong:
            replaced = {name: own.rules[name] for name in team if name in own.rules}
            return TeamRules(book, tuple(mistakes), replaced)
        mistakes += wrong
        for name in {mistake.file for mistake in wrong}:
            del files[name]

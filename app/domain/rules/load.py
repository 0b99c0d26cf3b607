"""Rule files become rules: YAML read with every mistake named by file, rule and key.

A file is a list of rules (docs/rules.md); `sources.yaml` maps keys to documents. A team's folder holds files of the
same form, which are read after the built-in ones and may bring sources of their own.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

import yaml

from app.domain.rules import lint
from app.domain.rules.expression import Expression, RuleError, compile_expression
from app.domain.rules.rule import (
    CONFIDENCES,
    KINDS,
    LEVELS,
    PHASES,
    WALLS,
    Change,
    Effect,
    Evidence,
    Examples,
    Facts,
    Hints,
    Requirement,
    Rule,
    RuleBook,
    Setting,
    Source,
)

T = TypeVar("T", bound=str)
FOLDER = Path(__file__).resolve().parent
SOURCES = "sources.yaml"
_NO_RULES = (SOURCES, "contradictions.yaml")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Both are safe; the one in C is ten times as fast."""
KEYS = {
    *("id", "phase", "wall", "kind", "title", "when", "why", "change", "needs", "conflicts", "effect", "verify"),
    *("sources", "valid", "confidence", "examples", "order", "bring_up", "blocks", "unlocks", "hold"),
}


@lru_cache(maxsize=1)
def built_in_rules() -> RuleBook:
    """The rules of this service."""
    return load_folder(FOLDER)


def load_folder(folder: Path, origin: str = "built-in") -> RuleBook:
    """All rules and sources of a folder. Raises RuleError with every mistake, one a line."""
    texts = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted(folder.glob("*.yaml"))
        if path.name not in _NO_RULES
    }
    sources = folder / SOURCES
    return load_texts(texts, sources.read_text(encoding="utf-8") if sources.is_file() else "", origin)


def with_team_rules(folder: Path | None) -> RuleBook:
    """The built-in rules and those of a team's folder. Raises RuleError with every mistake that the linter finds."""
    if folder is None:
        return built_in_rules()
    both = joined(built_in_rules(), load_folder(folder, origin="team"))
    found = [
        mistake for rule in both.rules.values() if rule.origin == "team" for mistake in lint.mistakes_of(rule, both)
    ]
    if found:
        raise RuleError("\n".join(found))
    return both


def load_texts(texts: Mapping[str, str], sources: str = "", origin: str = "built-in") -> RuleBook:
    """Rules of several files, by their topic (the file's name without its ending)."""
    mistakes: list[str] = []
    rules: dict[str, Rule] = {}
    for topic, text in texts.items():
        for number, row in enumerate(_rows(topic, text, mistakes), start=1):
            try:
                rule = _rule(row, topic, origin)
            except RuleError as problem:
                named = row.get("id") if isinstance(row, Mapping) else None
                mistakes.append(f"{topic}.yaml: {named or f'rule {number}'}: {problem}")
                continue
            if rule.id in rules:
                mistakes.append(f"{topic}.yaml: {rule.id}: stands in {rules[rule.id].topic}.yaml, too")
            rules[rule.id] = rule
    known = _sources(sources, mistakes)
    if mistakes:
        raise RuleError("\n".join(mistakes))
    return RuleBook(rules, known)


def joined(first: RuleBook, second: RuleBook) -> RuleBook:
    """Both books as one. Raises RuleError where the second has a rule of the first."""
    if twice := sorted(first.rules.keys() & second.rules.keys()):
        raise RuleError(f"{', '.join(twice)}: a rule of that name is built in; choose another")
    return RuleBook({**first.rules, **second.rules}, {**second.sources, **first.sources})


def _rows(topic: str, text: str, mistakes: list[str]) -> Sequence[object]:
    try:
        rows = yaml.load(text, Loader=_LOADER)  # noqa: S506
    except yaml.YAMLError as problem:
        mistakes.append(f"{topic}.yaml: is no YAML: {' '.join(str(problem).split())}")
        return ()
    if rows is None:
        return ()
    if not isinstance(rows, list):
        mistakes.append(f"{topic}.yaml: must be a list of rules")
        return ()
    return rows


def _sources(text: str, mistakes: list[str]) -> dict[str, Source]:
    try:
        rows = yaml.load(text, Loader=_LOADER) or {}  # noqa: S506
    except yaml.YAMLError as problem:
        mistakes.append(f"{SOURCES}: is no YAML: {' '.join(str(problem).split())}")
        return {}
    found = {}
    for key, row in rows.items():
        texts = {name: str(row.get(name, "")).strip() for name in ("title", "where", "date")}
        if missing := [name for name, value in texts.items() if not value]:
            mistakes.append(f"{SOURCES}: {key}: lacks {', '.join(missing)}")
        found[str(key)] = Source(str(key), **texts)
    return found


def _rule(row: object, topic: str, origin: str) -> Rule:
    known = _mapping(row, "a rule")
    if unknown := sorted(set(known) - KEYS):
        raise RuleError(f"has no key {', '.join(unknown)}")
    return Rule(
        id=_text(known, "id"),
        phase=_one_of(known, "phase", PHASES),
        wall=_one_of(known, "wall", WALLS),
        kind=_one_of(known, "kind", KINDS),
        title=_text(known, "title"),
        when=_expression(_text(known, "when")),
        why=_text(known, "why"),
        change=_change(known.get("change")),
        needs=_requirements(known, "needs"),
        conflicts=_requirements(known, "conflicts"),
        effect=_effect(known.get("effect")),
        verify=_text(known, "verify"),
        sources=_texts(known, "sources"),
        valid=_text(known, "valid"),
        confidence=_one_of(known, "confidence", CONFIDENCES),
        examples=_examples(known.get("examples")),
        hints=_hints(known),
        topic=topic,
        origin=origin,
    )


def _mapping(raw: object, what: str) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        raise RuleError(f"{what} must be a mapping")
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
        raise RuleError(f"{name} must be a list of texts")
    return tuple(str(item) for item in value)


def _one_of(row: Mapping[str, object], name: str, choices: tuple[T, ...]) -> T:
    value = row.get(name)
    if value not in choices:
        raise RuleError(f"{name} must be one of {', '.join(choices)}")
    return value


def _expression(source: str) -> Expression:
    return compile_expression(source)


def _setting(raw: object) -> Setting | Expression:
    """A literal, or an expression after an equals sign."""
    if isinstance(raw, str) and raw.startswith("="):
        return _expression(raw[1:].strip())
    if isinstance(raw, list):
        return tuple(raw)
    if raw is None or isinstance(raw, str | int | float | bool):
        return raw
    raise RuleError(f"{raw!r} is no value of a setting")


def _settings(raw: object, what: str) -> dict[str, Setting | Expression]:
    return {name: _setting(value) for name, value in _mapping(raw or {}, what).items()}


def _change(raw: object) -> Change:
    row = _mapping(raw, "change")
    if unknown := sorted(set(row) - {"text", "set", "megatron_lm", "bridge", "env"}):
        raise RuleError(f"change has no key {', '.join(unknown)}")
    return Change(
        text=_text(row, "text"),
        set=_settings(row.get("set"), "change.set"),
        megatron_lm=_texts(row, "megatron_lm"),
        bridge=_texts(row, "bridge"),
        env=_settings(row.get("env"), "change.env"),
    )


def _requirements(row: Mapping[str, object], name: str) -> tuple[Requirement, ...]:
    found = []
    for one in cast(Iterable[object], row.get(name) or []):
        known = _mapping(one, name)
        when = _expression(_text(known, "when")) if "when" in known else None
        found.append(Requirement(_text(known, "text"), when))
    return tuple(found)


def _effect(raw: object) -> Effect:
    if raw is None:
        return Effect()
    row = _mapping(raw, "effect")
    evidence = tuple(_evidence(one) for one in cast(Iterable[object], row.get("evidence") or []))
    return Effect(_text(row, "text"), evidence)


def _evidence(raw: object) -> Evidence:
    row = _mapping(raw, "effect.evidence")
    return Evidence(
        text=_text(row, "text"),
        setting=_text(row, "setting"),
        level=_one_of(row, "level", LEVELS),
        source=_text(row, "source"),
        date=str(row.get("date", "")),
        at=cast(Mapping[str, Setting], _mapping(row.get("at") or {}, "effect.evidence.at")),
    )


def _examples(raw: object) -> Examples:
    row = _mapping(raw, "examples")
    return Examples(*(_facts(row.get(name), name) for name in ("fires", "silent", "asks")))


def _facts(raw: object, name: str) -> tuple[Facts, ...]:
    """One set of facts, or a list of several."""
    if raw is None:
        return ()
    many = raw if isinstance(raw, list) else [raw]
    return tuple(_mapping(one, f"examples.{name}") for one in many)


def _hints(row: Mapping[str, object]) -> Hints:
    order = _setting(row.get("order", 50))
    if not isinstance(order, Expression | int) or isinstance(order, bool):
        raise RuleError("order must be a whole number or an expression")
    return Hints(
        order=order,
        bring_up=row.get("bring_up") is True,
        blocks=str(row.get("blocks") or ""),
        unlocks=_texts(row, "unlocks"),
        hold=_texts(row, "hold"),
    )

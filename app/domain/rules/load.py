"""Rule files become rules: YAML read with every mistake named by file, rule and key.

A file is a list of rules (docs/rules.md); `sources.yaml` maps keys to documents. A team's folder holds files of the
same form, which are read after the built-in ones and may bring sources of their own.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

import yaml

from app.domain.rules.expression import Expression, RuleError, compile_expression
from app.domain.rules.mistakes import Mistake, RuleFileError
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
    Origin,
    Requirement,
    Rule,
    RuleBook,
    Setting,
    Source,
)

T = TypeVar("T", bound=str)
FOLDER = Path(__file__).resolve().parent
SOURCES = "sources.yaml"
NO_RULES = (SOURCES, "contradictions.yaml")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Both are safe; the one in C is ten times as fast."""
KEYS = {
    *("id", "phase", "wall", "kind", "title", "when", "why", "change", "needs", "conflicts", "effect", "verify"),
    *("sources", "valid", "confidence", "examples", "order", "bring_up", "blocks", "unlocks", "hold", "overrides"),
}


@lru_cache(maxsize=1)
def built_in_rules() -> RuleBook:
    """The rules of this service."""
    return load_folder(FOLDER)


def load_folder(folder: Path, origin: Origin = "built-in") -> RuleBook:
    """All rules and sources of a folder. Raises RuleFileError with every mistake, one a line."""
    texts = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted(folder.glob("*.yaml"))
        if path.name not in NO_RULES
    }
    sources = folder / SOURCES
    return load_texts(texts, sources.read_text(encoding="utf-8") if sources.is_file() else "", origin)


def load_texts(texts: Mapping[str, str], sources: str = "", origin: Origin = "built-in") -> RuleBook:
    """Rules of several files, by their topic (the file's name without its ending). Raises RuleFileError."""
    mistakes: list[Mistake] = []
    rules: dict[str, Rule] = {}
    for topic, text in texts.items():
        for rule in load_rules(topic, text, origin, mistakes):
            if rule.id in rules:
                mistakes.append(Mistake.of(rule, f"stands in {rules[rule.id].topic}.yaml, too"))
            rules[rule.id] = rule
    known = load_sources(sources, mistakes)
    if mistakes:
        raise RuleFileError(mistakes)
    return RuleBook(rules, known)


def load_rules(topic: str, text: str, origin: Origin, mistakes: list[Mistake]) -> list[Rule]:
    """The rules of one file that can be read; what is wrong with the others is added to `mistakes`."""
    found = []
    for number, (line, row) in enumerate(_rows(topic, text, mistakes), start=1):
        try:
            found.append(_rule(row, topic, origin, line))
        except RuleError as problem:
            named = row.get("id") if isinstance(row, Mapping) else None
            mistakes.append(Mistake(f"{topic}.yaml", line, str(named or f"rule {number}"), str(problem)))
    return found


def _rows(topic: str, text: str, mistakes: list[Mistake]) -> list[tuple[int, object]]:
    """Each entry of the list with the line where it begins."""
    file = f"{topic}.yaml"
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        rows = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as problem:  # a date such as 2026-02-30 is no YAMLError
        mistakes.append(_no_yaml(file, problem))
        return []
    finally:
        loader.dispose()
    if node is None or rows is None:
        return []
    if not isinstance(rows, list):
        mistakes.append(Mistake(file, 1, "", "must be a list of rules, each beginning with `- id:`"))
        return []
    return [(one.start_mark.line + 1, row) for one, row in zip(node.value, rows, strict=True)]


def _no_yaml(file: str, problem: Exception) -> Mistake:
    mark = getattr(problem, "problem_mark", None)
    said = " ".join(str(getattr(problem, "problem", "") or problem).split())
    return Mistake(file, mark.line + 1 if mark is not None else 1, "", f"is no YAML: {said}")


def load_sources(text: str, mistakes: list[Mistake]) -> dict[str, Source]:
    """The sources of a folder that can be read, by key."""
    try:
        rows = yaml.load(text, Loader=_LOADER) or {}  # noqa: S506
    except (yaml.YAMLError, ValueError) as problem:
        mistakes.append(_no_yaml(SOURCES, problem))
        return {}
    if not isinstance(rows, Mapping):
        mistakes.append(Mistake(SOURCES, 1, "", "must map the key of a source to its title, where and date"))
        return {}
    found = {}
    for key, row in rows.items():
        known = row if isinstance(row, Mapping) else {}
        texts = {name: str(known.get(name, "")).strip() for name in ("title", "where", "date")}
        if missing := [name for name, value in texts.items() if not value]:
            mistakes.append(Mistake(SOURCES, _line_of(text, str(key)), str(key), f"lacks {', '.join(missing)}"))
            continue
        found[str(key)] = Source(str(key), **texts)
    return found


def _line_of(text: str, key: str) -> int:
    """Where a key of the outermost mapping stands."""
    lines = (number for number, line in enumerate(text.splitlines(), 1) if line.lstrip("'\"").startswith(key))
    return next(lines, 1)


def _rule(row: object, topic: str, origin: Origin, line: int) -> Rule:
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
        overrides=_overrides(known, origin),
        topic=topic,
        origin=origin,
        line=line,
    )


def _overrides(row: Mapping[str, object], origin: Origin) -> str:
    if "overrides" not in row:
        return ""
    if origin == "built-in":
        raise RuleError("overrides is for rules of a team; correct the rule itself")
    return _text(row, "overrides")


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

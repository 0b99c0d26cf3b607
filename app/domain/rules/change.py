"""A suggestion's change as a diff against the run's launch arguments, for Megatron-LM and Megatron-Bridge.

If the run's command is known, the diff is against it and the complete new command can be copied. Otherwise the diff is
against the arguments printed in its log, or its contract, and only the changed flags can be copied.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from app.domain.contract.fields import FIELDS, PREFIX
from app.domain.contract.trainer_defaults import newer_flags, newer_names
from app.domain.rules.expression import fact_text
from app.domain.rules.flags import WrittenFlags, older_words, written
from app.domain.rules.launch import OVERRIDE, Item, from_dump, name_of, read_command
from app.domain.rules.rule import Setting
from app.domain.run import Value

Sign = Literal[" ", "-", "+"]
Against = Literal["command", "arguments", "contract", "nothing"]
"""What a diff compares with: the run's command, the trainer's argument dump, its contract, or nothing."""
_PLACE = re.compile(r"<\w+>")
"""A placeholder in a flag of a rule, to be replaced by the user."""
_EMPTY = ("null", "[]")
_TWO_KNOBS = "moe_a2a_overlap"
"""The flag of Bridge's harness that sets expert overlap and delayed weight gradients together."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One flag with its values: kept, removed or added."""

    sign: Sign
    text: str


@dataclass(frozen=True, slots=True)
class FrameworkChange:
    """The change for one trainer.

    `lines`: the diff. `paste`: what to add to a command. `command`: the complete command with the change; empty if the
    command is unknown or contains a placeholder. `remove`: flags to remove. `fill`: flags with a `<place>` to replace;
    they are not in `paste` or `command`.
    """

    lines: tuple[DiffLine, ...]
    paste: str
    remove: tuple[str, ...] = ()
    command: str = ""
    against: Against = "nothing"
    fill: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A contract field before and after; `before` is None if unknown."""

    name: str
    before: str | None
    after: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ChangeDiff:
    """A change.

    `fields`: changed contract fields. `already`: fields that have the new value already. `environment`: changed
    variables.
    """

    fields: tuple[FieldChange, ...]
    already: tuple[str, ...]
    megatron_lm: FrameworkChange
    bridge: FrameworkChange
    environment: tuple[DiffLine, ...]
    export: str


@dataclass
class _Edit:
    """The flags that must be present and absent, by normalised name, with their spelling."""

    wanted: dict[str, list[str]] = field(default_factory=dict)
    unwanted: list[str] = field(default_factory=list)


class Changing(Protocol):
    """The input of a change: a suggestion, or the user's own change."""

    @property
    def set(self) -> Mapping[str, Setting]: ...
    @property
    def env(self) -> Mapping[str, Setting]: ...
    @property
    def megatron_lm(self) -> tuple[str, ...]: ...
    @property
    def bridge(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class OwnIdea:
    """A change without a rule."""

    set: Mapping[str, Setting]
    env: Mapping[str, Setting] = field(default_factory=dict)
    megatron_lm: tuple[str, ...] = ()
    bridge: tuple[str, ...] = ()


def change_of(
    suggestion: Changing,
    facts: Mapping[str, object],
    launch: object = None,
    arguments: Mapping[str, Value] | None = None,
) -> ChangeDiff:
    """Return the change of a suggestion in a run with these facts (typed, as `Evaluation.facts`).

    `launch`: the stated launch arguments, as the text of a command or a mapping of flags to values. `arguments`: the
    trainer's argument dump in the log.
    """
    settings = dict(suggestion.set)
    changed = {name: value for name, value in settings.items() if not is_set(name, value, facts)}
    own = read_command(launch)
    is_bridge = any(OVERRIDE.match(item.words[0]) or _is_harness(item) for item in own)
    spellings = {name: written(name, value, facts) for name, value in changed.items()}
    lm = _for_release(_megatron_edit(spellings, suggestion.megatron_lm), facts)
    bridge = _bridge_edit(spellings, suggestion.bridge)
    environment = _environment(suggestion, changed, facts)
    return ChangeDiff(
        fields=tuple(_field_change(name, value, facts) for name, value in changed.items()),
        already=tuple(name for name in settings if name not in changed),
        megatron_lm=_against(lm, [] if is_bridge else own, spellings, facts, arguments or {}, bridge=False),
        bridge=_against(bridge, own if is_bridge else [], spellings, facts, arguments or {}, bridge=True),
        environment=environment,
        export="\n".join(f"export {line.text}" for line in environment if line.sign == "+"),
    )


def is_set(name: str, value: Setting, facts: Mapping[str, object]) -> bool:
    """Return whether the run is known to have this value."""
    if name not in facts:
        return False
    now = facts[name]
    if isinstance(now, list):
        wanted = value if isinstance(value, tuple) else () if value is None else (value,)
        return list(map(str, now)) == list(map(str, wanted)) or sorted(map(str, now)) == sorted(map(str, wanted))
    return now == value or (now is False and value is None)


def _field_change(name: str, value: Setting, facts: Mapping[str, object]) -> FieldChange:
    before = fact_text(facts[name]) if name in facts else None
    return FieldChange(name, before, fact_text(value), FIELDS[name].meaning)


def _is_harness(item: Item) -> bool:
    return item.name in (_TWO_KNOBS, "moe_flex_dispatcher_backend") and "_" in item.words[0]


def _megatron_edit(spellings: Mapping[str, WrittenFlags], more: Sequence[str]) -> _Edit:
    edit = _Edit()
    for spelling in spellings.values():
        for flag, values in spelling.megatron_lm.flags.items():
            edit.wanted[name_of(flag)] = [flag, *values]
        edit.unwanted += [name_of(flag) for flag in spelling.megatron_lm.without]
    for flag in more:
        for item in read_command(flag):
            edit.wanted[item.name] = item.words
    return edit


def _for_release(edit: _Edit, facts: Mapping[str, object]) -> _Edit:
    """Spell flags as the run's release of Megatron Core does, where it has another name for them."""
    for name in newer_names(facts.get("mcore_version"), edit.wanted):
        words = older_words(name, edit.wanted[name], facts)
        if words:
            del edit.wanted[name]
            edit.wanted[name_of(words[0])] = words
    return edit


def lacking_flags(change: Changing, facts: Mapping[str, object]) -> list[str]:
    """Return the flags of a change that the run's release of Megatron Core lacks; empty if the release is unknown."""
    if facts.get("mcore_version") is None:
        return []
    changed = {name: value for name, value in change.set.items() if not is_set(name, value, facts)}
    spellings = {name: written(name, value, facts) for name, value in changed.items()}
    edit = _for_release(_megatron_edit(spellings, change.megatron_lm), facts)
    return newer_flags(facts["mcore_version"], edit.wanted)


def _bridge_edit(spellings: Mapping[str, WrittenFlags], more: Sequence[str]) -> _Edit:
    edit = _Edit()
    for name, spelling in spellings.items():
        edit.wanted |= {path: [f"{path}={value}"] for path, value in spelling.bridge.items()}
        if name in ("ep_overlap", "delay_wgrad"):
            edit.unwanted.append(_TWO_KNOBS)
    for text in more:
        for item in read_command(text):
            edit.wanted[item.name or item.text] = item.words
    return edit


def _against(
    edit: _Edit,
    own: Sequence[Item],
    spellings: Mapping[str, WrittenFlags],
    facts: Mapping[str, object],
    arguments: Mapping[str, Value],
    *,
    bridge: bool,
) -> FrameworkChange:
    """Return the diff against the run's command, else against the same flags in its log or contract."""
    if own:
        return _in_command(edit, own)
    contract = _standing_in(spellings, facts, bridge=bridge)
    names = {name: f"--{name.replace('_', '-')}" for name in edit.unwanted}
    names |= {name: words[0].partition("=")[0] for name, words in edit.wanted.items()}
    dump = from_dump(names, arguments, bridge=bridge)
    before = {name: text for name, text in {**contract, **dump}.items() if text}
    added = {name: shlex.join(words) for name, words in edit.wanted.items()}
    same = {name for name, text in added.items() if before.get(name) == text}
    removed = [DiffLine("-", text) for name, text in before.items() if name not in same]
    new = {name: text for name, text in added.items() if name not in same}
    return FrameworkChange(
        lines=(*removed, *(DiffLine("+", text) for text in new.values())),
        paste=" ".join(text for text in new.values() if not _PLACE.search(text)),
        remove=tuple(text for name, text in before.items() if name in edit.unwanted),
        against="arguments" if dump or _is_dump(arguments, bridge) else "contract" if contract else "nothing",
        fill=tuple(text for text in new.values() if _PLACE.search(text)),
    )


def _is_dump(arguments: Mapping[str, Value], bridge: bool) -> bool:
    """Return whether the dump is of this trainer: Megatron-Bridge's names contain dots. Flags missing from the dump are
    not set.
    """
    return bool(arguments) and any("." in name for name in arguments) == bridge


def _in_command(edit: _Edit, own: Sequence[Item]) -> FrameworkChange:
    added = {name: shlex.join(words) for name, words in edit.wanted.items()}
    items = [replace_item(item, edit) for item in own]
    taken = {name for name, _, _ in items if name in edit.wanted}
    lines_of = [line for _, lines, _ in items for line in lines]
    new = [text for name, text in added.items() if name not in taken]
    command = [text for _, _, text in items if text] + new
    fill = tuple(text for text in added.values() if _PLACE.search(text))
    return FrameworkChange(
        lines=(*lines_of, *(DiffLine("+", text) for text in new)),
        paste=" ".join(text for text in added.values() if text not in fill),
        remove=tuple(item.text for item in own if item.name in edit.unwanted),
        command="" if fill else " \\\n  ".join(command),
        against="command",
        fill=fill,
    )


def replace_item(item: Item, edit: _Edit) -> tuple[str, tuple[DiffLine, ...], str]:
    """Return a part of the command after the change: the name under which it was changed, its lines and its new
    text."""
    name, path = item.name, _harness_path(item, edit)
    if path:
        words = [item.words[0].split("=", maxsplit=1)[0], _harness_value(edit.wanted[path][0])]
        return path, *_swapped(item, words)
    if name in edit.wanted:
        return name, *_swapped(item, edit.wanted[name])
    if name in edit.unwanted:
        return name, (DiffLine("-", item.text),), ""
    return name, (DiffLine(" ", item.text),), item.text


def _swapped(item: Item, words: list[str]) -> tuple[tuple[DiffLine, ...], str]:
    new = shlex.join(words)
    if new == item.text:
        return (DiffLine(" ", new),), new
    return (DiffLine("-", item.text), DiffLine("+", new)), new


def _harness_path(item: Item, edit: _Edit) -> str:
    """Return the override that a harness flag would overrule, so that the flag itself is changed."""
    if "." in item.name or not item.words[0].startswith("-"):
        return ""
    return next((path for path in edit.wanted if "." in path and path.rpartition(".")[2] == item.name), "")


def _harness_value(override: str) -> str:
    value = override.partition("=")[2]
    return "None" if value == "null" else value


def _standing_in(spellings: Mapping[str, WrittenFlags], facts: Mapping[str, object], *, bridge: bool) -> dict[str, str]:
    """Return the previous flags according to the contract: only known values of changed fields."""
    flags: dict[str, str] = {}
    for name in spellings:
        if name not in facts:
            continue
        now = facts[name]
        before = written(name, tuple(now) if isinstance(now, list) else now, facts)  # type: ignore[arg-type]
        if bridge:
            flags |= {
                path: shlex.quote(f"{path}={value}") for path, value in before.bridge.items() if value not in _EMPTY
            }
        else:
            flags |= {name_of(flag): shlex.join([flag, *values]) for flag, values in before.megatron_lm.flags.items()}
    return flags


def _environment(
    suggestion: Changing, changed: Mapping[str, Setting], facts: Mapping[str, object]
) -> tuple[DiffLine, ...]:
    """Return variables before and after; for unknown ones only after."""
    wanted = {name.removeprefix(PREFIX): value for name, value in changed.items() if name.startswith(PREFIX)}
    lines: list[DiffLine] = []
    for name, value in {**suggestion.env, **wanted}.items():
        text = None if value is None else f"{name}={shlex.quote(fact_text(value))}"
        before = facts.get(PREFIX + name)
        old = None if before is None else f"{name}={shlex.quote(str(before))}"
        if old == text:
            continue
        lines += [DiffLine("-", old)] if old else []
        lines += [DiffLine("+", text)] if text else []
    return tuple(lines)


def without_context(change: FrameworkChange) -> FrameworkChange:
    """Return the same change with its changed lines only."""
    return replace(change, lines=tuple(line for line in change.lines if line.sign != " "))

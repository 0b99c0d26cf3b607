"""A run's launch arguments as a page may show them, with credentials removed."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.documents.document import is_secret
from app.domain.documents.harness_flags import SHORT
from app.domain.rules.flags import bridge_text
from app.domain.run import Value

STRUCK = "***"
_WORD = re.compile(r"\S+")
_OF_TEXT = re.compile(r"token[-_](?=\w)", re.IGNORECASE)
"""The dispatcher flag is not a credential, although its name contains `token`: those names end with the word."""


def without_secrets(launch: object) -> object:
    """Return launch arguments (text or a mapping of flags to values) with credentials removed."""
    if isinstance(launch, Mapping):
        return {name: STRUCK if _is_credential(str(name), str(value)) else value for name, value in launch.items()}
    if not isinstance(launch, str):
        return None
    before = ""

    def word(match: re.Match[str]) -> str:
        nonlocal before
        text, flag = match[0], before
        before = text if text.startswith("-") and "=" not in text else ""
        name, equals, value = text.partition("=")
        if equals and _is_credential(name, value):
            return f"{name}={STRUCK}"
        if not text.startswith("-") and _is_credential(flag, text):
            return STRUCK
        return text

    return _WORD.sub(word, launch)


def _is_credential(name: str, value: str) -> bool:
    return is_secret(_OF_TEXT.sub("", name.lstrip("-")), value.strip("'\""))


# --- A launch command as its flags and overrides, in order.

MAX_COMMAND = 100_000
"""Maximum number of characters of a command that are read."""
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*\Z")
OVERRIDE = re.compile(r"\+{0,2}(?P<path>[a-z]\w*(?:\.[a-z]\w*)+|mixed_precision)=(?P<value>.*)\Z", re.DOTALL)


@dataclass
class Item:
    """A flag or an override of a command with its values, in order. An empty name is the program."""

    name: str
    words: list[str]

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def read_command(launch: object) -> list[Item]:
    """Return a command as its flags and overrides, in order; empty if it is unknown."""
    if isinstance(launch, Mapping):
        return [_from_mapping(str(name), value) for name, value in launch.items()]
    if not isinstance(launch, str) or not launch.strip():
        return []
    text = launch[:MAX_COMMAND].replace("\\\n", " ")
    try:
        words = shlex.split(text)
    except ValueError:  # unbalanced quotes
        words = text.split()
    items: list[Item] = []
    for word in words:
        name = name_of(word)
        if name or not items:
            items.append(Item(name, [word]))
        else:
            items[-1].words.append(word)
    return items


def _from_mapping(name: str, value: object) -> Item:
    flag = name if name.startswith("-") else f"--{name}"
    if value is None or value is True or value == "":
        words = [flag]
    elif isinstance(value, list | tuple):
        words = [flag, *map(str, value)]
    else:
        words = [flag, str(value)]
    return Item(name_of(flag), words)


def name_of(word: str) -> str:
    """Return the normalised name:

    `--tensor-model-parallel-size=2` and `-tp` by the long name with underscores; overrides by their path.
    """
    if override := OVERRIDE.match(word):
        return override["path"]
    flag = word.split("=", maxsplit=1)[0]
    if not _FLAG.match(flag):
        return ""
    bare = flag.lstrip("-").replace("-", "_")
    return SHORT.get(bare, bare) if not flag.startswith("--") else bare


# --- The flags of a run without an uploaded command, from the trainer's argument dump.


def from_dump(names: Mapping[str, str], arguments: Mapping[str, Value], *, bridge: bool) -> dict[str, str]:
    """Return the flags of the run by normalised name. `names`: their spelling. Unset ones are empty."""
    flags: dict[str, str] = {}
    for name, flag in names.items():
        if name not in arguments:
            continue
        value = arguments[name]
        if bridge:
            flags[name] = shlex.quote(f"{name}={bridge_text(value)}")
        elif isinstance(value, list | tuple):
            flags[name] = shlex.join([flag, *map(str, value)]) if value else ""
        elif value is None or value is False or value == "":
            flags[name] = ""
        else:
            flags[name] = flag if value is True else shlex.join([flag, str(value)])
    return flags

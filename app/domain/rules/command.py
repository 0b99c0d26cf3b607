"""A launch command read as its flags and overrides, in order."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.documents.harness_flags import SHORT

MAX_COMMAND = 100_000
"""Characters of a command that are read."""
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*\Z")
OVERRIDE = re.compile(r"\+{0,2}(?P<path>[a-z]\w*(?:\.[a-z]\w*)+|mixed_precision)=(?P<value>.*)\Z", re.DOTALL)


@dataclass
class Item:
    """A flag or an override of a command with its values, in its place; a name of "" is the program."""

    name: str
    words: list[str]

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def read_command(launch: object) -> list[Item]:
    """A command as its flags and overrides, in order; empty where none is known."""
    if isinstance(launch, Mapping):
        return [_from_mapping(str(name), value) for name, value in launch.items()]
    if not isinstance(launch, str) or not launch.strip():
        return []
    text = launch[:MAX_COMMAND].replace("\\\n", " ")
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its partner
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
    """`--tensor-model-parallel-size=2` and `-tp` by the long name with underscores; overrides by their path."""
    if override := OVERRIDE.match(word):
        return override["path"]
    flag = word.split("=", maxsplit=1)[0]
    if not _FLAG.match(flag):
        return ""
    bare = flag.lstrip("-").replace("-", "_")
    return SHORT.get(bare, bare) if not flag.startswith("--") else bare

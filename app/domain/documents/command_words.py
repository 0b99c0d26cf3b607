"""Splits launch commands into words the way a shell does, without running anything: no expansion, no globbing."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_BYTES = 256 * 1024
MAX_WORDS = 20_000
_MAX_NESTING = 3
"""`srun ... bash -c "torchrun ..."` is one level."""

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_]\w*(?:\.[A-Za-z_][\w-]*)+|mixed_precision)=(.*)", re.DOTALL)
"""A Hydra override. Its dotted name tells it from a variable."""
_BEFORE_COMMAND = frozenset({"export", "env", "sudo", "exec", "time", "nohup", "command", "set"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_RUN_STRING = re.compile(r"-[a-z]*c")
_LAUNCH_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_SCRIPT_ENDS = (".py", ".sh")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: variables set for it, the words up to its script (the launcher), the script and its words."""

    variables: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    script: str = ""
    words: tuple[str, ...] = ()


def split_words(text: str) -> tuple[list[list[str]], bool]:
    """The words of each command in `text`, and whether a quote was left open.

    Commands end at line ends, `;`, `&&`, `||`, `|` and `&`. A bar or an ampersand inside a word stays, so that a
    pipeline layout pasted without quotes survives.
    """
    commands: list[list[str]] = [[]]
    word: list[str] = []
    started = False
    quote = ""
    count = 0
    text = re.sub(r"\\\r?\n", " ", text)
    for place, character in enumerate(text):
        if quote:
            if character == quote:
                quote = ""
            else:
                word.append(character)
            continue
        ends_command = character == "\n" or (
            (character in "|&" and not started)
            or (character == ";" and text[place + 1 : place + 2] in ("", " ", "\n", ";"))
        )
        if ends_command or character in " \t\r":
            if started and count < MAX_WORDS:
                commands[-1].append("".join(word))
                count += 1
            word, started = [], False
            if ends_command and commands[-1]:
                commands.append([])
        elif character in "\"'":
            quote, started = character, True
        elif character != "\\":
            word.append(character)
            started = True
    if started and count < MAX_WORDS:
        commands[-1].append("".join(word))
    return [command for command in commands if command], bool(quote)


def read_commands(text: str, nesting: int = 0) -> tuple[list[Command], bool]:
    """The commands of `text`, nested ones (`bash -c "..."`) taken apart, and whether a quote was left open."""
    uncommented = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    split, is_open = split_words(uncommented)
    commands: list[Command] = []
    for words in split:
        command = _read_command(words)
        inner = _run_string(command.launcher)
        if inner is None or nesting >= _MAX_NESTING:
            commands.append(command)
            continue
        nested, _ = read_commands(inner, nesting + 1)
        commands += [
            Command(command.variables | one.variables, command.launcher + one.launcher, one.script, one.words)
            for one in nested
        ]
    return commands, is_open


def _run_string(launcher: tuple[str, ...]) -> str | None:
    """What `bash -c` runs."""
    for place in range(len(launcher) - 2):
        shell = launcher[place].rpartition("/")[2]
        if shell in _SHELLS and _RUN_STRING.fullmatch(launcher[place + 1]):
            return launcher[place + 2]
    return None


def _read_command(words: list[str]) -> Command:
    variables: dict[str, str] = {}
    start = 0
    while start < len(words):
        assigned = ASSIGNMENT.fullmatch(words[start])
        if assigned:
            variables[assigned[1]] = assigned[2]
        elif words[start] not in _BEFORE_COMMAND:
            break
        start += 1
    rest = words[start:]
    if rest and rest[0].startswith("-"):
        return Command(variables, (), "", tuple(rest))
    for place in _script_places(rest):
        return Command(variables, tuple(rest[:place]), rest[place], tuple(rest[place + 1 :]))
    return Command(variables, tuple(rest))


def _script_places(words: list[str]) -> Iterator[int]:
    """Where the training script can be: a .py or .sh that its own flags follow, or the module behind `-m`."""
    for place, word in enumerate(words):
        if place and words[place - 1] == "-m" and re.fullmatch(r"[A-Za-z_][\w.]*", word):
            if word not in _LAUNCH_MODULES:
                yield place
            continue
        if word.endswith(_SCRIPT_ENDS):
            follower = words[place + 1] if place + 1 < len(words) else "-"
            if follower.startswith(("-", "$")) or OVERRIDE.fullmatch(follower):
                yield place


def read_flags(words: tuple[str, ...]) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """Flags with their values in order, and Hydra overrides by path (the last of one path counts)."""
    flags: list[tuple[str, list[str]]] = []
    overrides: dict[str, str] = {}
    for word in words:
        override = OVERRIDE.fullmatch(word)
        if override:
            if override[1] != "~":
                overrides[override[2]] = override[3]
            flags.append(("", []))  # what follows belongs to no flag
        elif re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            flags.append((name, [value] if equals else []))
        elif flags and flags[-1][0]:
            flags[-1][1].append(word)
    return [flag for flag in flags if flag[0]], overrides

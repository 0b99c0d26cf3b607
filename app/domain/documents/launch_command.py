"""Reads the command that launched a job: its launcher, Megatron-LM flags, or Megatron-Bridge's script and overrides.

Nothing is executed or expanded: a flag whose value is a shell variable is ignored and counted.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.domain.contract.values import read_value
from app.domain.documents.bridge_config import stated_by_overrides
from app.domain.documents.document import Document, is_secret, read_yaml
from app.domain.documents.environment import stated_by_image, stated_by_variables
from app.domain.documents.harness_flags import CHOOSES_RECIPE, OWN_FLAGS, SCRIPTS, SHORT, fields_of_recipe, meaning_of
from app.domain.logs.arguments import stated_by_launch_args
from app.domain.run import Source, Stated
from app.domain.text import one_line, some_of

# --- Splits launch commands into words like a shell, without execution, expansion or globbing.

MAX_BYTES = 256 * 1024
MAX_WORDS = 20_000
_MAX_NESTING = 3
"""`srun ... bash -c "torchrun ..."` is one level."""

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_]\w*(?:\.[A-Za-z_][\w-]*)+|mixed_precision)=(.*)", re.DOTALL)
"""A Hydra override. Its dotted name distinguishes it from a variable."""
_BEFORE_COMMAND = frozenset({"export", "env", "sudo", "exec", "time", "nohup", "command", "set"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_RUN_STRING = re.compile(r"-[a-z]*c")
_LAUNCH_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_SCRIPT_ENDS = (".py", ".sh")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its variables, the words up to its script (the launcher), the script and the script's words."""

    variables: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    script: str = ""
    words: tuple[str, ...] = ()


def split_words(text: str) -> tuple[list[list[str]], bool]:
    """Return the words of each command in `text`, and whether a quote is left open.

    Commands end at line ends, `;`, `&&`, `||`, `|` and `&`. A bar or an ampersand inside a word stays, so that an
    unquoted pipeline layout survives.
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
    """Return the commands of `text`, including nested ones (`bash -c "..."`), and whether a quote is left open."""
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
            Command(command.variables | part.variables, command.launcher + part.launcher, part.script, part.words)
            for part in nested
        ]
    return commands, is_open


def _run_string(launcher: tuple[str, ...]) -> str | None:
    """Return the text that `bash -c` runs; None without such a call."""
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
    """Yield possible positions of the training script: a .py or .sh followed by flags, or the module after `-m`."""
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
    """Return flags with their values in order, and Hydra overrides by path (the last of a path wins)."""
    flags: list[tuple[str, list[str]]] = []
    overrides: dict[str, str] = {}
    for word in words:
        override = OVERRIDE.fullmatch(word)
        if override:
            if override[1] != "~":
                overrides[override[2]] = override[3]
            flags.append(("", []))  # words after it belong to no flag
        elif re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            flags.append((name, [value] if equals else []))
        elif flags and flags[-1][0]:
            flags[-1][1].append(word)
    return [flag for flag in flags if flag[0]], overrides


# --- Reads contract fields from Megatron-LM's flags; their details name the document.

MAX_FLAGS = 3000
MAX_VALUE = 2000
_WORDS_IN_BRACKETS = re.compile(r"\[([\w.+-]+(?: +[\w.+-]+)*)\]")


def stated_by_flags(flags: Mapping[str, object], where: str) -> tuple[dict[str, Stated], list[str], dict[str, str]]:
    """Return fields, warnings, and those about fields by name.

    `flags` maps `--micro-batch-size` to its value, True for a flag without one.
    """
    usable = {name: _plain(value) for name, value in list(flags.items())[:MAX_FLAGS] if len(str(value)) <= MAX_VALUE}
    return stated_by_launch_args(usable, where)


def _plain(value: object) -> object:
    """Return `[mlp moe_act]` as a list, the notation of Megatron-LM's test configurations; other values unchanged."""
    words = _WORDS_IN_BRACKETS.fullmatch(value.strip()) if isinstance(value, str) else None
    return words[1].split() if words else value


MAX_OVERRIDE = 2000
_WHERE = "launch command"
_FACTS = {
    "recipe": "recipe",
    "max_steps": "train_iters",
    "train_iters": "train_iters",
    "config_variant": "config_variant",
}
_NODES = ("nodes", "N", "nnodes")
_PER_NODE = ("gpus_per_node", "nproc_per_node", "ntasks_per_node", "devices")
_TASKS = ("ntasks", "n", "np")
_SETS_VARIABLES = frozenset({"env", "custom_env_vars", "export", "x"})
"""`-E`, `-ce`, `srun --export`, `mpirun -x`."""


@dataclass(slots=True)
class _CommandReading:
    """Collects what one command states."""

    stated: dict[str, Stated] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def read_launch_command(text: str | bytes) -> Document:
    """Read the contract fields of the training command in `text`. Raises ValueError with a sentence without one.

    If there are several commands, uses the one with the most fields, with the variables exported before it.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"The launch command is larger than {MAX_BYTES // 1024} kB.")
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    commands, is_open = read_commands(decoded)
    readings: list[_CommandReading] = []
    exported: dict[str, str] = {}
    for command in commands:
        if command.words:
            readings.append(_read(command, exported | command.variables))
        elif not command.launcher:
            exported |= command.variables
    best = max(readings, key=lambda reading: len(reading.stated), default=None)
    if best is None or not (best.stated or best.facts):
        raise ValueError("No command with training flags was found, such as torchrun pretrain_gpt.py --bf16.")
    if is_open:
        best.problems.append("A quote is not closed; the words after it may be wrong.")
    if sum(bool(reading.stated) for reading in readings) > 1:
        best.problems.append("There are several launch commands; the one with most fields is used.")
    problems = tuple(dict.fromkeys(best.problems))
    return Document("launch command", best.stated, facts=best.facts, problems=problems, refused=best.refused)


def _read(command: Command, variables: Mapping[str, str]) -> _CommandReading:
    reading = _CommandReading()
    # The launcher's short flags have their own meaning: -i and -c of srun are not an image or a precision.
    launcher = [(f"--{name.lstrip('-')}", values) for name, values in read_flags(command.launcher)[0]]
    if any(word.rpartition("/")[2] == "torchrun" for word in command.launcher) and "srun" not in command.launcher:
        launcher.insert(0, ("--nnodes", ["1"]))  # torchrun's default; a flag behind it counts
    flags, overrides = read_flags(command.words)
    flags = _without_variables(reading, flags)
    overrides = {path: value for path, value in overrides.items() if not is_variable(value)}
    script = command.script.rpartition("/")[2]
    if script:
        reading.facts["script"] = one_line(script)[:200]
    if script in SCRIPTS or any(name in OWN_FLAGS for name, _ in flags):
        _read_harness(reading, flags, overrides)
        _read_nodes(reading, flags)
    else:
        _read_megatron(reading, flags)
        _read_overrides(reading, overrides)
    _read_nodes(reading, launcher)
    _read_environment(reading, variables, [*flags, *launcher])
    return reading


def is_variable(value: str) -> bool:
    """Return whether the shell computes it, from a variable or by a command."""
    return bool(re.search(r"\$[\w{(]|`", value))


def _without_variables(reading: _CommandReading, flags: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    usable = [(name, values) for name, values in flags if not any(map(is_variable, values))]
    if len(usable) < len(flags):
        names = list(dict.fromkeys(one_line(name)[:100] for name, values in flags if any(map(is_variable, values))))
        reading.problems.append(f"Not read, because the shell computes the value: {some_of(names, 5)}.")
    return usable


def _long_name(flag: str) -> str:
    """Return the long name with underscores: `num_gpus` for `-ng`, `--num-gpus` and `--num_gpus`."""
    name = flag.lstrip("-")
    if not flag.startswith("--"):
        return SHORT.get(name, name)
    return name.replace("-", "_")


def _state(reading: _CommandReading, name: str, raw: object, source: Source, detail: str) -> None:
    try:
        reading.stated[name] = Stated(read_value(name, raw), source, f"{_WHERE}: {detail}")
    except ValueError as error:
        reading.problems.append(f"{detail} was not read: {name} {error}.")


def _read_harness(reading: _CommandReading, flags: list[tuple[str, list[str]]], overrides: Mapping[str, str]) -> None:
    """Apply flags and overrides in the order of the script, so that the last one wins."""
    names = {_long_name(name): values for name, values in flags}
    recipe = "".join(names.get("recipe", [])[:1])
    for name, raw in fields_of_recipe(recipe):
        _state(reading, name, raw, "derived", f"the name of recipe {one_line(recipe)[:150]}")
    if not recipe and names.keys() & {"model_recipe_name", "num_gpus"}:  # the performance scripts
        _state(reading, "precision", "bf16", "default", "--compute_dtype is not given")
        _state(reading, "data_mode", "mock", "default", "--data is not given")
        _read_harness_flags(reading, [flag for flag in flags if _long_name(flag[0]) in CHOOSES_RECIPE])
        _read_overrides(reading, overrides)
        _read_harness_flags(reading, [flag for flag in flags if _long_name(flag[0]) not in CHOOSES_RECIPE])
    else:
        _read_harness_flags(reading, flags)
        _read_overrides(reading, overrides)


def _read_harness_flags(reading: _CommandReading, flags: list[tuple[str, list[str]]]) -> None:
    for flag, values in flags:
        name = _long_name(flag)
        meaning = meaning_of(name, values)
        for target, raw in meaning.fields:
            _state(reading, target, raw, "metadata", one_line(" ".join([flag, *values]))[:200])
        if meaning.note:
            reading.problems.append(meaning.note)
        if name in _FACTS and values and not is_secret(name, values[0]):
            reading.facts[_FACTS[name]] = one_line(values[0])[:200]


def _read_overrides(reading: _CommandReading, overrides: Mapping[str, str]) -> None:
    paths: dict[str, object] = {}
    for path, text in overrides.items():
        try:
            paths[path] = read_yaml(text) if len(text) <= MAX_OVERRIDE else None
        except ValueError:
            continue
    stated, problems = stated_by_overrides(paths, _WHERE)
    reading.stated |= stated
    reading.problems += problems
    if "train.train_iters" in overrides:
        reading.facts["train_iters"] = one_line(overrides["train.train_iters"])[:200]


def _read_megatron(reading: _CommandReading, flags: list[tuple[str, list[str]]]) -> None:
    arguments: dict[str, object] = {}
    for flag, values in flags:
        if flag.startswith("--") and not any(is_secret(flag, value) for value in values):
            arguments[flag] = True if not values else values[0] if len(values) == 1 else list(values)
    stated, problems, reading.refused = stated_by_flags(arguments, _WHERE)
    reading.stated |= stated
    reading.problems += problems
    for flag, values in flags:
        if _long_name(flag) in _FACTS and values:
            reading.facts[_FACTS[_long_name(flag)]] = one_line(values[0])[:200]


def _read_nodes(reading: _CommandReading, flags: list[tuple[str, list[str]]]) -> None:
    """State GPUs from the launcher: tasks, or nodes times processes per node. A range (`--nnodes 1:4`) is ignored."""
    given = {_long_name(name): values[0] for name, values in flags if len(values) >= 1}
    per_node = _whole(given, _PER_NODE)
    nodes = _whole(given, _NODES)
    tasks = _whole(given, _TASKS)
    if per_node and "gpus_per_node" not in reading.stated:
        _state(reading, "gpus_per_node", per_node, "metadata", f"{per_node} processes or GPUs of a node")
    if "gpus" not in reading.stated:
        if per_node and nodes:
            _state(reading, "gpus", nodes * per_node, "metadata", f"{nodes} nodes x {per_node} GPUs of a node")
        elif tasks and not per_node and tasks > (nodes or 0):
            _state(reading, "gpus", tasks, "metadata", f"{tasks} tasks")
    if "container_image" in given and "container" not in reading.stated:
        reading.stated |= stated_by_image(given["container_image"], f"{_WHERE}: --container-image")


def _whole(given: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = given.get(name, "").rpartition(":")[2] if name == "gpus_per_node" else given.get(name, "")
        if value.isascii() and value.isdigit() and int(value[:7]) > 0:
            return int(value[:7])
    return None


def _read_environment(
    reading: _CommandReading, variables: Mapping[str, str], flags: list[tuple[str, list[str]]]
) -> None:
    """Read variables set before the command, by `-E`, `--custom_env_vars` and `srun --export=ALL,NAME=value`."""
    assignments = dict(variables)
    for flag, values in flags:
        name = _long_name(flag)
        if name in _SETS_VARIABLES:
            for item in (part for value in values for part in (value.split(",") if name != "env" else [value])):
                assigned = ASSIGNMENT.fullmatch(item)
                if assigned:
                    assignments[assigned[1]] = assigned[2]
    for name, stated in stated_by_variables(assignments, _WHERE).items():
        reading.stated.setdefault(name, stated)

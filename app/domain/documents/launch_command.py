"""Reads the command that launched a job: its launcher, Megatron-LM flags, or Megatron-Bridge's script and overrides.

Nothing is run or expanded: a value that is a shell variable is left out and counted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.contract.values import read_value
from app.domain.documents.bridge_config import stated_by_overrides
from app.domain.documents.command_words import ASSIGNMENT, MAX_BYTES, Command, read_commands, read_flags
from app.domain.documents.container_image import stated_by_image
from app.domain.documents.document import Document
from app.domain.documents.harness_flags import CHOOSES_RECIPE, OWN_FLAGS, SCRIPTS, SHORT, fields_of_recipe, meaning_of
from app.domain.documents.job_environment import stated_by_variables
from app.domain.documents.megatron_flags import stated_by_flags
from app.domain.documents.safe_yaml import read_yaml
from app.domain.documents.secrets import is_secret
from app.domain.run import Source, Stated
from app.domain.text import one_line

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
class _Reading:
    """What one command says so far; overrides stay apart, because the scripts differ in which of both wins."""

    stated: dict[str, Stated] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_launch_command(text: str | bytes) -> Document:
    """The contract fields of the training command in `text`. Raises ValueError with a sentence when there is none.

    Of several commands the one that says most is taken; variables exported before it count.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"The launch command is larger than {MAX_BYTES // 1024} kB.")
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    commands, is_open = read_commands(decoded)
    readings: list[_Reading] = []
    exported: dict[str, str] = {}
    for command in commands:
        if command.words:
            readings.append(_read(command, exported | command.variables))
        elif not command.launcher:
            exported |= command.variables
    best = max(readings, key=lambda reading: len(reading.stated), default=None)
    if best is None or not (best.stated or best.facts):
        raise ValueError("No command with training flags was found, for instance torchrun pretrain_gpt.py --bf16.")
    if is_open:
        best.problems.append("A quote is not closed; the words behind it may be wrong.")
    if sum(bool(reading.stated) for reading in readings) > 1:
        best.problems.append("There are several launch commands; the one that says most was read.")
    return Document("launch command", best.stated, facts=best.facts, problems=tuple(dict.fromkeys(best.problems)))


def _read(command: Command, variables: Mapping[str, str]) -> _Reading:
    reading = _Reading()
    # the launcher's short flags are its own: -i and -c of srun are no image and no precision
    launcher = [(f"--{name.lstrip('-')}", values) for name, values in read_flags(command.launcher)[0]]
    if any(word.rpartition("/")[2] == "torchrun" for word in command.launcher) and "srun" not in command.launcher:
        launcher.insert(0, ("--nnodes", ["1"]))  # torchrun's default; a flag behind it counts
    flags, overrides = read_flags(command.words)
    flags = _without_variables(reading, flags)
    overrides = {path: value for path, value in overrides.items() if not _is_variable(value)}
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


def _is_variable(value: str) -> bool:
    return bool(re.search(r"\$[\w{(]|`", value))


def _without_variables(reading: _Reading, flags: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    usable = [(name, values) for name, values in flags if not any(map(_is_variable, values))]
    if len(usable) < len(flags):
        reading.problems.append(f"{len(flags) - len(usable)} flags have shell variables as values and were not read.")
    return usable


def _long_name(flag: str) -> str:
    """`-ng`, `--num-gpus` and `--num_gpus` are `num_gpus`."""
    name = flag.lstrip("-")
    if not flag.startswith("--"):
        return SHORT.get(name, name)
    return name.replace("-", "_")


def _state(reading: _Reading, name: str, raw: object, source: Source, detail: str) -> None:
    try:
        reading.stated[name] = Stated(read_value(name, raw), source, f"{_WHERE}: {detail}")
    except ValueError as error:
        reading.problems.append(f"{detail} was not read: {name} {error}.")


def _shown(flag: str, values: list[str]) -> str:
    return one_line(" ".join([flag, *values]))[:200]


def _read_harness(reading: _Reading, flags: list[tuple[str, list[str]]], overrides: Mapping[str, str]) -> None:
    """Flags and overrides in the order in which the script applies them, so that the last one counts."""
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


def _read_harness_flags(reading: _Reading, flags: list[tuple[str, list[str]]]) -> None:
    for flag, values in flags:
        name = _long_name(flag)
        meaning = meaning_of(name, values)
        for target, raw in meaning.fields:
            _state(reading, target, raw, "metadata", _shown(flag, values))
        if meaning.note:
            reading.problems.append(meaning.note)
        if name in _FACTS and values and not is_secret(name, values[0]):
            reading.facts[_FACTS[name]] = one_line(values[0])[:200]


def _read_overrides(reading: _Reading, overrides: Mapping[str, str]) -> None:
    paths: dict[str, object] = {}
    for path, text in overrides.items():
        try:
            paths[path] = read_yaml(text) if len(text) <= MAX_OVERRIDE else None
        except ValueError:
            continue
    stated, problems = stated_by_overrides(paths, "metadata", _WHERE)
    reading.stated |= stated
    reading.problems += problems
    if "train.train_iters" in overrides:
        reading.facts["train_iters"] = one_line(overrides["train.train_iters"])[:200]


def _read_megatron(reading: _Reading, flags: list[tuple[str, list[str]]]) -> None:
    arguments: dict[str, object] = {}
    for flag, values in flags:
        if flag.startswith("--") and not any(is_secret(flag, value) for value in values):
            arguments[flag] = True if not values else values[0] if len(values) == 1 else list(values)
    stated, problems = stated_by_flags(arguments, _WHERE)
    reading.stated |= stated
    reading.problems += problems
    for flag, values in flags:
        if _long_name(flag) in _FACTS and values:
            reading.facts[_FACTS[_long_name(flag)]] = one_line(values[0])[:200]


def _read_nodes(reading: _Reading, flags: list[tuple[str, list[str]]]) -> None:
    """GPUs from the launcher: tasks, or nodes times processes of a node. A range (`--nnodes 1:4`) says nothing."""
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


def _read_environment(reading: _Reading, variables: Mapping[str, str], flags: list[tuple[str, list[str]]]) -> None:
    """Variables set before the command, by `-E` and `--custom_env_vars`, and by `srun --export=ALL,NAME=value`."""
    found = dict(variables)
    for flag, values in flags:
        name = _long_name(flag)
        if name in _SETS_VARIABLES:
            for item in (part for value in values for part in (value.split(",") if name != "env" else [value])):
                assigned = ASSIGNMENT.fullmatch(item)
                if assigned:
                    found[assigned[1]] = assigned[2]
    for name, stated in stated_by_variables(found, _WHERE).items():
        reading.stated.setdefault(name, stated)

"""Check a launch that has not run with the rules: a script, a command, or a YAML configuration.

Flags that a command omits have the defaults of the trainer's stated release (`mcore_version`), and omitted switches are
off. What a recipe of Megatron-Bridge decides stays unknown, and so do flags that a script adds to those it is given.
"""

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from app.domain.contract.fields import FIELDS
from app.domain.contract.resolve import Contract, resolve
from app.domain.contract.trainer_defaults import Trainer, launch_defaults
from app.domain.contract.values import read_value
from app.domain.documents.bridge_config import is_container, read_bridge_config, stated_by_overrides
from app.domain.documents.document import Document, read_yaml
from app.domain.documents.launch_command import (
    OVERRIDE,
    is_variable,
    read_commands,
    read_flags,
    read_launch_command,
    stated_by_flags,
)
from app.domain.documents.shell import expand
from app.domain.flags import FLAGS
from app.domain.logs import parse_text
from app.domain.numbers import plural
from app.domain.rules.engine import Evaluation, Suggestion, evaluate
from app.domain.rules.facts import FACTS
from app.domain.rules.rule import RuleBook
from app.domain.rules.run_facts import RunReading, facts_of
from app.domain.rules.stated import STATEABLE, read_facts
from app.domain.run import Metadata, Value
from app.domain.text import one_line

MAX_BYTES = 256 * 1024
ON_BY_DEFAULT = ("gradient_accumulation_fusion", "check_for_nan_in_loss_and_grad")
"""Switches of Megatron-LM that its flags turn off (`--no-...`)."""
OTHER_DEFAULTS: Mapping[str, Value] = {
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "moe_router_score_function": "softmax",
}
"""Defaults of Megatron-LM (`megatron/training/arguments.py`, `transformer_config.py`)."""
OF_A_MEASUREMENT = (
    "contract-directional",
    "contract-complete",
    "contract-fields",
    "contract-semantic-class",
    "contract-benchmark-only",
)
"""Rules about the quality of figures, which a launch does not have yet."""
_PRIMUS = ("modules", "work_group", "exp_name")
_TEST_FLAGS, _TEST_VARIABLES = "MODEL_ARGS", "ENV_VARS"
"""Sections of a configuration of Megatron-LM's tests and of Megatron-MoE-ModelZoo: `--bf16: true`."""
_PRIMUS_LAUNCHER = re.compile(r"\bprimus-cli\b|\bprimus/cli/|\brun_(?:slurm_|local_)?pretrain\.sh\b")
"""Launchers of Primus: a preset decides what their command omits, the model above all."""
_WHERE = "the configuration"
STOCK_SCRIPTS = ("pretrain_gpt.py", "pretrain_mamba.py", "pretrain_hybrid.py")
"""Scripts of Megatron-LM, which add no flags to its parser."""
WITH_CHOICES = (
    *("dispatcher_type", "flex_backend", "lb_type", "router_dtype", "attention", "graph_impl"),
    *("recompute_granularity", "recompute_method"),
)
"""Fields whose flags take only some values, the same in all releases that have them."""
_SIMILAR = 0.85
"""Share of equal characters from which an unknown flag is taken for a misspelt one; scripts have flags of their own."""


@dataclass(frozen=True, slots=True)
class LaunchCheck:
    """The result. `problems`: what could not be read. `wrong_flags`: flags, without `--`, that are misspelt or refused.

    `script`: the shell script that the launch passes flags to; empty if it starts the trainer itself.
    """

    kind: str
    trainer: Trainer
    script: str
    contract: Contract
    evaluation: Evaluation
    problems: tuple[str, ...]
    wrong_flags: frozenset[str] = frozenset()

    @property
    def answer(self) -> str:
        """Return the result as a sentence."""
        if self.blockers:
            return f"{plural(len(self.blockers), 'blocker')}: this launch would fail or its result would be wrong."
        warnings = f", {plural(len(self.warnings), 'warning')}" if self.warnings else ""
        missing = f" {plural(len(self.unknown), 'fact')} would decide more." if self.unknown else ""
        return f"No blockers{warnings}.{missing}"

    @property
    def defaults(self) -> str:
        """Return whose defaults the omitted flags have, as a sentence."""
        if self.script:
            return f"{self.script} adds flags that are not shown here, so omitted flags count as unknown."
        if self.trainer == "Megatron-Bridge":
            return "Omitted settings depend on the recipe, so they count as unknown."
        if self.trainer == "Primus":
            return "Omitted settings have the defaults of Primus; its model preset counts as unknown."
        version = self.contract.fields.get("mcore_version")
        if version is None:
            return (
                "Omitted flags have the defaults of the newest Megatron Core; state mcore_version for another release."
            )
        return f"Omitted flags have the defaults of Megatron Core {version.value}."

    @property
    def blockers(self) -> tuple[Suggestion, ...]:
        return self.evaluation.blockers

    @property
    def warnings(self) -> tuple[Suggestion, ...]:
        """Return the warnings; of several that the same settings resolve, the first."""
        warnings: list[Suggestion] = []
        for item in self.evaluation.warnings:
            is_resolved = item.set and any(other.set == item.set for other in warnings)
            if item.rule.id not in OF_A_MEASUREMENT and not is_resolved:
                warnings.append(item)
        return tuple(warnings)

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Return the problems that no blocker states already."""
        return () if self.blockers else self.contract.warnings

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the unknown facts that blockers depend on and that can be known before a launch, useful ones first."""
        missing = [
            name
            for asking in self.evaluation.asks
            if asking.rule.kind == "blocker"
            for name in asking.missing
            if name not in FACTS or FACTS[name].section != "log"
        ]
        return tuple(sorted(dict.fromkeys(missing), key=lambda name: (-missing.count(name), name)))


def check_launch(
    text: str,
    book: RuleBook,
    metadata: Metadata,
    *,
    settings: Mapping[str, float] | None,
) -> LaunchCheck:
    """Check a launch.

    `metadata`: values outside the launch, such as the GPU, as in an upload. Raises ValueError with a sentence if the
    text is not a launch.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"The launch is larger than {MAX_BYTES // 1024} kB.")
    trainer, document, arguments, command = _read(text)
    script = document.facts.get("script", "") if trainer == "Megatron-LM" else ""
    script = script if script.endswith(".sh") else ""
    is_direct = trainer == "Megatron-LM" and not script
    is_stock = is_direct and document.facts.get("script") in STOCK_SCRIPTS
    refused = _refused(arguments) if is_direct and arguments else {}
    version = metadata.fields.get("mcore_version")
    unread = {name for name, value in (arguments or {}).items() if is_variable(str(value))}
    open_fields = {name for name, row in FLAGS.items() if unread.intersection(row.arguments)} | refused.keys()
    defaults = {} if script else launch_defaults(trainer, None if version is None else version.value, document.stated)
    contract = resolve(
        parse_text(""),
        metadata,
        [document],
        {name: value for name, value in defaults.items() if name not in open_fields},
    )
    reading = RunReading(
        contract.fields,
        unknown=contract.unknown,
        trainer="Megatron-LM" if arguments is not None else "Megatron-Bridge",
        arguments={}
        if arguments is None
        else {
            name: value
            for name, value in {**({} if script else _switches(arguments)), **arguments}.items()
            if name not in unread
        },
        extra=read_facts({name: value for name, value in metadata.extra.items() if name in STATEABLE}, "")[0],
        launch=command,
    )
    facts = {"compared": False, "steps_done": 0, **facts_of(reading)}
    misspelt = _misspelt(command, document.facts.get("script", "")) if is_direct and command else {}
    values = [text for _, text in refused.values()]
    if is_stock:
        facts |= {"refused_flags": [*misspelt.values(), *values], "misspelt_flags": []}
    else:
        facts |= {"refused_flags": values, "misspelt_flags": [*misspelt.values()]}
    if is_direct and facts.get("flex_backend") is None and "dispatcher_type" not in {*document.stated, *open_fields}:
        # The default is rarely intended, and a rule says so.
        facts |= {"dispatcher_type": None, "dispatcher": None}
    if is_stock and "hybrid_layer_pattern" not in {*document.stated, *open_fields}:
        facts["hybrid_layer_pattern"] = None  # without its flag, all layers are alike
    covered = {document.refused.get(name) for name in refused}  # a blocker states the choices of the flag
    return LaunchCheck(
        kind=document.kind,
        trainer=trainer,
        script=script,
        contract=contract,
        evaluation=evaluate(facts, book, settings=settings),
        problems=tuple(text for text in document.problems if text not in covered),
        wrong_flags=frozenset({*misspelt, *(flag for flag, _ in refused.values())}),
    )


@dataclass(frozen=True, slots=True)
class LaunchPart:
    """A part of the text of a launch. `objections`: those to its flag, empty for other text."""

    text: str
    objections: tuple[Suggestion, ...] = ()

    @property
    def kind(self) -> str:
        return self.objections[0].kind if self.objections else ""


_SETTING = re.compile(
    r"(?<![\w./-])(?:--([A-Za-z][\w-]*)(?:[ \t=]+(?!-)[^\s\\\\]+)?|([A-Za-z][\w.]*)(?:=|: )[^\s\\\\]+)"
)
"""A flag with its value, an override of Megatron-Bridge, or a line of YAML."""


_FLAG_FACTS = {"misspelt_flags", "refused_flags"}


def marked_launch(
    text: str, objections: Sequence[Suggestion], wrong_flags: Set[str] = frozenset()
) -> tuple[LaunchPart, ...]:
    """Divide the text of a launch at the settings that `objections` name, blockers first."""
    settings = [(match, _fields_of(match[1] or match[2].rpartition(".")[2])) for match in _SETTING.finditer(text)]
    stated = frozenset[str]().union(*(fields for _, fields in settings))
    # A change names the setting to blame, if the launch states it; else the condition does, or the flag itself.
    blamed = {item.rule.id: item.set.keys() & stated or {fact.fact.name for fact in item.facts} for item in objections}
    parts: list[LaunchPart] = []
    done = 0
    for match, fields in settings:
        is_wrong = (match[1] or "").replace("_", "-") in wrong_flags or match[1] in wrong_flags
        against = tuple(
            item
            for item in objections
            if fields & blamed[item.rule.id] or (is_wrong and _FLAG_FACTS & blamed[item.rule.id])
        )
        if against:
            parts += [LaunchPart(text[done : match.start()]), LaunchPart(match[0], against)]
            done = match.end()
    return (*parts, LaunchPart(text[done:]))


def _fields_of(name: str) -> frozenset[str]:
    argument = name.replace("-", "_")
    fields = {field for field, names in FLAGS.items() if argument in names.arguments}
    return frozenset(fields | {fact.name for fact in FACTS.values() if argument in fact.argument})


def _read(text: str) -> tuple[Trainer, Document, Mapping[str, Value] | None, str | None]:
    """Return the trainer, the document, the arguments by Megatron-LM's names (None without any), and the command."""
    document = _yaml(text)
    if document is not None:
        if is_container(document):
            return "Megatron-Bridge", read_bridge_config(text), None, None
        if any(name in document for name in _PRIMUS):
            arguments = _primus(document)
            stated, problems, _ = stated_by_flags({f"--{name}": value for name, value in arguments.items()}, _WHERE)
            return "Primus", Document("launch command", stated, problems=tuple(problems)), _plain(arguments), None
        if not isinstance(document.get(_TEST_FLAGS), Mapping):
            return "Megatron-Bridge", _recipe(document), None, None
        text = _command_of_test(document)
    expanded = expand(text)
    read = read_launch_command(expanded)
    flags = [flag for command in read_commands(expanded)[0] for flag in read_flags(command.words)[0]]
    if any(OVERRIDE.fullmatch(word) for word in expanded.split()) or "recipe" in read.facts:
        return "Megatron-Bridge", read, None, expanded
    trainer: Trainer = "Primus" if _PRIMUS_LAUNCHER.search(expanded) else "Megatron-LM"
    return trainer, read, _arguments(flags), expanded


def _yaml(text: str) -> Mapping[object, object] | None:
    """Return a configuration; None for a script, whose first line is rarely `name:`."""
    if not re.search(r"^[A-Za-z_]\w*:(\s|$)", text, re.MULTILINE) or text.lstrip().startswith("#!"):
        return None
    try:
        document = read_yaml(text)
    except ValueError:
        return None
    return document if isinstance(document, Mapping) else None


def _primus(document: Mapping[object, object]) -> dict[str, object]:
    """Return the overrides of all modules of a Primus configuration: Megatron-LM's arguments by name."""
    modules = document.get("modules")
    arguments: dict[str, object] = {}
    for module in modules.values() if isinstance(modules, Mapping) else ():
        overrides = module.get("overrides") if isinstance(module, Mapping) else None
        for name, value in overrides.items() if isinstance(overrides, Mapping) else ():
            arguments[str(name)] = _default(value)
    return {name: value for name, value in arguments.items() if value not in (None, False)}


def _command_of_test(document: Mapping[object, object]) -> str:
    """Return the command that a configuration of Megatron-LM's tests stands for."""
    variables, flags = document.get(_TEST_VARIABLES), document[_TEST_FLAGS]
    lines = [
        f"export {name}={shlex.quote(str(value))}"
        for name, value in (variables.items() if isinstance(variables, Mapping) else ())
    ]
    words = ["torchrun", "pretrain_gpt.py"]
    for name, value in flags.items() if isinstance(flags, Mapping) else ():
        if value not in (None, False):
            values = value if isinstance(value, list) else [] if value is True else [value]  # `[mlp moe_act]`
            words += [str(name), *(word for item in values for word in str(item).split())]
    return "\n".join([*lines, " ".join(words)])


def _default(value: object) -> object:
    """Resolve defaults: `${PRIMUS_TP:1}` is 1 unless the environment sets it."""
    match = re.fullmatch(r"\$\{\w+:(.*)\}", value) if isinstance(value, str) else None
    return read_yaml(match[1]) if match else value


def _recipe(document: Mapping[object, object]) -> Document:
    """Flatten nested overrides of Megatron-Bridge or NeMo, such as `model: {tensor_model_parallel_size: 2}`."""
    paths: dict[str, object] = {}
    _flatten(document, "", paths)
    stated, problems = stated_by_overrides(paths, _WHERE)
    if not stated:
        raise ValueError("The configuration names no setting of Megatron-LM, Megatron-Bridge, NeMo or Primus.")
    return Document("bridge configuration", stated, problems=tuple(problems))


def _flatten(value: object, path: str, paths: dict[str, object]) -> None:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            _flatten(item, f"{path}.{name}" if path else str(name), paths)
    else:
        paths[path] = value


def _arguments(flags: Sequence[tuple[str, list[str]]]) -> dict[str, Value]:
    """Return arguments by argparse name, as in the trainer's dump."""
    arguments: dict[str, Value] = {}
    for flag, values in flags:
        name = flag.lstrip("-").replace("-", "_")
        if name.startswith("no_"):
            arguments[name.removeprefix("no_")] = False
        else:
            arguments[name] = True if not values else _number(values[0]) if len(values) == 1 else tuple(values)
    return arguments


def _misspelt(command: str, script: str) -> dict[str, str]:
    """Return the flags of a script, without `--`, that Megatron-LM lacks but that resemble one of its flags; each with
    a text that names that one."""
    megatron = _megatron_flags()
    fields = {argument for row in FLAGS.values() for argument in row.arguments}
    fields |= {argument for fact in FACTS.values() for argument in fact.argument}
    parts = [part for part in read_commands(command)[0] if part.script.rpartition("/")[2] == script]
    words = [word for part in parts for word, _ in read_flags(part.words)[0]]
    misspelt = {}
    for word in dict.fromkeys(words):
        if word not in megatron and ("_" in word or word.removeprefix("--").replace("-", "_") not in fields):
            for flag in get_close_matches(word, megatron, 1, _SIMILAR):
                misspelt[word.removeprefix("--")] = f"{word} (meant: {flag}?)"
    return misspelt


def _refused(arguments: Mapping[str, Value]) -> dict[str, tuple[str, str]]:
    """Return the flags, without `--`, whose value is none of their choices, with a text, by contract field."""
    refused = {}
    unset = {"recompute_granularity": "none"}  # a value of the field, not of the flag
    for name in WITH_CHOICES:
        for argument in FLAGS[name].arguments:
            value = arguments.get(argument)
            if isinstance(value, str | tuple) and not is_variable(str(value)):
                try:
                    read_value(name, value)
                except ValueError:
                    words = value if isinstance(value, str) else " ".join(map(str, value))
                    choices = ", ".join(choice for choice in FIELDS[name].choices if choice != unset.get(name))
                    flag = argument.replace("_", "-")
                    refused[name] = flag, f"--{flag} (is {one_line(words)[:60]}, takes {choices})"
    return refused


@cache
def _megatron_flags() -> Mapping[str, None]:
    """Return the flags of Megatron-LM, in order."""
    table = tomllib.loads((Path(__file__).parents[1] / "megatron_flags.toml").read_text(encoding="utf-8"))
    return {f"--{name}": None for name in table["flags"].split()}


def _plain(arguments: Mapping[str, object]) -> dict[str, Value]:
    return {name: value for name, value in arguments.items() if isinstance(value, str | int | float | bool)}


def _number(text: str) -> Value:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def _switches(arguments: Mapping[str, Value]) -> dict[str, Value]:
    """Return the default of every option that rules use and that the launch omits under each of its names."""
    off = {"bool": False, "int": None}
    omitted = [fact for fact in FACTS.values() if fact.type in off and not arguments.keys() & {*fact.argument}]
    defaults = {name: off[fact.type] for fact in omitted for name in fact.argument}
    return {**defaults, **dict.fromkeys(ON_BY_DEFAULT, True), **OTHER_DEFAULTS}

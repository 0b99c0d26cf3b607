"""Reads a Megatron-Bridge ConfigContainer, written as YAML to `logger.save_config_filepath`.

Its values are resolved: they include silent fallbacks (flex without a backend becomes alltoall). They are still
requested values, not proof of the active ones.
"""

from collections.abc import Mapping
from dataclasses import replace

from app.domain.contract.fields import VARIABLES
from app.domain.contract.values import read_value
from app.domain.documents.document import Document, read_yaml
from app.domain.documents.environment import stated_by_variables
from app.domain.flags import FLAGS
from app.domain.logs.arguments import contract_fields
from app.domain.logs.settings import Setting
from app.domain.performance.model_shape import pad_vocabulary
from app.domain.run import Source, Stated, Value

# --- Sections of Megatron-Bridge's ConfigContainer that hold the trainer's settings, and their precedence.
#
# Megatron-Bridge `src/megatron/bridge/training/config.py`. Paths are `section.name`.

Paths = Mapping[str, object]
"""Stated leaves of a configuration by path: {"model.tensor_model_parallel_size": 2}."""

MAX_ITEMS = 1000
_PRECEDENCE = (
    "dataset",
    "model",
    "train",
    "rerun_state_machine",
    "optimizer",
    "ddp",
    "rng",
    "dist",
    "mixed_precision",
    "comm_overlap",
)
_PATHS = tuple(dict.fromkeys(path for row in FLAGS.values() for path in row.all_paths))
_SECTIONS = {
    section: tuple(path.removeprefix(f"{section}.") for path in _PATHS if path.startswith(f"{section}."))
    for section in _PRECEDENCE
}
"""Names read from each section, except `model`, which is read whole; a later section wins.

`mixed_precision` and `comm_overlap` are applied to the model when training starts, so they are last.
"""
_RENAMED = {"dataset.sequence_length": "seq_length"}
_ANY_SECTION = frozenset({"use_megatron_fsdp"})
"""Switches that are on when any section sets them: start-up code copies them between sections."""


def settings_at(paths: Paths, source: Source) -> dict[str, Setting]:
    """Return the trainer's settings of a whole container or of single overrides."""
    settings: dict[str, Setting] = {}
    for section, names in _SECTIONS.items():
        prefix = f"{section}."
        present = [path for path in paths if path.startswith(prefix)] if section == "model" else []
        for path in present or [prefix + name for name in names]:
            if path not in paths or _gives_way(section, path, paths[path], settings):
                continue
            name = path.removeprefix(prefix)
            settings[_RENAMED.get(path, name)] = Setting(name, _value(paths[path]), source, section=section)
    recipe = paths.get("mixed_precision")
    if isinstance(recipe, str):
        settings = {name: setting for name, setting in settings.items() if name not in _SECTIONS["mixed_precision"]}
        settings["mixed_precision"] = Setting("mixed_precision", recipe, source)
    _pad_vocabulary(settings)
    return settings


def _value(raw: object) -> Value:
    """Return a leaf as a contract value; an enum member as its name, any other object as None."""
    if isinstance(raw, Mapping):
        name = raw.get("_name_")
        return name if isinstance(name, str) else None
    if isinstance(raw, list | tuple):
        items = [_value(item) for item in raw[:MAX_ITEMS]]
        return tuple(item for item in items if item is not None and not isinstance(item, tuple))
    return raw if isinstance(raw, str | int | float | bool) else None


def _gives_way(section: str, path: str, raw: object, settings: Mapping[str, Setting]) -> bool:
    """Return True when the earlier section's value stays: a null overlap keeps it, and a switch on anywhere is on."""
    name = path.rpartition(".")[2]
    if section == "comm_overlap":
        return raw is None
    return name in _ANY_SECTION and raw is not True and name in settings


def _pad_vocabulary(settings: dict[str, Setting]) -> None:
    """Round the vocabulary up to a multiple for every tensor-parallel rank when `should_pad_vocab` is set."""

    def whole(name: str, otherwise: int) -> int:
        value = settings[name].value if name in settings else None
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else otherwise

    size = whole("vocab_size", 0)
    if size and "should_pad_vocab" in settings and settings["should_pad_vocab"].value is True:
        padded = pad_vocabulary(
            size, whole("make_vocab_size_divisible_by", 128), whole("tensor_model_parallel_size", 1)
        )
        name = f"vocab_size ({size}, padded)"
        settings["padded_vocab_size"] = Setting(name, padded, settings["vocab_size"].source, section="model")


CONTAINER = "ConfigContainer"
MAX_LEAVES = 20_000
"""A container has about 700."""

_CONTAINER_SECTIONS = (
    "model",
    "train",
    "dataset",
    "ddp",
    "optimizer",
    "comm_overlap",
    "mixed_precision",
    "dist",
    "rng",
    "logger",
)
_ENOUGH_SECTIONS = 3


def read_bridge_config(text: str | bytes) -> Document:
    """Read the contract fields of one container. Raises ValueError with a sentence for other documents."""
    document = read_yaml(text)
    if not isinstance(document, Mapping) or not is_container(document):
        raise ValueError("This YAML is not a Megatron-Bridge ConfigContainer: it has no model, train and ddp sections.")
    paths = flatten(document)
    stated, problems = stated_by_paths(paths, "arguments", CONTAINER)
    stated |= {name: field for name, field in _stated_by_dataset(paths).items() if name not in stated}
    if _is_config(document.get("peft")):
        stated["task"] = Stated("peft", "arguments", f"{CONTAINER}: peft is set")
    facts = {"train_iters": str(paths["train.train_iters"])} if "train.train_iters" in paths else {}
    return Document("bridge configuration", stated, facts=facts, problems=(*problems, *_contradictions(paths)))


def is_container(document: Mapping[object, object]) -> bool:
    """Return True when the top level names the container or has several of its sections."""
    if str(document.get("_target_", "")).endswith(CONTAINER):
        return True
    return (
        "model" in document and sum(_is_config(document.get(name)) for name in _CONTAINER_SECTIONS) >= _ENOUGH_SECTIONS
    )


def _is_config(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value)


def flatten(document: Mapping[object, object]) -> dict[str, object]:
    """Return the leaves of sections by `section.name`; deeper mappings (`_target_` objects) stay unchanged."""
    paths: dict[str, object] = {}
    for section, values in document.items():
        if isinstance(values, Mapping):
            paths |= {f"{section}.{name}": value for name, value in values.items() if len(paths) < MAX_LEAVES}
        elif section == "mixed_precision":
            paths["mixed_precision"] = values
    return paths


def stated_by_paths(paths: Paths, source: Source, where: str) -> tuple[dict[str, Stated], list[str]]:
    """Return the contract fields of a whole container or of single overrides, and problems."""
    fields, refused = contract_fields(settings_at(paths, source))
    stated = {name: replace(field, detail=f"{where}: {field.detail}", line=0) for name, field in fields.items()}
    model = paths.get("model.hf_model_id")
    if isinstance(model, str) and model.strip("/ "):
        name = model.strip("/ ").rpartition("/")[2]
        stated["model"] = Stated(read_value("model", name[:200]), source, f"{where}: model.hf_model_id = {model[:200]}")
    variables = {
        name: str(paths[f"env_vars.{name}"]) for name in VARIABLES if paths.get(f"env_vars.{name}") is not None
    }
    return stated | stated_by_variables(variables, f"{where}: env_vars"), list(refused.values())


_NEMO_PATHS = {
    "data.global_batch_size": "train.global_batch_size",
    "data.micro_batch_size": "train.micro_batch_size",
    "data.seq_length": "model.seq_length",
    "model.encoder_seq_length": "model.seq_length",
    "model.activations_checkpoint_granularity": "model.recompute_granularity",
    "model.activations_checkpoint_method": "model.recompute_method",
    "model.activations_checkpoint_num_layers": "model.recompute_num_layers",
}
_NEMO_SECTIONS = {"trainer.strategy.ddp.": "ddp.", "trainer.strategy.": "model.", "model.config.": "model."}
"""NeMo 2 has the layout in the trainer's strategy and the batch in the data, NeMo 1 all of it in `model`."""


def stated_by_overrides(paths: Paths, where: str) -> tuple[dict[str, Stated], list[str]]:
    """Return the contract fields of single overrides without those that also depend on the recipe, and problems.

    Reads NeMo's paths as well as Megatron-Bridge's.
    """
    renamed = {_bridge_path(path): value for path, value in paths.items()}
    stated, problems = stated_by_paths(renamed, "metadata", where)
    stated |= _stated_by_nodes(paths, where)
    names = {path.rpartition(".")[2] for path in renamed}
    return {name: field for name, field in stated.items() if _is_decided(name, field, names)}, problems


def _bridge_path(path: str) -> str:
    start = next((start for start in _NEMO_SECTIONS if path.startswith(start)), "")
    return _NEMO_PATHS.get(path, _NEMO_SECTIONS.get(start, "") + path.removeprefix(start))


def _stated_by_nodes(paths: Paths, where: str) -> dict[str, Stated]:
    """Return the GPUs of NeMo's trainer: its nodes times its devices."""
    nodes, devices = paths.get("trainer.num_nodes"), paths.get("trainer.devices")
    if not (isinstance(nodes, int) and isinstance(devices, int) and 0 < nodes < 10**6 and 0 < devices < 10**4):
        return {}
    detail = f"{where}: trainer.num_nodes = {nodes}, trainer.devices = {devices}"
    return {
        "gpus": Stated(nodes * devices, "metadata", detail),
        "gpus_per_node": Stated(devices, "metadata", detail),
    }


_NEEDS = {
    "routing_mode": ("moe_router_force_load_balancing", "moe_expert_capacity_factor"),
    "dp_overlap": ("overlap_grad_reduce", "overlap_param_gather"),
    "pp_account": ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    "nan_checks": ("check_for_nan_in_loss", "check_for_nan_in_grad"),
    "recompute_modules": ("recompute_modules",),
    "flex_backend": ("moe_flex_dispatcher_backend",),
    "precision": ("fp8", "fp4"),
}
"""Settings that decide a field together: without all of them, the recipe may change the result."""


def _is_decided(name: str, field: Stated, names: set[str]) -> bool:
    if name == "routing_mode" and field.value == "forced-balance":
        return True  # it wins over all others
    if name == "precision" and "mixed_precision" in names:
        return True
    if name == "dispatcher" and field.source == "derived":
        return "moe_flex_dispatcher_backend" in names
    return all(needed in names for needed in _NEEDS.get(name, ()))


def _stated_by_dataset(paths: Paths) -> dict[str, Stated]:
    """Return data mode and task from the dataset's class. A GPT dataset without a blend generates mock data."""
    target = str(paths.get("dataset._target_", "")).rpartition(".")[2]
    if not target:
        return {}
    stated: dict[str, Stated] = {}
    made_up = "Mock" in target or paths.get("dataset.mock") is True
    blends = [
        paths[name] for name in ("dataset.blend", "dataset.blend_per_split", "dataset.data_path") if name in paths
    ]
    if not made_up and target == "GPTDatasetConfig":
        made_up = bool(blends) and not any(blends)
        if not made_up and not blends:
            return {}
    detail = f"{CONTAINER}: dataset is a {target[:100]}" + (" without data" if made_up and "Mock" not in target else "")
    stated["data_mode"] = Stated("mock" if made_up else "real", "arguments", detail)
    if "Finetuning" in target or "SFT" in target:
        stated["task"] = Stated("sft", "arguments", detail)
    elif "GPT" in target:
        stated["task"] = Stated("pretrain", "arguments", detail)
    return stated


def _contradictions(paths: Paths) -> list[str]:
    """Return sentences about values of the container that disagree."""
    problems = []
    lengths = {
        name: paths[name]
        for name in ("model.seq_length", "dataset.seq_length", "dataset.sequence_length")
        if isinstance(paths.get(name), int)
    }
    if len(set(lengths.values())) > 1:
        listed = " and ".join(f"{name} = {length}" for name, length in lengths.items())
        problems.append(f"The sequence lengths differ: {listed}. The model's value is used.")
    if paths.get("model.moe_token_dispatcher_type") == "flex" and (
        "model.moe_flex_dispatcher_backend" in paths and paths["model.moe_flex_dispatcher_backend"] is None
    ):
        problems.append("The dispatcher is flex without a backend: Megatron-Bridge resets it to alltoall.")
    return problems

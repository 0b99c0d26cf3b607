"""The contract's fields as facts: every one of the registry, by its canonical name."""

from app.domain.contract.fields import FIELDS, ContractField
from app.domain.rules.facts.fact import Fact, Type

_TYPES: dict[str, Type] = {
    "count": "int",
    "whole": "int",
    "number": "double",
    "flag": "bool",
    "choice": "string",
    "words": "strings",
    "counts": "ints",
    "text": "string",
    "name": "string",
    "layers": "ints",
}
"""How conditions see the registry's kinds of values. `layers`: a frequency is a list of one."""

VERSIONS = frozenset({"te_version", "pytorch_version", "cuda_version", "nccl_version", "cudnn_version"})

INPUTS = {
    "dp": ("gpus", "tp", "pp", "cp"),
    "edp": ("gpus", "pp", "ep", "etp"),
    "ga": ("gbs", "mbs", "dp"),
    "dispatcher_type": ("dispatcher",),
    "flex_backend": ("dispatcher",),
    "gpus_per_node": ("gpu",),
    "num_layers": ("model",),
    "hidden_size": ("model",),
    "num_experts": ("model",),
    "topk": ("model",),
}
"""Fields that mostly follow from others: those are what somebody should state."""


def _fact(field: ContractField) -> Fact:
    kind: Type = "version" if field.name in VERSIONS else _TYPES[field.kind]
    supply = f"State `{field.name}` in the metadata or as a default of the project"
    if field.name.startswith("env."):
        supply = (
            f"State `{field.name.removeprefix('env.')}` under `env` in the metadata, or upload the job's environment"
        )
    elif "--" in field.megatron_lm or field.bridge.startswith(("model.", "ddp.", "comm_overlap.", "optimizer.")):
        supply += ", or upload a log that holds the trainer's arguments"
    return Fact(
        field.name, kind, "contract", field.meaning, field.unit, supply + ".", inputs=INPUTS.get(field.name, ())
    )


FACTS = tuple(_fact(field) for field in FIELDS.values())

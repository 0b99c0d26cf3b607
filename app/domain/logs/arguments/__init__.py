"""Turns what trainers call their settings into contract fields: the one place that knows Megatron's long names.

A trainer's names and values come from an arguments block, a configuration summary or command-line flags. The history of
the names: `docs/log-formats.md`.
"""

from app.domain.contract.fields import FIELDS
from app.domain.logs.arguments import moe, tuning
from app.domain.logs.arguments.names import ONE_TO_ONE
from app.domain.logs.arguments.settings_reader import Settings, SettingsReader
from app.domain.run import Stated

__all__ = ["Settings", "contract_fields"]

MOE_FIELDS = frozenset({*(name for name, field in FIELDS.items() if field.group == "Experts and routing"), "topk"})
"""Fields that mean nothing in a dense model."""


def contract_fields(settings: Settings) -> tuple[dict[str, Stated], list[str]]:
    """The contract fields that a trainer's settings state, and sentences on values that no field takes.

    What several settings decide together has the source `derived` and says which. A field that no setting names is
    not stated: whether that means "default" is known to whoever knows what the settings come from.
    """
    reading = SettingsReader(settings)
    for field, names in ONE_TO_ONE.items():
        stated = [name for name in names if name in settings]
        best = next((name for name in stated if settings[name].value is not None), stated[0] if stated else None)
        if best:
            reading.state(field, settings[best].value, best)
    for derive in _DERIVED:
        derive(reading)
    if "num_experts" in reading.found and reading.found["num_experts"].value is None:
        for field in MOE_FIELDS & reading.found.keys():
            reading.found[field] = Stated(None, "derived", "There are no experts: a dense model.")
    return reading.found, reading.refused


def _pipeline(reading: SettingsReader) -> None:
    if reading.has("virtual_pipeline_model_parallel_size"):
        chunks = reading.value("virtual_pipeline_model_parallel_size")
        reading.state("vpp", None if chunks == 1 else chunks, "virtual_pipeline_model_parallel_size")
    reading.words(
        "pp_account",
        {"account_for_embedding_in_pipeline_split": "embedding", "account_for_loss_in_pipeline_split": "loss"},
    )


def _attention_heads(reading: SettingsReader) -> None:
    """Megatron-LM's arguments hold 1 query group when grouped-query attention is off, which means none at all."""
    if reading.settings.get("group_query_attention") and not reading.is_on("group_query_attention"):
        reading.state("num_query_groups", None, "group_query_attention")
    elif reading.has("num_query_groups"):
        reading.state("num_query_groups", reading.value("num_query_groups"), "num_query_groups")


_DERIVED = (
    _pipeline,
    _attention_heads,
    moe.read_expert_tensor_parallelism,
    moe.read_dispatcher,
    moe.read_routing_mode,
    tuning.read_precision,
    tuning.read_param_gather,
    tuning.read_recompute,
    tuning.read_graphs,
    tuning.read_data_parallelism,
    tuning.read_offload,
    tuning.read_checks_and_data,
)
"""In this order: routing looks at the dispatcher."""

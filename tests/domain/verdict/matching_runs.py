"""Runs for tables: one complete contract, of which a test states its changes. `...` removes a field."""

import math
from collections.abc import Mapping
from types import EllipsisType

from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, STACK_FIELDS
from app.domain.contract.resolve import config_key, stack_key
from app.domain.run import Stated, Value, semantic_class
from app.domain.verdict.record import RunRecord, shape_of
from app.domain.verdict.step_time import RunEstimate

SAMPLES: Mapping[str, Value] = {
    "count": 8,
    "whole": 1,
    "number": 1,
    "flag": True,
    "choice": "none",
    "words": ("attn",),
    "counts": (2, 4),
    "text": "some text",
    "name": "a name",
    "layers": 1,
}
CONTRACT: dict[str, Value] = {name: SAMPLES[FIELDS[name].kind] for name in (*STACK_FIELDS, *CONFIG_FIELDS)} | {
    "model": "Qwen3-30B-A3B",
    "task": "pretrain",
    "data_mode": "real",
    "gpu": "H100",
    "cluster": "west",
    "container": "train:2026.09",
    "routing_mode": "dropless",
    "precision": "bf16",
    "dispatcher": "alltoall",
    "num_layers": 48,
}
"""Every member of the keys has a value, so that nothing is provisional unless a test takes a field out."""


def stated(values: Mapping[str, Value | EllipsisType]) -> dict[str, Stated]:
    return {name: Stated(value, "metadata") for name, value in values.items() if not isinstance(value, EllipsisType)}


def make_record(
    run: str = "candidate",
    fields: Mapping[str, Value | EllipsisType] | None = None,
    *,
    slower: float = 0.0,
    project: str = "moe",
    short: bool = False,
    steady: bool = True,
    **other: object,
) -> RunRecord:
    """A run `slower` (in ln) than 400 ms."""
    contract = stated({**CONTRACT, **(fields or {})})
    estimate = RunEstimate(run, math.log(400) + slower, 0.001, 50, is_steady=steady, short=short)
    facts: dict[str, object] = {
        "purpose": "ci",
        "branch": "main",
        "commit": f"commit of {run}",
        "outcome": "completed",
        "definition_version": 1,
        "shape": shape_of(contract),
    }
    return RunRecord(
        run=run,
        project=project,
        contract=contract,
        stack_key=stack_key(project, contract),
        config_key=config_key(project, contract),
        semantic_class=semantic_class(contract),
        estimate=estimate,
        **(facts | other),
    )

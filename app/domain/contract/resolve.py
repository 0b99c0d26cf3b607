"""Resolves the contract of a run: every stated field with its value and source.

Precedence, strongest first: metadata, launch command and environment, configuration, the log's arguments, its other
lines, derived values, the project's defaults. A warning names both sources of a disagreement. Active values that the
log proves win over all requested ones.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.domain.contract.checks import (
    activity,
    contradictions,
    disagreements,
    impossibilities,
    other_allocations,
    overruled_defaults,
    proven,
)
from app.domain.contract.derive import defaults_of_dump, derive
from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.values import MAX_WHOLE, comparable, is_stated, read_value, shown
from app.domain.documents.document import Document, DocumentKind
from app.domain.performance.model_shape import pad_vocabulary
from app.domain.run import Activity, Metadata, ParsedLog, Stated, Value

# --- Computes the two identities of a run: the stack key and the config key, which adds every tuning knob. A key is
# the SHA-256 of the canonical JSON of its members. It depends on values only, not on their order, their source or the
# spelling of a number. An unknown member is null, which no stated value is.


def stack_key(project: str, contract: Mapping[str, Stated]) -> str:
    """Return the key of everything that must be equal before two runs are ranked or judged: 64 hexadecimal digits."""
    return _digest(project, contract, STACK_FIELDS)


def config_key(project: str, contract: Mapping[str, Stated]) -> str:
    """Return the key of the stack and every other knob: 64 hexadecimal digits."""
    return _digest(project, contract, (*STACK_FIELDS, *CONFIG_FIELDS))


def workload(contract: Mapping[str, Stated]) -> tuple[str, ...]:
    """Return what identifies the work across containers, within a project; "" for an unknown member."""
    stated = (contract.get(name) for name in STACK_FIELDS if name != "container")
    return tuple("" if field is None or field.value is None else shown(field.value) for field in stated)


def is_provisional(contract: Mapping[str, Stated]) -> bool:
    """Return True when a member of the stack key is unknown, so that results may compare unequal runs."""
    return any(name not in contract for name in STACK_FIELDS)


def _digest(project: str, contract: Mapping[str, Stated], members: Iterable[str]) -> str:
    values: dict[str, object] = {"project": project.casefold()}
    values |= {name: comparable(name, contract[name].value) if name in contract else None for name in members}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# --- The contract of a run.

_FOLLOWS_FROM = {
    "dispatcher": ("dispatcher_type", "flex_backend"),
    "routing_mode": ("force_balance", "capacity", "pad_to_capacity", "rank_capacity"),
    "dp": ("gpus", "tp", "pp", "cp"),
    "etp": ("tp",),
}
"""Derived fields and their inputs: metadata that state an input also replace the derived field."""

_METADATA = "the metadata"


@dataclass(frozen=True, slots=True)
class Contract:
    """Hold the resolved fields in the registry's order.

    `unknown`: stack and config fields that no source states, environment variables excepted.
    """

    fields: Mapping[str, Stated]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    stack_key: str
    config_key: str
    provisional: bool
    activities: Mapping[str, Activity] = field(default_factory=dict)


def resolve(
    log: ParsedLog,
    metadata: Metadata,
    documents: Sequence[Document] = (),
    project_defaults: Mapping[str, Value] | None = None,
) -> Contract:
    """Return the contract that a log, its documents and its metadata state together, with its keys.

    `project_defaults` fill fields that no source states and that do not follow from others. They cause no warnings.
    """
    warnings: list[str] = []
    seen = _stated_by_log(log, warnings)
    layers = [*_layers(documents, proven_gpus="gpus" in seen), (_METADATA, metadata.fields)]
    defaults = defaults_of_dump(log)
    requested = defaults | seen
    for _, stated in layers:
        requested = _merge(requested, stated)
    activities = activity(log, derive(requested))
    active = proven(activities)
    merged = _with_defaults(derive(requested | active), project_defaults or {}, warnings)
    # An omission from a dump is too weak to contradict a document, so `seen` excludes defaults.
    below, where = seen | active, dict.fromkeys(seen, "the log")
    for name, stated in layers:
        alone = derive(below)
        warnings += contradictions(name, stated, below, seen_alone=alone, merged=merged, where=where)
        if name == _METADATA:
            warnings += overruled_defaults(stated, defaults, weaker=alone, merged=merged)
        below = _merge(below, stated)
        where |= dict.fromkeys(stated, name)
    if "gpus" not in metadata.fields:
        warnings += other_allocations(documents, seen)
    warnings += disagreements(activities)
    fields = {name: merged[name] for name in FIELDS if name in merged}
    warnings += impossibilities(fields)
    return Contract(
        fields=fields,
        unknown=_unknown(fields),
        warnings=tuple(dict.fromkeys(warnings)),
        stack_key=stack_key(metadata.project, fields),
        config_key=config_key(metadata.project, fields),
        provisional=is_provisional(fields),
        activities=activities,
    )


_STRENGTH: tuple[DocumentKind, ...] = (
    "tensorboard",
    "golden values",
    "bridge configuration",
    "container image",
    "node list",
    "job environment",
    "slurm accounting",
    "launch command",
)
"""Kinds of documents, weakest first: a command states what was started, a configuration only what was planned."""


def _layers(documents: Sequence[Document], *, proven_gpus: bool) -> list[tuple[str, dict[str, Stated]]]:
    """Return the fields that each kind of document states, strongest kind last. Later documents of a kind win.

    `proven_gpus`: the log states its world size, which neither a launcher's `--nproc-per-node` of one node nor an
    allocation overrules.
    """
    layers = []
    for kind in _STRENGTH:
        stated = {
            name: fact
            for document in documents
            if document.kind == kind
            for name, fact in document.stated.items()
            if not (proven_gpus and kind in ("launch command", "slurm accounting") and name == "gpus")
        }
        if stated:
            layers.append((f"the {kind}", _split_container(stated)))
    return layers


def _with_defaults(facts: dict[str, Stated], defaults: Mapping[str, Value], warnings: list[str]) -> dict[str, Stated]:
    """Return `facts` with the project's defaults for unknown fields, and what follows from them."""
    fields = dict(facts)
    for name, raw in defaults.items():
        if name in fields or name not in FIELDS:
            continue
        try:
            fields[name] = Stated(read_value(name, raw), "default", "project default")
        except ValueError as problem:
            warnings.append(f"The project's default for `{name}` was ignored: {name} {problem}.")
    return derive(_split_container(fields)) if len(fields) > len(facts) else facts


def _merge(seen: Mapping[str, Stated], stated: Mapping[str, Stated]) -> dict[str, Stated]:
    """Merge stronger statements over weaker ones. A container stated with its digest becomes two fields."""
    replaced = {name for name, inputs in _FOLLOWS_FROM.items() if any(field_name in stated for field_name in inputs)}
    remaining = {name: fact for name, fact in seen.items() if name not in replaced or fact.source == "log line"}
    return _split_container(remaining | dict(stated))


def _stated_by_log(log: ParsedLog, warnings: list[str]) -> dict[str, Stated]:
    """Return all fields that the log alone states, in canonical values."""
    fields: dict[str, Stated] = {}
    for name, stated in log.stated.items():
        if name not in FIELDS:
            continue
        try:
            value = read_value(name, stated.value)
            if is_stated(name, value) or stated.source == "derived":
                fields[name] = replace(stated, value=value)
        except ValueError as problem:
            warnings.append(
                f"The log states `{name}` as {shown(stated.value)} ({stated.detail}), which was ignored: {name} "
                f"{problem}."
            )
    _padded_vocabulary(log, fields)
    _batch_of_iteration_lines(log, fields, warnings)
    return _split_container(fields)


def _padded_vocabulary(log: ParsedLog, fields: dict[str, Stated]) -> None:
    """Pad the vocabulary. Trainers may print the size before padding, but count FLOPs with the padded size."""
    stated, multiple = fields.get("vocab_size"), log.arguments.get("make_vocab_size_divisible_by")
    tp = fields["tp"].value if "tp" in fields else None
    if stated is None or not isinstance(stated.value, int) or log.arguments.get("padded_vocab_size"):
        return
    if isinstance(multiple, int) and isinstance(tp, int) and multiple > 0:
        padded = pad_vocabulary(stated.value, multiple, tp)
        fields["vocab_size"] = replace(stated, value=padded, detail=f"{stated.detail}, padded to {multiple} x {tp}")


def _batch_of_iteration_lines(log: ParsedLog, fields: dict[str, Stated], warnings: list[str]) -> None:
    """Take the batch size from the iteration lines, or check the arguments against it."""
    printed = log.columns.get("global_batch_size", np.empty(0))
    sizes = printed[(printed >= 1) & (printed <= MAX_WHOLE)]
    if len(sizes) == 0:
        return
    last, changes = int(sizes[-1]), len(np.unique(sizes)) > 1
    stated = fields.get("gbs")
    if stated is None or stated.value is None or stated.source == "default":
        fields["gbs"] = Stated(last, "log line", "printed with the iterations")
    elif stated.value != last and not changes:
        warnings.append(
            f"`gbs` is {shown(stated.value)} in the arguments ({stated.detail}) but the iterations print {last}. "
            f"The arguments are used; state `gbs` in the metadata if they are wrong."
        )
    if changes:
        warnings.append(
            f"The batch size changes during the run, from {int(sizes[0])} to {last} sequences. Compare its throughput "
            f"with runs of the same schedule only."
        )


def _split_container(fields: dict[str, Stated]) -> dict[str, Stated]:
    """Split `image:tag@sha256:...` into image with tag and digest. Enroot's `host#image` becomes `host/image`."""
    stated = fields.get("container")
    if stated is None or not isinstance(stated.value, str):
        return fields
    image = re.sub(r"^(docker|oci)://", "", stated.value).replace("#", "/")
    name, at, digest = image.partition("@")
    has_tag = ":" in name.rpartition("/")[2]
    fields["container"] = replace(stated, value=name if at and has_tag else image)
    if at:
        fields.setdefault("container_digest", replace(stated, value=digest))
    return fields


def _unknown(fields: Mapping[str, Stated]) -> tuple[str, ...]:
    names = (*STACK_FIELDS, *CONFIG_FIELDS)
    return tuple(name for name in names if name not in fields and not name.startswith(PREFIX))

"""The contract of a run: every field that anybody stated, with its value and who said so.

What the metadata state wins over the launch command and the environment, those over a configuration, that over the
log's arguments, those over its other lines, those over what follows from the rest; a project's defaults come last.
Where two disagree, a warning names both. What the log proves to have run wins over all that was asked for.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.domain.contract.checks import (
    activity,
    contradictions,
    disagreements,
    impossibilities,
    overruled_defaults,
    proven,
)
from app.domain.contract.derive import defaults_of_dump, derive
from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.keys import config_key, is_provisional, stack_key
from app.domain.contract.values import MAX_WHOLE, is_stated, read_value, shown
from app.domain.documents.document import Document, DocumentKind
from app.domain.performance.model_shape import pad_vocabulary
from app.domain.run import Activity, Metadata, ParsedLog, Stated, Value

_FOLLOWS_FROM = {
    "dispatcher": ("dispatcher_type", "flex_backend"),
    "routing_mode": ("force_balance", "capacity", "pad_to_capacity", "rank_capacity"),
    "dp": ("gpus", "tp", "pp", "cp"),
    "etp": ("tp",),
}
"""Fields that the log's reader may have derived: metadata that state an input of theirs replace them, too."""

_METADATA = "the metadata"


@dataclass(frozen=True, slots=True)
class Contract:
    """`fields` in the registry's order. `unknown`: stack and config fields that nobody stated, environment aside."""

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
    """The contract that a log, the documents beside it and the metadata state together, with its keys.

    `project_defaults` fill what nobody states and nothing derives; they contradict nobody.
    """
    warnings: list[str] = []
    seen = _stated_by_log(log, warnings)
    layers = [*_layers(documents), (_METADATA, metadata.fields)]
    defaults = defaults_of_dump(log)
    requested = defaults | seen
    for _, stated in layers:
        requested = _merge(requested, stated)
    activities = activity(log, derive(requested))
    active = proven(activities)
    merged = _with_defaults(derive(requested | active), project_defaults or {}, warnings)
    # What a dump leaves out is too weak a statement to contradict a document, so it is not in `seen`
    below, where = seen | active, dict.fromkeys(seen, "the log")
    for name, stated in layers:
        alone = derive(below)
        warnings += contradictions(name, stated, below, seen_alone=alone, merged=merged, where=where)
        if name == _METADATA:
            warnings += overruled_defaults(stated, defaults, weaker=alone, merged=merged)
        below = _merge(below, stated)
        where |= dict.fromkeys(stated, name)
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
    "job environment",
    "launch command",
)
"""Documents from the weakest statement to the strongest: a command says what was started, a configuration a plan."""


def _layers(documents: Sequence[Document]) -> list[tuple[str, dict[str, Stated]]]:
    """What the documents state, by kind, the strongest last; of two of a kind the later one counts."""
    return [
        (f"the {kind}", _split_container({name: fact for one in found for name, fact in one.stated.items()}))
        for kind in _STRENGTH
        if (found := [document for document in documents if document.kind == kind])
    ]


def _with_defaults(facts: dict[str, Stated], defaults: Mapping[str, Value], warnings: list[str]) -> dict[str, Stated]:
    """`facts` with the project's defaults for what is still unknown, and what follows from these."""
    known = dict(facts)
    for name, raw in defaults.items():
        if name in known or name not in FIELDS:
            continue
        try:
            known[name] = Stated(read_value(name, raw), "default", "project default")
        except ValueError as problem:
            warnings.append(f"The project's default for `{name}` was left out: {name} {problem}.")
    return derive(_split_container(known)) if len(known) > len(facts) else facts


def _merge(seen: Mapping[str, Stated], stated: Mapping[str, Stated]) -> dict[str, Stated]:
    """The metadata over the log. A container stated with its digest becomes two fields."""
    replaced = {name for name, inputs in _FOLLOWS_FROM.items() if any(one in stated for one in inputs)}
    kept = {name: fact for name, fact in seen.items() if name not in replaced or fact.source == "log line"}
    return _split_container(kept | dict(stated))


def _stated_by_log(log: ParsedLog, warnings: list[str]) -> dict[str, Stated]:
    """Everything that the log alone states, in canonical values."""
    found: dict[str, Stated] = {}
    for name, stated in log.stated.items():
        if name not in FIELDS:
            continue
        try:
            value = read_value(name, stated.value)
            if is_stated(name, value) or stated.source == "derived":
                found[name] = replace(stated, value=value)
        except ValueError as problem:
            warnings.append(
                f"The log states `{name}` as {shown(stated.value)} ({stated.detail}), which was left out: {name} "
                f"{problem}."
            )
    _padded_vocabulary(log, found)
    _batch_of_iteration_lines(log, found, warnings)
    return _split_container(found)


def _padded_vocabulary(log: ParsedLog, found: dict[str, Stated]) -> None:
    """Trainers print the size before padding, too, and count FLOPs with the padded one."""
    stated, multiple = found.get("vocab_size"), log.arguments.get("make_vocab_size_divisible_by")
    tp = found["tp"].value if "tp" in found else None
    if stated is None or not isinstance(stated.value, int) or log.arguments.get("padded_vocab_size"):
        return
    if isinstance(multiple, int) and isinstance(tp, int) and multiple > 0:
        padded = pad_vocabulary(stated.value, multiple, tp)
        found["vocab_size"] = replace(stated, value=padded, detail=f"{stated.detail}, padded to {multiple} x {tp}")


def _batch_of_iteration_lines(log: ParsedLog, found: dict[str, Stated], warnings: list[str]) -> None:
    """The batch size that the iteration lines print: a fact of its own, that also checks the arguments."""
    printed = log.columns.get("global_batch_size", np.empty(0))
    sizes = printed[(printed >= 1) & (printed <= MAX_WHOLE)]
    if len(sizes) == 0:
        return
    last, changes = int(sizes[-1]), len(np.unique(sizes)) > 1
    stated = found.get("gbs")
    if stated is None or stated.value is None or stated.source == "default":
        found["gbs"] = Stated(last, "log line", "printed with the iterations")
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
    """`image:tag@sha256:...` as image with tag, and digest. Enroot's `host#image` is written `host/image`."""
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

"""Find what differs between two contracts, field by field, and on which axis.

Compared are the members of the keys; versions, driver and commit, because they are suspects; and the model's shape,
which identifies the model where its name does not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.contract.fields import FIELDS, PREFIX, Role
from app.domain.contract.values import same_value, shown
from app.domain.run import Stated

Axis = Literal["workload", "container", "recipe", "code", "place"]
AXES: tuple[Axis, ...] = ("workload", "container", "recipe", "code", "place")
"""`workload` is what was trained. Differences there are not attributed, because such runs are different tasks."""

PROJECT = "project"
COMMIT = "commit"
JOB = "job"
ENVIRONMENT = "env"
"""Name under which all environment variables are supplied together."""

_AXIS_OF_GROUP: Mapping[str, Axis] = {
    "Workload": "workload",
    "Model shape": "workload",
    "Hardware": "place",
    "Software": "container",
}
_AXIS: Mapping[str, Axis] = {
    PROJECT: "workload",
    COMMIT: "code",
    JOB: "workload",
    "bridge_commit": "code",
    "mcore_commit": "code",
    "gbs": "recipe",
    "mbs": "recipe",
}
_BESIDE = (*(name for name, field in FIELDS.items() if field.group == "Software" and field.role == "info"), "driver")
SHAPE = ("num_layers", "hidden_size", "num_attention_heads", "num_experts", "topk")
"""Sizes by which models are recognised. Other sizes have several notations or follow a knob."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs, or may differ: a side is None where it is not stated.

    `follows`: the field that causes this difference; empty when it follows no other field.
    """

    field: str
    role: Role
    axis: Axis
    a: Stated | None
    b: Stated | None
    follows: str = ""

    @property
    def is_certain(self) -> bool:
        """Return whether both sides are stated; otherwise the two may be equal."""
        return self.a is not None and self.b is not None

    @property
    def to_supply(self) -> str:
        """Name of the field to state to make it certain; empty when it is."""
        return "" if self.is_certain else supplied_as(self.field)

    def turned(self) -> "Difference":
        """Exchange the sides."""
        return replace(self, a=self.b, b=self.a)


def axis_of(field: str) -> Axis:
    """Return the axis of a contract field, of `project`, `job` or `commit`; knobs belong to the recipe."""
    return _AXIS.get(field) or _AXIS_OF_GROUP.get(FIELDS[field].group, "recipe")


def supplied_as(field: str) -> str:
    """Return the name under which a field is supplied: `env` for all environment variables."""
    return ENVIRONMENT if field.startswith(PREFIX) else field


def differing(names: Iterable[str], a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Yield fields of `names` that differ or are stated on one side only."""
    for name in names:
        left, right = a.get(name), b.get(name)
        if left is None and right is None:
            continue
        if left is None or right is None or not same_value(name, left.value, right.value):
            yield Difference(name, FIELDS[name].role, axis_of(name), left, right)


def differing_project(a: str, b: str) -> Iterator[Difference]:
    """Yield the project when the names differ, ignoring case."""
    if a.casefold() != b.casefold():
        yield Difference(PROJECT, "stack", axis_of(PROJECT), Stated(a, "metadata"), Stated(b, "metadata"))


def differing_shape(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Yield `model` if both shapes are known and differ, regardless of their names."""
    names = [name for name in SHAPE if name in a and name in b and not same_value(name, a[name].value, b[name].value)]
    if names:
        yield Difference("model", "stack", axis_of("model"), _shape(names, a), _shape(names, b))


def _shape(names: Iterable[str], contract: Mapping[str, Stated]) -> Stated:
    return Stated(tuple(f"{name} {shown(contract[name].value)}" for name in names), "derived", "the model's shape")


def differing_beside(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Return versions, digest and driver that are stated on both sides and differ; no key holds them."""
    return (difference for difference in differing(_BESIDE, a, b) if difference.is_certain)


def differing_commit(a: str, b: str) -> Iterator[Difference]:
    """Yield the commit when both sides state it and neither is the short form of the other."""
    if a and b and not (a.startswith(b) or b.startswith(a)):
        yield Difference(COMMIT, "info", "code", Stated(a, "metadata"), Stated(b, "metadata"))


def differing_job(a: str, b: str) -> Iterator[Difference]:
    """Yield the job when both sides state it and the names differ."""
    if a and b and a != b:
        yield Difference(JOB, "info", axis_of(JOB), Stated(a, "metadata"), Stated(b, "metadata"))


# --- Knobs that differ only because another one does: an A/B of dispatchers is one knob, although one side has no SM
# count. The fields are those that `unused_knobs` unsets when their switch disables them.

_FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "dispatcher": ("dispatch_sms", "hybridep_preproc_sms", "hybridep_permute_fused"),
    "tp": ("sp", "tp_overlap", "etp"),
    "cp": ("cp_comm", "hcp_sizes"),
    "pp": ("vpp", "pp_layout", "pp_account", "pp_overlap"),
    "recompute_granularity": ("recompute_modules", "recompute_method", "recompute_layers"),
    "graph_impl": ("graph_modules", "graph_warmup"),
    "precision": ("param_gather_lp",),
    "opt_offload": ("opt_offload_fraction",),
    "act_offload": ("act_offload_layers",),
    "manual_gc": ("manual_gc_interval",),
}
FOLLOWS = {follower: switch for switch, followers in _FOLLOWERS.items() for follower in followers}
"""Field -> the field that it follows."""


def marked(differences: Sequence[Difference]) -> list[Difference]:
    """Set `follows` of each difference that another one in the list explains."""
    certain = {difference.field for difference in differences if difference.is_certain}
    return [
        replace(difference, follows=FOLLOWS[difference.field])
        if FOLLOWS.get(difference.field) in certain and _is_without_choice(difference)
        else difference
        for difference in differences
    ]


def _is_without_choice(difference: Difference) -> bool:
    """Return whether it has no effect on one side, or is derived from the other field on both (`etp` from `tp`)."""
    stated = [side for side in (difference.a, difference.b) if side is not None]
    return any(side.value is None for side in stated) or all(side.source == "derived" for side in stated)

"""What differs between two contracts, field by field, and on which axis: container, recipe, code, place or workload.

Compared are the members of the keys; versions, driver and commit beside them, because they are suspects; and the
model's shape, which is what the model is where its name does not say it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.contract.fields import FIELDS, PREFIX, Role
from app.domain.contract.values import same_value, shown
from app.domain.run import Stated

Axis = Literal["workload", "container", "recipe", "code", "place"]
AXES: tuple[Axis, ...] = ("workload", "container", "recipe", "code", "place")
"""`workload` is what was trained: with it nothing is attributed, because such runs are different tasks."""

PROJECT = "project"
COMMIT = "commit"
ENVIRONMENT = "env"
"""How the environment's variables are supplied, all at once."""

_AXIS_OF_GROUP: Mapping[str, Axis] = {
    "Workload": "workload",
    "Model shape": "workload",
    "Hardware": "place",
    "Software": "container",
}
_AXIS: Mapping[str, Axis] = {
    PROJECT: "workload",
    COMMIT: "code",
    "bridge_commit": "code",
    "mcore_commit": "code",
    "gbs": "recipe",
    "mbs": "recipe",
}
_BESIDE = (*(name for name, field in FIELDS.items() if field.group == "Software" and field.role == "info"), "driver")
SHAPE = ("num_layers", "hidden_size", "num_attention_heads", "num_experts", "topk")
"""The outline by which models are recognised. Other sizes are written in several ways, or follow a knob."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs, or may: None is a side on which nobody states it.

    `follows`: the field because of which it differs, empty for one that differs by itself (`following.py`).
    """

    field: str
    role: Role
    axis: Axis
    a: Stated | None
    b: Stated | None
    follows: str = ""

    @property
    def is_certain(self) -> bool:
        """False when a side is unknown: then the two may be equal, and may not."""
        return self.a is not None and self.b is not None

    @property
    def to_supply(self) -> str:
        """What to state to make it certain; empty when it is."""
        return "" if self.is_certain else supplied_as(self.field)

    def turned(self) -> "Difference":
        """The same with the sides exchanged."""
        return replace(self, a=self.b, b=self.a)


def axis_of(field: str) -> Axis:
    """The axis of a contract field, of `project` and of `commit`; knobs are the recipe."""
    return _AXIS.get(field) or _AXIS_OF_GROUP.get(FIELDS[field].group, "recipe")


def supplied_as(field: str) -> str:
    return ENVIRONMENT if field.startswith(PREFIX) else field


def differing(names: Iterable[str], a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Fields of `names` that differ or are known on one side only; one that nobody knows is no difference."""
    for name in names:
        left, right = a.get(name), b.get(name)
        if left is None and right is None:
            continue
        if left is None or right is None or not same_value(name, left.value, right.value):
            yield Difference(name, FIELDS[name].role, axis_of(name), left, right)


def differing_project(a: str, b: str) -> Iterator[Difference]:
    if a.casefold() != b.casefold():
        yield Difference(PROJECT, "stack", axis_of(PROJECT), Stated(a, "metadata"), Stated(b, "metadata"))


def differing_shape(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """The model, when its shape is known on both sides and is not the same, whatever the models are called."""
    found = [name for name in SHAPE if name in a and name in b and not same_value(name, a[name].value, b[name].value)]
    if found:
        yield Difference("model", "stack", axis_of("model"), _shape(found, a), _shape(found, b))


def _shape(names: Iterable[str], contract: Mapping[str, Stated]) -> Stated:
    return Stated(tuple(f"{name} {shown(contract[name].value)}" for name in names), "derived", "the model's shape")


def differing_beside(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Versions, digest and driver that are known on both sides and differ. No key holds them."""
    return (one for one in differing(_BESIDE, a, b) if one.is_certain)


def differing_commit(a: str, b: str) -> Iterator[Difference]:
    """Commits that are stated on both sides and differ; one may be the short form of the other."""
    if a and b and not (a.startswith(b) or b.startswith(a)):
        yield Difference(COMMIT, "info", "code", Stated(a, "metadata"), Stated(b, "metadata"))


# --- Knobs that differ only because another one does: an A/B of dispatchers is one knob, though one side has no SM
# count.
#
# The fields are those that `unused_knobs` unsets when their switch leaves them without effect.

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
"""Field -> the one that it follows."""


def marked(differences: Sequence[Difference]) -> list[Difference]:
    """The same differences; one that follows another of them says which (`Difference.follows`)."""
    certain = {one.field for one in differences if one.is_certain}
    return [
        replace(one, follows=FOLLOWS[one.field])
        if FOLLOWS.get(one.field) in certain and _is_without_choice(one)
        else one
        for one in differences
    ]


def _is_without_choice(one: Difference) -> bool:
    """Unset on a side, because it means nothing there, or taken from the other field on both (`etp` from `tp`)."""
    known = [side for side in (one.a, one.b) if side is not None]
    return any(side.value is None for side in known) or all(side.source == "derived" for side in known)

"""Knobs that differ only because another one does: an A/B of dispatchers is one knob, though one side has no SM count.

The fields are those that `unused_knobs` unsets when their switch leaves them without effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.domain.matching.differences import Difference

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

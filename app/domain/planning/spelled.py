"""A layout as flags of Megatron-LM and as overrides of Megatron-Bridge, ready to paste."""

import shlex
from dataclasses import dataclass

from app.domain.planning.layout import Layout
from app.domain.planning.request import PlanRequest
from app.domain.rules.flags import written
from app.domain.rules.rule import Setting


@dataclass(frozen=True, slots=True)
class Spelled:
    """`without`: flags of Megatron-LM that the command must not have."""

    megatron_lm: str
    bridge: str
    without: tuple[str, ...]


def settings_of(request: PlanRequest, layout: Layout) -> dict[str, Setting]:
    """Contract fields of the layout; ETP is always stated, because left out it takes the value of TP."""
    settings: dict[str, Setting] = {"tp": layout.tp, "pp": layout.pp}
    if layout.pp_layout is not None:
        settings["pp_layout"] = layout.pp_layout
    else:
        settings |= {"vpp": layout.vpp, "pp_account": layout.account}
    settings["cp"] = layout.cp
    if request.model.experts is not None:
        settings |= {"ep": layout.ep, "etp": layout.etp}
    settings |= {"sp": layout.tp > 1, "dist_opt": True, "seq_len": request.seq_len, "mbs": request.mbs}
    if request.model.mtp:
        settings["mtp"] = request.model.mtp
    if request.gbs is not None:
        settings["gbs"] = request.gbs
    return settings | {"precision": request.precision}


def spelled(request: PlanRequest, layout: Layout) -> Spelled:
    """Every field of the layout in both spellings."""
    flags: list[str] = []
    overrides: list[str] = []
    without: list[str] = []
    for name, value in settings_of(request, layout).items():
        one = written(name, value, {"precision": request.precision})
        flags += [shlex.join([flag, *values]) for flag, values in one.megatron_lm.flags.items()]
        without += [flag for flag in one.megatron_lm.without if name in ("vpp", "pp_account", "sp")]
        overrides += [shlex.quote(f"{path}={text}") for path, text in one.bridge.items()]
    if layout.pp_layout is not None:
        vpp = written("vpp", None).megatron_lm
        without += [*vpp.flags, *vpp.without]
    return Spelled(" \\\n  ".join(flags), " \\\n  ".join(overrides), tuple(dict.fromkeys(without)))

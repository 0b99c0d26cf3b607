"""How the layers are cut into pipeline stages and virtual chunks: evenly, with embedding and loss counted, or by a
layout string of the form that published recipes use.
"""

from dataclasses import dataclass
from functools import lru_cache

from app.domain.contract.pp_layout import layout_problem, stages
from app.domain.planning.model import PlannedModel
from app.domain.planning.request import PlanRequest

_BOTH = ("embedding", "loss")
_ROOMY = 2
"""Layers of a chunk: with fewer, sends between stages outweigh what smaller bubbles gain."""
_SHORT = 4
"""So many layers of a repeated stage are written out; more as t*5."""


@dataclass(frozen=True, slots=True)
class Split:
    """A legal cut for one PP. `vpp` 1: no virtual pipeline. `layers`: of a chunk, the larger ones."""

    vpp: int
    account: tuple[str, ...] = ()
    pp_layout: str | None = None
    layers: int = 0

    @property
    def kind(self) -> int:
        """0 even, 1 even with embedding and loss counted, 2 by a layout string: the simpler first."""
        return 2 if self.pp_layout else 1 if self.account else 0


def splits_of(request: PlanRequest, pp: int) -> tuple[Split, ...]:
    """Every legal cut for this PP that agrees with what is fixed, by rising VPP; empty where there is none."""
    return _splits(request.model, pp, request.fix("vpp"), request.pp_layout, request.account)


@lru_cache(maxsize=4096)
def _splits(
    model: PlannedModel, pp: int, vpp: int | None, pp_layout: str | None, account: tuple[str, ...] | None
) -> tuple[Split, ...]:
    if pp_layout is not None:
        return () if model.hybrid or account else _stated(model, pp, vpp, pp_layout)
    if pp == 1:
        return (Split(1, account or ()),) if vpp in (None, 1) else ()
    most = 1 if model.hybrid else max(1, (model.layers + 2) // pp)
    wanted = range(1, most + 1) if vpp is None else (vpp,)
    found = (_cut(model, pp, one, account) for one in wanted if one <= most)
    return tuple(split for split in found if split is not None)


def _stated(model: PlannedModel, pp: int, vpp: int | None, text: str) -> tuple[Split, ...]:
    found = stages(text)
    if found is None or layout_problem(text, pp, model.layers, model.mtp):
        return ()
    chunks = len(found) // pp
    return () if vpp not in (None, chunks) or (chunks > 1 and pp == 1) else (Split(chunks, (), text),)


def _cut(model: PlannedModel, pp: int, vpp: int, account: tuple[str, ...] | None) -> Split | None:
    """The simplest cut into PP x VPP chunks."""
    for counted in ((), _BOTH) if account is None else (account,):
        if model.hybrid and counted:
            continue
        if (model.layers + len(counted)) % (pp * vpp) == 0:
            return Split(vpp, counted, None, (model.layers + len(counted)) // (pp * vpp))
    if account or model.hybrid:
        return None
    text = written_layout(model.layers, model.mtp, pp * vpp)
    return Split(vpp, (), text, -(-model.layers // (pp * vpp))) if text else None


def written_layout(layers: int, mtp: int, parts: int) -> str | None:
    """A layout string of `parts` stages: all but the first and the last hold the same number of layers, those no more.

    The last holds what is left with multi-token prediction and the loss. None where that does not come out.
    """
    if parts < 2:
        return None
    each = -(-layers // parts)
    rest = layers - each * (parts - 2)
    if not 0 <= rest <= 2 * each:
        return None
    first = min(each, rest)
    middle = f"({_layers(each)}|)*{parts - 2}" if parts > 2 else ""
    return f"E{_layers(first, 1)}|{middle}{_layers(rest - first, 1)}{'m' * mtp}L"


def _layers(count: int, written_out: int = _SHORT) -> str:
    return "t" * count if count <= written_out else f"t*{count}"


def unsplit(request: PlanRequest, pp: int) -> Split:
    """What is stated of the cut where no legal one agrees with it: the constraints name what is wrong with it."""
    found = stages(request.pp_layout) if request.pp_layout is not None else None
    chunks = len(found) // pp if found and len(found) % pp == 0 else 1
    return Split(request.fix("vpp") or chunks, request.account or (), request.pp_layout)


def choose(splits: tuple[Split, ...], *, interleaved: bool) -> Split | None:
    """The cut to begin with: the middle VPP of the simplest kind; without `interleaved` only one with no VPP."""
    virtual = [split for split in splits if split.vpp > 1] if interleaved else []
    if not virtual:
        return next((split for split in splits if split.vpp == 1), None)
    roomy = [split for split in virtual if split.layers >= _ROOMY] or virtual
    simplest = min(split.kind for split in roomy)
    same = [split for split in roomy if split.kind == simplest]
    return same[len(same) // 2]

"""Layouts that others or our own runs have used for the same model, the nearest to a request first."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.domain.planning.request import PlanRequest
from app.domain.run import Value

LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "etp", "pp_layout", "mtp")
_GPU, _PRECISION, _SEQUENCE = 4.0, 1.0, 2.0
"""What another GPU, precision and a doubled sequence count against a doubling of the GPUs. Our judgement."""
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class UsedLayout:
    """A layout that somebody ran. `values`: contract fields. `figure`: how fast, "" when unknown. `whose`: by whom."""

    title: str
    href: str
    whose: str
    values: Mapping[str, Value]
    figure: str = ""

    @property
    def key(self) -> tuple[Value, ...]:
        return tuple(self.values.get(name) for name in (*LAYOUT, "gpu", "gpus", "seq_len"))

    @property
    def degrees(self) -> str:
        """`TP1 PP8 VPP4 CP1 EP32`: what is stated of it."""
        names = [name for name in LAYOUT if name not in ("pp_layout", "mtp")]
        return " ".join(f"{name.upper()}{self.values[name]}" for name in names if self.values.get(name) is not None)


def nearest_layouts(
    request: PlanRequest, used: Iterable[UsedLayout], *, shown: int = _SHOWN
) -> tuple[tuple[UsedLayout, tuple[str, ...]], ...]:
    """The nearest ones with different layouts, each with the fields in which its setting differs from the request."""
    stated = [one for one in used if isinstance(one.values.get("tp"), int) and isinstance(one.values.get("pp"), int)]
    unique: dict[tuple[Value, ...], UsedLayout] = {}
    for one in sorted(stated, key=lambda one: _distance(request, one)):
        unique.setdefault(one.key, one)
    return tuple((one, _differs(request, one)) for one in list(unique.values())[:shown])


def _distance(request: PlanRequest, one: UsedLayout) -> float:
    far = _GPU * (one.values.get("gpu") != request.gpu)
    far += _PRECISION * (one.values.get("precision") != request.precision)
    far += _apart(request.gpus, one.values.get("gpus"))
    return far + _SEQUENCE * _apart(request.seq_len, one.values.get("seq_len"))


def _apart(ours: int, theirs: Value) -> float:
    """Doublings between the two; an unknown one counts as one."""
    return abs(math.log2(theirs / ours)) if isinstance(theirs, int) and theirs > 0 else 1.0


def _differs(request: PlanRequest, one: UsedLayout) -> tuple[str, ...]:
    ours: Mapping[str, Value] = {
        "gpu": request.gpu, "gpus": request.gpus, "seq_len": request.seq_len, "precision": request.precision,
    }  # fmt: skip
    return tuple(name for name, value in ours.items() if one.values.get(name) not in (None, value))

"""One layout: its degrees, and what follows from them. Attention lies on TP x CP x DP x PP, experts on ETP x EP x EDP
x PP; both meshes lie over the same GPUs and share PP (Parallel Folding).
"""

import math
from dataclasses import dataclass

from app.domain.planning.request import PlanRequest

SHARD_FLOOR, SHARD_CEILING = 4096, 8192
"""Tokens of a sequence for each CP x TP rank: the founding documents' band for long sequences."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`vpp` 1: no virtual pipeline. `account`: what counts as a layer of its own in an even split."""

    tp: int
    cp: int
    pp: int
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    account: tuple[str, ...] = ()
    pp_layout: str | None = None

    @property
    def attention(self) -> int:
        """GPUs that one replica of the attention takes."""
        return self.tp * self.cp * self.pp

    @property
    def experts(self) -> int:
        """GPUs that one replica of the experts takes."""
        return self.etp * self.ep * self.pp

    @property
    def expert_group(self) -> int:
        """Ranks among which tokens are dispatched."""
        return self.ep * self.etp

    @property
    def min_gpus(self) -> int:
        return self.pp * max(self.tp * self.cp, self.ep * self.etp)

    def dp(self, request: PlanRequest) -> int | None:
        return quotient(request.gpus, self.attention)

    def edp(self, request: PlanRequest) -> int | None:
        return quotient(request.gpus, self.experts)

    def ga(self, request: PlanRequest) -> int | None:
        """Micro-batches of a step on each replica; None while the batch is open or does not divide."""
        dp = self.dp(request)
        return None if dp is None or request.gbs is None else quotient(request.gbs, request.mbs * dp)


def quotient(whole: int, part: int) -> int | None:
    """The whole number that comes out, or None where none does."""
    return whole // part if whole % part == 0 else None


def first_cp(seq_len: int) -> int:
    """The first guess of CP: a rank for every 4096 tokens, as the nearest power of two."""
    return 1 << max(0, round(math.log2(seq_len / SHARD_FLOOR)))

"""A plan: the feasible layouts for a request, best first; what is wrong with a given one; why others are out."""

from dataclasses import dataclass, replace

import numpy as np

from app.domain.planning.candidates import BITS, Candidates, candidates
from app.domain.planning.constraints import BY_ID, Constraint, Violation, judge
from app.domain.planning.layout import Layout, first_cp
from app.domain.planning.memory import gpu_memory_gb, static_gb
from app.domain.planning.notes import Note, notes_of, placement
from app.domain.planning.order import best_first
from app.domain.planning.request import PlanRequest
from app.domain.planning.splits import splits_of
from app.domain.run import IntArray

OFFERED = 50
_CLOSEST = 3


@dataclass(frozen=True, slots=True)
class Offer:
    """A layout with what follows from it. Counts that do not come out are None. `other_vpp`: sizes that fit as well.

    `static_gb`: weights, gradients and optimizer states on each GPU; None where the parameters are unknown.
    """

    layout: Layout
    dp: int | None
    edp: int | None
    ga: int | None
    local_experts: int | None
    tokens_per_cp_shard: int
    tokens_per_cp_tp_shard: int
    static_gb: float | None
    placement: str
    notes: tuple[Note, ...]
    violations: tuple[Violation, ...]
    other_vpp: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """How many combinations break a constraint; `alone`: and no other."""

    constraint: Constraint
    count: int
    alone: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`given`: the layout that the request states, where it states one; then the others are those with free degrees.

    `tried` and `feasible` count combinations of TP, CP, PP, EP and ETP. `closest`: of those that break a constraint,
    the ones that break the fewest; only where nothing is feasible.
    """

    request: PlanRequest
    given: Offer | None
    tried: int
    feasible: int
    offers: tuple[Offer, ...]
    closest: tuple[Offer, ...]
    rejected: tuple[Rejected, ...]
    first_cp: int
    gpu_memory_gb: float | None


def make_plan(request: PlanRequest, *, first: int = OFFERED) -> Plan:
    """The `first` layouts for a request. A complete layout is judged, and its alternatives are planned beside it."""
    asked = replace(request, fixed={}, pp_layout=None, account=None) if request.is_complete else request
    found = candidates(asked)
    feasible = np.flatnonzero(found.broken == 0)
    ranked = best_first(asked, found, feasible)
    return Plan(
        request=request,
        given=offer_of(request, given_layout(request)) if request.is_complete else None,
        tried=len(found),
        feasible=len(feasible),
        offers=tuple(offer_of(asked, found.layout(asked, int(index))) for index in ranked[:first]),
        closest=() if len(feasible) else _closest(asked, found),
        rejected=_rejected(found.broken),
        first_cp=first_cp(request.seq_len),
        gpu_memory_gb=gpu_memory_gb(request),
    )


def given_layout(request: PlanRequest) -> Layout:
    """The layout of a complete request; what it leaves open of the cut into stages is chosen."""
    fixed = replace(request, fixed={"ep": 1, "etp": 1} | dict(request.fixed or {}))
    return candidates(fixed).layout(fixed, 0)


def offer_of(request: PlanRequest, layout: Layout) -> Offer:
    """All that is said of one layout."""
    dp, edp, experts = layout.dp(request), layout.edp(request), request.model.experts
    static = None
    if dp is not None and edp is not None:
        static = static_gb(
            request, float(layout.tp * layout.pp), float(dp * layout.cp), float(layout.experts), float(edp)
        )
    ga = layout.ga(request)
    fills = ga is None or (ga >= layout.pp and ga % layout.pp == 0)
    sizes = {split.vpp for split in splits_of(request, layout.pp) if split.vpp == 1 or fills}
    return Offer(
        layout=layout,
        dp=dp,
        edp=edp,
        ga=ga,
        local_experts=experts // layout.ep if experts and experts % layout.ep == 0 else None,
        tokens_per_cp_shard=request.seq_len // layout.cp,
        tokens_per_cp_tp_shard=request.seq_len // (layout.cp * layout.tp),
        static_gb=static,
        placement=placement(request, layout),
        notes=notes_of(request, layout, static),
        violations=judge(request, layout),
        other_vpp=tuple(sorted(sizes - {layout.vpp})),
    )


def _closest(request: PlanRequest, found: Candidates) -> tuple[Offer, ...]:
    broken = np.bitwise_count(found.broken.astype(np.uint64)).astype(np.int64)
    near = np.flatnonzero(broken == broken.min())
    ranked = best_first(request, found, near)
    return tuple(offer_of(request, found.layout(request, int(index))) for index in ranked[:_CLOSEST])


def _rejected(broken: IntArray) -> tuple[Rejected, ...]:
    """The constraint that rejects most first."""
    rows = [
        Rejected(BY_ID[name], int(np.count_nonzero(broken & bit)), int(np.count_nonzero(broken == bit)))
        for name, bit in BITS.items()
    ]
    return tuple(sorted((row for row in rows if row.count), key=lambda row: -row.count))

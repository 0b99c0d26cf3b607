"""Sentences of a plan, for its page and for the API."""

from app.domain.planning import Layout, Offer, Plan
from app.domain.planning.layout import SHARD_CEILING, SHARD_FLOOR
from app.web.numbers import counted, grouped

NOT_ESTIMATED = (
    "Activations, dispatcher and workspace buffers, CUDA graphs, fragmentation and an uneven share of tokens: no "
    "source gives a formula for them, so whether a layout fits is decided by a run.",
    "Speed: nothing here is measured. The order is a prior; a matched A/B of the first few decides.",
)
"""What a plan does not say."""


def degrees(layout: Layout, *, experts: bool = True) -> str:
    """`TP1 PP8 VPP4 CP1 EP32 ETP1`."""
    vpp = f" VPP{layout.vpp}" if layout.vpp > 1 else ""
    told = f" EP{layout.ep} ETP{layout.etp}" if experts else ""
    return f"TP{layout.tp} PP{layout.pp}{vpp} CP{layout.cp}{told}"


def answer(plan: Plan) -> str:
    """What the page says first."""
    experts = plan.request.model.experts is not None
    said = []
    if plan.given is not None:
        broken, name = plan.given.violations, degrees(plan.given.layout, experts=experts)
        said.append(
            f"{name} breaks {counted(len(broken), 'constraint')}: {'; '.join(one.constraint.title for one in broken)}."
            if broken
            else f"{name} satisfies every identity."
        )
    if not plan.offers:
        said.append(f"None of {counted(plan.tried, 'combination')} of degrees is feasible.")
        return " ".join(said)
    said.append(f"{grouped(plan.feasible)} of {counted(plan.tried, 'combination')} of degrees are feasible.")
    said.append(f"To begin with: {degrees(plan.offers[0].layout, experts=experts)}.")
    return " ".join(said)


def sizing(plan: Plan) -> list[tuple[str, str]]:
    """What follows from the work alone: title and sentence."""
    request = plan.request
    told = [
        (
            "Context parallelism",
            f"A rank for every {grouped(SHARD_FLOOR)} of {grouped(request.seq_len)} tokens is CP {plan.first_cp}, the "
            f"first guess; lower it while a rank stays at or under {grouped(SHARD_CEILING)} tokens and the run fits.",
        )
    ]
    if request.gbs is not None:
        told.append(("Tokens of a step", f"GBS x sequence length = {grouped(request.gbs * request.seq_len)}."))
    else:
        told.append(("Batch", "No global batch is given, so DP is not held against it. MBS x DP must divide it."))
    if plan.gpu_memory_gb is not None and request.model.total_billions is not None:
        told.append(
            (
                "Parameters",
                f"{request.model.total_billions:g} billion without multi-token prediction; one {request.gpu} has "
                f"{plan.gpu_memory_gb:g} GB.",
            )
        )
    return told


def static_memory(offer: Offer, plan: Plan) -> str:
    """`60 GB of 80 GB`, or "" when it is unknown."""
    if offer.static_gb is None:
        return ""
    of = f" of {plan.gpu_memory_gb:g} GB" if plan.gpu_memory_gb is not None else ""
    return f"{offer.static_gb:.0f} GB{of}"

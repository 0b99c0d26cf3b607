"""Layouts that were used for a model: published figures, and runs of this service on the same hardware."""

from collections.abc import Iterable, Mapping

from sqlmodel import Session, col

from app.domain.numbers import grouped, plural
from app.domain.planning.layout import SHARD_CEILING, SHARD_FLOOR, Layout
from app.domain.planning.plan import Offer, Plan, UsedLayout, make_plan, nearest_layouts
from app.domain.planning.request import INPUTS, InvalidPlan, PlanRequest, read_request
from app.domain.ranking.runs import family_of
from app.errors import FieldError, InvalidQuery
from app.storage.references import references
from app.storage.runs import frozen
from app.storage.tables import RunResultRow, RunRow, select_any

_RUNS = 40
"""Newest runs that are checked: a contract has 15 KB of JSON."""


def used_layouts(session: Session, request: PlanRequest) -> list[UsedLayout]:
    """Return published layouts and those of our own runs."""
    return [*_published(session, request), *_runs(session, request)]


def _published(session: Session, request: PlanRequest) -> Iterable[UsedLayout]:
    family = family_of(request.model.name)
    for reference in references(session):
        point = reference.point
        if point.family == family:
            yield UsedLayout(
                title=f"{point.contract['gpus']} x {point.contract['gpu']}, {point.contract['precision']}",
                href=f"/references/{reference.id}",
                whose=f"{point.measured_by}: {point.source}, {point.date}",
                values=point.contract,
                figure=f"{point.tflops_per_gpu:.0f} TFLOP/s/GPU" if point.tflops_per_gpu else "",
            )


def _runs(session: Session, request: PlanRequest) -> Iterable[UsedLayout]:
    """Yield layouts of every project's runs; a run without figures does not prove that its layout works."""
    columns = (RunRow.id, RunRow.name, RunResultRow.contract, RunRow.tflops_per_gpu)
    rows = session.execute(
        select_any(*columns)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.model) == request.model.name,
            col(RunRow.gpu) == request.gpu,
            col(RunRow.status) == "ready",
            col(RunRow.quarantine) == "",
        )
        .order_by(col(RunRow.id).desc())
        .limit(_RUNS)
    )
    for row in rows:
        values = {name: frozen(entry["value"]) for name, entry in (row.contract or {}).items()}
        yield UsedLayout(
            title=f"run #{row.id} {row.name[:60]}",
            href=f"/runs/{row.id}",
            whose="this service",
            values=values,
            figure=f"{row.tflops_per_gpu:.0f} TFLOP/s/GPU" if row.tflops_per_gpu else "",
        )


# --- A plan from query parameters, shared by page and API.

_REFUSED = "This request cannot be planned. Correct the named fields."


def asked(params: Mapping[str, str]) -> dict[str, str]:
    """Return the planner's inputs of a query string; `plan_of` refuses anything else."""
    return {name: text.strip() for name, text in params.items()}


def plan_of(values: Mapping[str, str]) -> Plan:
    """Raises InvalidQuery with a sentence for each field."""
    try:
        return make_plan(read_request(values))
    except InvalidPlan as error:
        errors = tuple(FieldError(name, why) for name, why in error.fields.items())
        raise InvalidQuery(_REFUSED, errors) from None


def nearby(session: Session, plan: Plan) -> tuple[tuple[UsedLayout, tuple[str, ...]], ...]:
    """Return layouts used for the same model, nearest first."""
    return nearest_layouts(plan.request, used_layouts(session, plan.request))


def is_asked(values: Mapping[str, str]) -> bool:
    """Return whether the form has a value."""
    return any(values.get(name) for name in INPUTS) or any(name not in INPUTS for name in values)


# --- Sentences of a plan, for its page and for the API.

NOT_ESTIMATED = (
    "Activations, dispatcher and workspace buffers, CUDA graphs, fragmentation and an uneven share of tokens: no "
    "source gives a formula for them, so only a run shows whether a layout fits.",
    "Speed: nothing here is measured. The order is only a starting point; decide by a matched A/B of the first few.",
)
"""The limits of a plan."""


def degrees(layout: Layout, *, experts: bool = True) -> str:
    """Format the degrees: `TP1 PP8 VPP4 CP1 EP32 ETP1`."""
    vpp = f" VPP{layout.vpp}" if layout.vpp > 1 else ""
    expert_degrees = f" EP{layout.ep} ETP{layout.etp}" if experts else ""
    return f"TP{layout.tp} PP{layout.pp}{vpp} CP{layout.cp}{expert_degrees}"


def answer(plan: Plan) -> str:
    """Return the first sentence of the page."""
    experts = plan.request.model.experts is not None
    reasons = []
    if plan.given is not None:
        broken, name = plan.given.violations, degrees(plan.given.layout, experts=experts)
        reasons.append(
            f"{name} violates {plural(len(broken), 'constraint')}: {'; '.join(v.constraint.title for v in broken)}."
            if broken
            else f"{name} satisfies every constraint."
        )
    if not plan.offers:
        reasons.append(f"None of {plural(plan.tried, 'combination')} of degrees is feasible.")
        return " ".join(reasons)
    reasons.append(f"{grouped(plan.feasible)} of {plural(plan.tried, 'combination')} of degrees are feasible.")
    reasons.append(f"Start with: {degrees(plan.offers[0].layout, experts=experts)}.")
    return " ".join(reasons)


def sizing(plan: Plan) -> list[tuple[str, str]]:
    """Return what follows from the work alone: title and sentence."""
    request = plan.request
    parts = [
        (
            "Context parallelism",
            f"One rank per {grouped(SHARD_FLOOR)} of {grouped(request.seq_len)} tokens is CP {plan.first_cp}, the "
            f"first guess; lower it while a rank stays at or under {grouped(SHARD_CEILING)} tokens and the run fits.",
        )
    ]
    if request.gbs is not None:
        parts.append(("Tokens per step", f"GBS x sequence length = {grouped(request.gbs * request.seq_len)}."))
    else:
        parts.append(("Batch", "No global batch size is given, so DP is not checked. MBS x DP must divide it."))
    if plan.gpu_memory_gb is not None and request.model.total_billions is not None:
        parts.append(
            (
                "Parameters",
                f"{request.model.total_billions:g} billion without multi-token prediction; one {request.gpu} has "
                f"{plan.gpu_memory_gb:g} GB.",
            )
        )
    return parts


def static_memory(offer: Offer, plan: Plan) -> str:
    """Format the static memory: `60 GB of 80 GB`, or "" when unknown."""
    if offer.static_gb is None:
        return ""
    of = f" of {plan.gpu_memory_gb:g} GB" if plan.gpu_memory_gb is not None else ""
    return f"{offer.static_gb:.0f} GB{of}"

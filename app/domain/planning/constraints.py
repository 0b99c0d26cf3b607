"""The identities that a layout must satisfy, each with a text for layouts that violate it.

They have the ids of the corresponding blockers of the rules; those of heads and shards exist only here.
`docs/planner.md` lists them; `candidates.py` checks the same for thousands of layouts at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.domain.contract.values import layout_problem, stages
from app.domain.planning.estimate import Prediction, estimator_of, recipe_words
from app.domain.planning.hardware import gpu_memory_gb, in_gib
from app.domain.planning.layout import Layout, static_gb
from app.domain.planning.request import PlanRequest

Check = Callable[[PlanRequest, Layout], str | None]


@dataclass(frozen=True, slots=True)
class Constraint:
    """`sources`: keys of the rule book's sources. `todo`: how to satisfy it."""

    id: str
    title: str
    todo: str
    sources: tuple[str, ...]
    check: Check

    @property
    def is_rule(self) -> bool:
        """Return whether the rule book has a blocker with this id."""
        return not self.id.startswith("plan-")


@dataclass(frozen=True, slots=True)
class Violation:
    """A constraint that a layout breaks, in words with its numbers. `todo`: what of its advice can help this layout."""

    constraint: Constraint
    text: str
    todo: str


def judge(request: PlanRequest, layout: Layout, prediction: Prediction | None = None) -> tuple[Violation, ...]:
    """Return every constraint that the layout breaks; empty when it is feasible. `prediction`: if available."""
    problems = ((constraint, constraint.check(request, layout)) for constraint in CONSTRAINTS if constraint is not FITS)
    broken = tuple(
        Violation(constraint, text, _to_fit(request, layout) if constraint.id == "plan-memory" else constraint.todo)
        for constraint, text in problems
        if text
    )
    if broken:  # memory is predicted only for layouts that are possible
        return broken
    if prediction is None:
        too_large, todo = FITS.check(request, layout), FITS.todo
    else:
        too_large, todo = _exceeds(request, prediction), _to_fit(request, layout, prediction)
    return (Violation(FITS, too_large, todo),) if too_large else ()


def _to_fit(request: PlanRequest, layout: Layout, prediction: Prediction | None = None) -> str:
    """Return what can lower the memory of a layout: only activations depend on micro-batch and CP, and a degree can
    grow only while its mesh has replicas."""
    attention, experts = layout.attention < request.gpus, layout.experts < request.gpus
    ways = ["more GPUs"]
    if prediction is not None and sum(map(prediction.memory.__getitem__, _STATIC)) < prediction.usable_gb:
        ways += ["a smaller micro-batch"] * (request.mbs > 1) + ["more context parallelism"] * attention
    larger = {"PP": attention and experts, "EP": experts and request.model.experts is not None, "TP": attention}
    ways += [f"a larger {name}" for name, can_grow in larger.items() if can_grow]
    return f"Use {' or '.join(filter(None, [', '.join(ways[:-1]), ways[-1]]))}."


_STATIC = ("weights", "optimizer")
"""Parts of the predicted memory that depend on the degrees alone."""


def _world(r: PlanRequest, a: Layout) -> str | None:
    meshes = []
    if r.gpus % a.attention:
        meshes.append(f"of TP x CP x PP = {a.tp} x {a.cp} x {a.pp} = {a.attention} (attention)")
    if r.gpus % a.experts:
        meshes.append(f"of ETP x EP x PP = {a.etp} x {a.ep} x {a.pp} = {a.experts} (experts)")
    return f"The number of GPUs, {r.gpus}, is not a multiple {' or '.join(meshes)}." if meshes else None


def _least(r: PlanRequest, a: Layout) -> str | None:
    if r.gpus >= a.min_gpus:
        return None
    return (
        f"The layout needs at least PP x max(TP x CP, EP x ETP) = {a.pp} x max({a.tp} x {a.cp}, {a.ep} x {a.etp}) = "
        f"{a.min_gpus} GPUs, but there are {r.gpus}."
    )


def _batch(r: PlanRequest, a: Layout) -> str | None:
    dp = a.dp(r)
    if r.gbs is None or dp is None or r.gbs % (r.mbs * dp) == 0:
        return None
    return f"GBS {r.gbs} is not a multiple of MBS x DP = {r.mbs} x {dp} = {r.mbs * dp}."


def _experts(r: PlanRequest, a: Layout) -> str | None:
    experts = r.model.experts
    if experts is None or experts % a.ep == 0:
        return None
    return f"{experts} experts are not divisible by EP {a.ep}."


def _dense(r: PlanRequest, a: Layout) -> str | None:
    return f"The model has no experts to distribute over EP {a.ep}." if r.model.experts is None and a.ep > 1 else None


def _heads(r: PlanRequest, a: Layout) -> str | None:
    return f"{r.model.heads} attention heads are not divisible by TP {a.tp}." if r.model.heads % a.tp else None


def _groups(r: PlanRequest, a: Layout) -> str | None:
    groups = r.model.kv_groups
    if groups is None or groups % a.tp == 0 or a.tp % groups == 0:
        return None
    return f"{groups} key and value heads are neither a multiple nor a divisor of TP {a.tp}."


def _sequence(r: PlanRequest, a: Layout) -> str | None:
    if a.cp == 1 or r.seq_len % (2 * a.cp) == 0:
        return None
    return f"Each context-parallel rank takes two pieces: {r.seq_len} tokens are not divisible by 2 x CP = {2 * a.cp}."


def _shards(r: PlanRequest, a: Layout) -> str | None:
    if a.tp == 1 or r.seq_len % (a.cp * a.tp) == 0:
        return None
    return (
        f"Sequence parallelism splits each sequence over CP x TP = {a.cp} x {a.tp} = {a.cp * a.tp}, and {r.seq_len} "
        f"tokens are not divisible by it."
    )


def _stages(r: PlanRequest, a: Layout) -> str | None:
    layers = r.model.layers + len(a.account)
    if a.pp_layout is not None or a.pp == 1 or layers % a.pp == 0:
        return None
    counted = f" with {' and '.join(a.account)} counted as layers" if a.account else ""
    return f"{layers} layers{counted} are not divisible by PP {a.pp}, and no pipeline layout is given."


def _chunks(r: PlanRequest, a: Layout) -> str | None:
    layers = r.model.layers + len(a.account)
    if a.vpp == 1 or a.pp_layout is not None or layers % a.pp or (layers // a.pp) % a.vpp == 0:
        return None
    return f"The {layers // a.pp} layers of each of the {a.pp} stages cannot be split into VPP {a.vpp} chunks."


def _microbatches(r: PlanRequest, a: Layout) -> str | None:
    ga = a.ga(r)
    if a.vpp == 1 or a.pp == 1 or ga is None or (ga >= a.pp and ga % a.pp == 0):
        return None
    return (
        f"With VPP {a.vpp} the micro-batches of a step, GBS / (MBS x DP) = {ga}, must be at least PP = {a.pp} and a "
        f"multiple of it."
    )


def _interleaved(r: PlanRequest, a: Layout) -> str | None:
    if a.vpp > 1 and a.pp == 1:
        return f"VPP {a.vpp} interleaves chunks between stages, and PP is 1."
    if a.vpp > 1 and r.model.hybrid:
        return f"The pattern of a hybrid model defines its stages, so VPP {a.vpp} cannot be stated."
    return None


def _layout(r: PlanRequest, a: Layout) -> str | None:
    if a.pp_layout is None:
        return None
    if r.model.hybrid:
        return "The pattern of a hybrid model defines its stages, so a layout cannot be stated."
    problem = layout_problem(a.pp_layout, a.pp, r.model.layers, r.model.mtp)
    return f"The pipeline layout {a.pp_layout} {problem}." if problem else None


def _sources(_: PlanRequest, a: Layout) -> str | None:
    parts = stages(a.pp_layout) if a.pp_layout is not None else None
    if a.pp_layout is not None and a.account:
        return "A layout places embedding and loss, so they cannot also be counted as layers."
    if parts is None or len(parts) % a.pp or len(parts) // a.pp == a.vpp:
        return None
    return f"The layout has {len(parts)} stages, so VPP is {len(parts) // a.pp} with PP {a.pp}, and {a.vpp} is stated."


def _memory(r: PlanRequest, a: Layout) -> str | None:
    dp, edp, there = a.dp(r), a.edp(r), gpu_memory_gb(r.gpu)
    if dp is None or edp is None or there is None or r.offload or estimator_of(r) is not None:
        return None  # where the peak is predicted, FITS judges it with the optimizer states in host memory if needed
    static = static_gb(r, float(a.tp * a.pp), float(dp * a.cp), float(a.experts), float(edp))
    if static is None or static <= there:
        return None
    return (
        f"Weights, gradients and optimizer states alone take {in_gib(static):,.0f} GiB on each GPU, but a GPU has "
        f"{in_gib(there):.0f} GiB."
    )


def _fits(r: PlanRequest, a: Layout) -> str | None:
    estimator = estimator_of(r)
    return _exceeds(r, estimator.predict([a])[0]) if estimator is not None else None


def _exceeds(r: PlanRequest, prediction: Prediction | None) -> str | None:
    if prediction is None or prediction.fits:
        return None
    return (
        f"The predicted peak is {in_gib(prediction.peak_gb):.0f} GiB with {recipe_words(prediction.recipe)}, and "
        f"tensors may take {in_gib(prediction.usable_gb):.0f} GiB of each {r.gpu}."
    )


def _biased(r: PlanRequest, a: Layout) -> str | None:
    if a.etp == 1 or not r.model.biased:
        return None
    return f"The experts of {r.model.name} have biases, which ETP {a.etp} does not support."


FITS = Constraint(
    "plan-fits", "The predicted memory fits a GPU",
    "Use more GPUs, a smaller micro-batch, more context parallelism, or a larger PP, EP or TP.", ("M-mem", "U-mt"),
    _fits,
)  # fmt: skip
CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "scale-world-identity", "GPUs are divisible by both meshes",
        "Change a degree, or use a number of GPUs that is divisible by both products.", ("M-arg", "U-par"), _world,
    ),
    Constraint(
        "scale-gpus-below-min", "Enough GPUs for the larger mesh",
        "Use more GPUs, or lower PP or the degrees of the larger mesh.", ("U-par", "S3"), _least,
    ),
    Constraint(
        "scale-gbs-divisible", "The batch is divisible by the replicas",
        "Change GBS, MBS, or the degrees that determine DP.", ("M-arg",), _batch,
    ),
    Constraint(
        "scale-expert-divisible", "Experts are divisible by EP",
        "Choose an EP that divides the experts.", ("M-arg", "M-tc"), _experts,
    ),
    Constraint(
        "plan-memory", "Weights and optimizer states fit a GPU",
        "Use more GPUs, or a larger PP, EP or TP.", ("M-mem",), _memory,
    ),
    FITS,
    Constraint("scale-moe-bias-etp", "Experts with biases are not split", "Set ETP to 1.", ("M-tc",), _biased),
    Constraint("scale-ep-dense", "EP only with experts", "Set EP to 1.", ("U-par",), _dense),
    Constraint(
        "plan-heads-tp", "Heads are divisible by TP", "Choose a TP that divides the attention heads.", ("M-tc",), _heads
    ),
    Constraint(
        "plan-kv-groups-tp", "Key and value heads match TP",
        "Choose a TP that is a divisor or a multiple of their number.", ("M-tc",), _groups,
    ),
    Constraint(
        "scale-cp-divisible", "The sequence is divisible by 2 x CP",
        "Change CP, or pad the sequence.", ("C-cfg", "U-par"), _sequence,
    ),
    Constraint(
        "plan-sequence-shards", "The sequence is divisible by CP x TP",
        "Change CP or TP, or pad the sequence.", ("C-cfg", "U-sp"), _shards,
    ),
    Constraint(
        "scale-layers-pp", "Layers are divisible by PP",
        "State a layout, count embedding and loss as layers if that is divisible, or change PP.",
        ("M-arg",), _stages,
    ),
    Constraint(
        "scale-vpp-divisible", "A stage's layers are divisible by VPP",
        "Choose a VPP that divides them, or state a layout.", ("M-arg", "U-hw/card"), _chunks,
    ),
    Constraint(
        "scale-vpp-microbatches", "Micro-batches fill the virtual pipeline",
        "Change GBS, MBS or DP so that the micro-batches are a multiple of PP, or drop VPP.",
        ("M-sched",), _microbatches,
    ),
    Constraint(
        "scale-interleave-pp", "A virtual pipeline has stages to interleave",
        "Drop VPP, or raise PP.", ("M-arg",), _interleaved,
    ),
    Constraint(
        "scale-layout-invalid", "The layout string is valid",
        "Correct it: E first, L last, t for each layer, m for each multi-token-prediction layer on the last chunk, and "
        "a multiple of PP stages.", ("M-lay",), _layout,
    ),
    Constraint(
        "scale-vpp-sources", "The split is stated once",
        "Keep the layout, and remove VPP and the layer counting.", ("M-arg",), _sources,
    ),
)  # fmt: skip
BY_ID: Mapping[str, Constraint] = {constraint.id: constraint for constraint in CONSTRAINTS}

"""A plan: the feasible layouts for a request, best first; what is wrong with a given one; why others were rejected."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from app.domain.contract.fields import FLEX_BACKENDS
from app.domain.planning.candidates import BITS, Candidates, Mesh, candidates, combinations, splits_of
from app.domain.planning.constraints import BY_ID, Constraint, Violation, judge
from app.domain.planning.estimate import (
    NEAR,
    Prediction,
    Record,
    calibrate,
    comparable,
    estimator_of,
    residuals,
)
from app.domain.planning.hardware import AMD, gpu_memory_gb, in_gib
from app.domain.planning.layout import (
    SHARD_CEILING,
    SHARD_FLOOR,
    STATIC_SHARE,
    Layout,
    first_cp,
    static_gb,
)
from app.domain.planning.memory import MemoryOptions
from app.domain.planning.request import DEGREES, SPLIT, WORK, InvalidPlan, PlanRequest
from app.domain.rules.derive import FACTS, gpus_per_node
from app.domain.rules.flags import written
from app.domain.rules.rule import Setting
from app.domain.run import IntArray

# --- The order of feasible layouts, with the reasons and sources of each preference.

REASONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "It fits",
        "The predicted peak must fit the memory that tensors may use, with the cheapest sufficient recomputation. If "
        "the widths of the model are unknown, only static memory is known; then layouts that leave a quarter free come "
        "first.",
        ("M-mem", "U-mt"),
    ),
    (
        "Shards in the usual range",
        f"A CP rank has at most {SHARD_CEILING} tokens of a sequence, and with CP above 1 at least {SHARD_FLOOR}. On "
        "NVL72 this applies to CP x TP ranks, because TP may replace CP.",
        ("S3", "D-moe"),
    ),
    (
        "Experts are not split by width",
        "ETP 1: whole experts on more ranks need no extra collective.",
        ("S0", "M-readme", "U-vlm"),
    ),
    (
        "Experts inside NVLink",
        "The group with the most traffic stays within NVLink, unless the fastest record of this model on this GPU does "
        "not.",
        ("S0", "U-wf/card", "M-readme"),
    ),
    (
        "The shortest predicted step",
        "It covers GEMMs, memory traffic, dispatch, bubbles and gradient traffic, corrected by records of the same "
        "hardware. Steps within 1 % count as equal; then the smaller TP comes first.",
        ("U-mt", "D-perf", "R-dgxc"),
    ),
)
"""Title, reason, sources; the first difference decides. Without a prediction, DP replaces the step time."""

_TIE = 0.01
"""Predicted step times closer than this share count as equal."""


def best_first(
    request: PlanRequest, options: Candidates, among: IntArray, records: tuple[Record, ...] = ()
) -> IntArray:
    """Return the indices of `among`, best first. `records`: measured layouts of the same model and hardware."""
    mesh = options.mesh.at(among)
    if options.seconds is None:
        keys = (
            _outside(request, mesh),
            _too_large(request, mesh),
            mesh.etp,
            -(request.gpus // mesh.attention),
            _leaving(request, mesh),
            mesh.tp,
            (mesh.pp > 1) & (options.virtual[among] == 0),
            mesh.pp,
            mesh.ep,
        )
        return among[np.lexsort(keys[::-1])]
    seconds = np.minimum(options.seconds[among] * _measured(request, mesh, records), _NEVER)
    leaving = _leaving(request, mesh) if not _leaves_by_evidence(request, records) else np.zeros(len(among))
    predicted = (_outside(request, mesh), mesh.etp, leaving, np.round(np.log(seconds) / _TIE), mesh.tp, seconds)
    return among[np.lexsort(predicted[::-1])]


_NEVER = 1e18
"""Seconds that stand for an infinite time, so that logarithms stay finite."""


def _measured(request: PlanRequest, mesh: Mesh, records: tuple[Record, ...]) -> npt.NDArray[np.float64]:
    """Return the correction of each layout by its own record.

    A record bounds its layout: a newer stack is not slower. A layout without one is ranked as if its prediction were
    too good by the usual error, so a measured layout comes first unless another is predicted to be clearly faster.
    """
    own = np.full(len(mesh.tp), np.inf)
    for record in records:
        ratio, layout = residuals(record)[0], record.layout
        if ratio is None or record.request.seq_len != request.seq_len:
            continue
        same = (mesh.tp == layout.tp) & (mesh.cp == layout.cp) & (mesh.pp == layout.pp) & (mesh.ep == layout.ep)
        same &= mesh.etp == layout.etp
        own[same] = np.minimum(own[same], ratio / request.calibration.time)
    is_measured = np.isfinite(own)
    if not is_measured.any():
        return np.ones(len(own))
    return np.where(is_measured, np.minimum(own, 1.0), NEAR)


def _leaves_by_evidence(request: PlanRequest, records: tuple[Record, ...]) -> bool:
    """Return whether the fastest record of this hardware has an expert group larger than an NVLink domain."""
    domain = FACTS["nvlink_domain"](request.gpu)
    timed = [record for record in records if record.gpu_seconds]
    if not timed or not isinstance(domain, int):
        return False
    return min(timed, key=lambda record: record.gpu_seconds or math.inf).layout.expert_group > domain


def _too_large(request: PlanRequest, mesh: Mesh) -> npt.NDArray[np.bool_]:
    """Return True where static memory alone exceeds its limit; False while it is unknown."""
    memory, static = gpu_memory_gb(request.gpu), _static(request, mesh)
    if memory is None or static is None:
        return np.zeros(len(mesh.tp), dtype=np.bool_)
    too_large: npt.NDArray[np.bool_] = static > STATIC_SHARE * memory
    return too_large


def _static(request: PlanRequest, mesh: Mesh) -> npt.NDArray[np.float64] | None:
    """Return the static memory of each layout; None while it is unknown."""
    shards, experts = (mesh.tp * mesh.pp).astype(np.float64), mesh.experts.astype(np.float64)
    replicas, edp = np.maximum(request.gpus / shards, 1.0), np.maximum(request.gpus / experts, 1.0)
    static: npt.NDArray[np.float64] | None = static_gb(request, shards, replicas, experts, edp)
    return static


def _outside(request: PlanRequest, mesh: Mesh) -> npt.NDArray[np.bool_]:
    """Return True where a rank holds more or fewer tokens of a sequence than usual."""
    ranks = mesh.cp * mesh.tp if FACTS["nvl72"](request.gpu) else mesh.cp
    shard = request.seq_len // np.maximum(ranks, 1)
    outside: npt.NDArray[np.bool_] = (shard > SHARD_CEILING) | ((mesh.cp > 1) & (shard < SHARD_FLOOR))
    return outside


def _leaving(request: PlanRequest, mesh: Mesh) -> npt.NDArray[np.bool_]:
    """Return True where the expert group is larger than an NVLink domain."""
    domain = FACTS["nvlink_domain"](request.gpu)
    leaving: npt.NDArray[np.bool_] = mesh.ep * mesh.etp > (domain if isinstance(domain, int) else request.gpus)
    return leaving


# --- Warnings about feasible layouts, and where their groups lie on the hardware. Warnings forbid nothing.

_LONG = 131_072
_SMALL_ACTIVE, _WIDE_CP = 5.0, 16
_NVL72, _TILED = 72, 64


@dataclass(frozen=True, slots=True)
class Note:
    """`rule`: id in the rule book, or "" for a note of the planner. `sources`: keys of the rule book's sources."""

    rule: str
    text: str
    sources: tuple[str, ...] = ()


def notes_of(
    request: PlanRequest, layout: Layout, static: float | None, prediction: Prediction | None
) -> tuple[Note, ...]:
    """Return the notes that apply, the costliest first."""
    notes = (
        _memory(request, static) if prediction is None else None,
        _host_memory(request, prediction),
        _dp_floor(request, layout),
        _hot_groups(request, layout),
        _no_vpp(request, layout),
        _wide_shard(request, layout),
        _skinny(request, layout),
        _small_model(request, layout),
        _long(request),
        _etp(layout),
    )
    return tuple(note for note in notes if note is not None)


def placement(request: PlanRequest, layout: Layout) -> str:
    """Return a sentence on where the TP and expert groups lie."""
    domain = FACTS["nvlink_domain"](request.gpu)
    if not isinstance(domain, int):
        return f"No source gives the NVLink domain of {request.gpu}."
    groups = [_group("TP", layout.tp, domain)]
    if request.model.experts is not None:
        groups.append(_group("EP x ETP", layout.expert_group, domain))
    return f"{_fast_links(request)} of {domain} GPUs: {', '.join(groups)}.{_tiling(layout, domain)}"


def _fast_links(request: PlanRequest) -> str:
    return "Infinity Fabric board" if request.gpu in AMD else "NVLink domain"


def _group(name: str, size: int, domain: int) -> str:
    if size == 1:
        return f"no {name} group"
    return f"{name} {size} inside" if size <= domain else f"{name} {size} spans {-(-size // domain)} domains"


def _tiling(layout: Layout, domain: int) -> str:
    """Return a sentence when a group does not divide the 72 GPUs of a rack.

    It then leaves some unused or spans two racks.
    """
    if domain != _NVL72 or all(domain % size == 0 for size in (layout.tp, layout.expert_group)):
        return ""
    return f" Its groups do not divide {_NVL72}: {_TILED} GPUs of each rack tile easily."


def _memory(request: PlanRequest, static: float | None) -> Note | None:
    memory = gpu_memory_gb(request.gpu)
    if memory is None or static is None or static <= STATIC_SHARE * memory:
        return None
    sizes = f"{in_gib(static):.0f} of {in_gib(memory):.0f} GiB"
    what = f"Weights, gradients and optimizer states take about {sizes} of one {request.gpu}"
    if static > memory:
        return Note("", f"{what}: this does not fit without offloading or more ranks.", ("M-arg",))
    return Note("", f"{what}, which leaves little for activations.", ("M-arg",))


def host_gib_per_node(request: PlanRequest, prediction: Prediction) -> float | None:
    """Return the optimizer states that a node holds in host memory; None if its number of GPUs is unknown."""
    per_node = gpus_per_node(request.gpu)
    return None if per_node is None else in_gib(prediction.host_gb) * min(per_node, request.gpus)


def _host_memory(request: PlanRequest, prediction: Prediction | None) -> Note | None:
    if prediction is None or request.host_memory_gib is None:
        return None
    needed = host_gib_per_node(request, prediction)
    if needed is None or needed <= request.host_memory_gib:
        return None
    text = (
        f"The offloaded optimizer states take {needed:.0f} GiB of a node's host memory, more than its "
        f"{request.host_memory_gib} GiB: offload less, or use more ranks."
    )
    return Note("", text, ("U-off",))


def _dp_floor(request: PlanRequest, layout: Layout) -> Note | None:
    if layout.dp(request) != 1 or layout.cp > 1:  # gradients are reduced over DP x CP
        return None
    text = "DP x CP is 1: there is no gradient communication to overlap, and one replica accumulates the whole batch."
    return Note("scale-dp-floor", text, ("S3", "U-mt"))


def _hot_groups(request: PlanRequest, layout: Layout) -> Note | None:
    domain = FACTS["nvlink_domain"](request.gpu)
    if not isinstance(domain, int):
        return None
    wide = [f"{name} {size}" for name, size in (("TP", layout.tp), ("EP x ETP", layout.expert_group)) if size > domain]
    if not wide:
        return None
    links = f"{_fast_links(request)} of {domain} GPUs"
    text = f"{' and '.join(wide)} exceeds the {links}: slow links are on the critical path."
    return Note("scale-tp-cross-node", text, ("U-par", "D-moe"))


def _no_vpp(request: PlanRequest, layout: Layout) -> Note | None:
    ga = layout.ga(request)
    if layout.pp == 1 or layout.vpp > 1 or ga is None or ga >= 4 * layout.pp:
        return None
    text = f"{layout.pp} stages without a virtual pipeline and only {ga} micro-batches per step: expect bubbles."
    return Note("scale-pp-no-vpp", text, ("U-par", "D-perf"))


def _wide_shard(request: PlanRequest, layout: Layout) -> Note | None:
    shard = request.seq_len // (layout.cp * layout.tp)
    if shard <= SHARD_CEILING:
        return None
    guess = first_cp(request.seq_len)
    text = f"{shard} tokens for each CP x TP rank are above the usual range; the first guess of CP is {guess}."
    return Note("scale-cp-size", text, ("S3", "D-moe"))


def _skinny(request: PlanRequest, layout: Layout) -> Note | None:
    hidden, shard = request.model.hidden, request.seq_len // layout.cp
    if layout.cp == 1 or hidden is None or shard >= hidden:
        return None
    return Note(
        "scale-cp-skinny",
        f"{shard} tokens for each CP rank are fewer than the hidden size {hidden}: narrow GEMMs.",
        ("D-perf",),
    )


def _small_model(request: PlanRequest, layout: Layout) -> Note | None:
    active = request.model.active_billions
    if active is None or active >= _SMALL_ACTIVE or layout.cp < _WIDE_CP:
        return None
    text = (
        f"CP {layout.cp} with {active:g} billion active parameters: Qwen3-Next lost about 60 % from 8k to 64k tokens."
    )
    return Note("scale-small-model-cp", text, ("U-lc/card",))


def _long(request: PlanRequest) -> Note | None:
    if request.seq_len < _LONG:
        return None
    return Note(
        "scale-long-container",
        f"Sequences of {request.seq_len} tokens need recent kernels; verify the stack.",
        ("S3", "U-lc/card"),
    )


def _etp(layout: Layout) -> Note | None:
    if layout.etp == 1:
        return None
    return Note(
        "scale-etp-last",
        f"ETP {layout.etp} adds communication to every MoE layer, and needs experts without bias.",
        ("U-vlm", "M-tc"),
    )


OFFERED = 50
_CLOSEST = 3
_TOO_LARGE = 12
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """A layout with derived figures. Counts that are not whole are None.

    `other_vpp`: other valid sizes. `static_gb`: weights, gradients and optimizer states per GPU; None when the
    parameters are unknown. `prediction`: None without the widths of the model or figures of the GPU. `measured`:
    records of the same degrees on the same GPU and sequence length, those of the requested work first, then those of
    the predicted dispatcher.
    `run`: the own run that did the requested work with this layout; then the prediction assumes its recipe.
    `rejected_in`: id of the experiment that rejected this layout or a setting of it; None without one.
    """

    layout: Layout
    dp: int | None
    edp: int | None
    ga: int | None
    local_experts: int | None
    tokens_per_cp_shard: int
    tokens_per_cp_tp_shard: int
    static_gb: float | None
    prediction: Prediction | None
    measured: tuple[Record, ...]
    run: Record | None
    placement: str
    notes: tuple[Note, ...]
    violations: tuple[Violation, ...]
    other_vpp: tuple[int, ...]
    rejected_in: int | None = None

    @property
    def needed_gb(self) -> float | None:
        """Return the memory of a layout that breaks nothing but the constraint on it; None otherwise."""
        broken = {violation.constraint.id for violation in self.violations}
        if broken == {"plan-memory"}:
            return self.static_gb
        return self.prediction.peak_gb if broken == {"plan-fits"} and self.prediction else None


@dataclass(frozen=True, slots=True)
class DecidedChange:
    """The changed side of an experiment that users accepted or rejected. `changed`: the contract fields that differ."""

    experiment: int
    is_rejected: bool
    candidate: Record
    changed: frozenset[str]

    def is_repeated(self, request: PlanRequest, offer: Offer) -> bool:
        """Return whether an offer does the same work with the same degrees and the same changed settings.

        An offer without an own run leaves some settings open, which then do not count.
        """
        layout, knobs = self.candidate.layout, self.candidate.knobs
        if self.candidate.differs(request) or layout.degrees != offer.layout.degrees:
            return False
        if self.changed & {"vpp", "pp_layout", "pp_account"} and layout != offer.layout:
            return False
        same = _same_recipe(self.candidate.request, offer.prediction.recipe) if offer.prediction else {}
        if offer.run is not None:
            same = {name: offer.run.knobs.get(name) == knobs.get(name) for name in self.changed} | same
        decided = self.changed & {*WORK, *DEGREES, *SPLIT, *same}
        return bool(decided) and all(same.get(name, True) for name in decided)


def _same_recipe(work: PlanRequest, recipe: MemoryOptions) -> dict[str, bool]:
    """Return the contract fields of a recipe, and whether both have the same value."""
    recompute, offload = (work.recompute or frozenset()) == recipe.recompute, (work.offload or 0.0) == recipe.offload
    return {
        "recompute_granularity": recompute,
        "recompute_modules": recompute,
        "opt_offload": offload,
        "opt_offload_fraction": offload,
        "dispatcher": work.dispatcher == recipe.dispatcher,
        "ep_overlap": bool(work.ep_overlap) == recipe.overlap,
        "dist_opt": work.dist_opt == recipe.distributed,
        "graph_impl": bool(work.graphs) == recipe.graphs,
    }


@dataclass(frozen=True, slots=True)
class Rejected:
    """How many combinations break a constraint; `alone`: those that break no other."""

    constraint: Constraint
    count: int
    alone: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`given`: the layout that the request states, if any; the others then have free degrees.

    `tried` and `feasible` count combinations of TP, CP, PP, EP and ETP. `closest`: infeasible layouts that break the
    fewest constraints, those that exceed the memory least first; only when nothing is feasible. `too_large`: layouts
    that break nothing but the limit of the memory, the smallest first. `enough_gpus`: the first doubling of the GPUs
    with a feasible layout, where only memory is short; None without one. `enough_offer`: its layout with the least in
    host memory; of equal ones the best.
    """

    request: PlanRequest
    given: Offer | None
    tried: int
    feasible: int
    offers: tuple[Offer, ...]
    closest: tuple[Offer, ...]
    too_large: tuple[Offer, ...]
    rejected: tuple[Rejected, ...]
    first_cp: int
    gpu_memory_gb: float | None
    records: tuple[Record, ...] = ()
    enough_gpus: int | None = None
    enough_offer: Offer | None = None


def make_plan(
    request: PlanRequest,
    records: Iterable[Record] = (),
    decided: Sequence[DecidedChange] = (),
    *,
    first: int = OFFERED,
) -> Plan:
    """Return the `first` layouts for a request. A complete layout is judged, and alternatives are planned.

    `records`: measured layouts of the same model, which correct the predictions. `decided`: newest first; what the
    newest rejected comes last.
    """
    usable = comparable(request, records)
    request = replace(request, calibration=calibrate(request, usable))
    asked = replace(request, fixed={}, pp_layout=None, account=None) if request.is_complete else request
    options = candidates(asked)
    feasible = np.flatnonzero(options.broken == 0)
    ranked = best_first(asked, options, feasible, usable)[:first]
    offers = offers_of(asked, [options.layout(asked, int(index)) for index in ranked], usable, decided)
    enough_gpus, enough_offer = (None, None) if len(feasible) else _first_feasible(asked, options)
    return Plan(
        request=request,
        given=offers_of(request, [given_layout(request)], usable, decided)[0] if request.is_complete else None,
        tried=len(options),
        feasible=len(feasible),
        offers=tuple(sorted(offers, key=lambda offer: offer.rejected_in is not None)),
        closest=() if len(feasible) else _closest(asked, options),
        too_large=_too_large_offers(asked, options, min(first, _TOO_LARGE)),
        rejected=_rejected(options.broken),
        first_cp=first_cp(request.seq_len),
        gpu_memory_gb=gpu_memory_gb(request.gpu),
        records=usable,
        enough_gpus=enough_gpus,
        enough_offer=enough_offer,
    )


def given_layout(request: PlanRequest) -> Layout:
    """Return the layout of a complete request, with the undecided part of its split chosen."""
    fixed = replace(request, fixed={"ep": 1, "etp": 1} | dict(request.fixed or {}))
    return combinations(fixed).layout(fixed, 0)


def offers_of(
    request: PlanRequest,
    layouts: Sequence[Layout],
    records: tuple[Record, ...] = (),
    decided: Sequence[DecidedChange] = (),
) -> tuple[Offer, ...]:
    """Return layouts with their derived figures, predictions, records, notes and rejections."""
    estimator = estimator_of(request)
    predictions = estimator.predict(layouts) if estimator is not None else [None] * len(layouts)
    offers = []
    for layout, prediction in zip(layouts, predictions, strict=True):
        measured = _records_of(request, layout, prediction, records)
        runs = (record for record in measured if _is_run_of(record, request, layout))
        run = min(runs, key=lambda record: record.gpu_seconds or math.inf, default=None)
        if run is None:
            offer = _offer(request, layout, prediction, measured)
        else:
            offer = _offer(request, run.layout, _as_run(request, run), measured, run)
        newest = next((change for change in decided if change.is_repeated(request, offer)), None)
        offers.append(
            replace(offer, rejected_in=newest.experiment) if newest is not None and newest.is_rejected else offer
        )
    return tuple(offers)


def _is_run_of(record: Record, request: PlanRequest, layout: Layout) -> bool:
    """Return whether a run of this service did the requested work, with the split and the recipe that are stated."""
    work = record.request
    is_split_free = request.fix("vpp") is None and request.pp_layout is None and request.account is None
    stated = ("recompute", "offload", "dispatcher", "ep_overlap")
    return (
        not record.by
        and not record.differs(request)
        and (is_split_free or record.layout == layout)
        and all(getattr(request, name) in (None, getattr(work, name)) for name in stated)
        and request.dist_opt == work.dist_opt
        and request.graphs in (None, bool(work.graphs))
    )


def _as_run(request: PlanRequest, run: Record) -> Prediction | None:
    """Return the prediction for the layout and the recipe of a run. It fits, because it ran."""
    work = run.request
    estimator = estimator_of(
        replace(
            request,
            recompute=work.recompute or frozenset(),
            offload=work.offload or 0.0,
            dispatcher=work.dispatcher or request.dispatcher,
            ep_overlap=bool(work.ep_overlap),
            graphs=work.graphs,
        )
    )
    prediction = estimator.predict([run.layout])[0] if estimator is not None else None
    return replace(prediction, fits=True) if prediction else None


def _records_of(
    request: PlanRequest, layout: Layout, prediction: Prediction | None, records: tuple[Record, ...]
) -> tuple[Record, ...]:
    same = [
        record
        for record in records
        if record.gpu_seconds is not None
        and record.request.seq_len == request.seq_len
        and record.layout.degrees == layout.degrees
    ]

    def distance(record: Record) -> tuple[bool, bool, float]:
        is_other = prediction is not None and record.request.dispatcher != prediction.recipe.dispatcher
        return bool(record.differs(request)), is_other, record.gpu_seconds or math.inf

    return tuple(sorted(same, key=distance))


def _offer(
    request: PlanRequest,
    layout: Layout,
    prediction: Prediction | None,
    measured: tuple[Record, ...],
    run: Record | None = None,
) -> Offer:
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
        prediction=prediction,
        measured=measured,
        run=run,
        placement=placement(request, layout),
        notes=notes_of(request, layout, static, prediction),
        violations=judge(request, layout, prediction),
        other_vpp=tuple(sorted(sizes - {layout.vpp})),
    )


def _closest(request: PlanRequest, options: Candidates) -> tuple[Offer, ...]:
    broken = np.bitwise_count(options.broken.astype(np.uint64)).astype(np.int64)
    ranked = best_first(request, options, np.flatnonzero(broken == broken.min()))
    mesh, lacks_gpus = options.mesh.at(ranked), options.broken[ranked] & BITS["scale-gpus-below-min"] != 0
    least = np.where(lacks_gpus, np.maximum(mesh.attention, mesh.experts), 0)
    ranked = ranked[np.lexsort((*_missing_memory(request, options, ranked), least))]
    return offers_of(request, [options.layout(request, int(index)) for index in ranked[:_CLOSEST]])


def _too_large_offers(request: PlanRequest, options: Candidates, most: int) -> tuple[Offer, ...]:
    if options.peak_gb is None:
        return ()
    exceeding = np.flatnonzero(options.broken == BITS["plan-fits"])
    ranked = exceeding[np.argsort(options.peak_gb[exceeding], kind="stable")][:most]
    return offers_of(request, [options.layout(request, int(index)) for index in ranked])


def _missing_memory(request: PlanRequest, options: Candidates, among: IntArray) -> tuple[npt.NDArray[Any], ...]:
    """Return keys that sort layouts by the memory they lack, the last key first: static memory alone, then the peak."""
    broken, mesh = options.broken[among], options.mesh.at(among)
    needed, static = np.zeros(len(among)), _static(request, mesh)
    if options.peak_gb is not None:
        needed = np.where(broken & BITS["plan-fits"], options.peak_gb[among], needed)
    if static is not None:
        needed = np.where(broken & BITS["plan-memory"], static, needed)
    return needed, broken & BITS["plan-memory"] != 0


def _first_feasible(request: PlanRequest, options: Candidates) -> tuple[int | None, Offer | None]:
    """Return the first doubling of the GPUs with a feasible layout, where some layouts lack only memory, and its layout
    with the least in host memory."""
    if not np.any(options.broken & ~(BITS["plan-memory"] | BITS["plan-fits"]) == 0):
        return None, None
    for gpus in (request.gpus << doublings for doublings in range(1, _MOST_DOUBLINGS + 1)):
        more = replace(request, gpus=gpus)
        with suppress(InvalidPlan):  # more combinations than are tried
            tried = candidates(more)
            if len(feasible := np.flatnonzero(tried.broken == 0)):
                best = best_first(more, tried, feasible)[:OFFERED]
                offers = offers_of(more, [tried.layout(more, int(index)) for index in best])
                return gpus, min(offers, key=lambda offer: offer.prediction.host_gb if offer.prediction else 0.0)
    return None, None


def _rejected(broken: IntArray) -> tuple[Rejected, ...]:
    """Return the constraints, most rejections first."""
    rows = [
        Rejected(BY_ID[name], int(np.count_nonzero(broken & bit)), int(np.count_nonzero(broken == bit)))
        for name, bit in BITS.items()
    ]
    return tuple(sorted((row for row in rows if row.count), key=lambda row: -row.count))


# --- A layout as flags of Megatron-LM and as overrides of Megatron-Bridge, ready to paste.


@dataclass(frozen=True, slots=True)
class LayoutFlags:
    """`without`: flags of Megatron-LM that the command must not contain."""

    megatron_lm: str
    bridge: str
    without: tuple[str, ...]


def settings_of(request: PlanRequest, layout: Layout, recipe: MemoryOptions | None = None) -> dict[str, Setting]:
    """Return the contract fields of the layout. ETP is always stated, because its default is the value of TP."""
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
    return settings | {"precision": request.precision} | (_recipe_settings(request, layout, recipe) if recipe else {})


def _recipe_settings(request: PlanRequest, layout: Layout, recipe: MemoryOptions) -> dict[str, Setting]:
    """Return what the prediction assumes in addition to the degrees."""
    settings: dict[str, Setting] = {}
    if "full" in recipe.recompute:
        settings |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_layers": 1}
    elif recipe.recompute:
        modules = tuple(sorted(recipe.recompute))
        settings |= {"recompute_granularity": "selective", "recompute_modules": modules}
    if recipe.offload:
        settings |= {"opt_offload": True, "opt_offload_fraction": recipe.offload}
    return settings | (_dispatcher_settings(layout, recipe) if request.model.experts else {})


def _dispatcher_settings(layout: Layout, recipe: MemoryOptions) -> dict[str, Setting]:
    """Return the dispatcher; flex backends need more than one rank, and the trainer's default gathers all tokens."""
    if layout.tp * layout.ep == 1 or recipe.dispatcher not in FLEX_BACKENDS:
        settings: dict[str, Setting] = {"dispatcher_type": "alltoall"}
    else:
        settings = {"dispatcher_type": "flex", "flex_backend": recipe.dispatcher, "router_dtype": "fp32"}
    overlaps = recipe.overlap and layout.ep > 1 and (layout.pp == 1 or layout.vpp > 1)
    return settings | ({"ep_overlap": True} if overlaps else {})


_BF16_GRADIENTS = (
    "--grad-reduce-in-bf16",
    ("ddp.grad_reduce_in_fp32=false", "mixed_precision.grad_reduce_in_fp32=false"),
)
"""No contract field says it: the flag of Megatron-LM, and the overrides of Megatron-Bridge."""
_FOR_OFFLOAD = ("--use-precision-aware-optimizer", ("optimizer.use_precision_aware_optimizer=true",))
"""What offloading of optimizer states needs, in the same form."""


def layout_flags(
    request: PlanRequest,
    layout: Layout,
    recipe: MemoryOptions | None = None,
    knobs: Mapping[str, Setting] = MappingProxyType({}),
) -> LayoutFlags:
    """Return every field of the layout, of the recipe with which it fits, and of `knobs`, in both spellings."""
    flags: list[str] = []
    overrides: list[str] = []
    without: list[str] = []
    settings = settings_of(request, layout, recipe) | dict(knobs)
    others = {"precision": request.precision, "dispatcher": settings.get("flex_backend")}
    for name, value in settings.items():
        spelling = written(name, value, others)
        flags += [shlex.join([flag, *values]) for flag, values in spelling.megatron_lm.flags.items()]
        without += [flag for flag in spelling.megatron_lm.without if name in ("vpp", "pp_account", "sp")]
        overrides += [shlex.quote(f"{path}={text}") for path, text in spelling.bridge.items()]
    if recipe is not None:
        chosen = [(recipe.gradients_bf16, _BF16_GRADIENTS), (recipe.offload > 0, _FOR_OFFLOAD)]
        for flag, paths in [spelling for wanted, spelling in chosen if wanted]:
            flags.append(flag)
            overrides += paths
    if layout.pp_layout is not None:
        vpp = written("vpp", None).megatron_lm
        without += [*vpp.flags, *vpp.without]
    return LayoutFlags(" \\\n  ".join(flags), " \\\n  ".join(overrides), tuple(dict.fromkeys(without)))


_CARRIED = ("grouped_gemm", "dp_overlap", "permute_fusion", "router_fusion", "manual_gc", "manual_gc_interval")
"""Knobs of a run that other layouts of the same model take over: they need no degree and no memory of their own."""


def offer_flags(plan: Plan, offer: Offer) -> LayoutFlags:
    """Return the flags of an offer: its layout, the recipe of its prediction, and the knobs of its run.

    An offer without one takes over what the fastest own run that corrects the plan has on in any layout.
    """
    recipe = offer.prediction.recipe if offer.prediction else None
    if offer.run is not None:
        return layout_flags(plan.request, offer.layout, recipe, offer.run.knobs)
    runs = [record for record in plan.records if record.gpu_seconds and not record.by]
    fitted = min(runs, key=lambda run: run.gpu_seconds or math.inf, default=None)
    knobs = {name: fitted.knobs[name] for name in _CARRIED if name in fitted.knobs} if fitted is not None else {}
    return layout_flags(plan.request, offer.layout, recipe, knobs)

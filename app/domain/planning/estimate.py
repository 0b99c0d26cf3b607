"""Predicted memory and step time of layouts, with the least recomputation that fits, calibrated by measured runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from app.domain.numbers import share_text
from app.domain.planning.costs import ModelCosts, model_costs
from app.domain.planning.hardware import AMD, Hardware, hardware_of
from app.domain.planning.layout import Layout, stage_shares
from app.domain.planning.memory import USABLE, Degrees, Floats, Memory, MemoryOptions, memory_of, overlapped
from app.domain.planning.request import Calibration, PlanRequest
from app.domain.planning.step_time import StepTime, format_of, step_time
from app.domain.rules.rule import Setting

UNDECIDED_GA = 8.0
"""Micro-batches for each GPU of a replica while the batch is undecided: the usual number of published recipes. All
layouts then have the same batch."""
SPREAD = Calibration().spread
"""Factor between predicted and measured step time without a record of the same hardware: 45 of 54 published step times
lie within it when each model is predicted with the constant of the others (`bench/planner_published`)."""
SPREAD_AMD = 3.0
"""The same on AMD GPUs, where no step time was published with its layout: a run of DeepSeek-V2-Lite on 8 MI355X took
2.7 times as long as predicted."""
NEAR = 1.2
"""The same for two layouts of one model on one GPU, where much of the error cancels: 5 of 8 published pairs lie within
it, so no smaller factor is supported (`bench/planner_published`)."""
_FASTEST = 1.15
"""No layout is predicted to be faster than the best record of its hardware by more than this."""


MEASURED_WORK = ("gpus", "seq_len", "gbs", "mbs", "precision")
"""Fields that must be equal before a step time is a measurement of the requested work, next to model and GPU."""


@dataclass(frozen=True, slots=True)
class Record:
    """A measured layout of the same model.

    `gpu_seconds`: GPU-seconds per token. `peak_gb`: allocated memory of the fullest rank, None if it was not measured.
    `by`: the publisher, "" for `runs` launches of this service. `knobs`: the other settings of these launches.
    `tflops_per_gpu`: the figure that `gpu_seconds` follows from where neither step time nor tokens/s are stated.
    `is_generated`: its figures are examples, not measurements.
    """

    layout: Layout
    request: PlanRequest
    gpu_seconds: float | None
    title: str
    href: str = ""
    peak_gb: float | None = None
    by: str = ""
    knobs: Mapping[str, Setting] = field(default_factory=dict)
    runs: int = 1
    tflops_per_gpu: float | None = None
    is_generated: bool = False

    @property
    def step_time_s(self) -> float | None:
        """Return the measured step time; None where no time or no batch is stated."""
        work = self.request
        if self.gpu_seconds is None or work.gbs is None:
            return None
        return self.gpu_seconds * work.gbs * work.seq_len / work.gpus

    def differs(self, request: PlanRequest) -> tuple[str, ...]:
        """Return the fields of the work in which a request differs from the measured one."""
        pairs = {name: (getattr(self.request, name), getattr(request, name)) for name in MEASURED_WORK}
        pairs |= {
            "mtp": (self.request.model.mtp, request.model.mtp),
            "num_layers": (self.request.model.layers, request.model.layers),
        }
        return tuple(name for name, (measured, asked) in pairs.items() if measured != asked or measured is None)

    def other_recipe(self, recipe: MemoryOptions) -> tuple[str, ...]:
        """Return what the measured layout states of its recipe that another one has not: `deepep`."""
        work, parts = self.request, []
        if work.dispatcher and work.dispatcher != recipe.dispatcher:
            parts.append(work.dispatcher)
        if work.recompute is not None and work.recompute != recipe.recompute:
            parts.append(f"recompute {' + '.join(sorted(work.recompute)) or 'none'}")
        if work.ep_overlap is not None and work.ep_overlap != recipe.overlap:
            parts.append("ep_overlap" if work.ep_overlap else "no ep_overlap")
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one layout. `low_s` and `high_s` are the step time divided and multiplied by `spread`.

    `host_gb`: optimizer states of one GPU in host memory. `is_capped`: the formula predicts a shorter step than the
    best record makes plausible, so the step time is the shortest that is predicted.
    """

    memory: Mapping[str, float]
    host_gb: float
    peak_gb: float
    usable_gb: float
    fits: bool
    recipe: MemoryOptions
    parts_s: Mapping[str, float]
    step_time_s: float | None
    spread: float
    is_capped: bool

    @property
    def low_s(self) -> float | None:
        return None if self.step_time_s is None else self.step_time_s / self.spread

    @property
    def high_s(self) -> float | None:
        return None if self.step_time_s is None else self.step_time_s * self.spread


@dataclass(frozen=True, slots=True)
class Estimates:
    """Arrays over layouts. `rung`: index into the ladder, of the recipe to use; `fits` False: none fits."""

    peak_gb: Floats
    fits: npt.NDArray[np.bool_]
    rung: npt.NDArray[np.int64]
    seconds: Floats


class Estimator:
    """Predicts layouts of one request. Raises nothing: what cannot be predicted is None."""

    def __init__(self, request: PlanRequest, costs: ModelCosts, hardware: Hardware) -> None:
        self.request = request
        self.costs = costs
        self.hardware = hardware
        self.calibration = request.calibration

    @cached_property
    def ladder(self) -> tuple[MemoryOptions, ...]:
        """Return the recipes to try, the cheapest first."""
        return ladder(self.request, self.costs)

    @property
    def usable_gb(self) -> float:
        return USABLE * self.hardware.memory_gb

    @property
    def tokens(self) -> float:
        return float(self.request.seq_len * self.request.mbs)

    def memory(self, degrees: Degrees, recipe: MemoryOptions) -> Memory:
        predicted = memory_of(self.costs, degrees, recipe, tokens=self.tokens, nvlink=self.hardware.nvlink_domain)
        return predicted.scaled(self.calibration.memory)

    def time(self, degrees: Degrees, recipe: MemoryOptions) -> StepTime:
        return step_time(self.costs, degrees, recipe, self.hardware, tokens=self.tokens)

    def estimate(self, degrees: Degrees) -> Estimates:
        """Return the recipe for each layout, and its step time: no measure where that fits, else the fastest that fits.

        Where nothing fits, the recipe with the smallest peak.
        """
        count = len(degrees.tp)
        peak, seconds = np.full(count, np.inf), np.full(count, np.inf)
        rung, open_ = np.zeros(count, dtype=np.int64), np.arange(count)
        for place, recipe in enumerate(self.ladder):
            some = degrees.at(open_)
            needed = self.memory(some, recipe).total
            fits = (needed <= self.usable_gb) & self._may_overlap(some, recipe)
            took = np.full(len(open_), np.inf)
            took[fits] = self.time(some.at(np.flatnonzero(fits)), recipe).total
            unfitting = np.isinf(took) & np.isinf(seconds[open_])
            better = (took < seconds[open_]) | (unfitting & (needed < peak[open_]))
            chosen = open_[better]
            peak[chosen], seconds[chosen], rung[chosen] = needed[better], took[better], place
            open_ = open_[~fits] if place == 0 else open_
            if not len(open_):
                break
        return Estimates(peak, np.isfinite(seconds), rung, self._bounded(degrees, seconds))

    def _may_overlap(self, degrees: Degrees, recipe: MemoryOptions) -> npt.NDArray[np.bool_]:
        """Return whether memory is ample without the overlap, as rule eo-enable asks, where the overlap is a choice."""
        if not recipe.overlap or self.request.ep_overlap is not None:
            return np.ones(len(degrees.tp), dtype=np.bool_)
        before = self.memory(degrees, replace(recipe, overlap=False)).total
        cannot: npt.NDArray[np.bool_] = overlapped(degrees) == 0
        return cannot | (before <= (1 - 2 * self.request.headroom) * self.hardware.memory_gb)

    def _bounded(self, degrees: Degrees, seconds: Floats) -> Floats:
        """Return the calibrated time, not below the floor."""
        return np.maximum(seconds * self.calibration.time, self._floor(degrees))

    def _floor(self, degrees: Degrees) -> Floats:
        """Return the shortest times that the best record of the same hardware makes plausible."""
        work = degrees.ga * self.tokens * degrees.dp
        return self.calibration.floor * work / self.request.gpus / _FASTEST

    def predict(self, layouts: Sequence[Layout]) -> list["Prediction | None"]:
        """Return the prediction of each layout; None where the GPUs are not divisible."""
        degrees = [degrees_of(self.request, layout) for layout in layouts]
        places = [place for place, item in enumerate(degrees) if item is not None]
        predictions: list[Prediction | None] = [None] * len(layouts)
        if not places:
            return predictions
        whole = _joined([item for item in degrees if item is not None])
        estimates = self.estimate(whole)
        for rung in np.unique(estimates.rung):
            some = np.flatnonzero(estimates.rung == rung)
            predicted = self._predictions(whole.at(some), self.ladder[int(rung)])
            for index, prediction in zip(some, predicted, strict=True):
                predictions[places[int(index)]] = prediction
        return predictions

    def _predictions(self, degrees: Degrees, recipe: MemoryOptions) -> "list[Prediction]":
        memory, time = self.memory(degrees, recipe), self.time(degrees, recipe)
        peak, total = memory.total, time.total
        scale = self._bounded(degrees, total) / total
        capped = self._floor(degrees) > total * self.calibration.time
        memories = {name: np.broadcast_to(getattr(memory, name), peak.shape) for name in memory.__slots__}
        host = memories.pop("host")
        parts = {name: np.broadcast_to(getattr(time, name), peak.shape) * scale for name in time.__slots__}
        decided, spread = self.request.gbs is not None, self.calibration.spread
        return [
            Prediction(
                memory={name: float(column[index]) for name, column in memories.items()},
                host_gb=float(host[index]),
                peak_gb=float(peak[index]),
                usable_gb=self.usable_gb,
                fits=bool(peak[index] <= self.usable_gb),
                recipe=recipe,
                parts_s={name: float(column[index]) for name, column in parts.items()},
                step_time_s=float(total[index] * scale[index]) if decided else None,
                spread=spread,
                is_capped=bool(capped[index]),
            )
            for index in range(len(peak))
        ]


def _joined(degrees: Sequence[Degrees]) -> Degrees:
    return Degrees(*(np.concatenate([getattr(item, name) for item in degrees]) for name in Degrees.__slots__))


def estimator_of(request: PlanRequest) -> Estimator | None:
    """Return the estimator of a request; None when shape or hardware are not known well enough."""
    shape, experts = request.model.shape, request.model.experts
    hardware = hardware_of(request.gpu, request.precision)
    if shape is None or hardware is None:
        return None
    costs = model_costs(shape, experts or 0, request.seq_len, qk_norm=request.model.qk_norm)
    return Estimator(request, costs, hardware)


def comparable(request: PlanRequest, records: Iterable[Record]) -> tuple[Record, ...]:
    """Return the records of the same model on the same GPU in the same number format."""
    return tuple(
        record
        for record in records
        if record.request.gpu == request.gpu
        and record.request.model.name == request.model.name
        and format_of(record.request.precision) == format_of(request.precision)
    )


def calibrate(request: PlanRequest, records: Iterable[Record]) -> Calibration:
    """Return how predictions for a request are to be corrected, by records of the same model on the same GPU.

    Records with the same sequence length take precedence, because errors of context parallelism and attention differ.
    """
    records = list(records)
    same = [record for record in records if record.request.seq_len == request.seq_len]
    # By layout and precision, time and ratio of the fastest stack that ran it: the prediction reproduces that one.
    best: dict[tuple[Layout, str], tuple[float, float]] = {}
    memories: list[float] = []
    floors: list[float] = []
    for record in same or records:
        ratio, memory = residuals(record)
        if ratio is not None:
            key, measured = (record.layout, record.request.precision), (record.gpu_seconds or 0.0, ratio)
            best[key] = min(measured, best.get(key, measured))
            if record.request.seq_len == request.seq_len:
                floors.append(record.gpu_seconds or 0.0)
        if memory is not None:
            memories.append(memory)
    times = [ratio for _, ratio in best.values()]
    widest = widest_spread(request.gpu)
    middle = float(np.median(times)) if times else 1.0
    spread = max((max(ratio / middle, middle / ratio) for ratio in times), default=widest)
    return Calibration(
        time=middle,
        spread=min(max(spread, NEAR), widest),
        memory=float(np.clip(np.median(memories), 0.5, 2.0)) if memories else 1.0,
        floor=min(floors, default=0.0),
        time_records=len(times),
        memory_records=len(memories),
        measured_spread=spread if len(times) > 1 else None,
    )


def widest_spread(gpu: str) -> float:
    """Return the factor between predicted and measured step time without a record."""
    return SPREAD_AMD if gpu in AMD else SPREAD


def residuals(record: Record) -> tuple[float | None, float | None]:
    """Return measured over predicted: time, and memory without the static part. None where not measured."""
    # Neither field matters for a layout that is given, and without them the same record is the same key
    request = replace(record.request, calibration=Calibration(), fixed=None)
    return _residuals(request, record.layout, record.gpu_seconds, record.peak_gb)


@lru_cache(maxsize=4096)
def _residuals(
    request: PlanRequest, layout: Layout, gpu_seconds: float | None, peak_gb: float | None
) -> tuple[float | None, float | None]:
    plain, degrees = estimator_of(request), degrees_of(request, layout)
    if plain is None or degrees is None:
        return None, None
    recipe = plain.ladder[0] if request.recompute is not None else plain.ladder[int(plain.estimate(degrees).rung[0])]
    ratio = memory = None
    if gpu_seconds:
        tokens = float((degrees.ga * degrees.dp)[0]) * plain.tokens
        ratio = gpu_seconds * tokens / request.gpus / float(plain.time(degrees, recipe).total[0])
    if peak_gb:
        predicted = plain.memory(degrees, recipe)
        static = float(predicted.static[0])
        memory = (peak_gb - static) / (float(predicted.total[0]) - static)
        memory = memory if memory > 0 else None
    return ratio, memory


def degrees_of(request: PlanRequest, layout: Layout) -> Degrees | None:
    """Return one layout as arrays of one entry; None where the GPUs are not divisible."""
    dp, edp = layout.dp(request), layout.edp(request)
    if not dp or not edp:
        return None
    ga = request.gbs / (request.mbs * dp) if request.gbs is not None else UNDECIDED_GA * layout.attention
    shares = stage_shares(request.model.layers, layout)
    values = (layout.tp, layout.cp, layout.pp, layout.ep, layout.etp, layout.vpp, dp, edp, ga, *shares)
    return Degrees(*(np.array([float(value)]) for value in values))


# --- The ladder of recipes: what may make a layout fit, in the order of the sources: gradients in BF16, as in
# Megatron-Bridge's benchmark recipes of Qwen3; the narrowest recomputation (with MLA the up-projections first); all of
# the MoE block; whole layers; optimizer states in host memory last.


def ladder(request: PlanRequest, costs: ModelCosts) -> tuple[MemoryOptions, ...]:
    """Return the recipes to try for a request, the cheapest first; one when the request states it."""
    base = MemoryOptions(
        precision=request.precision,
        dispatcher=request.dispatcher or default_dispatcher(request, costs),
        overlap=_overlaps(request, costs),
        offload=request.offload or 0.0,
        graphs=bool(request.graphs),
        distributed=request.dist_opt,
    )
    stated = request.recompute
    if stated is not None:
        recipe = _recomputing(base, set(stated))
        recipes = [recipe, replace(recipe, gradients_bf16=True)]
    else:
        bf16 = replace(base, gradients_bf16=True)
        recipes = [bf16, *(_recomputing(bf16, modules) for modules in _modules(request, costs))]
        offloaded = [replace(recipe, offload=1.0) for recipe in recipes] if request.offload is None else []
        recipes = [base, *recipes, *offloaded]
    is_free = request.ep_overlap is None
    return *recipes, *(replace(recipe, overlap=False) for recipe in recipes if is_free and recipe.overlap)


def _recomputing(recipe: MemoryOptions, modules: set[str]) -> MemoryOptions:
    overlap = recipe.overlap and not modules & {"moe", "full"}
    return replace(recipe, recompute=frozenset(modules), overlap=overlap)


def _modules(request: PlanRequest, costs: ModelCosts) -> list[set[str]]:
    """Return lists of modules, each longer than the one before."""
    delayed = request.precision == "fp8_ds"  # recomputation of activations and norms is refused with delayed scaling
    first = {"mla_up_proj"} if costs.is_latent else set()
    narrow = [first] if first else []
    if costs.moe_layers and not delayed:
        narrow.append(first | {"moe_act"})
        narrow.append(first | {"moe_act", "layernorm"})
    widest = narrow[-1] if narrow else first
    if costs.has_dense:
        narrow.append(widest | {"mlp"})
    if request.ep_overlap:  # overlap excludes recomputation of the MoE block and of whole layers
        return narrow
    if costs.moe_layers:
        narrow.append((narrow[-1] if narrow else set()) - {"moe_act"} | {"moe"})
    return [*narrow, {"full"}]


def _overlaps(request: PlanRequest, costs: ModelCosts) -> bool:
    """Return whether expert communication overlaps with computation: as stated, else where the trainer supports it."""
    if request.ep_overlap is not None:
        return request.ep_overlap
    return bool(costs.moe_layers) and costs.mtp_layers <= 1


def default_dispatcher(request: PlanRequest, costs: ModelCosts) -> str:
    """Return the fastest one of own runs, else HybridEP, as in most published recipes on Hopper and Blackwell."""
    if costs.moe_layers and request.fastest_dispatcher:
        return request.fastest_dispatcher
    return "hybridep" if costs.moe_layers and request.gpu not in ("A100", *AMD) else "alltoall"


def recipe_words(recipe: MemoryOptions) -> str:
    """Return what a recipe chooses, in words: `gradients in BF16 and recomputation of moe_act`."""
    parts = []
    if recipe.gradients_bf16:
        parts.append("gradients in BF16")
    if "full" in recipe.recompute:
        parts.append("full recomputation")
    elif recipe.recompute:
        parts.append(f"recomputation of {', '.join(sorted(recipe.recompute))}")
    if recipe.offload:
        parts.append(f"{share_text(recipe.offload)} of the optimizer states in host memory")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 2 else parts) or "no recomputation"

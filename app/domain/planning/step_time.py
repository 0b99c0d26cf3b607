"""Time of one optimizer step for a layout: GEMMs, memory traffic, dispatch, pipeline bubbles and gradient traffic.

Every term is a count of operations or bytes over a rate: peaks of data sheets times the shares below. `docs/planner.md`
states the formulas and the fitted constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.domain.contract.fields import FLEX_BACKENDS
from app.domain.planning.costs import Gemm, ModelCosts
from app.domain.planning.hardware import Hardware
from app.domain.planning.memory import Degrees, Floats, MemoryOptions, overlapped, saved_per_token

_BACKWARD = 2.0
"""Products of the backward pass for one of the forward pass: gradients of data and of weights."""
_EXCHANGES = 4.0
"""Dispatch and combine, forward and backward."""
_TP_EXCHANGES = 5.0
"""Sequence parallelism around a block: gather and scatter, forward and backward, and a gather for weight gradients."""
_WEIGHT_TRAFFIC = 12.0
"""Bytes moved per expert parameter and micro-batch: BF16 weights read twice, FP32 gradients read and written."""
_LOGIT_TRAFFIC = 16.0
"""Bytes moved per logit: written, read for the loss, its gradient written and read twice."""
_UPDATE_TRAFFIC = 30.0
"""Bytes moved per parameter of an optimizer shard: gradient, three FP32 states read and written, BF16 weight."""


STACK = 1.5
"""Measured over ideal step time: the one constant fitted to published step times (`bench/planner_published --fit`). It
scales every part alike, so it does not change the order of layouts."""
_GEMM: Mapping[str, float] = {"bf16": 0.70, "fp8": 0.60, "nvfp4": 0.45}
"""Share of the peak that a large GEMM reaches, by format. Our estimate, not fitted."""
_GEMM_AMD: Mapping[str, float] = {"bf16": 0.54, "fp8": 0.49}
"""The same on AMD: 708 and 1273 TFLOP/s on MI300X in AMD's "Measuring Max-Achievable FLOPs", part 2; assumed for the
others."""
_ATTENTION = 0.45
"""The same for attention scores, forward and backward together, whose FLOPs omit what the backward pass repeats."""
_HALF = 160.0
"""A GEMM this wide in one dimension takes twice its ideal time: tiles of 128 and their prologue."""
_TRAFFIC = 6.0
"""Passes over what a layer keeps: written and read forward, read backward, its gradient written and read twice."""
_HBM, _LINK = 0.8, 0.7
"""Shares of the bandwidth of memory and links that kernels and collectives reach."""
_HOST = 0.28
"""The same for optimizer states in host memory, where the processor updates them: 1.9 billion parameters of a rank
added 3.2 s to a step of 1 s in a matched A/B on PCIe 5."""
_LAYER_S = 150e-6
"""Seconds of a layer and micro-batch that neither bytes nor FLOPs explain: launches, the router, synchronisation."""
_HIDDEN = 0.6
"""Share of dispatch that overlapped expert communication hides: dispatch of 4.25 s became 1.77 s in a matched A/B."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step by part; `bubble` and `layers` (launches) are separate from the work of the stages."""

    gemm: Floats
    attention: Floats
    memory: Floats
    dispatch: Floats
    tensor_parallel: Floats
    launches: Floats
    recompute: Floats
    head: Floats
    bubble: Floats
    pipeline: Floats
    gradients: Floats
    optimizer: Floats

    @property
    def total(self) -> Floats:
        parts: Floats = np.sum([getattr(self, name) for name in self.__slots__], axis=0)
        return parts


def format_of(precision: str) -> str:
    return "bf16" if precision in ("bf16", "fp16") else "nvfp4" if precision == "nvfp4" else "fp8"


def step_time(
    costs: ModelCosts,
    degrees: Degrees,
    recipe: MemoryOptions,
    hardware: Hardware,
    *,
    tokens: float,
) -> StepTime:
    """Return the time of a step of `degrees.ga` micro-batches with `tokens` each.

    The slowest stage sets the pace: the one with most layers, or the last one, which also has the logits and the layers
    of multi-token prediction.
    """
    part = _Parts(costs, degrees, recipe, hardware, tokens)
    gemm, attention, memory, launches = part.gemm(), part.attention(), part.memory(), part.launches()
    dispatch, tensor_parallel = part.dispatch(gemm), part.tensor_parallel()
    recompute = part.recompute(gemm, attention, memory, dispatch)
    everything = gemm + attention + memory + launches + dispatch + tensor_parallel + recompute
    head, plain = part.head(), costs.layers - costs.mtp_layers
    at_last = degrees.last + costs.mtp_layers / plain + head / (everything * plain / costs.layers)
    pace = np.where(at_last > degrees.largest, at_last, degrees.largest) * plain / costs.layers
    micro = everything * pace
    share = np.where(at_last > degrees.largest, degrees.last + costs.mtp_layers / plain, degrees.largest)
    share = share * plain / costs.layers
    ga = degrees.ga
    traffic = part.gradients()
    return StepTime(
        gemm=gemm * share * ga * STACK,
        attention=attention * share * ga * STACK,
        memory=memory * share * ga * STACK,
        dispatch=dispatch * share * ga * STACK,
        tensor_parallel=tensor_parallel * share * ga * STACK,
        launches=launches * share * ga * STACK,
        recompute=recompute * share * ga * STACK,
        head=(micro - everything * share) * ga * STACK,
        bubble=micro * (degrees.pp - 1) / degrees.vpp * STACK,
        pipeline=part.pipeline() * ga * STACK,
        gradients=np.maximum(traffic - 0.5 * micro, 0.1 * traffic) * STACK,
        optimizer=part.optimizer() * STACK,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Seconds of one micro-batch over all layers of the model, by part."""

    costs: ModelCosts
    degrees: Degrees
    recipe: MemoryOptions
    hardware: Hardware
    tokens: float

    @property
    def rank(self) -> Floats:
        """Return the tokens of one rank with sequence parallelism."""
        return self.tokens / (self.degrees.cp * self.degrees.tp)

    @property
    def rate(self) -> float:
        return self.hardware.peak * self._share(format_of(self.recipe.precision))

    def _share(self, number_format: str) -> float:
        return (_GEMM_AMD if self.hardware.is_amd else _GEMM)[number_format]

    def gemm(self) -> Floats:
        work = sum((self._weighted_flops(gemm) for gemm in self.costs.gemms), np.zeros_like(self.degrees.tp))
        experts = self.costs.expert_parameters + self.costs.mtp_expert_parameters
        weights = experts / (self.degrees.ep * self.degrees.etp) * _WEIGHT_TRAFFIC
        return (1 + _BACKWARD) * work / self.rate + weights / (self.hardware.hbm * _HBM)

    def head(self) -> Floats:
        """Return the time of logits and their loss, in BF16, once for the model and once per predicted token."""
        rows, columns = self.tokens / self.degrees.cp, self.costs.vocabulary / self.degrees.tp
        flops = (1 + _BACKWARD) * self._product(rows, self.costs.hidden, columns, 1.0)
        moved = rows * columns * _LOGIT_TRAFFIC / (self.hardware.hbm * _HBM)
        rate = self.hardware.peak_bf16 * self._share("bf16")
        return (flops / rate + moved) * (1 + self.costs.mtp_layers)

    def _weighted_flops(self, gemm: Gemm) -> Floats:
        """Return the FLOPs of one product, divided by the share of the rate that its size reaches."""
        degrees = self.degrees
        if gemm.per == "dispatched":
            local = self.costs.experts / degrees.ep
            rows = self.rank * self.costs.topk * degrees.etp / local
            width = degrees.etp
        else:
            local = np.ones_like(degrees.tp)
            rows = self.rank if gemm.split == "" else self.tokens / degrees.cp
            width = degrees.tp
        inner = gemm.inner / (width if gemm.split == "inner" else 1.0)
        outer = gemm.outer / (width if gemm.split == "outer" else 1.0)
        return self._product(rows, inner, outer, gemm.layers * local)

    def _product(self, rows: Floats, inner: Floats | float, outer: Floats | float, times: Floats | float) -> Floats:
        flops = 2.0 * rows * inner * outer * times
        return flops * (1 + _HALF / rows) * (1 + _HALF / inner) * (1 + _HALF / outer)

    def attention(self) -> Floats:
        return self.rank * self.costs.core_flops / (self.hardware.peak_bf16 * _ATTENTION)

    def memory(self) -> Floats:
        moved = saved_per_token(self.costs, MemoryOptions()) * _TRAFFIC
        return self.rank * moved / (self.hardware.hbm * _HBM)

    def launches(self) -> Floats:
        return np.full_like(self.degrees.tp, self.costs.layers * _LAYER_S)

    def dispatch(self, gemm: Floats) -> Floats:
        """Return the exposed time to send tokens to their experts and back, over the slower of the two links."""
        degrees, domain, costs = self.degrees, self.hardware.nvlink_domain, self.costs
        if not costs.moe_layers:
            return np.zeros_like(degrees.tp)
        group = degrees.ep * degrees.etp
        nodes, near = np.maximum(group / domain, 1.0), np.minimum(group, domain) / degrees.etp
        size = 2.0 * self.rank * costs.dispatch_width
        inside = size * degrees.etp * self._copies(near) * _away(np.minimum(group, domain))
        across = size * self._copies(nodes) * _away(nodes)
        slower = np.maximum(inside / (self.hardware.nvlink * _LINK), across / (self.hardware.network * _LINK))
        seconds = costs.moe_layers * _EXCHANGES * slower
        if not self.recipe.overlap:
            return seconds
        hidden = np.minimum(_HIDDEN * seconds, _HIDDEN * gemm)
        return seconds - overlapped(degrees) * hidden

    def _copies(self, receivers: Floats) -> Floats:
        """Return the copies of a token that a rank sends: one per expert, with a flex dispatcher one per receiver."""
        topk = float(self.costs.topk)
        if self.recipe.dispatcher not in FLEX_BACKENDS:
            return np.full_like(receivers, topk)
        return receivers * (1.0 - (1.0 - 1.0 / np.maximum(receivers, 1.0)) ** topk)

    def tensor_parallel(self) -> Floats:
        degrees = self.degrees
        size = 2.0 * self.tokens / degrees.cp * self.costs.hidden * _away(degrees.tp)
        bandwidth = np.where(degrees.tp > self.hardware.nvlink_domain, self.hardware.network, self.hardware.nvlink)
        key_value_exchange = self._exposed_key_value_exchange()
        return self.costs.layers * _TP_EXCHANGES * size / (bandwidth * _LINK) + key_value_exchange

    def _exposed_key_value_exchange(self) -> Floats:
        """Return the exposed time of passing keys and values with context parallelism, which attention scores hide."""
        degrees = self.degrees
        width = self.costs.key_value_width / degrees.tp
        size = 2.0 * self.tokens / degrees.cp * width * (degrees.cp - 1.0) * (1 + _BACKWARD)
        bandwidth = np.where(
            degrees.tp * degrees.cp > self.hardware.nvlink_domain, self.hardware.network, self.hardware.nvlink
        )
        return np.maximum(self.costs.layers * size / (bandwidth * _LINK) - self.attention(), 0.0)

    def pipeline(self) -> Floats:
        """Return the exposed time to pass activations between stages; virtual stages hide most of it."""
        degrees = self.degrees
        size = 2.0 * 2.0 * self.rank * self.costs.hidden * degrees.vpp
        stage = degrees.dp * degrees.tp * degrees.cp
        bandwidth = np.where(stage >= self.hardware.nvlink_domain, self.hardware.network, self.hardware.nvlink)
        exposed = np.where(degrees.vpp > 1, 1 - _HIDDEN, 1.0)
        return np.where(degrees.pp > 1, exposed * size / (bandwidth * _LINK), 0.0)

    def gradients(self) -> Floats:
        """Return the time to reduce gradients and to gather weights, before any of it is hidden."""
        degrees, costs = self.degrees, self.costs
        rest = (costs.other_parameters + 2 * costs.embedding_parameters) / (degrees.tp * degrees.pp)
        experts = costs.expert_parameters / (degrees.ep * degrees.etp * degrees.pp)
        size = (2.0 if self.recipe.gradients_bf16 else 4.0) + 2.0
        moved = size * (rest * _away(degrees.dp * degrees.cp) + experts * _away(degrees.edp))
        stage = degrees.dp * degrees.tp * degrees.cp
        bandwidth = np.where(stage > self.hardware.nvlink_domain, self.hardware.network, self.hardware.nvlink)
        return np.asarray(moved / (bandwidth * _LINK))

    def optimizer(self) -> Floats:
        degrees, costs = self.degrees, self.costs
        rest = (costs.other_parameters + 2 * costs.embedding_parameters) / (degrees.tp * degrees.pp)
        experts = costs.expert_parameters / (degrees.ep * degrees.etp * degrees.pp)
        shard = rest / (degrees.dp * degrees.cp) + experts / degrees.edp
        on_gpu = shard * _UPDATE_TRAFFIC / (self.hardware.hbm * _HBM)
        return on_gpu + self.recipe.offload * shard * _UPDATE_TRAFFIC / (self.hardware.host * _HOST)

    def recompute(self, gemm: Floats, attention: Floats, memory: Floats, dispatch: Floats) -> Floats:
        """Return the time of recomputation."""
        modules = self.recipe.recompute
        if "full" in modules:
            return (gemm + attention + memory) / 3.0 + dispatch / 2.0
        again = np.zeros_like(gemm)
        activations, all_kept = saved_per_token(self.costs, self.recipe), saved_per_token(self.costs, MemoryOptions())
        again = again + memory / 3.0 * (1.0 - activations / all_kept)
        if "moe" in modules:
            again = again + gemm / 3.0 * self._expert_share() + dispatch / 2.0
        if "mla_up_proj" in modules:
            again = again + self._latent()
        return again

    def _expert_share(self) -> float:
        costs = self.costs
        dispatched = sum(g.layers * g.inner * g.outer * costs.topk for g in costs.gemms if g.per == "dispatched")
        rest = sum(g.layers * g.inner * g.outer for g in costs.gemms if g.per == "token")
        return dispatched / (dispatched + rest + costs.hidden * costs.vocabulary)

    def _latent(self) -> Floats:
        """Return the time of one forward pass of the up-projections: products of ranks with heads."""
        up = [g for g in self.costs.gemms if g.per == "token" and g.split == "outer" and g.inner < self.costs.hidden]
        return sum((self._weighted_flops(gemm) for gemm in up), np.zeros_like(self.degrees.tp)) / self.rate


def _away(ranks: Floats) -> Floats:
    """Return the share of data that leaves a rank when it is spread evenly over `ranks`."""
    return 1.0 - 1.0 / np.maximum(ranks, 1.0)

"""Memory of one GPU for a layout, by Megatron-LM's own formulas, extended to MoE.

Static: `theoretical_memory_usage.py` on both meshes. Activations: what each layer keeps (`costs.py`) times the tokens
of a rank times the micro-batches in flight of the schedule. `docs/planner.md` states the formulas with their sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from app.domain.contract.fields import FLEX_BACKENDS
from app.domain.planning.costs import Activations, ModelCosts

Floats = npt.NDArray[np.float64]

SHARED_STATE = 12.0
"""FP32 weights and two moments per parameter, divided between the ranks with the same weights."""
WEIGHT, GRADIENT, GRADIENT_BF16 = 2.0, 4.0, 2.0
GB = 1e9

_LOGITS = 4.0
"""Bytes of one logit at the end of the forward pass: BF16, and its gradient; the fused cross entropy keeps no other."""
_INPUT_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp16": 2.0, "nvfp4": 0.5 + 1 / 16}
"""Bytes of an element that is kept as input of a GEMM; FP8 recipes keep one byte and their scales."""
_INPUT_FP8 = 1.0 + 1 / 32
FLEX_BUFFERS = 2.0
"""Buffers of a flex dispatcher: one each to dispatch and combine, for the tokens of all ranks in the NVLink domain."""

OVERHEAD_GB = 1.0
"""Workspaces of cuBLAS and cuDNN, and small buffers: a constant, from the residuals of the known peaks."""
USABLE = 0.857
"""Share of the nominal memory that tensors may take: the rest is the CUDA context, NCCL's buffers and fragmentation.
Published runs hold up to 0.78 of it in tensors; 67 to 68 GiB reserved of 80 GiB ran out of memory."""


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Memory options other than the degrees.

    `recompute`: modules, "full" for whole layers. `offload`: share of the optimizer states in host memory.
    `distributed`: ranks with the same weights share the optimizer states.
    """

    recompute: frozenset[str] = frozenset()
    gradients_bf16: bool = False
    moments_bf16: bool = False
    offload: float = 0.0
    precision: str = "bf16"
    dispatcher: str = "alltoall"
    overlap: bool = False
    graphs: bool = False
    distributed: bool = True

    @property
    def input_bytes(self) -> float:
        return _INPUT_BYTES.get(self.precision, _INPUT_FP8)


@dataclass(frozen=True, slots=True)
class Degrees:
    """Degrees of one or many layouts as arrays. `ga`: micro-batches of a step.

    `largest` and `last`: shares of the layers that the largest and the last pipeline stage hold.
    """

    tp: Floats
    cp: Floats
    pp: Floats
    ep: Floats
    etp: Floats
    vpp: Floats
    dp: Floats
    edp: Floats
    ga: Floats
    largest: Floats
    last: Floats

    def at(self, indices: npt.NDArray[np.int64]) -> "Degrees":
        return Degrees(*(getattr(self, name)[indices] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Memory:
    """GB of one GPU by part, of the stage that needs most. `total`: the peak of allocated tensors.

    `host`: optimizer states of the GPU in host memory.
    """

    weights: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    buffers: Floats
    host: Floats

    @property
    def static(self) -> Floats:
        return self.weights + self.optimizer

    @property
    def total(self) -> Floats:
        return self.static + self.activations + self.logits + self.buffers

    def scaled(self, by: float) -> "Memory":
        """Return the estimate with all but the static part scaled by a factor from measured peaks."""
        scaled = {name: getattr(self, name) * by for name in ("activations", "logits", "buffers")}
        return replace(self, **scaled)


def memory_of(costs: ModelCosts, degrees: Degrees, recipe: MemoryOptions, *, tokens: float, nvlink: int) -> Memory:
    """Return the memory for `tokens` per micro-batch; `nvlink`: GPUs of an NVLink domain."""
    rank = tokens / (degrees.cp * degrees.tp)
    weights, optimizer = _static(costs, degrees, recipe)
    activations = saved_per_token(costs, recipe)
    first, last = _in_flight(degrees)
    transient = _largest_layer(costs, recipe)
    head = tokens / degrees.cp * costs.vocabulary / degrees.tp * _LOGITS * (1 + costs.mtp_layers)
    at_first = rank * (activations * first + transient)
    at_last = rank * (activations * last + transient)
    alone = degrees.pp == 1
    with_head = np.where(alone, at_first, at_last) + head
    head_is_peak = alone | (with_head > at_first)
    return Memory(
        weights=weights / GB,
        optimizer=optimizer * (1.0 - recipe.offload) / GB,
        activations=np.where(head_is_peak, with_head - head, at_first) / GB,
        logits=np.where(head_is_peak, head, 0.0) / GB,
        buffers=(_buffers(costs, degrees, recipe, rank, nvlink)) / GB + OVERHEAD_GB,
        host=optimizer * recipe.offload / GB,
    )


def _static(costs: ModelCosts, degrees: Degrees, recipe: MemoryOptions) -> tuple[Floats, Floats]:
    """Return bytes of weights with gradients, and of optimizer states wherever they are, of the most loaded stage.

    As Megatron-LM: an equal share of the layers, one embedding, and multi-token prediction.
    """
    embeddings = costs.embedding_parameters * np.where(degrees.pp == 1, 2.0, 1.0)
    rest = (costs.other_parameters / degrees.pp + embeddings + _mtp(costs.mtp_other_parameters, degrees)) / degrees.tp
    experts = costs.expert_parameters / degrees.pp + _mtp(costs.mtp_expert_parameters, degrees)
    experts = experts / (degrees.ep * degrees.etp)
    per_weight = WEIGHT + (GRADIENT_BF16 if recipe.gradients_bf16 else GRADIENT)
    state = SHARED_STATE - (4.0 if recipe.moments_bf16 else 0.0)
    ranks, expert_ranks = (degrees.dp * degrees.cp, degrees.edp) if recipe.distributed else (1.0, 1.0)
    optimizer = state * (rest / ranks + experts / expert_ranks)
    return per_weight * (rest + experts), optimizer


def _mtp(parameters: float, degrees: Degrees) -> Floats:
    """Return the parameters of multi-token prediction on the stage that holds them, which then has fewer layers."""
    return parameters / degrees.pp


def saved_per_token(costs: ModelCosts, recipe: MemoryOptions) -> float:
    """Return bytes that all layers keep for one token of a rank."""
    return sum(piece.layers * _bytes(costs, piece, recipe) for piece in costs.activations)


def _bytes(costs: ModelCosts, piece: Activations, recipe: MemoryOptions) -> float:
    if piece.released_by & recipe.recompute:
        return 0.0
    size = 2.0 * piece.wide + recipe.input_bytes * piece.inputs + 4.0 * piece.wide32
    return size * costs.topk if piece.per == "dispatched" else size


def _largest_layer(costs: ModelCosts, recipe: MemoryOptions) -> float:
    """Return bytes per token that one MoE layer holds while its gradients are computed."""
    layer = sum(_bytes(costs, piece, MemoryOptions()) for piece in costs.activations if piece.layers) / max(
        costs.layers, 1.0
    )
    again = layer if recipe.recompute & {"full", "moe"} else 0.0
    gradients = 2.0 * 2.0 * costs.topk * costs.dispatch_width
    return again + gradients


def _in_flight(degrees: Degrees) -> tuple[Floats, Floats]:
    """Return what first and last stage hold, as multiples of the activations of one micro-batch in all layers.

    1F1B holds PP micro-batches of 1 / PP of the layers. With VPP chunks the first stage holds PP x VPP + PP - 1 chunks:
    Megatron-LM's factor 1 + (PP - 1) / (PP x VPP). Fewer micro-batches than that hold less.
    """
    pp, vpp, ga = degrees.pp, degrees.vpp, degrees.ga
    share = 1.0 / (pp * vpp)
    first = np.where(vpp > 1, pp * vpp + pp - 1, pp)
    last = np.where(vpp > 1, pp * (vpp - 1) + 1, 1.0)
    most = ga * vpp
    return np.minimum(first, most) * share, np.minimum(last, most) * share


def _buffers(costs: ModelCosts, degrees: Degrees, recipe: MemoryOptions, rank: Floats, nvlink: int) -> Floats:
    """Return bytes of the dispatcher's buffers, of the schedule that overlaps two micro-batches, and of graphs."""
    buffers = np.zeros_like(rank)
    if recipe.dispatcher in FLEX_BACKENDS:
        receivers = np.minimum(degrees.ep * degrees.etp, nvlink)
        buffers = buffers + FLEX_BUFFERS * 2.0 * rank * receivers * costs.dispatch_width
    chunk = rank * saved_per_token(costs, recipe) / (degrees.pp * degrees.vpp)
    if recipe.overlap:  # forward of one micro-batch runs during backward of another: one more layer of each
        layers = np.maximum(costs.layers / (degrees.pp * degrees.vpp), 1.0)
        buffers = buffers + overlapped(degrees) * 2.0 * chunk / layers
    if recipe.graphs:  # static inputs of every captured layer
        buffers = buffers + rank * 2.0 * costs.hidden * costs.layers / degrees.pp
    return buffers


def overlapped(degrees: Degrees) -> Floats:
    """Return 1.0 where expert communication can overlap with computation: with stages only in a virtual pipeline."""
    can: Floats = ((degrees.ep > 1) & ((degrees.pp == 1) | (degrees.vpp > 1))).astype(np.float64)
    return can

"""The order in which feasible layouts are offered: the founding documents' order of preference, with its reasons."""

import numpy as np
import numpy.typing as npt

from app.domain.planning.candidates import Candidates, Mesh
from app.domain.planning.layout import SHARD_CEILING, SHARD_FLOOR
from app.domain.planning.memory import STATIC_SHARE, gpu_memory_gb, static_gb
from app.domain.planning.request import PlanRequest
from app.domain.rules.hardware import FACTS
from app.domain.run import IntArray

REASONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Shards in the usual band",
        f"At most {SHARD_CEILING} tokens of a sequence for each CP rank, and with CP at least {SHARD_FLOOR}. On NVL72, "
        "where TP may take the place of some CP, for each CP x TP rank.",
        ("S3", "D-moe"),
    ),
    (
        "It fits",
        f"Weights, gradients and optimizer states take at most {STATIC_SHARE:.0%} of the GPU's memory (our own "
        "default), where their size is known: the smallest model parallelism that fits is the starting point.",
        ("S0", "D-moe"),
    ),
    (
        "Experts are not cut by width",
        "ETP 1: whole experts on more ranks need no further collective.",
        ("S0", "M-readme", "U-vlm"),
    ),
    ("More data parallelism", "It communicates least, and its communication can be hidden.", ("S0", "D-moe")),
    (
        "Experts inside NVLink",
        "The group with most traffic belongs inside the fastest link. A prior with published counter-evidence.",
        ("S0", "U-wf/card", "M-readme"),
    ),
    ("PP before TP", "At the same DP more stages cost less than wider layers.", ("U-mt",)),
    ("A virtual pipeline", "Stages without one have larger bubbles.", ("U-par", "D-perf")),
    ("A small expert group", "Of what fits, the smaller group dispatches over fewer links.", ("S0",)),
)
"""Title, reason, sources; the first that differs decides."""


def best_first(request: PlanRequest, found: Candidates, among: IntArray) -> IntArray:
    """The indices of `among`, the preferred one first."""
    mesh = found.mesh.at(among)
    keys = (
        _outside(request, mesh),
        _too_large(request, mesh),
        mesh.etp,
        -(request.gpus // mesh.attention),
        _leaving(request, mesh),
        mesh.tp,
        (mesh.pp > 1) & (found.virtual[among] == 0),
        mesh.pp,
        mesh.ep,
    )
    return among[np.lexsort(keys[::-1])]


def _too_large(request: PlanRequest, mesh: Mesh) -> npt.NDArray[np.bool_]:
    """True where the static part alone takes more of the memory than it should; nowhere while that is unknown."""
    memory = gpu_memory_gb(request)
    shards, experts = (mesh.tp * mesh.pp).astype(np.float64), mesh.experts.astype(np.float64)
    replicas, edp = np.maximum(request.gpus / shards, 1.0), np.maximum(request.gpus / experts, 1.0)
    static = static_gb(request, shards, replicas, experts, edp)
    if memory is None or static is None:
        return np.zeros(len(edp), dtype=np.bool_)
    too_large: npt.NDArray[np.bool_] = static > STATIC_SHARE * memory
    return too_large


def _outside(request: PlanRequest, mesh: Mesh) -> npt.NDArray[np.bool_]:
    """True where a rank holds more or fewer tokens of a sequence than usual."""
    ranks = mesh.cp * mesh.tp if FACTS["nvl72"](request.gpu) else mesh.cp
    shard = request.seq_len // np.maximum(ranks, 1)
    outside: npt.NDArray[np.bool_] = (shard > SHARD_CEILING) | ((mesh.cp > 1) & (shard < SHARD_FLOOR))
    return outside


def _leaving(request: PlanRequest, mesh: Mesh) -> npt.NDArray[np.bool_]:
    """True where the expert group is larger than an NVLink domain."""
    domain = FACTS["nvlink_domain"](request.gpu)
    leaving: npt.NDArray[np.bool_] = mesh.ep * mesh.etp > (domain if isinstance(domain, int) else request.gpus)
    return leaving

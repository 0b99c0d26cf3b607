"""What a feasible layout should be warned of, and where its groups lie on the hardware. Warnings forbid nothing."""

from dataclasses import dataclass

from app.domain.planning.layout import SHARD_CEILING, Layout, first_cp
from app.domain.planning.memory import STATIC_SHARE, gpu_memory_gb
from app.domain.planning.request import PlanRequest
from app.domain.rules.hardware import FACTS

_LONG = 131_072
_SMALL_ACTIVE, _WIDE_CP = 5.0, 16
_NVL72, _TILED = 72, 64


@dataclass(frozen=True, slots=True)
class Note:
    """`rule`: of the rule book, or "" for one of the planner's own. `sources`: keys of the rule book's sources."""

    rule: str
    text: str
    sources: tuple[str, ...] = ()


def notes_of(request: PlanRequest, layout: Layout, static: float | None) -> tuple[Note, ...]:
    """In the order of what costs most."""
    found = (
        _memory(request, static),
        _dp_floor(request, layout),
        _hot_groups(request, layout),
        _no_vpp(request, layout),
        _wide_shard(request, layout),
        _skinny(request, layout),
        _small_model(request, layout),
        _long(request),
        _etp(layout),
    )
    return tuple(note for note in found if note is not None)


def placement(request: PlanRequest, layout: Layout) -> str:
    """Where the TP and the expert groups lie, in a sentence."""
    domain = FACTS["nvlink_domain"](request.gpu)
    if not isinstance(domain, int):
        return f"No source states the NVLink domain of {request.gpu}."
    said = [_group("TP", layout.tp, domain)]
    if request.model.experts is not None:
        said.append(_group("EP x ETP", layout.expert_group, domain))
    return f"NVLink domain of {domain} GPUs: {', '.join(said)}.{_tiling(layout, domain)}"


def _group(name: str, size: int, domain: int) -> str:
    if size == 1:
        return f"no {name} group"
    return f"{name} {size} inside" if size <= domain else f"{name} {size} spans {-(-size // domain)} domains"


def _tiling(layout: Layout, domain: int) -> str:
    """A group that does not divide the 72 GPUs of a rack leaves some of them over, or straddles two."""
    if domain != _NVL72 or all(domain % size == 0 for size in (layout.tp, layout.expert_group)):
        return ""
    return f" Its groups do not divide {_NVL72}: {_TILED} GPUs of each rack tile easily."


def _memory(request: PlanRequest, static: float | None) -> Note | None:
    memory = gpu_memory_gb(request)
    if memory is None or static is None or static <= STATIC_SHARE * memory:
        return None
    what = f"Weights, gradients and optimizer states take about {static:.0f} of {memory:.0f} GB of one {request.gpu}"
    if static > memory:
        return Note("", f"{what}: it does not fit without offloading, or without more ranks to share them.", ("M-arg",))
    return Note("", f"{what}, which leaves little for activations.", ("M-arg",))


def _dp_floor(request: PlanRequest, layout: Layout) -> Note | None:
    if layout.dp(request) != 1:
        return None
    text = "DP is 1: no communication of gradients to overlap with, and one replica accumulates the whole batch."
    return Note("scale-dp-floor", text, ("S3", "U-mt"))


def _hot_groups(request: PlanRequest, layout: Layout) -> Note | None:
    domain = FACTS["nvlink_domain"](request.gpu)
    if not isinstance(domain, int):
        return None
    wide = [f"{name} {size}" for name, size in (("TP", layout.tp), ("EP x ETP", layout.expert_group)) if size > domain]
    if not wide:
        return None
    text = f"{' and '.join(wide)} leaves the NVLink domain of {domain}: slow links on the hot path, unless overlapped."
    return Note("scale-tp-cross-node", text, ("U-par", "D-moe"))


def _no_vpp(request: PlanRequest, layout: Layout) -> Note | None:
    ga = layout.ga(request)
    if layout.pp == 1 or layout.vpp > 1 or ga is None or ga >= 4 * layout.pp:
        return None
    text = f"{layout.pp} stages without a virtual pipeline and only {ga} micro-batches a step: expect bubbles."
    return Note("scale-pp-no-vpp", text, ("U-par", "D-perf"))


def _wide_shard(request: PlanRequest, layout: Layout) -> Note | None:
    shard = request.seq_len // (layout.cp * layout.tp)
    if shard <= SHARD_CEILING:
        return None
    guess = first_cp(request.seq_len)
    text = f"{shard} tokens for each CP x TP rank are above the usual band; the first guess of CP is {guess}."
    return Note("scale-cp-size", text, ("S3", "D-moe"))


def _skinny(request: PlanRequest, layout: Layout) -> Note | None:
    hidden, shard = request.model.hidden, request.seq_len // layout.cp
    if layout.cp == 1 or hidden is None or shard >= hidden:
        return None
    return Note(
        "scale-cp-skinny",
        f"{shard} tokens for each CP rank are fewer than the hidden size {hidden}: narrow products.",
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

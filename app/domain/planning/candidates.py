"""Every combination of degrees for a request, with the constraints that each one breaks, as arrays.

The same identities as `constraints.py`, one bit each: a test compares the two. The cut into stages is
chosen per PP (`splits.py`), so a combination is one row whatever VPP sizes it allows.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.domain.contract.values import layout_problem, stages
from app.domain.performance.flops import FACTOR, flops_per_token
from app.domain.planning.constraints import BY_ID, judge
from app.domain.planning.estimate import UNDECIDED_GA, estimator_of
from app.domain.planning.hardware import gpu_memory_gb
from app.domain.planning.layout import Layout, first_cp, stage_shares, static_gb
from app.domain.planning.memory import Degrees, Floats
from app.domain.planning.request import InvalidPlan, PlannedModel, PlanRequest
from app.domain.rules.derive import FACTS
from app.domain.run import IntArray

# --- How layers are split into pipeline stages and virtual chunks: evenly, with embedding and loss counted, or by a
# layout string in the form that published recipes use.

_BOTH = ("embedding", "loss")
_ROOMY = 2
"""Fewest layers of a chunk: with fewer, sends between stages cost more than smaller bubbles gain."""
_SHORT = 4
"""More layers than this in a repeated stage are written as t*5."""


@dataclass(frozen=True, slots=True)
class Split:
    """A legal split of layers into stages for one PP. `vpp` 1: no virtual pipeline. `layers`: of the larger chunks."""

    vpp: int
    account: tuple[str, ...] = ()
    pp_layout: str | None = None
    layers: int = 0

    @property
    def kind(self) -> int:
        """Return the rank of the split, simplest first.

        0: even; 1: even with embedding and loss counted; 2: by a layout string.
        """
        return 2 if self.pp_layout else 1 if self.account else 0


def splits_of(request: PlanRequest, pp: int) -> tuple[Split, ...]:
    """Return every legal split for this PP that agrees with the fixed values, by rising VPP; may be empty."""
    return _splits(request.model, pp, request.fix("vpp"), request.pp_layout, request.account)


@lru_cache(maxsize=4096)
def _splits(
    model: PlannedModel, pp: int, vpp: int | None, pp_layout: str | None, account: tuple[str, ...] | None
) -> tuple[Split, ...]:
    if pp_layout is not None:
        return () if model.hybrid or account else _stated(model, pp, vpp, pp_layout)
    if pp == 1:
        return (Split(1, account or ()),) if vpp in (None, 1) else ()
    most = 1 if model.hybrid else max(1, (model.layers + 2) // pp)
    wanted = range(1, most + 1) if vpp is None else (vpp,)
    cuts = (_cut(model, pp, size, account) for size in wanted if size <= most)
    return tuple(split for split in cuts if split is not None)


def _stated(model: PlannedModel, pp: int, vpp: int | None, text: str) -> tuple[Split, ...]:
    parts = stages(text)
    if parts is None or layout_problem(text, pp, model.layers, model.mtp):
        return ()
    chunks = len(parts) // pp
    return () if vpp not in (None, chunks) or (chunks > 1 and pp == 1) else (Split(chunks, (), text),)


def _cut(model: PlannedModel, pp: int, vpp: int, account: tuple[str, ...] | None) -> Split | None:
    """Return the simplest split into PP x VPP chunks."""
    for counted in ((), _BOTH) if account is None else (account,):
        if model.hybrid and counted:
            continue
        if (model.layers + len(counted)) % (pp * vpp) == 0:
            return Split(vpp, counted, None, (model.layers + len(counted)) // (pp * vpp))
    if account or model.hybrid:
        return None
    text = written_layout(model.layers, model.mtp, pp * vpp)
    return Split(vpp, (), text, -(-model.layers // (pp * vpp))) if text else None


def written_layout(layers: int, mtp: int, parts: int) -> str | None:
    """Return a layout string of `parts` stages, or None when there is none.

    All stages except the first and last hold the same number of layers; these two hold at most as many. The last one
    holds the remaining layers, multi-token prediction and the loss.
    """
    if parts < 2:
        return None
    each = -(-layers // parts)
    rest = layers - each * (parts - 2)
    if not 0 <= rest <= 2 * each:
        return None
    first = min(each, rest)
    middle = f"({_layers(each)}|)*{parts - 2}" if parts > 2 else ""
    return f"E{_layers(first, 1)}|{middle}{_layers(rest - first, 1)}{'m' * mtp}L"


def _layers(count: int, written_out: int = _SHORT) -> str:
    return "t" * count if count <= written_out else f"t*{count}"


def unsplit(request: PlanRequest, pp: int) -> Split:
    """Return the stated split when no legal one agrees with it: the constraints then report the problem."""
    parts = stages(request.pp_layout) if request.pp_layout is not None else None
    chunks = len(parts) // pp if parts and len(parts) % pp == 0 else 1
    return Split(request.fix("vpp") or chunks, request.account or (), request.pp_layout)


def choose(splits: tuple[Split, ...], *, interleaved: bool, slack: Callable[[Split], float]) -> Split | None:
    """Return the split with the least `slack`, the share of time that stages wait; without VPP unless `interleaved`.

    Among splits with about the same waiting, the simplest kind comes first, then the middle VPP.
    """
    virtual = [split for split in splits if split.vpp > 1] if interleaved else []
    if not virtual:
        return next((split for split in splits if split.vpp == 1), None)
    roomy = [split for split in virtual if split.layers >= _ROOMY] or virtual
    least = min(slack(split) for split in roomy)
    best = [split for split in roomy if slack(split) <= least + _NEAR]
    simplest = min(split.kind for split in best)
    same = [split for split in best if split.kind == simplest]
    return same[len(same) // 2]


_NEAR = 0.02
"""Splits whose waiting differs by less than this share of a step count as equal."""
_MICRO_BATCHES = 8
"""Micro-batches for each stage, to weigh bubbles: the usual number of published recipes."""


def slack_of(request: PlanRequest, pp: int, split: Split) -> float:
    """Return the share of time that stages wait: for the largest or the last stage, and in bubbles."""
    layout = Layout(1, 1, pp, 1, 1, split.vpp, split.account, split.pp_layout)
    largest, last = stage_shares(request.model.layers, layout)
    return max(largest, last + _head_share(request)) * pp + (pp - 1) / (split.vpp * _MICRO_BATCHES * pp)


def _head_share(request: PlanRequest) -> float:
    """Return the FLOPs of logits and multi-token prediction, as a share of those of the layers."""
    shape, mtp = request.model.shape, request.model.mtp
    if shape is None:
        return mtp / request.model.layers
    head = FACTOR * shape.hidden * shape.vocabulary * (1 + mtp)
    layers = flops_per_token(shape, request.seq_len, discount_window=True) - head
    body = layers * request.model.layers / (request.model.layers + mtp)
    return (head + layers - body) / body


BITS = {name: 1 << place for place, name in enumerate(BY_ID)}
_OF_SPLIT = (
    "scale-layers-pp", "scale-vpp-divisible", "scale-interleave-pp", "scale-layout-invalid", "scale-vpp-sources",
)  # fmt: skip
MOST = 1_000_000
"""Far more than any real model and cluster needs; numbers with very many divisors would fill the memory."""
_ETP = (1, 2, 4, 8)
"""Experts are split by width last, and never over more than the GPUs of a node."""
_CP_BEYOND = 2
"""CP is tried up to this multiple of its first guess; beyond it shards are under half of the usual range."""


class Mesh(NamedTuple):
    """Degrees as arrays with one entry per combination."""

    tp: IntArray
    cp: IntArray
    pp: IntArray
    ep: IntArray
    etp: IntArray

    def at(self, indices: IntArray) -> "Mesh":
        return Mesh(*(column[indices] for column in self))

    @property
    def attention(self) -> IntArray:
        """Return the GPUs of one replica of the attention."""
        return self.tp * self.cp * self.pp

    @property
    def experts(self) -> IntArray:
        return self.etp * self.ep * self.pp


@dataclass(frozen=True, slots=True)
class Candidates:
    """One entry per combination.

    `broken`: bits of `BITS`, 0: feasible. `virtual`: 1 if a virtual pipeline is possible. `seconds`: predicted step
    time of the feasible ones, and `peak_gb` their predicted memory and that of those that break only `plan-fits`;
    None when nothing is predicted.
    """

    mesh: Mesh
    broken: IntArray
    virtual: IntArray
    seconds: npt.NDArray[np.float64] | None = None
    peak_gb: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.broken)

    def layout(self, request: PlanRequest, index: int) -> Layout:
        """Return the layout of one combination, with its split into stages."""
        tp, cp, pp, ep, etp = (int(column[index]) for column in self.mesh)
        split = chosen_split(request, pp, interleaved=bool(self.virtual[index]))
        return Layout(tp, cp, pp, ep, etp, split.vpp, split.account, split.pp_layout)


def chosen_split(request: PlanRequest, pp: int, *, interleaved: bool) -> Split:
    splits = splits_of(request, pp)
    chosen = choose(splits, interleaved=interleaved, slack=partial(slack_of, request, pp))
    return chosen or (splits[0] if splits else unsplit(request, pp))


def candidates(request: PlanRequest) -> Candidates:
    """Return all combinations worth trying, with their predicted step times. Raises InvalidPlan."""
    return _estimated(request, combinations(request))


def combinations(request: PlanRequest) -> Candidates:
    """Return all combinations worth trying: divisors, and the fixed values.

    Raises InvalidPlan when there are more than `MOST`.
    """
    degrees, stages = _degrees(request), _pp_values(request)
    count = math.prod(map(len, degrees)) * len(stages)
    if count > MOST:
        why = f"must leave at most {MOST} combinations of degrees to try, not {count}. Fix TP, CP, PP or EP as well"
        raise InvalidPlan({"gpus": why})
    parts = [_of_stages(request, pp, degrees) for pp in stages]
    mesh = Mesh(*(np.concatenate(columns) for columns in zip(*(part.mesh for part in parts), strict=True)))
    broken = np.concatenate([part.broken for part in parts])
    return Candidates(mesh, broken, np.concatenate([part.virtual for part in parts]))


def _estimated(request: PlanRequest, options: Candidates) -> Candidates:
    """Return the combinations with their predicted step time; those that do not fit break `plan-fits`."""
    estimator = estimator_of(request)
    possible = np.flatnonzero(options.broken == 0)
    if estimator is None or not len(possible):
        return options
    mesh = options.mesh.at(possible)
    vpp, largest, last = np.ones((3, len(possible)))
    for pp, virtual in {
        (int(pp), int(virtual)) for pp, virtual in zip(mesh.pp, options.virtual[possible], strict=True)
    }:
        some = (mesh.pp == pp) & (options.virtual[possible] == virtual)
        split = chosen_split(request, pp, interleaved=bool(virtual))
        layout = Layout(1, 1, pp, 1, 1, split.vpp, split.account, split.pp_layout)
        vpp[some] = split.vpp
        largest[some], last[some] = stage_shares(request.model.layers, layout)
    estimates = estimator.estimate(_degrees_at(request, mesh, vpp, largest, last))
    broken, seconds, peak_gb = options.broken.copy(), *np.full((2, len(options)), np.inf)
    broken[possible[~estimates.fits]] |= BITS["plan-fits"]
    seconds[possible], peak_gb[possible] = estimates.seconds, estimates.peak_gb
    return Candidates(options.mesh, broken, options.virtual, seconds, peak_gb)


def _degrees_at(request: PlanRequest, mesh: Mesh, vpp: Floats, largest: Floats, last: Floats) -> Degrees:
    dp = request.gpus / mesh.attention
    ga = request.gbs / (request.mbs * dp) if request.gbs is not None else UNDECIDED_GA * mesh.attention
    columns = (mesh.tp, mesh.cp, mesh.pp, mesh.ep, mesh.etp, vpp, dp, request.gpus / mesh.experts, ga, largest, last)
    return Degrees(*(np.asarray(column, dtype=np.float64) for column in columns))


def _degrees(request: PlanRequest) -> tuple[Sequence[int], ...]:
    """Return the values of TP, CP, EP and ETP to try."""
    model, gpus = request.model, request.gpus
    widest = _CP_BEYOND * first_cp(request.seq_len)
    tp = _values(
        request, "tp", (divisor for divisor in divisors(model.heads) if divisor <= min(gpus, _widest_tp(request)))
    )
    halves = request.seq_len // 2
    cp = _values(
        request,
        "cp",
        (divisor for divisor in divisors(gpus) if divisor <= widest and (divisor == 1 or halves % divisor == 0)),
    )
    if model.experts is None:
        return tp, cp, _values(request, "ep", (1,)), _values(request, "etp", (1,))
    ep = _values(request, "ep", (divisor for divisor in divisors(model.experts) if divisor <= gpus))
    return tp, cp, ep, _values(request, "etp", (degree for degree in _ETP if degree <= gpus))


def _widest_tp(request: PlanRequest) -> int:
    """Return the largest TP to try: one NVLink domain. Beyond it every layer would wait for slow links."""
    domain = FACTS["nvlink_domain"](request.gpu)
    return domain if isinstance(domain, int) else request.gpus


def _pp_values(request: PlanRequest) -> Sequence[int]:
    most = request.model.layers + 2  # embedding and loss may have their own stages
    return _values(request, "pp", (divisor for divisor in divisors(request.gpus) if divisor <= most))


def _values(request: PlanRequest, name: str, free: Iterable[int]) -> Sequence[int]:
    fixed = request.fix(name)
    return (fixed,) if fixed else tuple(free)


def _of_stages(request: PlanRequest, pp: int, degrees: tuple[Sequence[int], ...]) -> Candidates:
    grids = np.meshgrid(*(np.asarray(values, dtype=np.int64) for values in degrees), indexing="ij")
    tp, cp, ep, etp = (grid.ravel() for grid in grids)
    mesh = Mesh(tp, cp, np.full_like(tp, pp), ep, etp)
    virtual, by_split = _pipeline(request, pp, mesh.attention)
    return Candidates(mesh, _broken(request, mesh) | by_split, virtual)


def _broken(request: PlanRequest, mesh: Mesh) -> IntArray:
    """Return the bits of constraints that do not depend on the split into stages."""
    model, gpus, length = request.model, request.gpus, request.seq_len
    attention, experts, tp, cp = mesh.attention, mesh.experts, mesh.tp, mesh.cp
    checks = {
        "scale-world-identity": (gpus % attention != 0) | (gpus % experts != 0),
        "scale-gpus-below-min": np.maximum(attention, experts) > gpus,
        "plan-heads-tp": model.heads % tp != 0,
        "scale-cp-divisible": (cp > 1) & (length % (2 * cp) != 0),
        "plan-sequence-shards": (tp > 1) & (length % (cp * tp) != 0),
    }
    if model.experts is None:
        checks["scale-ep-dense"] = mesh.ep > 1
    else:
        checks["scale-expert-divisible"] = model.experts % mesh.ep != 0
    if model.biased:
        checks["scale-moe-bias-etp"] = mesh.etp > 1
    if model.kv_groups is not None:
        checks["plan-kv-groups-tp"] = (model.kv_groups % tp != 0) & (tp % model.kv_groups != 0)
    if request.gbs is not None:
        dp = np.maximum(gpus // attention, 1)
        checks["scale-gbs-divisible"] = (gpus % attention == 0) & (request.gbs % (request.mbs * dp) != 0)
    there = gpu_memory_gb(request.gpu)
    if there is not None and not request.offload and estimator_of(request) is None:
        whole = (gpus % attention == 0) & (gpus % experts == 0)
        replicas, edp = np.maximum(gpus // attention, 1), np.maximum(gpus // experts, 1)
        static = static_gb(
            request,
            (tp * mesh.pp).astype(float),
            (replicas * cp).astype(float),
            experts.astype(float),
            edp.astype(float),
        )
        if static is not None:
            checks["plan-memory"] = whole & (static > there)
    bits = np.zeros_like(tp)
    for name, broken in checks.items():
        bits |= BITS[name] * broken.astype(np.int64)
    return bits


def _pipeline(request: PlanRequest, pp: int, attention: IntArray) -> tuple[IntArray, IntArray]:
    """Return where a virtual pipeline is possible, and the bits of constraints that depend on the split."""
    splits = splits_of(request, pp)
    none = np.zeros_like(attention)
    if not splits:
        split = unsplit(request, pp)
        layout = Layout(1, 1, pp, 1, 1, split.vpp, split.account, split.pp_layout)
        broken = {violation.constraint.id for violation in judge(request, layout)}
        bits = sum(BITS[name] for name in _OF_SPLIT if name in broken)
        filled = _fills(request, pp, attention) | (split.vpp == 1) | (pp == 1)
        return none, bits + BITS["scale-vpp-microbatches"] * (~filled).astype(np.int64)
    plain, interleaved = any(split.vpp == 1 for split in splits), any(split.vpp > 1 for split in splits)
    if not interleaved:
        return none, none
    filled = _fills(request, pp, attention)
    bad = none if plain else BITS["scale-vpp-microbatches"] * (~filled).astype(np.int64)
    return filled.astype(np.int64), bad


def _fills(request: PlanRequest, pp: int, attention: IntArray) -> npt.NDArray[np.bool_]:
    """Return True where the micro-batches of a step fill a virtual pipeline, or their number is unknown."""
    if request.gbs is None:
        return np.ones(len(attention), dtype=np.bool_)
    dp = np.maximum(request.gpus // attention, 1)
    ga = request.gbs // (request.mbs * dp)
    is_whole = (request.gpus % attention == 0) & (request.gbs % (request.mbs * dp) == 0)
    filled: npt.NDArray[np.bool_] = ~is_whole | ((ga >= pp) & (ga % pp == 0))
    return filled


def divisors(whole: int) -> tuple[int, ...]:
    """Return the divisors in rising order."""
    small = [divisor for divisor in range(1, int(whole**0.5) + 1) if whole % divisor == 0]
    return tuple(sorted({*small, *(whole // divisor for divisor in small)}))

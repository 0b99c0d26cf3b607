"""Layouts that published or own runs used for the same model. A plan shows them and is corrected by them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.domain.contract.fields import CONFIG_FIELDS, FIELDS
from app.domain.performance.flops import flops_per_token
from app.domain.planning.estimate import Record
from app.domain.planning.plan import DecidedChange, given_layout
from app.domain.planning.request import INPUTS, InvalidPlan, PlanRequest, input_text, read_request
from app.domain.run import Value

LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "etp", "pp_layout", "mtp")
_SHOWN = 6
KNOBS = tuple(
    name
    for name in (*CONFIG_FIELDS, "graph_impl", "graph_modules")
    if name != "dispatcher" and FIELDS[name].group not in ("Hardware", "Parallelism", "Environment")
)
"""Settings of a run that belong to its flags, next to layout, work and dispatcher."""
_UNSET = (None, False, (), "none", "auto")


@dataclass(frozen=True, slots=True)
class UsedLayout:
    """A layout that was used. `values`: contract fields. `figure`: its speed, "" when unknown. `whose`: its source.

    `by`: who published it, "" for runs of this service: `runs` launches of one configuration, with their pooled figures
    and the newest one's title and address. `stack`: their stack; `rank`: the configuration's position in its ranking;
    `is_rejected`: by an experiment. `is_generated`: an example, not a measurement.
    `step_time_s`, `tokens_per_s_per_gpu`, `tflops_per_gpu` and `peak_gb` (allocated, worst rank): as far as measured.
    """

    title: str
    href: str
    whose: str
    values: Mapping[str, Value]
    figure: str = ""
    step_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    peak_gb: float | None = None
    by: str = ""
    runs: int = 1
    stack: str = ""
    rank: float = math.inf
    is_rejected: bool = False
    is_generated: bool = False

    @property
    def key(self) -> tuple[Value, ...]:
        return tuple(self.values.get(name) for name in (*LAYOUT, "gpu", "gpus", "seq_len"))

    @property
    def degrees(self) -> str:
        """Format the stated degrees: `TP1 PP8 VPP4 CP1 EP32`."""
        names = [name for name in LAYOUT if name not in ("pp_layout", "mtp")]
        return " ".join(f"{name.upper()}{self.values[name]}" for name in names if self.values.get(name) is not None)


def nearest_layouts(request: PlanRequest, used: Iterable[UsedLayout]) -> tuple[tuple[UsedLayout, tuple[str, ...]], ...]:
    """Return the nearest different layouts, each with the fields in which its setting differs from the request."""
    stated = [
        layout
        for layout in used
        if isinstance(layout.values.get("tp"), int) and isinstance(layout.values.get("pp"), int)
    ]
    unique: dict[tuple[Value, ...], UsedLayout] = {}
    for used_layout in sorted(stated, key=lambda used_layout: _distance(request, used_layout)):
        unique.setdefault(used_layout.key, used_layout)
    return tuple((used_layout, _differs(request, used_layout)) for used_layout in list(unique.values())[:_SHOWN])


def _distance(request: PlanRequest, layout: UsedLayout) -> tuple[bool, float, bool, float]:
    """Return the sort key: another GPU is farthest, then the number of GPUs, precision and sequence length decide."""
    return (
        layout.values.get("gpu") != request.gpu,
        _apart(request.gpus, layout.values.get("gpus")),
        layout.values.get("precision") != request.precision,
        _apart(request.seq_len, layout.values.get("seq_len")),
    )


def _apart(ours: int, theirs: Value) -> float:
    """Return the distance in doublings; an unknown value counts as one."""
    return abs(math.log2(theirs / ours)) if isinstance(theirs, int) and theirs > 0 else 1.0


def _differs(request: PlanRequest, layout: UsedLayout) -> tuple[str, ...]:
    ours: Mapping[str, Value] = {
        "gpu": request.gpu, "gpus": request.gpus, "seq_len": request.seq_len, "precision": request.precision,
    }  # fmt: skip
    return tuple(name for name, value in ours.items() if layout.values.get(name) not in (None, value))


def fastest_dispatcher(request: PlanRequest, used: Iterable[UsedLayout]) -> str | None:
    """Return the dispatcher of the fastest own run of the nearest GPU count; None unless two dispatchers ran there."""
    fastest: dict[tuple[float, str], float] = {}
    for layout in used:
        record = None if layout.by or layout.is_rejected else _record(layout)
        if record is None or record.gpu_seconds is None or record.layout.ep == 1:
            continue
        work = record.request
        if work.dispatcher and (work.seq_len, work.precision) == (request.seq_len, request.precision):
            key = _apart(request.gpus, work.gpus), work.dispatcher
            fastest[key] = min(record.gpu_seconds, fastest.get(key, math.inf))
    nearest = min((apart for apart, _ in fastest), default=0.0)
    ran = {dispatcher: seconds for (apart, dispatcher), seconds in fastest.items() if apart == nearest}
    return min(ran, key=lambda name: ran[name]) if len(ran) > 1 else None


# --- As records for the estimate.


def records_of(used: Iterable[UsedLayout]) -> tuple[Record, ...]:
    """Return the complete layouts among `used`, with the best own and published ones of each layout, work, dispatcher.

    Within a stack the ranking decides which configuration is best: a shorter time alone may be chance. Over stacks, and
    over published figures, the shortest time does. A rejected configuration counts only without another one.
    """
    best: dict[tuple[object, ...], Record] = {}
    ranked: set[tuple[object, ...]] = set()
    for layout in sorted(used, key=lambda layout: (layout.is_rejected, layout.rank)):
        record = _record(layout)
        if record is None or (record.gpu_seconds is None and record.peak_gb is None):
            continue
        work = record.request
        key = (
            bool(layout.by), record.layout, work.gpu, work.gpus, work.seq_len, work.gbs, work.mbs, work.precision,
            work.dispatcher,
        )  # fmt: skip
        if (layout.stack, *key) in ranked or (layout.is_rejected and key in best):
            continue
        if layout.rank < math.inf:
            ranked.add((layout.stack, *key))
        previous = best.get(key)
        if previous is None or (record.gpu_seconds or math.inf) < (previous.gpu_seconds or math.inf):
            best[key] = record
    return tuple(best.values())


def decided_change(
    experiment: int, before: Mapping[str, Value], after: Mapping[str, Value], *, is_rejected: bool
) -> DecidedChange | None:
    """Return what users decided on a change of contract values; None if its layout is not known."""
    record = _record(UsedLayout(f"experiment #{experiment}", "", "", after))
    if record is None:
        return None
    changed = frozenset(name for name in (*INPUTS, *KNOBS) if before.get(name) != after.get(name))
    return DecidedChange(experiment, is_rejected, record, changed)


def _record(used: UsedLayout) -> Record | None:
    """Return a record, None when its work or its layout is not fully stated.

    An unstated ETP is 1; an unstated split into stages is the planner's.
    """
    if used.values.get("fsdp") not in (None, "none"):  # shards weights as well: other memory, other traffic
        return None
    values = {"mbs": 1, "cp": 1, "etp": 1, **{name: value for name, value in used.values.items() if value is not None}}
    texts = {name: input_text(values[name]) for name in INPUTS if name in values}
    if texts.get("precision") == "fp8":  # of some kind: all kinds have the same peak
        texts["precision"] = "fp8_cs"
    try:
        request = read_request({name: text for name, text in texts.items() if text})
    except InvalidPlan:
        return None
    if not request.is_complete:
        return None
    return Record(
        given_layout(request),
        request,
        _gpu_seconds(used, request),
        used.title,
        used.href,
        used.peak_gb,
        used.by,
        {} if used.by else {name: value for name in KNOBS if (value := used.values.get(name)) not in _UNSET},
        used.runs,
        None if used.tokens_per_s_per_gpu or used.step_time_s else used.tflops_per_gpu,
        used.is_generated,
    )


def _gpu_seconds(used: UsedLayout, request: PlanRequest) -> float | None:
    """Return GPU-seconds for a token: from tokens per second, the step time, or TFLOP/s; None without any."""
    if used.tokens_per_s_per_gpu:
        return 1.0 / used.tokens_per_s_per_gpu
    if used.step_time_s and request.gbs is not None:
        return used.step_time_s * request.gpus / (request.gbs * request.seq_len)
    if used.tflops_per_gpu and request.model.shape is not None:
        flops = flops_per_token(request.model.shape, request.seq_len, discount_window=True)
        return flops / (1e12 * used.tflops_per_gpu)
    return None

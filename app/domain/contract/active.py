"""What was asked for beside what ran: four knobs that trainers can change, refuse or ignore without stopping.

A line that proves what ran counts, whatever was asked for. Where no line proves it, iterations that ran let it be
inferred, of trainers that refuse to start otherwise: Megatron Core asserts a dispatcher's package and what an overlap
needs. That is a conclusion and no proof, and is told as one (`derived`). Slowness shows nothing.
"""

from collections.abc import Callable, Mapping

from app.domain.contract.values import same_value, shown
from app.domain.run import Activity, LogEvent, ParsedLog, Stated, Value

Facts = Mapping[str, Stated]

_OFF = (None, False, "none")
"""Asking for nothing needs no proof."""

REFUSE_TO_START = frozenset({"Megatron-LM", "Megatron-Bridge", "NeMo 2", "Primus"})
"""Trainers on Megatron Core as it is, whose dispatchers raise an error without their package (`fused_a2a.py`) and whose
overlap is asserted at start. Forks and others may fall back in silence: of those only a line counts."""

_CAPTURED = (
    ("CUDA graph capture done for training", "full_iteration"),
    ("Time spent in CUDA Graphs capture", "transformer_engine"),
    ("cuda graph(s) in ", "local"),
)
"""Who prints what when graphs were captured (Megatron-LM `full_cuda_graph.py`, `transformer/cuda_graphs.py`)."""


def activity(log: ParsedLog, requested: Facts) -> dict[str, Activity]:
    """Requested and active values by field; fields of which neither is known, or that are not in use, are left out."""
    found = {}
    for name, rule in _RULES.items():
        asked, ran = requested.get(name), rule(log, requested)
        if ran is None and (asked is None or asked.value in _OFF):
            continue
        agrees = None if asked is None or ran is None else same_value(name, asked.value, ran.value)
        found[name] = Activity(asked, ran, agrees)
    return found


def proven(activities: Mapping[str, Activity]) -> dict[str, Stated]:
    """What ran where the log proves it: these values go into the contract."""
    return {
        name: one.active
        for name, one in activities.items()
        if one.active is not None and one.active.source in ("log line", "arguments")
    }


def disagreements(activities: Mapping[str, Activity]) -> list[str]:
    """A sentence on each field that ran otherwise than it was asked for."""
    return [
        f"The {_LABELS[name]} {shown(one.requested.value)} was asked for, but {shown(one.active.value)} ran "
        f"({one.active.detail}). The run counts for {shown(one.active.value)} only."
        for name, one in activities.items()
        if one.agrees is False and one.requested is not None and one.active is not None
        if one.requested.value is not None
    ]


def _line(event: LogEvent, value: Value) -> Stated:
    return Stated(value, "log line", f"line {event.line}: {event.text}", event.file)


def _first(log: ParsedLog, kind: str) -> LogEvent | None:
    return next((event for event in log.events if event.kind == kind), None)


def _accepted(log: ParsedLog, asked: Stated | None, why: str) -> Stated | None:
    """The value asked for, when the log has both the trainer's settings and iterations that ran with them."""
    if asked is None or asked.value is None or log.n == 0 or not log.arguments:
        return None
    return Stated(asked.value, "derived", f"{log.n} iterations ran, and {why}")


def _inferred(log: ParsedLog, asked: Stated | None, why: str) -> Stated | None:
    """The same where the trainer is known to refuse what it cannot run; `why` names it."""
    return _accepted(log, asked, why.format(trainer=log.trainer)) if log.trainer in REFUSE_TO_START else None


def _dispatcher(log: ParsedLog, requested: Facts) -> Stated | None:
    asked = requested.get("dispatcher")
    fallback = _first(log, "dispatcher_fallback")
    if fallback is not None:
        return _line(fallback, "alltoall")
    if log.arguments.get("use_turbo_deepep") is True and log.arguments.get("enable_primus_turbo") is not False:
        return Stated("deepep", "arguments", "use_turbo_deepep = True")
    timeout = _first(log, "deepep_timeout")
    if timeout is not None and asked is not None and asked.value == "deepep":
        return _line(timeout, "deepep")
    return _inferred(log, asked, "{trainer} does not start without its dispatcher's package")


def _graphs(log: ParsedLog, requested: Facts) -> Stated | None:  # noqa: ARG001
    event = _first(log, "graph_captured")
    if event is None:
        return None
    return next((_line(event, value) for text, value in _CAPTURED if text in event.text), None)


def _overlap(log: ParsedLog, requested: Facts) -> Stated | None:
    asked = requested.get("ep_overlap")
    if asked is None or asked.value is not True:
        return None
    return _inferred(log, asked, "{trainer} checks what the overlap needs before it starts")


def _precision(log: ParsedLog, requested: Facts) -> Stated | None:  # noqa: ARG001
    stated = log.stated.get("precision")
    told = _accepted(log, stated, "the trainer's own settings say so")
    return told and Stated(told.value, "derived", f"{told.detail}: {stated.detail}" if stated else told.detail)


def _permutation(log: ParsedLog, requested: Facts) -> Stated | None:  # noqa: ARG001
    event = _first(log, "permute_fallback")
    return None if event is None else _line(event, False)


_RULES: dict[str, Callable[[ParsedLog, Facts], Stated | None]] = {
    "dispatcher": _dispatcher,
    "graph_impl": _graphs,
    "ep_overlap": _overlap,
    "precision": _precision,
    "hybridep_permute_fused": _permutation,
}
_LABELS = {
    "dispatcher": "dispatcher",
    "graph_impl": "CUDA-graph implementation",
    "ep_overlap": "value `ep_overlap` =",
    "precision": "precision",
    "hybridep_permute_fused": "value `hybridep_permute_fused` =",
}

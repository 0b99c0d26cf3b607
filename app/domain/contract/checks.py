"""What in a contract cannot be right, or is told two ways: sentences for people, each with what to correct."""

from collections.abc import Callable, Mapping

from app.domain.contract.values import differences, known_model, layout_problem, same_value, shown
from app.domain.run import Activity, LogEvent, ParsedLog, Stated, Value

Facts = Mapping[str, Stated]


def contradictions(
    who: str, stated: Facts, seen: Facts, *, seen_alone: Facts, merged: Facts, where: Mapping[str, str]
) -> list[str]:
    """Fields that `who` states one way and a weaker source another; both are named, the stronger one wins.

    `seen`: what weaker sources state, each at the place that `where` names; `seen_alone` and `merged`: what follows
    from them alone, and from everything. A field counts when it differs as it was stated and in effect: a knob that is
    not in use contradicts nothing.
    """
    found = []
    many = who == "the metadata"
    for name, claim in stated.items():
        other = seen.get(name) or seen_alone.get(name)
        if other is None or same_value(name, claim.value, other.value):
            continue
        if name in seen_alone and name in merged and same_value(name, merged[name].value, seen_alone[name].value):
            continue
        place = where.get(name, "the log")
        found.append(
            f"`{name}` is {shown(claim.value)} in {who} but {shown(other.value)} in {place} "
            f"({_origin(other)}). {who.capitalize()} {'are' if many else 'is'} used; correct "
            f"{'them' if many else 'it'} if {place} is right."
        )
    return found


def overruled_defaults(stated: Facts, defaults: Facts, *, weaker: Facts, merged: Facts) -> list[str]:
    """Fields that the metadata state otherwise than a dump that leaves them out: what it has then is a default.

    `weaker`: what anybody else states, who is named by `contradictions`. A knob that is not in use contradicts nothing.
    """
    return [
        f"`{name}` is {shown(claim.value)} in the metadata, but the log's arguments do not list it, and the trainer's "
        f"default is {shown(defaults[name].value)}. The metadata are used; correct them if the run had the default."
        for name, claim in stated.items()
        if name in defaults
        and name not in weaker
        and not same_value(name, claim.value, defaults[name].value)
        and name in merged
        and same_value(name, merged[name].value, claim.value)
    ]


def _origin(stated: Stated) -> str:
    return f"{stated.source}: {stated.detail}" if stated.detail else stated.source


def impossibilities(contract: Facts) -> list[str]:
    """Identities between the fields that do not hold."""
    checks = (
        _divides(contract, "gpus", ("tp", "pp", "cp")),
        _divides(contract, "gpus", ("pp", "ep", "etp")),
        _divides(contract, "gbs", ("mbs", "dp")),
        _divides(contract, "num_experts", ("ep",)),
        _replicas(contract),
        _experts_without_model(contract),
        _context_parallelism(contract),
        _virtual_pipeline(contract),
        _layout(contract),
        _model(contract),
    )
    return [sentence for sentence in checks if sentence]


def _count(contract: Facts, name: str) -> int | None:
    value = contract[name].value if name in contract else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _divides(contract: Facts, total: str, parts: tuple[str, ...]) -> str | None:
    whole, sizes = _count(contract, total), [_count(contract, part) for part in parts]
    if whole is None or any(size is None for size in sizes):
        return None
    product = 1
    for size in sizes:
        product *= size or 1
    if whole % product == 0:
        return None
    values = f"{' x '.join(str(size) for size in sizes)} = {product}" if len(sizes) > 1 else str(product)
    return f"`{total}` = {whole} cannot be divided by {' x '.join(parts)} = {values}. One of these fields is wrong."


def _replicas(contract: Facts) -> str | None:
    """A stated dp that does not follow from the others."""
    dp, gpus = _count(contract, "dp"), _count(contract, "gpus")
    parts = [_count(contract, name) for name in ("tp", "pp", "cp")]
    if dp is None or gpus is None or None in parts:
        return None
    product = dp
    for size in parts:
        product *= size or 1
    if product == gpus:
        return None
    return f"tp x pp x cp x dp = {product}, but `gpus` = {gpus}. One of these fields is wrong."


def _experts_without_model(contract: Facts) -> str | None:
    ep = _count(contract, "ep")
    if ep and ep > 1 and "num_experts" in contract and contract["num_experts"].value is None:
        return f"`ep` = {ep}, but the model has no experts. One of these fields is wrong."
    return None


def _context_parallelism(contract: Facts) -> str | None:
    cp, seq_len = _count(contract, "cp"), _count(contract, "seq_len")
    if cp and cp > 1 and seq_len and seq_len % (2 * cp):
        return f"`seq_len` = {seq_len} cannot be divided by 2 x cp = {2 * cp}, which context parallelism needs."
    return None


def _virtual_pipeline(contract: Facts) -> str | None:
    vpp, ga, pp = (_count(contract, name) for name in ("vpp", "ga", "pp"))
    if vpp and vpp > 1 and ga and pp and ga < pp:
        return f"A virtual pipeline needs at least pp = {pp} micro-batches a step; this run has {ga}."
    return None


def _layout(contract: Facts) -> str | None:
    layout = contract["pp_layout"].value if "pp_layout" in contract else None
    if not isinstance(layout, str):
        return None
    mtp = (_count(contract, "mtp") or 0) if "mtp" in contract else None
    problem = layout_problem(layout, _count(contract, "pp"), _count(contract, "num_layers"), mtp)
    return f"The pipeline layout {layout} {problem}. Check `pp_layout`." if problem else None


def _model(contract: Facts) -> str | None:
    name = contract["model"].value if "model" in contract else None
    model = known_model(name) if isinstance(name, str) else None
    if model is None:
        return None
    found = differences(model, {field: stated.value for field, stated in contract.items()})
    if not found:
        return None
    return (
        f"`model` is {name}, but {'; '.join(found)}. Name a shortened or changed model differently, so that it is not "
        f"ranked with the real one."
    )


# --- What was asked for beside what ran: four knobs that trainers can change, refuse or ignore without stopping.
#
# A line that proves what ran counts, whatever was asked for. Where no line proves it, iterations that ran let it be
# inferred, of trainers that refuse to start otherwise: Megatron Core asserts a dispatcher's package and what an
# overlap needs. That is a conclusion and no proof, and is told as one (`derived`). Slowness shows nothing.

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

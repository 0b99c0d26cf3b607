"""Finds values of a contract that cannot be right or that two sources state differently, with the correction."""

from collections.abc import Callable, Mapping, Sequence

from app.domain.contract.values import differences, known_model, layout_problem, same_value, shown
from app.domain.documents.document import Document
from app.domain.run import Activity, LogEvent, ParsedLog, Stated, Value

Facts = Mapping[str, Stated]


def contradictions(
    who: str, stated: Facts, seen: Facts, *, seen_alone: Facts, merged: Facts, where: Mapping[str, str]
) -> list[str]:
    """Return a warning for each field that `who` and a weaker source state differently. The stronger source wins.

    `seen`: what the weaker sources state, with the name of each source in `where`. `seen_alone` and `merged`: what
    follows from the weaker sources alone, and from all sources. A field counts only when both the stated and the
    effective value differ, so an unused knob contradicts nothing.
    """
    warnings = []
    many = who == "the metadata"
    for name, claim in stated.items():
        other = seen.get(name) or seen_alone.get(name)
        if other is None or same_value(name, claim.value, other.value):
            continue
        if name in seen_alone and name in merged and same_value(name, merged[name].value, seen_alone[name].value):
            continue
        place = where.get(name, "the log")
        warnings.append(
            f"`{name}` is {shown(claim.value)} in {who} but {shown(other.value)} in {place} "
            f"({_origin(other)}). {who.capitalize()} {'are' if many else 'is'} used; correct "
            f"{'them' if many else 'it'} if {place} is right."
        )
    return warnings


def other_allocations(documents: Sequence[Document], seen: Facts) -> list[str]:
    """Return a warning for each Slurm document whose allocation differs from the world size of the log."""
    return [
        f"`gpus` is {shown(seen['gpus'].value)} in the log ({_origin(seen['gpus'])}) but "
        f"{shown(document.stated['gpus'].value)} in the slurm accounting ({document.stated['gpus'].detail}). The log "
        "is used: a job may leave allocated GPUs idle. Check that the accounting belongs to this job."
        for document in documents
        if document.kind == "slurm accounting"
        and "gpus" in seen
        and "gpus" in document.stated
        and document.stated["gpus"].value != seen["gpus"].value
    ]


def overruled_defaults(stated: Facts, defaults: Facts, *, weaker: Facts, merged: Facts) -> list[str]:
    """Return a warning for each field of the metadata that differs from the default of a dump that omits it.

    `weaker`: what other sources state; `contradictions` covers those fields. An unused knob contradicts nothing.
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
    """Return a warning for each identity between fields that does not hold."""
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
    """Check that a stated dp agrees with gpus, tp, pp and cp."""
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
        return f"A virtual pipeline needs at least pp = {pp} micro-batches per step; this run has {ga}."
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
    deviations = differences(model, {field: stated.value for field, stated in contract.items()})
    if not deviations:
        return None
    return (
        f"`model` is {name}, but {'; '.join(deviations)}. Give a shortened or modified model a different name, so that "
        f"it is not ranked with the original."
    )


# --- Requested and active values of the knobs that trainers can change, refuse or ignore without stopping.
#
# A log line that proves the active value wins over the request. Without such a line, completed iterations are evidence
# for trainers that refuse to start otherwise: Megatron Core asserts a dispatcher's package and the requirements of an
# overlap. This is an inference, so its source is `derived`. A slow run is not proof.

_OFF = (None, False, "none")
"""Requests that need no evidence."""

_PROOF = ("log line", "arguments")
"""Sources of values that the trainer itself printed."""

_SIZE = ("gpus", "gbs", "seq_len")

REFUSE_TO_START = frozenset({"Megatron-LM", "Megatron-Bridge", "NeMo 2", "Primus"})
"""Trainers on unmodified Megatron Core: their dispatchers raise an error without their package (`fused_a2a.py`), and
they assert the requirements of the overlap at start. Forks may fall back silently, so only a log line counts there."""

_CAPTURED = (
    ("CUDA graph capture done for training", "full_iteration"),
    ("Time spent in CUDA Graphs capture", "transformer_engine"),
    ("cuda graph(s) in ", "local"),
)
"""Texts printed after a capture, by implementation (Megatron-LM `full_cuda_graph.py`, `transformer/cuda_graphs.py`)."""


def activity(log: ParsedLog, requested: Facts) -> dict[str, Activity]:
    """Return requested and active values by field, without fields that are unused or unknown on both sides.

    The size of a step is listed only where it differs: every figure follows from it, and most logs print it.
    """
    activities = {}
    for name in _SIZE:
        claimed, printed = requested.get(name), log.stated.get(name)
        if name == "seq_len" and log.arguments.get("decoder_seq_length") is not None:
            continue  # `seq_length` is then that of the encoder
        if claimed is not None and printed is not None and printed.source in _PROOF and claimed.value != printed.value:
            activities[name] = Activity(claimed, printed, agrees=False)
    for name, rule in _RULES.items():
        request, active = requested.get(name), rule(log, requested)
        if active is None and (request is None or request.value in _OFF):
            continue
        agrees = None if request is None or active is None else same_value(name, request.value, active.value)
        activities[name] = Activity(request, active, agrees)
    return activities


def proven(activities: Mapping[str, Activity]) -> dict[str, Stated]:
    """Return the active values that the log proves. They go into the contract."""
    return {
        name: knob.active
        for name, knob in activities.items()
        if knob.active is not None and knob.active.source in _PROOF
    }


def disagreements(activities: Mapping[str, Activity]) -> list[str]:
    """Return a warning for each field whose active value differs from the requested one."""
    return [
        f"The {_LABELS[name]} {shown(knob.requested.value)} was requested, but {shown(knob.active.value)} was active "
        f"({knob.active.detail}). The run counts as {shown(knob.active.value)}."
        for name, knob in activities.items()
        if knob.agrees is False and knob.requested is not None and knob.active is not None
        if knob.requested.value is not None
    ]


def _line(event: LogEvent, value: Value) -> Stated:
    return Stated(value, "log line", f"line {event.line}: {event.text}", event.file, event.line)


def _first(log: ParsedLog, kind: str) -> LogEvent | None:
    return next((event for event in log.events if event.kind == kind), None)


def _accepted(log: ParsedLog, requested: Stated | None, why: str) -> Stated | None:
    """Return the requested value when the log has both the trainer's settings and iterations that ran with them."""
    if requested is None or requested.value is None or log.n == 0 or not log.arguments:
        return None
    return Stated(requested.value, "derived", f"{log.n} iterations ran, and {why}")


def _inferred(log: ParsedLog, requested: Stated | None, why: str) -> Stated | None:
    """Return the requested value when the trainer refuses to start with settings that it cannot run."""
    return _accepted(log, requested, why.format(trainer=log.trainer)) if log.trainer in REFUSE_TO_START else None


def _dispatcher(log: ParsedLog, requested: Facts) -> Stated | None:
    dispatcher = requested.get("dispatcher")
    fallback = _first(log, "dispatcher_fallback")
    if fallback is not None:
        return _line(fallback, "alltoall")
    if log.arguments.get("use_turbo_deepep") is True and log.arguments.get("enable_primus_turbo") is not False:
        return Stated("deepep", "arguments", "use_turbo_deepep = True")
    timeout = _first(log, "deepep_timeout")
    if timeout is not None and dispatcher is not None and dispatcher.value == "deepep":
        return _line(timeout, "deepep")
    return _inferred(log, dispatcher, "{trainer} does not start without its dispatcher's package")


def _graphs(log: ParsedLog, requested: Facts) -> Stated | None:  # noqa: ARG001
    event = _first(log, "graph_captured")
    if event is None:
        return None
    return next((_line(event, value) for text, value in _CAPTURED if text in event.text), None)


def _overlap(log: ParsedLog, requested: Facts) -> Stated | None:
    overlap = requested.get("ep_overlap")
    if overlap is None or overlap.value is not True:
        return None
    return _inferred(log, overlap, "{trainer} checks what the overlap needs before it starts")


def _precision(log: ParsedLog, requested: Facts) -> Stated | None:  # noqa: ARG001
    stated = log.stated.get("precision")
    accepted = _accepted(log, stated, "the trainer's own settings say so")
    return accepted and Stated(
        accepted.value, "derived", f"{accepted.detail}: {stated.detail}" if stated else accepted.detail
    )


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
    "gpus": "world size",
    "gbs": "global batch size",
    "seq_len": "sequence length",
    "dispatcher": "dispatcher",
    "graph_impl": "CUDA-graph implementation",
    "ep_overlap": "value `ep_overlap` =",
    "precision": "precision",
    "hybridep_permute_fused": "value `hybridep_permute_fused` =",
}

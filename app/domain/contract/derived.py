"""Contract fields that follow from others: each a small function that names its inputs, or says nothing."""

import math
from collections.abc import Callable, Mapping

from app.domain.contract import pp_layout
from app.domain.contract.hardware import GPUS_PER_NODE
from app.domain.contract.model_names import known_model, outline_name, recognise
from app.domain.contract.unused_knobs import switch_off_unused
from app.domain.contract.values import shown
from app.domain.run import Stated, Value

Facts = Mapping[str, Stated]


def derive(facts: Facts) -> dict[str, Stated]:
    """`facts` and everything that follows from them and nobody stated; knobs that are not in use become unset."""
    known = dict(facts)
    for name, rule in _RULES:
        fillable = name not in known or (name in _FILLED_WHEN_UNSET and known[name].value is None)
        if fillable and (derived := rule(known)) is not None:
            known[name] = derived
    return switch_off_unused(known)


def _value(facts: Facts, name: str) -> Value:
    return facts[name].value if name in facts else None


def _count(facts: Facts, name: str) -> int | None:
    value = _value(facts, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _quotient(facts: Facts, total: str, *parts: str) -> Stated | None:
    """`total` over the product of `parts`, when all are known and it divides."""
    whole, sizes = _count(facts, total), [_count(facts, part) for part in parts]
    if whole is None or None in sizes:
        return None
    product = math.prod(size for size in sizes if size is not None)
    if whole % product:
        return None
    detail = f"{total} / ({' x '.join(parts)}) = {whole} / {product}"
    return Stated(whole // product, "derived", detail)


def _gpus(facts: Facts) -> Stated | None:
    sizes = [_count(facts, name) for name in ("tp", "pp", "cp", "dp")]
    if None in sizes:
        return None
    return Stated(math.prod(size or 1 for size in sizes), "derived", "tp x pp x cp x dp")


def _gpus_per_node(facts: Facts) -> Stated | None:
    gpu = _value(facts, "gpu")
    usual = GPUS_PER_NODE.get(gpu) if isinstance(gpu, str) else None
    if usual is None:
        return None
    gpus = _count(facts, "gpus") or usual
    return Stated(min(usual, gpus), "derived", f"{gpu} nodes have {usual} GPUs")


def _etp(facts: Facts) -> Stated | None:
    tp = _count(facts, "tp")
    return None if tp is None else Stated(tp, "derived", "unset: the trainer takes tp")


def _dp(facts: Facts) -> Stated | None:
    return _quotient(facts, "gpus", "tp", "pp", "cp")


def _edp(facts: Facts) -> Stated | None:
    return _quotient(facts, "gpus", "pp", "ep", "etp")


def _ga(facts: Facts) -> Stated | None:
    return _quotient(facts, "gbs", "mbs", "dp")


def _gbs(facts: Facts) -> Stated | None:
    """Stated as unset, the trainer takes one micro-batch a replica; a batch that nobody stated stays unknown."""
    mbs, dp = _count(facts, "mbs"), _count(facts, "dp")
    if "gbs" not in facts or mbs is None or dp is None:
        return None
    return Stated(mbs * dp, "derived", "unset: the trainer takes mbs x dp")


def _vpp(facts: Facts) -> Stated | None:
    layout, pp = _value(facts, "pp_layout"), _count(facts, "pp")
    stages = pp_layout.stages(layout) if isinstance(layout, str) else None
    if not stages or not pp or len(stages) % pp:
        return None
    chunks = len(stages) // pp
    return Stated(chunks, "derived", f"the layout has {len(stages)} stages, pp is {pp}")


def _dispatcher(facts: Facts) -> Stated | None:
    kind, backend = facts.get("dispatcher_type"), facts.get("flex_backend")
    if kind is None or kind.value is None:
        return None
    if kind.value != "flex":
        return Stated(kind.value, "derived", f"dispatcher_type is {kind.value}")
    if backend is None or backend.value is None:
        return Stated("deepep", "derived", "dispatcher_type is flex; its backend is unset, which is deepep")
    return Stated(backend.value, "derived", f"dispatcher_type is flex, flex_backend is {backend.value}")


def _routing_mode(facts: Facts) -> Stated | None:
    """The first match wins; `dropless` only when the switches of the other modes are known to be off."""
    if _value(facts, "force_balance") is True:
        return Stated("forced-balance", "derived", "force_balance is on")
    capacity = facts.get("capacity")
    if capacity is not None and capacity.value is not None:
        padded = _value(facts, "pad_to_capacity") is True
        mode = "drop-and-pad" if padded else "capacity-drop"
        return Stated(mode, "derived", f"capacity is {shown(capacity.value)}, padding is {'on' if padded else 'off'}")
    if _value(facts, "rank_capacity") is not None and _value(facts, "dispatcher") in ("hybridep", "ncclep"):
        return Stated("capacity-drop", "derived", "rank_capacity is set")
    if "force_balance" in facts and capacity is not None:
        return Stated("dropless", "derived", "nothing forces the router or drops tokens")
    return None


def _recompute_modules(facts: Facts) -> Stated | None:
    if _value(facts, "recompute_granularity") == "selective":
        return Stated(("core_attn",), "derived", "unset: the trainer takes core_attn")
    return None


def _model(facts: Facts) -> Stated | None:
    values = {name: stated.value for name, stated in facts.items()}
    known = recognise(values)
    if known is not None:
        return Stated(known.name, "derived", "its shape is that of this model")
    name = outline_name(values)
    return None if name is None else Stated(name, "derived", "made from its shape, which is that of no model we know")


def _vocabulary(facts: Facts) -> Stated | None:
    """A known model has a known vocabulary; a recognised shape without one still gets its FLOPs."""
    name = _value(facts, "model")
    model = known_model(name) if isinstance(name, str) else None
    if model is None or model.vocabulary is None:
        return None
    return Stated(model.vocabulary, "derived", f"that of {model.name}")


_RULES: tuple[tuple[str, Callable[[Facts], Stated | None]], ...] = (
    ("gpus", _gpus),
    ("gpus_per_node", _gpus_per_node),
    ("etp", _etp),
    ("dp", _dp),
    ("edp", _edp),
    ("gbs", _gbs),
    ("ga", _ga),
    ("vpp", _vpp),
    ("dispatcher", _dispatcher),
    ("routing_mode", _routing_mode),
    ("recompute_modules", _recompute_modules),
    ("model", _model),
    ("vocab_size", _vocabulary),
)
"""In the order in which one needs another."""

_FILLED_WHEN_UNSET = frozenset({"gbs", "etp", "vpp", "recompute_modules"})
"""Fields for which the trainer takes another field's value when they are unset."""

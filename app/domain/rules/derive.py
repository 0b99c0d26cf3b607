"""Facts that follow from others: each a small function of the facts it names; what cannot be known stays absent."""

import math
from collections.abc import Callable, Mapping

from app.domain.contract.fields.environment import PREFIX
from app.domain.rules import hardware, models, preflight
from app.domain.rules.facts import SETTINGS, normal

Values = Mapping[str, object]
Rule = Callable[[Values], object]


def derive(facts: Values, settings: Mapping[str, float] | None = None) -> dict[str, object]:
    """`facts` (as people write them) with everything that follows, and with the thresholds.

    What is stated wins over what would follow. Raises ValueError on a fact that is none.
    """
    known: dict[str, object] = {**SETTINGS, **(settings or {}), **normal(facts)}
    if "etp" in known and known["etp"] is None:
        known["etp_unset"] = True
        del known["etp"]
    if "dispatcher" in known and known["dispatcher"] is None:  # left to the trainer
        known = {"dispatcher_type": None, "flex_backend": None} | known
    for name, rule in RULES:
        if name not in known and (value := rule(known)) is not None:
            known[name] = value
    return known


def _ints(values: Values, *names: str) -> list[int] | None:
    """The counts of that name, all of them, or None."""
    found = [values.get(name) for name in names]
    counts = [value for value in found if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return counts if len(counts) == len(names) else None


def _quotient(whole: str, *parts: str) -> Rule:
    def rule(values: Values) -> int | None:
        counts = _ints(values, whole, *parts)
        if counts is None or counts[0] % math.prod(counts[1:]):
            return None
        return counts[0] // math.prod(counts[1:])

    return rule


def _product(*names: str) -> Rule:
    def rule(values: Values) -> int | None:
        counts = _ints(values, *names)
        return None if counts is None else math.prod(counts)

    return rule


def _ratio(above: str, below: str) -> Callable[[Values], float | None]:
    def rule(values: Values) -> float | None:
        a, b = values.get(above), values.get(below)
        return a / b if isinstance(a, float) and isinstance(b, float) and b > 0 else None

    return rule


def _when_known(name: str, of: Callable[[object], object]) -> Rule:
    """`of` the value of `name`, also of an unset one; nothing where it is unknown."""
    return lambda values: of(values[name]) if name in values else None


def _etp(values: Values) -> int | None:
    """Known to be unset, or without experts, the trainer takes tp; one that nobody states is not known to be unset."""
    counts, is_default = _ints(values, "tp"), values.get("etp_unset") is True or values.get("moe") is False
    return counts[0] if counts is not None and is_default else None


def _etp_unset(values: Values) -> bool | None:
    return False if "etp" in values else None


def _dispatcher(values: Values) -> object:
    kind = values.get("dispatcher_type")
    if kind != "flex":
        return kind
    return values.get("flex_backend") or ("deepep" if "flex_backend" in values else None)


def _dispatcher_type(values: Values) -> object:
    dispatcher = values.get("dispatcher")
    return "flex" if dispatcher in ("deepep", "hybridep", "ncclep") else dispatcher


def _flex_backend(values: Values) -> object:
    dispatcher = values.get("dispatcher")
    return dispatcher if dispatcher in ("deepep", "hybridep", "ncclep") else None


def _flex(values: Values) -> bool | None:
    kind = values.get("dispatcher_type")
    return None if kind is None else kind == "flex"


def _recompute_modules(values: Values) -> list[str] | None:
    return [] if values.get("recompute_granularity") in ("none", "full") else None


def _min_gpus(values: Values) -> int | None:
    counts = _ints(values, "pp", "tp", "cp", "ep", "etp")
    if counts is None:
        return None
    pp, tp, cp, ep, etp = counts
    return pp * max(tp * cp, ep * etp)


def _shard(values: Values) -> int | None:
    counts = _ints(values, "seq_len", "cp", "tp")
    if counts is None or ("sp" not in values and counts[2] > 1):
        return None
    seq_len, cp, tp = counts
    return seq_len // (cp * (tp if values.get("sp") else 1))


def _cp0(values: Values) -> int | None:
    counts = _ints(values, "seq_len")
    return None if counts is None else max(1, 2 ** round(math.log2(counts[0] / 4096)))


def _nodes(values: Values) -> int | None:
    counts = _ints(values, "gpus", "gpus_per_node")
    return None if counts is None else -(-counts[0] // counts[1])


def _ga_headroom(values: Values) -> int | None:
    counts = _ints(values, "ga", "pp")
    return None if counts is None else counts[0] - counts[1]


def _gpus_per_node(values: Values) -> int | None:
    usual = hardware.gpus_per_node(values.get("gpu"))
    gpus = _ints(values, "gpus")
    return None if usual is None else min(usual, gpus[0] if gpus else usual)


def _headroom(values: Values) -> float | None:
    used = _ratio("mem_alloc_peak_gb", "hbm_gb")(values)
    return None if used is None else max(0.0, 1 - used)


def _memory_pressure(values: Values) -> str | None:
    """For the reasons of rules: running out says more than what was free before."""
    if values.get("oom") is True:
        return "The job ran out of GPU memory"
    free = values.get("headroom_frac")
    return f"{free:.0%} of the GPU's memory is free" if isinstance(free, float) else None


def _fragmentation(values: Values) -> float | None:
    reserved, allocated = values.get("mem_reserved_peak_gb"), values.get("mem_alloc_peak_gb")
    if not isinstance(reserved, float) or not isinstance(allocated, float):
        return None
    return max(0.0, reserved - allocated)


def _gflop_per_token(values: Values) -> float | None:
    ratio = _ratio("tflops_gpu", "tokens_s_gpu")(values)
    return None if ratio is None else 1000 * ratio


def _slowdown(values: Values) -> float | None:
    ratio = _ratio("profiled_step_s", "unprofiled_step_s")(values)
    return None if ratio is None else ratio - 1


def _tokens_s_gpu(values: Values) -> float | None:
    counts, step = _ints(values, "gbs", "seq_len", "gpus"), values.get("step_s")
    if counts is None or not isinstance(step, float) or step <= 0:
        return None
    return counts[0] * counts[1] / (step * counts[2])


def _profiled(values: Values) -> bool:
    """Known always: a run without any of these figures has no profile."""
    return any(name in values for name in ("exposed_comm_frac", "gpu_idle_frac", "launch_starved_frac", "sm_util"))


def _expandable(conf: object) -> bool:
    return "expandable_segments:true" in str(conf or "").lower().replace(" ", "")


RULES: tuple[tuple[str, Rule], ...] = (
    ("gpu", lambda values: values.get("sku")),
    ("sku", lambda values: values.get("gpu")),
    *((name, _when_known("gpu", rule)) for name, rule in hardware.FACTS.items()),
    *models.RULES,
    *preflight.RULES,
    ("gpus", _product("tp", "pp", "cp", "dp")),
    ("gpus_per_node", _gpus_per_node),
    ("nodes", _nodes),
    ("etp_unset", _etp_unset),
    ("etp", _etp),
    ("dp", _quotient("gpus", "tp", "pp", "cp")),
    ("edp", _quotient("gpus", "pp", "ep", "etp")),
    ("ga", _quotient("gbs", "mbs", "dp")),
    ("min_gpus", _min_gpus),
    ("min_ga_headroom", _ga_headroom),
    ("vpp_or_1", _when_known("vpp", lambda vpp: vpp or 1)),
    ("tokens_per_cp_shard", _quotient("seq_len", "cp")),
    ("tokens_per_cp_tp_shard", _shard),
    ("tokens_per_step", _product("gbs", "seq_len")),
    ("cp0", _cp0),
    ("local_experts", _quotient("num_experts", "ep")),
    ("expert_group", _product("ep", "etp")),
    ("dispatcher", _dispatcher),
    ("dispatcher_type", _dispatcher_type),
    ("flex_backend", _flex_backend),
    ("flex", _flex),
    ("forced_routing", _when_known("routing_mode", lambda mode: str(mode).startswith("forced"))),
    ("base_dtype", _when_known("precision", lambda one: "fp16" if one == "fp16" else "bf16")),
    ("fp8", _when_known("precision", lambda one: str(one).startswith("fp8"))),
    ("low_precision", _when_known("precision", lambda one: one not in ("bf16", "fp16"))),
    ("graphs_on", _when_known("graph_impl", lambda one: one != "none")),
    ("graphs_scoped", _when_known("graph_impl", lambda one: one in ("local", "transformer_engine"))),
    ("recompute_on", _when_known("recompute_granularity", lambda one: one != "none")),
    ("recompute_modules", _recompute_modules),
    ("expandable_segments", _when_known(f"{PREFIX}PYTORCH_CUDA_ALLOC_CONF", _expandable)),
    ("overlap_grad_reduce", _when_known("dp_overlap", lambda words: "grad_reduce" in list(words))),  # type: ignore[call-overload]
    ("overlap_param_gather", _when_known("dp_overlap", lambda words: "param_gather" in list(words))),  # type: ignore[call-overload]
    ("headroom_frac", _headroom),
    ("memory_pressure", _memory_pressure),
    ("fragmentation_gb", _fragmentation),
    ("tokens_s_gpu", _tokens_s_gpu),
    ("gflop_per_token", _gflop_per_token),
    ("mfu", hardware.mfu),
    ("profiler_slowdown", _slowdown),
    ("profiled", _profiled),
)
"""In the order in which one needs another."""

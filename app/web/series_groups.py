"""Which series a run has to choose from: in groups, each with the name that people know it by."""

from collections.abc import Iterable

from app.domain.contract.fields import METRICS

_TIMER, _MS, _FASTEST = "timer_", "_ms", "_min_ms"

GROUPS = ("Speed", "Loss", "Optimizer", "Router", "Batch", "Energy and memory", "Timers", "Other")
_MEMBERS = {
    "Speed": ("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu"),
    "Optimizer": (
        "learning_rate", "grad_norm", "loss_scale", "num_zeros", "params_norm", "skipped_iterations", "nan_iterations",
    ),
    "Batch": ("global_batch_size", "consumed_samples"),
}  # fmt: skip
_PARTS = (
    ("Router", ("router", "expert", "max_vio", "token_drop", "tokens_per_expert")),
    ("Loss", ("loss", "perplexity", "ppl")),
    ("Speed", ("tokens_per", "throughput", "tflops", "samples_per", "step_time")),
    ("Energy and memory", ("energy", "power", "memory", "mem_", "_mem")),
    ("Batch", ("batch", "samples", "seqlen", "sequence")),
    ("Optimizer", ("grad", "lr", "learning_rate", "norm")),
)
"""Printed names vary by trainer and fork: the first group with a part of the name takes it."""


def grouped_series(names: Iterable[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups that have a member, each with (name, label) in the order given."""
    groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
    for name in names:
        groups[_group(name)].append((name, series_label(name)))
    return [(group, members) for group, members in groups.items() if members]


def series_label(name: str) -> str:
    """Throughput is known by its unit; what is no headline figure by its column; a timer by what it times."""
    if name in METRICS:
        metric = METRICS[name]
        return metric.unit if "/" in metric.unit else metric.label
    if _is_timer(name):
        fastest = name.endswith(_FASTEST)
        stem = name.removeprefix(_TIMER).removesuffix(_FASTEST if fastest else _MS).replace("_", " ")
        return f"{stem}, fastest rank" if fastest else stem
    return name.replace("_", " ")


def _is_timer(name: str) -> bool:
    return name.startswith(_TIMER) and name.endswith(_MS)


def _group(name: str) -> str:
    if _is_timer(name):
        return "Timers"
    for group, members in _MEMBERS.items():
        if name in members:
            return group
    return next((group for group, parts in _PARTS if any(part in name for part in parts)), "Other")

"""Convert a run's contract, figures and health to facts. Unknown facts are absent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from app.domain.contract.trainer_defaults import newer_flags
from app.domain.contract.values import GB_PER_GIB
from app.domain.numbers import plural
from app.domain.performance.failures import FROM_OUTSIDE, failed_allocation
from app.domain.performance.steady_state import MOST_SPIKES, profiled_iterations
from app.domain.ranking.runs import headroom_pct
from app.domain.rules.facts import FACTS, typed
from app.domain.rules.launch import read_command
from app.domain.run import (
    Activity,
    DispatcherAvailability,
    Failure,
    Metric,
    Stated,
    SteadyState,
    Timer,
    Value,
    lacking_for_full_length,
)
from app.domain.text import some_of

_ASKED_FOR = ("flex_backend", "sp", "vpp", "tp_overlap", "recompute_method", "recompute_layers", "graph_modules")
"""Knobs that a rule warns about although another field makes them ineffective."""
_IMPORTS = {"deepep_missing": "deep_ep", "hybridep_missing": "hybrid_ep", "ncclep_missing": "nccl_ep"}
_FLEX = ("deepep", "hybridep")
FITS_FROM = 6
"""Steady iterations after which a run is considered to fit: as many as a screen needs."""
Window = tuple[int, int] | None
_COMMUNICATION_TIMERS = (
    *("all-grads-sync", "params-all-gather", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"),
    *("forward-recv", "forward-send", "backward-recv", "backward-send", "forward-send-forward-recv"),
    *("forward-send-backward-recv", "backward-send-forward-recv", "backward-send-backward-recv"),
)
"""Megatron's communication timers that do not nest."""


@dataclass(frozen=True, slots=True)
class RunReading:
    """Data of a run from summary and storage. Everything except the contract may be missing.

    `arguments`: the trainer's argument dump. `extra`: metadata outside the contract; those named like a fact are used.
    `stated`: facts that users stated later, which override them. `launch`: stated launch arguments. `installed`: flex
    dispatchers that runs show to work in the container; None: unknown.
    """

    contract: Mapping[str, Stated]
    metrics: Mapping[str, Metric | None] = field(default_factory=dict)
    health: Mapping[str, object] = field(default_factory=dict)
    steady: SteadyState | None = None
    timers: Sequence[Timer] = ()
    failures: Sequence[Failure] = ()
    activity: Mapping[str, Activity] = field(default_factory=dict)
    availability: Sequence[DispatcherAvailability] = ()
    unknown: Sequence[str] | None = None
    trainer: str = ""
    semantic_class: str = ""
    evidence_level: str = ""
    fair_for_timing: bool | None = None
    arguments: Mapping[str, Value] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    stated: Mapping[str, object] = field(default_factory=dict)
    launch: object = None
    installed: Sequence[str] | None = None
    is_baseline: bool | None = None
    profile: Mapping[str, object] = field(default_factory=dict)
    """Facts measured by a profile. They override stated ones."""


def facts_of(run: RunReading) -> dict[str, object]:
    """Return the facts of a run, for `engine.evaluate`."""
    return {
        **_without_proof(run),
        **_from_extra({**run.extra, **run.stated}),
        **_from_arguments(run.arguments),
        **_from_figures(run),
        **_from_health(run),
        **_from_activity(run),
        **_from_contract(run),
        **_from_profile(run),
    }


def facts_of_pair(
    differing: Sequence[str],
    *,
    beside: Sequence[str] = (),
    step_time_pct: float | None = None,
    windows: tuple[Window, Window] = (None, None),
    memory: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset()),
) -> dict[str, object]:
    """Return the facts of two compared runs: differing contract fields and measurements.

    `beside`: differing versions and commits; `step_time_pct`: change of this run's step time against the other's;
    `windows`: first and last steady iteration of each; `memory`: kinds of its figures (`memory_kinds`).
    """
    facts: dict[str, object] = {"compared": True, "differs": list(differing), "differs_beside": list(beside)}
    facts["other_run"] = "a run with another container" if "container" in differing else "the other run"
    if step_time_pct is not None and step_time_pct > -100:
        facts["step_time_change_pct"] = step_time_pct
        facts["throughput_gain"] = 1 / (1 + step_time_pct / 100) - 1
    own, other = windows
    if own is not None and other is not None:
        facts["windows_differ"] = _differ(own, other)
    if all(memory):
        facts["memory_kinds_differ"] = not memory[0] & memory[1]
    return facts


def memory_kinds(health: Mapping[str, object]) -> frozenset[str]:
    """Return which memory figures the log prints: allocated, reserved or both."""
    kinds = ("peak_allocated_gib", "peak_reserved_gib")
    return frozenset(name for name in kinds if health.get(name) is not None)


def _differ(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Return whether the windows share less than half of the shorter one. A few warm-up iterations do not matter."""
    shared = min(a[1], b[1]) - max(a[0], b[0]) + 1
    return 2 * shared < min(a[1] - a[0], b[1] - b[0]) + 1


def _from_contract(run: RunReading) -> dict[str, object]:
    """Return contract values. For an unused knob return its stated value, for rules that warn about it."""
    facts: dict[str, object] = {}
    for name, stated in run.contract.items():
        facts[name] = stated.stated_value if name in _ASKED_FOR and not stated.in_use else stated.value
    etp = run.contract.get("etp")
    if etp is not None and etp.source == "derived":  # tp, because it is not stated: only a dump shows that it is unset
        del facts["etp"]
        if run.arguments:
            facts["etp_unset"] = True
    command = read_command(run.launch)
    version = run.contract.get("mcore_version")
    facts["newer_flags"] = [] if version is None else newer_flags(version.value, [item.name for item in command])
    backend = next((item for item in command if item.name == "moe_flex_dispatcher_backend"), None)
    if backend is not None and len(backend.words) > 1 and facts.get("flex_backend") is None:
        facts["flex_backend"] = None if backend.words[1] == "None" else backend.words[1]
    return {name: value for name, value in facts.items() if _suits(name, value)}


def _suits(name: str, value: object) -> bool:
    try:
        typed(FACTS[name], value)
    except (KeyError, ValueError):
        return False
    return True


def _from_extra(extra: Mapping[str, object]) -> dict[str, object]:
    """Return metadata named like a fact: profile measurements, launch options."""
    return {name: value for name, value in extra.items() if name in FACTS and value is not None and _suits(name, value)}


def _from_profile(run: RunReading) -> dict[str, object]:
    """Return facts measured by a profile, with the unprofiled step of the log, and whether both overlap."""
    facts = {
        name: value
        for name, value in run.profile.items()
        if name in FACTS and value is not None and _suits(name, value)
    }
    step = run.metrics.get("step_time_ms")
    if "profiled_step_s" in facts and step is not None:
        facts["unprofiled_step_s"] = step.value * 1e-3
    requested = run.activity.get("dispatcher")
    resolved = facts.get("resolved_dispatcher")
    if resolved is not None and requested is not None and requested.requested is not None:
        facts["backend_proof"] = requested.requested.value == resolved
    profiled, window = profiled_iterations(run.arguments), run.steady
    if profiled is not None and window is not None:
        first, last = profiled
        overlaps = window.first_iteration <= last and first <= window.last_iteration
        facts["time_from_profile"] = overlaps and window.profiled is None
    return facts


def _from_arguments(arguments: Mapping[str, Value]) -> dict[str, object]:
    """Return facts that the trainer's dump states under its own names."""
    facts: dict[str, object] = {}
    for fact in FACTS.values():
        name = next((name for name in fact.argument if name in arguments), None)
        if name is None:
            continue
        value: object = arguments[name]
        value = False if value is None and fact.type == "bool" else value
        if _suits(fact.name, value):
            facts[fact.name] = value
    if "use_pytorch_profiler" in arguments:  # dumps name all options, so a missing one does not exist
        facts["profiler_options"] = "pytorch_profiler_collect_callstack" in arguments
    return facts


def _from_figures(run: RunReading) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name, metric, scale in (
        ("step_s", "step_time_ms", 1e-3),
        ("tokens_s_gpu", "tokens_per_s_per_gpu", 1.0),
        ("tflops_gpu", "tflops_per_gpu", 1.0),
    ):
        value = run.metrics.get(metric)
        if value is not None:
            facts[name] = value.value * scale
    if run.steady is not None:
        facts |= {
            "window": run.steady.n,
            "window_first": run.steady.first_iteration,
            "window_last": run.steady.last_iteration,
            "unsteady_because": run.steady.unsteady_because,
            "slow_iterations": round(run.steady.spike_share * run.steady.n),
            "slow_text": _slow_text(run.steady, run.arguments),
            **_slow_range([iteration for iteration, _ in run.steady.spikes]),
            "slow_loss_frac": max(1 - run.steady.step_time_ms / run.steady.mean_step_time_ms, 0.0),
        }
    shares = [timer.share_of_step for timer in run.timers if timer.name in _COMMUNICATION_TIMERS]
    if shares:
        facts["comm_timer_frac"] = min(sum(shares), 1.0)
    for name, text in (
        ("framework", run.trainer.lower().replace("-", "_").replace(" ", "_")),
        ("semantic_class", run.semantic_class),
    ):
        if text:
            facts[name] = text
    if run.evidence_level:
        facts["evidence_level"] = run.evidence_level
    if run.steady is not None and run.health:
        lacking = lacking_for_full_length(run.steady, run.health, fair_for_timing=run.fair_for_timing is not False)
        facts["full_length_lacks"] = "; ".join(lacking)
    if run.fair_for_timing is not None:
        facts["fair_for_timing"] = run.fair_for_timing
    if run.unknown is not None:
        facts |= {"unknown_fields": len(run.unknown), "unknown_names": some_of(run.unknown, 6)}
    if run.is_baseline is not None:
        facts["is_baseline"] = run.is_baseline
    return facts


_MOST_PROFILED = 20
"""Steps whose trace is still small enough to open."""


def _slow_range(slow: Sequence[int]) -> dict[str, object]:
    """Return the steps to profile so that one slow iteration is among them; none if the iterations are unknown.

    Steps count from 0, printed iterations from 1. The range is as long as the longest gap between slow iterations,
    because they may come at other iterations in the next run.
    """
    if not slow:
        return {}
    start = max(slow[0] - 2, 0)
    gap = max((after - before for before, after in pairwise(slow)), default=1)
    return {"slow_start": start, "slow_end": start + min(gap + 2, _MOST_PROFILED)}


_PERIODIC = {"save_interval": "checkpoints", "eval_interval": "evaluation", "manual_gc_interval": "garbage collection"}
_LEAST_INTERVAL = 5
"""A shorter interval fits any iteration."""


def _slow_text(steady: SteadyState, arguments: Mapping[str, Value]) -> str:
    """Return which iterations are slow, and what explains them: `Iterations 21 and 31 took 2.4 times the median.`"""
    if not steady.spikes:
        return f"Slow iterations: {round(steady.spike_share * steady.n)} of {steady.n}."
    slow = [iteration for iteration, _ in steady.spikes]
    ratios = [ms / steady.step_time_ms for _, ms in steady.spikes]
    low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    times = low if low == high else f"{low} to {high}"
    more = round(steady.spike_share * steady.n) - len(slow)
    names = f"{some_of([str(iteration) for iteration in slow], MOST_SPIKES)}{f' (and {more} more)' if more > 0 else ''}"
    which = f"{plural(len(slow), 'Iteration', number=False)} {names} took {times} times the median."
    return f"{which} {_slow_because(slow, arguments)}".strip()


def _slow_because(slow: Sequence[int], arguments: Mapping[str, Value]) -> str:
    profiled = profiled_iterations(arguments)
    if profiled is not None and all(profiled[0] <= iteration <= profiled[1] for iteration in slow):
        return f"The profiler was on in iterations {profiled[0]} to {profiled[1]}."
    for name, what in _PERIODIC.items():
        interval = arguments.get(name)
        if (
            isinstance(interval, int)
            and interval >= _LEAST_INTERVAL
            and all(iteration % interval in (0, 1) for iteration in slow)  # the work may count in the next iteration
        ):
            return f"`{name}` is {interval}, which matches {what}."
    if len(slow) == 1 and "profile" not in arguments:
        return (
            "The upload does not show whether a profiler was on, the usual cause of a single slow iteration. If it "
            "was, state its flags as launch arguments; its steps then do not count."
        )
    gaps = sorted({after - before for before, after in pairwise(slow)})
    if len(slow) < 3 or (len(gaps) > 1 and len(slow) == MOST_SPIKES):  # there may be more between them
        return ""
    if len(gaps) == 1:
        return f"They are {gaps[0]} iterations apart."
    return f"They are {gaps[0]} to {gaps[-1]} iterations apart, no fixed interval."


def _from_health(run: RunReading) -> dict[str, object]:
    """Return facts that only the log shows; none without its health."""
    if not run.health:
        return {}
    kinds = [failure.kind for failure in run.failures]
    missing = next((_IMPORTS[kind] for kind in kinds if kind in _IMPORTS), None)
    oom = next((failure for failure in run.failures if failure.kind == "out_of_memory"), None)
    steps = run.health.get("iterations")
    facts: dict[str, object] = {"import_error": missing or ("unknown" if "import_error" in kinds else None)}
    facts["oom"] = oom is not None
    if "permute_failed" in kinds:
        facts["permute_fusion_failed"] = True
    if oom is not None:
        facts["oom_phase"] = _oom_phase(run, oom)
        if oom.rank is not None:
            facts["oom_ranks"] = [oom.rank]
        allocations = filter(None, (failed_allocation(line.text) for line in oom.evidence))
        unusable = [allocation.idle for allocation in allocations if allocation.idle is not None]
        if unusable:
            facts["fragmentation_gb"] = max(unusable) * GB_PER_GIB
    if isinstance(steps, int):
        facts["steps_done"] = steps
    facts |= _fits(run, steps, oom) | _failure(run)
    for name, key in (("skipped", "skipped_iterations"), ("nan", "nan_iterations"), ("alloc_retries", "alloc_retries")):
        if isinstance(run.health.get(key), int):
            facts[name] = run.health[key]
    if isinstance(run.health.get("loss_finite"), bool):
        facts["loss_finite"] = run.health["loss_finite"]
    return facts | _memory(run)


_NO_FAILURE_OF_THE_RUN = (
    frozenset({*_IMPORTS, "import_error", "out_of_memory", "loss_not_finite", "permute_failed"}) | FROM_OUTSIDE
)
"""Failures with their own rules, and those that say nothing about the run."""


def _failure(run: RunReading) -> dict[str, object]:
    """Return the failure that ended the run, unless it only follows from another."""
    if run.health.get("outcome") not in ("failed", "not_finite"):
        return {}
    failure = next((failure for failure in run.failures if failure.kind not in _NO_FAILURE_OF_THE_RUN), None)
    if failure is None:
        return {}
    rank = "" if failure.rank is None else f" (rank {failure.rank})"
    return {"failure": failure.kind, "failure_text": f"{failure.title}{rank}. {failure.explanation} {failure.advice}"}


def _oom_phase(run: RunReading, oom: Failure) -> str:
    if not run.health.get("iterations"):
        return "setup"
    first = run.steady.first_iteration if run.steady is not None else None
    return "steady" if first is not None and oom.iteration is not None and oom.iteration >= first else "warmup"


def _fits(run: RunReading, steps: object, oom: Failure | None) -> dict[str, object]:
    if oom is not None:
        return {"fits": False}
    enough = isinstance(steps, int) and run.steady is not None and run.steady.n >= FITS_FROM
    return {"fits": True} if enough else {}


def _memory(run: RunReading) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name, key in (("mem_alloc_peak_gb", "peak_allocated_gib"), ("mem_reserved_peak_gb", "peak_reserved_gib")):
        gib = run.health.get(key)
        if isinstance(gib, int | float) and not isinstance(gib, bool):
            facts[name] = gib * GB_PER_GIB
    gpu, gib, figure = run.contract.get("gpu"), run.health.get("peak_allocated_gib"), run.metrics.get("peak_memory_gib")
    if gib is None and figure is not None:  # documents without a log state the figure only
        gib = figure.value
    if gpu is not None and isinstance(gpu.value, str) and isinstance(gib, int | float):
        free = headroom_pct(gpu.value, float(gib))
        if free is not None:
            facts["headroom_frac"] = free / 100
    return facts


def _without_proof(run: RunReading) -> dict[str, object]:
    """Return proofs: unproven without a log line, unless a user states the proof."""
    proofs = {"backend_proof": "dispatcher", "capture_proof": "graph_impl"}
    return {fact: False for fact, name in proofs.items() if name in run.activity}


def _from_activity(run: RunReading) -> dict[str, object]:
    facts: dict[str, object] = {}
    dispatcher = run.activity.get("dispatcher")
    if dispatcher is not None and dispatcher.requested is not None and isinstance(dispatcher.requested.value, str):
        facts["requested_dispatcher"] = dispatcher.requested.value
    if dispatcher is not None and dispatcher.active is not None and isinstance(dispatcher.active.value, str):
        facts["resolved_dispatcher"] = dispatcher.active.value
    if dispatcher is not None and (dispatcher.active is not None or dispatcher.agrees is False):
        facts["backend_proof"] = dispatcher.agrees is not False
    graphs = run.activity.get("graph_impl")
    if graphs is not None and graphs.active is not None:
        facts["capture_proof"] = True
    installed = _installed(run)
    return facts if installed is None else {**facts, "installed_flex_backends": installed}


def _installed(run: RunReading) -> list[str] | None:
    """Return working backends: known if one is shown to work, or if all are shown to be missing."""
    if run.installed is not None:
        return list(run.installed)
    states = {availability.dispatcher: availability.available for availability in run.availability}
    working = [name for name in (*_FLEX, "ncclep") if states.get(name)]
    return working if working or all(states.get(name) is False for name in _FLEX) else None

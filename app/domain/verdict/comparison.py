"""Compare side A with side B, each a run or reruns of one: what the contracts allow, and what the figures show.

The run is the sample, not the iteration: a side of three runs has three values of the step time.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from app.domain.contract.fields import CONFIG_FIELDS, METRICS, STACK_FIELDS
from app.domain.contract.values import GPU_MEMORY_GIB, same_value, shown
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.performance.steady_state import mad, usable
from app.domain.run import FORCED_ROUTING, FloatArray, Metric, Stated, SteadyState
from app.domain.text import coded_names
from app.domain.verdict.comparability import Comparability, Difference, Kind, compare_contracts
from app.domain.verdict.decide import MetricChange, judge, metric_changes
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import DEFAULT_PRIOR, MemoryChange, Prior, Verdict, shows_no_difference, unsteady

# --- The distribution of step times in the steady window: quantiles, and a density when there are enough values.

FEWEST_FOR_DENSITY = 15
"""Fewer values are plotted individually."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_GRID = 120
_BINS = 600
_SILVERMAN = 0.9


@dataclass(frozen=True, slots=True)
class Distribution:
    """Step times of a steady window in ms. `quantiles`: as in QUANTILES; `spike_share` 0 to 1."""

    n: int
    quantiles: tuple[float, ...]
    mean_ms: float
    spike_share: float

    @property
    def median_ms(self) -> float:
        return self.quantiles[2]


def step_times(columns: Mapping[str, FloatArray]) -> FloatArray:
    """Return step times in ms; the printed value where an artefact could not be resolved."""
    printed = columns["step_time_ms"]
    true = columns.get("step_time_true_ms", printed)
    return np.where(np.isfinite(true), true, printed)


def window_step_times(columns: dict[str, FloatArray], steady: SteadyState | None) -> FloatArray:
    """Return the usable step times of the steady window, in ms; empty without a window or series."""
    if steady is None or "step_time_ms" not in columns or "iteration" not in columns:
        return np.empty(0)
    times = step_times(columns)
    return times[steady.contains(columns["iteration"]) & usable(times)]


def distribution(values: FloatArray, steady: SteadyState | None) -> Distribution | None:
    """Describe the values; None when there are none."""
    if steady is None or not len(values):
        return None
    # Of logarithms, like the steady step time, so that the median equals the figure in the table.
    quantiles = np.exp(np.quantile(np.log(values), QUANTILES))
    return Distribution(
        n=len(values),
        quantiles=tuple(float(value) for value in quantiles),
        mean_ms=float(values.mean()),
        spike_share=float((values > steady.spike_threshold_ms).mean()),
    )


def density_reach(values: FloatArray) -> float:
    """Return how far a density of the values reaches beyond them: there it has less than 5 % of the height of one."""
    return 2.5 * _bandwidth(values)


def _bandwidth(values: FloatArray) -> float:
    return float(_SILVERMAN * mad(values) * len(values) ** -0.2)


def density(values: FloatArray, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    """Estimate a Gaussian kernel density on an even grid from `low` to `high`: grid points, and heights scaled to 1.

    Silverman's rule on the robust spread, because spikes would smear a bandwidth made from the standard deviation.
    """
    inside = values[(values >= low) & (values <= high)]
    positions = np.linspace(low, high, _GRID)
    if not len(inside) or high <= low:
        return positions, np.zeros(_GRID)
    width = (high - low) / _BINS
    # A constant series still needs a visible width.
    bandwidth = max(_bandwidth(values), 2 * width)
    counts, edges = np.histogram(inside, bins=_BINS, range=(low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    heights = np.exp(-0.5 * ((positions[:, None] - centres[None, :]) / bandwidth) ** 2) @ counts
    return positions, heights / heights.max()


# --- A second opinion without a model of the noise: the bootstrap of the difference in ln(step time).

_RESAMPLES = 1000
"""Enough for ends of 99.8 %."""
_MOST_RESAMPLED = 400
"""Iterations of a run that are resampled; of more, evenly spaced ones."""
_BLOCK = 5
"""Neighbouring iterations are drawn together, because they are correlated."""


def bootstrap_interval(a: Sequence[FloatArray], b: Sequence[FloatArray], p: float) -> tuple[float, float] | None:
    """Return the interval of the change of step time from `a` to `b` in percent; None without windows.

    `p`: the certainty of each end, that of the test (`StepTimeChange.interval_p`).

    Runs are drawn with replacement, then blocks of the iterations of each. With one run on each side only iterations
    vary, so the interval leaves out the variation between launches. Draws are seeded: equal windows, equal intervals.
    """
    sides = [[np.log(window) for window in side if len(window) >= 2 * _BLOCK] for side in (a, b)]
    if not all(sides):
        return None
    random = np.random.default_rng(0)
    before, after = (_resampled_means(side, random) for side in sides)
    low, high = np.quantile(100 * np.expm1(after - before), (1 - p, p))
    return float(low), float(high)


def _resampled_means(windows: Sequence[FloatArray], random: np.random.Generator) -> FloatArray:
    medians = np.stack([_resampled_medians(window, random) for window in windows])
    drawn = random.integers(len(windows), size=(len(windows), _RESAMPLES))
    return np.asarray(medians[drawn, np.arange(_RESAMPLES)].mean(axis=0))


def _resampled_medians(window: FloatArray, random: np.random.Generator) -> FloatArray:
    values = window[:: -(-len(window) // _MOST_RESAMPLED)]
    blocks = -(-len(values) // _BLOCK)
    starts = random.integers(len(values) - _BLOCK + 1, size=(_RESAMPLES, blocks))
    drawn = values[starts[:, :, None] + np.arange(_BLOCK)].reshape(_RESAMPLES, -1)[:, : len(values)]
    return np.asarray(np.median(drawn, axis=1))


# --- Fields that both contracts state with the same value.


@dataclass(frozen=True, slots=True)
class SameField:
    field: str
    a: Stated
    b: Stated


def same_fields(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> tuple[SameField, ...]:
    """Return key members that both sides state with the same value, in the registry's order."""
    return tuple(
        SameField(name, a[name], b[name])
        for name in (*STACK_FIELDS, *CONFIG_FIELDS)
        if name in a and name in b and same_value(name, a[name].value, b[name].value)
    )


# --- Differences among the runs of one side. Only reruns of one job are samples of the same thing.


@dataclass(frozen=True, slots=True)
class Within:
    """How the runs of one side differ. `stack` and `knobs`: members of the keys that differ, or may.

    `commits`: number of different commits stated; `commit_unknown`: of several runs, at least one states no commit.
    """

    stack: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    commits: int = 1
    commit_unknown: bool = False

    @property
    def one_configuration(self) -> bool:
        """Return whether all runs may share one config key, so that their mean is meaningful."""
        return not self.stack and not self.knobs

    @property
    def reruns(self) -> bool:
        """Return whether all runs have the same commit and no known difference."""
        return self.one_configuration and self.commits <= 1 and not self.commit_unknown

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that keep the runs from being reruns of each other; `commit` for the code."""
        code = ("commit",) if self.commits > 1 or self.commit_unknown else ()
        return (*self.stack, *self.knobs, *code)


def within(runs: Sequence[RunRecord]) -> Within:
    """Compare each run of a side, at least one, with its first."""
    first, *others = runs
    comparabilities = [compare_contracts(first, other) for other in others]
    commits = [run.commit for run in runs]
    return Within(
        stack=_fields(difference.field for comparability in comparabilities for difference in comparability.stack),
        knobs=_fields(difference.field for comparability in comparabilities for difference in comparability.knobs),
        commits=len(_distinct(commits)),
        commit_unknown=len(runs) > 1 and not all(commits),
    )


def _fields(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _distinct(commits: Sequence[str]) -> list[str]:
    """Return the distinct stated commits; a short form counts as its long form."""
    distinct: list[str] = []
    for commit in sorted(filter(None, commits), key=len, reverse=True):
        if not any(longer.startswith(commit) for longer in distinct):
            distinct.append(commit)
    return distinct


# --- The winner, if any. A side that is faster at the cost of memory or loss is not a winner.

Winner = Literal["", "a", "b"]

_NO_END = ("truncated", "stopped", "running")
"""Outcomes with valid figures but no result, because the job did not finish."""


_SCARCE = 0.7
"""Share of a GPU's memory below which more use of it is no cost. Our choice."""


def costly_memory(measured: Verdict | None, contract: Mapping[str, Stated]) -> MemoryChange | None:
    """Return the change of peak memory, None if both sides leave much of the GPU's memory free."""
    memory = None if measured is None else measured.memory
    gib = GPU_MEMORY_GIB.get(str(contract["gpu"].value)) if "gpu" in contract else None
    if memory is None or gib is None:
        return memory
    return memory if max(memory.baseline_bytes, memory.candidate_bytes) > _SCARCE * gib * BYTES_PER_GIB else None


def winner(measured: Verdict | None, memory: MemoryChange | None) -> Winner:
    """Return the faster side when it costs neither memory nor loss; empty without one."""
    if measured is None or measured.step_time is None or measured.decision == "failed":
        return ""
    loss, time = measured.loss, measured.step_time.decision
    if time == "improvement":
        pays = (memory is not None and memory.decision == "regression") or (
            loss is not None and loss.decision == "worse"
        )
        return "" if pays else "b"
    if time == "regression":
        # The mirror image: A is faster. That has a cost when B needs clearly less memory or has a clearly better loss.
        lighter = memory is not None and memory.decision == "improvement"
        learns = loss is not None and loss.delta_pct is not None and -loss.delta_pct > (loss.alarm_pct or 0.0)
        return "" if lighter or learns else "a"
    return ""


def paid_with(measured: Verdict | None, memory: MemoryChange | None) -> str:
    """Say what the faster side costs in memory or loss; empty when neither is faster or it costs nothing."""
    if measured is None or measured.step_time is None or winner(measured, memory) or measured.decision == "failed":
        return ""
    time, loss = measured.step_time.decision, measured.loss
    if time not in ("improvement", "regression"):
        return ""
    faster, other = ("B", "A") if time == "improvement" else ("A", "B")
    heavier = "regression" if faster == "B" else "improvement"  # the decision is about B
    by_memory = memory is not None and memory.decision == heavier
    by_loss = loss is not None and (loss.decision == "worse" if faster == "B" else not by_memory)
    prices = [
        price for price, paid in (("needs clearly more memory", by_memory), ("has a worse loss", by_loss)) if paid
    ]
    return f"{faster} is faster than {other}, but {' and '.join(prices)}."


def why_none(
    a: Sequence[RunRecord], b: Sequence[RunRecord], comparability: Comparability, sets: tuple[Within, Within]
) -> tuple[str, ...]:
    """Return the reasons why neither side may be called better, most important first; empty when one may."""
    return tuple(dict.fromkeys(_reasons(a, b, comparability, sets)))


def _reasons(
    a: Sequence[RunRecord], b: Sequence[RunRecord], comparability: Comparability, sets: tuple[Within, Within]
) -> Iterator[str]:
    yield from _classes(a, comparability)
    if comparability.stack:
        alone, certain = len(comparability.stack) == 1, all(difference.is_certain for difference in comparability.stack)
        verb = ("differs" if alone else "differ") + ("" if certain else " or may differ")
        yield f"{_listed(comparability.stack)} {verb}, but must be equal to name a winner."
    for side, inside in zip("AB", sets, strict=True):
        if not inside.one_configuration:
            names = coded_names((*inside.stack, *inside.knobs))
            yield f"The runs of {side} are not reruns of one job: they differ in {names}."
    for run in (*a, *b):
        yield from _of_run(run)
    yield from (f"#{run.run} is not steady: rerun it before you act." for run in b if _shows_a_direction(run))
    alive = [run for run in (*a, *b) if not run.failed_because]
    if len({run.definition_version for run in alive}) > 1:
        yield "The figures use different versions of the definitions; wait until all runs are recomputed."
    if len({run.fair_for_timing for run in alive}) > 1:
        yield "Only some of the runs were slowed down by timer barriers."


def _classes(a: Sequence[RunRecord], comparability: Comparability) -> Iterator[str]:
    routing = next(
        (
            difference
            for difference in comparability.stack
            if difference.field == "routing_mode" and difference.is_certain
        ),
        None,
    )
    if routing is not None and _forced(routing, "a") != _forced(routing, "b"):
        forced, natural = ("A", "B") if _forced(routing, "a") else ("B", "A")
        yield (
            f"Forced balance against natural routing: {forced} balances its tokens artificially, so its speed does not "
            f"predict that of {natural}."
        )
    elif comparability.one_is_benchmark_only:
        side = "A" if any(run.semantic_class == "benchmark_only" for run in a) else "B"
        yield f"{side} is benchmark only (forced routing or synthetic data): its speed does not predict training."


def _of_run(run: RunRecord) -> Iterator[str]:
    if run.failed_because:
        yield f"#{run.run} failed ({run.failed_because}), so its speed does not count."
    elif run.outcome in _NO_END:
        yield f"#{run.run} did not finish: {replace(run, quarantined='').never_a_baseline_because}."
    if run.quarantined:
        yield f"#{run.run} is quarantined: {run.quarantined}"


def _forced(difference: Difference, side: Literal["a", "b"]) -> bool:
    stated = difference.a if side == "a" else difference.b
    return stated is not None and shown(stated.value) in FORCED_ROUTING


def _listed(differences: Sequence[Difference]) -> str:
    names = [f"`{difference.field}`" for difference in differences]
    if len(names) > 6:
        return f"{', '.join(names[:5])} and {len(names) - 5} more fields"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True, slots=True)
class LeftOutRun:
    """A run that does not count in the figures of its side."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class SideComparison:
    """`a` is the baseline and `b` the candidate, each oldest first. `comparability` is of the newest run of both.

    `kind`: as in the comparability, or weaker if a side has several configurations. `measured` is None when
    no test was possible or allowed; `not_measured` then says why. `no_winner`: why no side may be called better.
    `short`: the shortest windows of A and of B in iterations, set when either is too short for more than a direction.
    """

    a: tuple[RunRecord, ...]
    b: tuple[RunRecord, ...]
    comparability: Comparability
    sets: tuple[Within, Within]
    kind: Kind
    measured: Verdict | None
    not_measured: str
    no_winner: tuple[str, ...]
    left_out: tuple[LeftOutRun, ...]
    short: tuple[int, int] | None

    @property
    def winner(self) -> Winner:
        return "" if self.no_winner else winner(self.measured, self.costly_memory)

    @property
    def paid_with(self) -> str:
        return paid_with(self.measured, self.costly_memory)

    @property
    def costly_memory(self) -> MemoryChange | None:
        return costly_memory(self.measured, self.b[-1].contract)

    @property
    def is_of_one_commit(self) -> bool:
        """Return whether the newest runs of both sides state the same commit."""
        return bool(self.a[-1].commit) and self.a[-1].commit == self.b[-1].commit

    @property
    def is_within_noise(self) -> bool:
        """Return whether the sides have one commit and configuration and no measured difference: only noise is left."""
        time = self.measured.step_time if self.measured else None
        if time is None or self.kind != "verdict" or self.comparability.provisional or not self.is_of_one_commit:
            return False
        return all(side.reruns for side in self.sets) and (time.decision == "no_change" or shows_no_difference(time))

    @property
    def directional(self) -> bool:
        """Return whether there are too few iterations for more than a direction, which a full run must confirm."""
        return self.measured is not None and self.short is not None

    @property
    def attributed_to(self) -> str | None:
        """Return the only field that can explain a difference; None without one, or where the code differs too."""
        comparability = self.comparability
        is_alone = self.kind == comparability.kind and not comparability.other_code
        return comparability.attributed_to if is_alone else None


def compare_sides(a: Sequence[RunRecord], b: Sequence[RunRecord], prior: Prior = DEFAULT_PRIOR) -> SideComparison:
    """Compare two sides of at least one run each. `prior`: the run-to-run variation of the family (`family_prior`)."""
    comparability = compare_contracts(a[-1], b[-1])
    sets = within(a), within(b)
    kind = _kind(comparability, sets)
    used_b = [run for run in b if not unusable_because(run)] or [run for run in b if _shows_a_direction(run)]
    refused = [(run, why) for run in (*a, *b) if run not in used_b and (why := unusable_because(run))]
    left_out = tuple(LeftOutRun(run.run, why) for run, why in refused)
    used_a = _used(a, left_out)
    obstacle = _obstacle(kind, sets, (a, used_a), (b, used_b), left_out)
    measured = None if obstacle else _measure(used_a, used_b, prior)
    windows = tuple(min((run.estimate.window_length for run in used), default=0) for used in (used_a, used_b))
    return SideComparison(
        a=tuple(a),
        b=tuple(b),
        comparability=comparability,
        sets=sets,
        kind=kind,
        measured=measured,
        not_measured=obstacle,
        no_winner=why_none(used_a or a, used_b or b, comparability, sets),
        left_out=left_out,
        short=(windows[0], windows[1]) if any(run.estimate.short for run in (*used_a, *used_b)) else None,
    )


def unusable_because(run: RunRecord) -> str:
    """Say why the figures of a run do not count; empty when they do. A short run can show a direction."""
    if run.failed_because:
        return run.failed_because
    if run.quarantined:
        return f"quarantined: {run.quarantined}"
    if run.estimate.not_finite_iterations:
        return "its loss was not finite"
    return run.estimate.unusable_because


def _shows_a_direction(run: RunRecord) -> bool:
    """Return whether only its drift speaks against the run. As in a verdict, a candidate may drift, a baseline not."""
    ended_well = not (run.failed_because or run.quarantined or run.estimate.not_finite_iterations)
    return ended_well and bool(unsteady([run.estimate]))


def _kind(comparability: Comparability, sets: tuple[Within, Within]) -> Kind:
    if any(inside.stack for inside in sets):
        return "incomparable"
    if any(inside.knobs for inside in sets):
        return "side_by_side" if not comparability.stack else "incomparable"
    return comparability.kind


def _used(runs: Sequence[RunRecord], left_out: Sequence[LeftOutRun]) -> list[RunRecord]:
    refused = {dropped.run for dropped in left_out}
    return [run for run in runs if run.run not in refused]


def _obstacle(
    kind: Kind,
    sets: tuple[Within, Within],
    a: tuple[Sequence[RunRecord], Sequence[RunRecord]],
    b: tuple[Sequence[RunRecord], Sequence[RunRecord]],
    left_out: Sequence[LeftOutRun],
) -> str:
    """Say why the two sides cannot be tested against each other; empty when they can."""
    if kind == "incomparable":
        return "they are, or may be, different tasks"
    if not all(inside.one_configuration for inside in sets):
        return "a mean over several configurations does not describe any of them"
    for name, (offered, used) in (("A", a), ("B", b)):
        if not used:
            why = {dropped.run: dropped.why for dropped in left_out}
            reasons = "; ".join(f"#{run.run}: {why[run.run]}" for run in offered)
            return f"no run of {name} is usable ({reasons})"
    runs = (*a[1], *b[1])
    if len({run.definition_version for run in runs}) > 1:
        return "their figures use different versions of the definitions"
    if len({run.fair_for_timing for run in runs}) > 1:
        return "only some of the runs were slowed down by timer barriers"
    return ""


def _measure(a: Sequence[RunRecord], b: Sequence[RunRecord], prior: Prior) -> Verdict:
    """Run the test of verdicts. Short runs may be the baseline here, because the user chose them and sees a warning."""
    return judge([run.estimate for run in b], [run.estimate for run in a], prior, directional=True)


# --- Outcome of each headline figure: better or worse, or only `differs` when no winner may be named.

OutcomeWord = Literal["better", "worse", "differs", "no_change", "changed", "inconclusive", "not_judged"]


@dataclass(frozen=True, slots=True)
class MetricOutcome:
    """One figure of both sides. Percentages are of the figure itself, with the interval that decided.

    A side's value is None where it is unknown; the change is None where nothing was measured.
    """

    baseline: float | None
    candidate: float | None
    delta_pct: float | None = None
    ci_low_pct: float | None = None
    ci_high_pct: float | None = None
    decision: OutcomeWord = "not_judged"


def metric_outcomes(
    comparison: SideComparison, metrics: Mapping[str, Mapping[str, Metric | None]]
) -> dict[str, MetricOutcome | None]:
    """Return the outcome of each headline figure, None where neither side has it. `metrics`: figures by run name."""
    measured = comparison.measured
    changes = dict.fromkeys(METRICS) if measured is None else metric_changes(measured, metrics)
    sides = [[metrics[run.run] for run in side] for side in (comparison.a, comparison.b)]
    return {name: _outcome(comparison, changes[name], *(_typical(name, side) for side in sides)) for name in METRICS}


def _outcome(
    comparison: SideComparison, change: MetricChange | None, a: float | None, b: float | None
) -> MetricOutcome | None:
    if change is None:
        return None if a is None and b is None else MetricOutcome(a, b)
    return MetricOutcome(
        baseline=change.baseline,
        candidate=change.candidate,
        delta_pct=change.delta_pct,
        ci_low_pct=change.ci_low_pct,
        ci_high_pct=change.ci_high_pct,
        decision=_word(change, may_name=not comparison.no_winner),
    )


def _word(change: MetricChange, *, may_name: bool) -> OutcomeWord:
    if change.decision == "regression":
        return "worse" if may_name else "differs"
    if change.decision == "improvement":
        return "better" if may_name else "differs"
    return change.decision


def _typical(name: str, runs: list[Mapping[str, Metric | None]]) -> float | None:
    """Return the median over the runs of a side; None when a run lacks the figure."""
    values = [metric.value for metrics in runs if (metric := metrics.get(name)) is not None]
    return statistics.median(values) if values and len(values) == len(runs) else None

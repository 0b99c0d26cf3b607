"""Side A against side B, each a run or reruns of one: what their contracts allow, and what the figures then say.

The run is the sample, not the iteration: a side of three runs is three values of the step time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from app.domain.contract.fields import CONFIG_FIELDS, METRICS, STACK_FIELDS
from app.domain.contract.values import same_value, shown
from app.domain.performance.steady_state import mad, usable
from app.domain.run import FloatArray, Metric, Stated, SteadyState
from app.domain.verdict.comparability import Comparability, Kind, compare_contracts
from app.domain.verdict.decide import MetricChange, judge, metric_changes
from app.domain.verdict.differences import Difference
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior, Verdict

# --- The steady window of a run as a distribution: quantiles, and a density where there are values enough for one.

FEWEST_FOR_DENSITY = 15
"""Fewer values are better seen one by one."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_GRID = 120
_BINS = 600
_SILVERMAN = 0.9


@dataclass(frozen=True, slots=True)
class Distribution:
    """Step times of a steady window in ms. `quantiles` are those of QUANTILES; `spike_share` 0 to 1."""

    n: int
    quantiles: tuple[float, ...]
    mean_ms: float
    lowest_ms: float
    highest_ms: float
    spike_share: float

    @property
    def median_ms(self) -> float:
        return self.quantiles[2]


def step_times(columns: dict[str, FloatArray]) -> FloatArray:
    """Step times in ms as they were; as printed where the printed value is an artefact that cannot be resolved."""
    printed = columns["step_time_ms"]
    true = columns.get("step_time_true_ms", printed)
    return np.where(np.isfinite(true), true, printed)


def window_step_times(columns: dict[str, FloatArray], steady: SteadyState | None) -> FloatArray:
    """What counts of a run's step times, in ms; empty where the run has no window, or no series."""
    if steady is None or "step_time_ms" not in columns or "iteration" not in columns:
        return np.empty(0)
    times, iterations = step_times(columns), columns["iteration"]
    inside = (iterations >= steady.first_iteration) & (iterations <= steady.last_iteration) & usable(times)
    return times[inside]


def distribution(values: FloatArray, steady: SteadyState | None) -> Distribution | None:
    """None where there is nothing to describe."""
    if steady is None or not len(values):
        return None
    # Of logarithms, as the steady step time is: the median mark must be the figure that stands in the table above.
    quantiles = np.exp(np.quantile(np.log(values), QUANTILES))
    return Distribution(
        n=len(values),
        quantiles=tuple(float(value) for value in quantiles),
        mean_ms=float(values.mean()),
        lowest_ms=float(values.min()),
        highest_ms=float(values.max()),
        spike_share=float((values > steady.spike_threshold_ms).mean()),
    )


def density(values: FloatArray, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    """A Gaussian kernel estimate on an even grid from `low` to `high`: places, and heights with 1 as the highest.

    Silverman's rule on the robust spread, because spikes would smear a bandwidth made from the standard deviation.
    """
    inside = values[(values >= low) & (values <= high)]
    places = np.linspace(low, high, _GRID)
    if not len(inside) or high <= low:
        return places, np.zeros(_GRID)
    width = (high - low) / _BINS
    # A series without a spread still has a width on the screen.
    bandwidth = max(_SILVERMAN * mad(values) * len(values) ** -0.2, 2 * width)
    counts, edges = np.histogram(inside, bins=_BINS, range=(low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    heights = np.exp(-0.5 * ((places[:, None] - centres[None, :]) / bandwidth) ** 2) @ counts
    return places, heights / heights.max()


# --- What two contracts have in common, and what neither side states.


@dataclass(frozen=True, slots=True)
class SameField:
    field: str
    a: Stated
    b: Stated


def same_fields(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> tuple[SameField, ...]:
    """Members of the keys that both sides state, with the same value; in the registry's order."""
    return tuple(
        SameField(name, a[name], b[name])
        for name in (*STACK_FIELDS, *CONFIG_FIELDS)
        if name in a and name in b and same_value(name, a[name].value, b[name].value)
    )


# --- What the runs of one set do not share. Only reruns of one job are one sample of it.


@dataclass(frozen=True, slots=True)
class Within:
    """`stack` and `knobs`: members of the keys that differ between runs of the set, or may.

    `commits`: how many different ones are stated; `commit_unknown`: a run of several states none.
    """

    stack: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    commits: int = 1
    commit_unknown: bool = False

    @property
    def one_configuration(self) -> bool:
        """All runs could have one config key, so that their mean is of something."""
        return not self.stack and not self.knobs

    @property
    def reruns(self) -> bool:
        """Nothing differs that is known, and all of one commit."""
        return self.one_configuration and self.commits <= 1 and not self.commit_unknown

    @property
    def fields(self) -> tuple[str, ...]:
        """What keeps them from being reruns of each other; `commit` for the code."""
        code = ("commit",) if self.commits > 1 or self.commit_unknown else ()
        return (*self.stack, *self.knobs, *code)


def within(runs: Sequence[RunRecord]) -> Within:
    """The runs of one set, at least one. Each is compared with the first."""
    first, *others = runs
    found = [compare_contracts(first, other) for other in others]
    commits = [run.commit for run in runs]
    return Within(
        stack=_fields(one.field for each in found for one in each.stack),
        knobs=_fields(one.field for each in found for one in each.knobs),
        commits=len(_distinct(commits)),
        commit_unknown=len(runs) > 1 and not all(commits),
    )


def _fields(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _distinct(commits: Sequence[str]) -> list[str]:
    """Stated commits, where one may be the short form of another."""
    found: list[str] = []
    for commit in sorted(filter(None, commits), key=len, reverse=True):
        if not any(longer.startswith(commit) for longer in found):
            found.append(commit)
    return found


# --- Which side may be called the better one, and why often none may be.
#
# Speed, memory and loss are one answer: a faster side that pays with memory or with loss is no winner.

Winner = Literal["", "a", "b"]

_FORCED = ("forced-balance", "forced-biased")
_NO_END = ("truncated", "stopped", "running")
"""Endings after which a figure is still a figure, but no result: the job did not do what it was started for."""


def winner(measured: Verdict | None) -> Winner:
    """The side that is better in step time and pays for it with nothing; empty when neither is, or nobody can say."""
    if measured is None or measured.step_time is None or measured.decision == "failed":
        return ""
    memory, loss, time = measured.memory, measured.loss, measured.step_time.decision
    if time == "improvement":
        pays = (memory is not None and memory.decision == "regression") or (
            loss is not None and loss.decision == "worse"
        )
        return "" if pays else "b"
    if time == "regression":
        # The mirror image: A is faster. It pays when B needs clearly less memory, or has a clearly better loss.
        lighter = memory is not None and memory.decision == "improvement"
        learns = loss is not None and loss.delta_pct is not None and -loss.delta_pct > (loss.alarm_pct or 0.0)
        return "" if lighter or learns else "a"
    return ""


def paid_with(measured: Verdict | None) -> str:
    """What a faster side pays with, as a sentence; empty when neither is faster, or it pays with nothing."""
    if measured is None or measured.step_time is None or winner(measured) or measured.decision == "failed":
        return ""
    time, loss = measured.step_time.decision, measured.loss
    if time not in ("improvement", "regression"):
        return ""
    faster, other = ("B", "A") if time == "improvement" else ("A", "B")
    heavier = "regression" if faster == "B" else "improvement"  # the decision is about B
    by_memory = measured.memory is not None and measured.memory.decision == heavier
    by_loss = loss is not None and (loss.decision == "worse" if faster == "B" else not by_memory)
    prices = [
        price for price, paid in (("needs clearly more memory", by_memory), ("has a worse loss", by_loss)) if paid
    ]
    return f"{faster} is faster than {other}, but {' and '.join(prices)}."


def why_none(
    a: Sequence[RunRecord], b: Sequence[RunRecord], comparability: Comparability, sets: tuple[Within, Within]
) -> tuple[str, ...]:
    """Why no side may be called better, whatever was measured: sentences, the weightiest first."""
    return tuple(dict.fromkeys(_reasons(a, b, comparability, sets)))


def _reasons(
    a: Sequence[RunRecord], b: Sequence[RunRecord], found: Comparability, sets: tuple[Within, Within]
) -> Iterator[str]:
    yield from _classes(a, found)
    if found.stack:
        alone, certain = len(found.stack) == 1, all(one.is_certain for one in found.stack)
        verb = ("differs" if alone else "differ") + ("" if certain else " or may differ")
        yield f"{_listed(found.stack)} {verb}, and must be equal before runs are ranked."
    for side, inside in zip("AB", sets, strict=True):
        if not inside.one_configuration:
            names = ", ".join(f"`{name}`" for name in (*inside.stack, *inside.knobs))
            yield f"The runs of {side} are no reruns of each other: they differ in {names}."
    for run in (*a, *b):
        yield from _of_run(run)
    alive = [run for run in (*a, *b) if not run.failed_because]
    if len({run.definition_version for run in alive}) > 1:
        yield "The figures were made by different versions of the definitions, until all runs were read again."
    if len({run.fair_for_timing for run in alive}) > 1:
        yield "Only some of the runs were slowed down by timers of their own."


def _classes(a: Sequence[RunRecord], found: Comparability) -> Iterator[str]:
    routing = next((one for one in found.stack if one.field == "routing_mode" and one.is_certain), None)
    if routing is not None and _forced(routing, "a") != _forced(routing, "b"):
        forced, natural = ("A", "B") if _forced(routing, "a") else ("B", "A")
        yield (
            f"Forced balance against natural routing: {forced} spreads its tokens by force, so its speed promises "
            f"nothing for {natural}."
        )
    elif found.one_is_benchmark_only:
        side = "A" if any(run.semantic_class == "benchmark_only" for run in a) else "B"
        yield f"{side} is benchmark only (forced routing or made-up data): its speed promises nothing for training."


def _of_run(run: RunRecord) -> Iterator[str]:
    if run.failed_because:
        yield f"#{run.run} failed ({run.failed_because}), so its speed is no evidence of anything."
    elif run.outcome in _NO_END:
        yield f"#{run.run} did not come to its end: {replace(run, quarantined='').never_a_baseline_because}."
    if run.quarantined:
        yield f"#{run.run} is quarantined: {run.quarantined}"


def _forced(one: Difference, side: Literal["a", "b"]) -> bool:
    stated = one.a if side == "a" else one.b
    return stated is not None and shown(stated.value) in _FORCED


def _listed(found: Sequence[Difference]) -> str:
    names = [f"`{one.field}`" for one in found]
    if len(names) > 6:
        return f"{', '.join(names[:5])} and {len(names) - 5} more fields"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True, slots=True)
class LeftOutRun:
    """A run that counts for nothing in the figures of its side."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class SideComparison:
    """`a` is the baseline and `b` the candidate, each oldest first. `comparability` is of the newest run of both.

    `kind` is that of the comparability, or a lower one where a side is several configurations. `measured`: None where
    nothing may be measured, or nothing could be; `not_measured` then says why. `no_winner`: why no side may be called
    better. `short`: the smallest windows of A and of B, where one has too few iterations for more than a direction.
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
        return "" if self.no_winner else winner(self.measured)

    @property
    def directional(self) -> bool:
        """Too few iterations for more than a direction: a full run must confirm it."""
        return self.measured is not None and self.short is not None

    @property
    def attributed_to(self) -> str | None:
        """The field that explains a difference, if the contracts leave one; None where none may be named."""
        return self.comparability.attributed_to if self.kind == self.comparability.kind else None


def compare_sides(a: Sequence[RunRecord], b: Sequence[RunRecord], prior: Prior = DEFAULT_PRIOR) -> SideComparison:
    """Compare at least one run a side. `prior`: what is known of run-to-run variation (`family_prior`)."""
    found = compare_contracts(a[-1], b[-1])
    sets = within(a), within(b)
    kind = _kind(found, sets)
    left_out = tuple(LeftOutRun(run.run, why) for run in (*a, *b) if (why := unusable_because(run)))
    used_a, used_b = _used(a, left_out), _used(b, left_out)
    obstacle = _obstacle(kind, sets, (a, used_a), (b, used_b), left_out)
    measured = None if obstacle else _measure(used_a, used_b, prior)
    windows = tuple(min((run.estimate.window_length for run in used), default=0) for used in (used_a, used_b))
    return SideComparison(
        a=tuple(a),
        b=tuple(b),
        comparability=found,
        sets=sets,
        kind=kind,
        measured=measured,
        not_measured=obstacle,
        no_winner=why_none(used_a or a, used_b or b, found, sets),
        left_out=left_out,
        short=(windows[0], windows[1]) if any(run.estimate.short for run in (*used_a, *used_b)) else None,
    )


def unusable_because(run: RunRecord) -> str:
    """Why the figures of a run can stand for nothing; empty when they can. A short run can show a direction."""
    if run.failed_because:
        return run.failed_because
    if run.quarantined:
        return f"quarantined: {run.quarantined}"
    if run.estimate.not_finite_iterations:
        return "its loss was not finite"
    return run.estimate.unusable_because


def _kind(found: Comparability, sets: tuple[Within, Within]) -> Kind:
    if any(inside.stack for inside in sets):
        return "incomparable"
    if any(inside.knobs for inside in sets):
        return "side_by_side" if not found.stack else "incomparable"
    return found.kind


def _used(runs: Sequence[RunRecord], left_out: Sequence[LeftOutRun]) -> list[RunRecord]:
    refused = {one.run for one in left_out}
    return [run for run in runs if run.run not in refused]


def _obstacle(
    kind: Kind,
    sets: tuple[Within, Within],
    a: tuple[Sequence[RunRecord], Sequence[RunRecord]],
    b: tuple[Sequence[RunRecord], Sequence[RunRecord]],
    left_out: Sequence[LeftOutRun],
) -> str:
    """Why the figures of both sides must not be held against each other, or cannot be; empty when they may."""
    if kind == "incomparable":
        return "they are different tasks, or may be"
    if not all(inside.one_configuration for inside in sets):
        return "a mean over several configurations is the speed of none of them"
    for name, (offered, used) in (("A", a), ("B", b)):
        if not used:
            whys = {one.run: one.why for one in left_out}
            told = "; ".join(f"#{run.run}: {whys[run.run]}" for run in offered)
            return f"no run of {name} can be measured ({told})"
    runs = (*a[1], *b[1])
    if len({run.definition_version for run in runs}) > 1:
        return "their figures are of different versions of the definitions"
    if len({run.fair_for_timing for run in runs}) > 1:
        return "only some of the runs were slowed down by timers of their own"
    return ""


def _measure(a: Sequence[RunRecord], b: Sequence[RunRecord], prior: Prior) -> Verdict:
    """The test of verdicts. Short runs may be a baseline here: a person chose them, and is told."""
    return judge([run.estimate for run in b], [run.estimate for run in a], prior, directional=True)


# --- What a comparison says of each headline figure: better, worse, or, where no winner may be named, that it differs.

OutcomeWord = Literal["better", "worse", "differs", "no_change", "changed", "inconclusive", "not_judged"]


@dataclass(frozen=True, slots=True)
class MetricOutcome:
    """One figure of both sides. Percentages are of the figure itself; the interval is one of 99 %.

    A side's value is None where it is unknown; the change where nothing was measured.
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
    """Of every headline figure; None where no side knows it. `metrics`: those of each run, by its name."""
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
    if change.decision in ("regression", "improvement"):
        if not may_name:
            return "differs"
        return "worse" if change.decision == "regression" else "better"
    return change.decision  # type: ignore[return-value]


def _typical(name: str, runs: list[Mapping[str, Metric | None]]) -> float | None:
    """The middle of what the runs of a side have; None when one of them does not have it."""
    values = sorted(metric.value for one in runs if (metric := one.get(name)) is not None)
    if not values or len(values) < len(runs):
        return None
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2

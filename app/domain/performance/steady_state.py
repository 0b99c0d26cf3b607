"""Which iterations of a run count, and the steady step time they give. Prose and constants: `docs/metrics.md`.

Everything is computed on ln(step time): ratios become differences, and the method is the same for 50 ms and 60 s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from app.domain.numbers import THIN, plural
from app.domain.run import (
    VALIDATED_STEPS,
    VALIDATED_WINDOW,
    FloatArray,
    IntArray,
    ParsedLog,
    SteadyState,
    Unsteadiness,
    Value,
    Window,
)

# --- Plausible step times: printed values may be negative, zero, missing or absurd, and none of those may count.

MIN_STEP_MS = 1e-3
"""A microsecond: launching a single kernel takes longer."""
MAX_STEP_MS = 1e9
"""Eleven days: no scheduler lets a step hang for so long, so a larger number means damage."""


def usable(step_times_ms: FloatArray) -> npt.NDArray[np.bool_]:
    """Return True where a step time is finite and in the plausible range."""
    # NaN compares as False
    return np.asarray((step_times_ms >= MIN_STEP_MS) & (step_times_ms <= MAX_STEP_MS))


def left_out(log: ParsedLog) -> list[str]:
    """Return sentences on iterations whose step time does not count; the log reader reports artefacts itself."""
    if not log.n:
        return []
    printed, true = log.columns["step_time_ms"], log.columns["step_time_true_ms"]
    absurd = ~np.isnan(printed) & ~usable(printed)
    damaged = absurd | (~np.isnan(true) & ~usable(true))
    sentences = []
    if damaged.any():
        row = int(np.argmax(damaged))
        value = printed[row] if absurd[row] else true[row]
        sentences.append(
            f"{_share(damaged)} an implausible step time (under {MIN_STEP_MS:g} ms or over {MAX_STEP_MS:g} ms); "
            f"{_they(damaged)} left out. The first is {value:g} ms in iteration {_iteration(log, row)}."
        )
    missing = np.isnan(printed)
    if missing.any() and not missing.all():
        sentences.append(
            f"{_share(missing)} no step time; {_they(missing)} left out. The first is iteration "
            f"{_iteration(log, int(np.argmax(missing)))}."
        )
    return sentences


def _share(rows: npt.NDArray[np.bool_]) -> str:
    count = int(rows.sum())
    return f"{count} of {len(rows)} iterations {plural(count, 'has', 'have', number=False)}"


def _they(rows: npt.NDArray[np.bool_]) -> str:
    return plural(int(rows.sum()), "it is", "they are", number=False)


def _iteration(log: ParsedLog, row: int) -> str:
    return f"{log.columns['iteration'][row]:.0f}"


def profiled_iterations(arguments: Mapping[str, Value]) -> tuple[int, int] | None:
    """Return the first and last printed iteration that a profiler slows, by the arguments of Megatron; None without.

    Steps count from 0 and printed iterations from 1. PyTorch's profiler warms up in the step before the first and
    writes its trace in the step after the last; Nsight Systems is stopped in the step after the last.
    """
    first, end = arguments.get("profile_step_start"), arguments.get("profile_step_end")
    tools = [name for name in ("use_pytorch_profiler", "use_nsys_profiler") if arguments.get(name) is True]
    is_on = arguments.get("profile") is True or ("profile" not in arguments and bool(tools))
    if not is_on or not isinstance(first, int) or not isinstance(end, int) or not 0 <= first < end:
        return None
    return (max(first - 1, 1), end) if "use_pytorch_profiler" in tools else (first + 1, end + 1)


# --- Robust statistics of one series: location, spread, autocorrelation, trend. All on float64 arrays in time order.

NORMAL_CONSISTENCY = 1.4826
"""Factor from the median absolute deviation to the standard deviation of normal data."""
_REACH = 3.0
"""Multiple of the interquartile range that an axis extends beyond the quartiles: normal data end at 1.5."""
_LEAST_REACH = 0.004
_FEW = 64
MAX_TREND_POINTS = 600
"""Longer series are averaged to this many blocks before pairwise slopes, whose cost grows with the square."""


def median(values: FloatArray) -> float:
    """Return the median of a non-empty series, to the last digit of numpy's, which is slower for short series."""
    if not 0 < len(values) <= _FEW:
        return float(np.median(values))
    ordered = np.sort(values)  # NaN goes to the end
    middle = len(ordered) // 2
    if ordered[-1] != ordered[-1]:
        return float("nan")
    return float(ordered[middle]) if len(ordered) % 2 else (float(ordered[middle - 1]) + float(ordered[middle])) / 2


def mad(values: FloatArray) -> float:
    """Return the scaled median absolute deviation."""
    return NORMAL_CONSISTENCY * median(np.abs(values - median(values)))


def readable_range(values: FloatArray) -> tuple[float, float]:
    """Return the ends of an axis that shows most of `values` (at least one) in detail, without spikes."""
    low, middle, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    reach = _REACH * max(high - low, _LEAST_REACH * abs(middle))
    return max(float(values.min()), low - reach), min(float(values.max()), high + reach)


def lag_one_correlation(values: FloatArray) -> float:
    """Return the lag-1 autocorrelation, corrected for short series (Marriott and Pope 1954), in 0 to 0.9.

    Above 0.9 an AR(1) correction of a short window has no meaning. Requires at least five values.
    """
    k = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    r1 = float(centred[:-1] @ centred[1:]) / power if power > 0 else 0.0
    return float(np.clip((k * r1 + 1) / (k - 4), 0.0, 0.9))


def long_run_variance(residuals: FloatArray) -> float:
    """Return the long-run variance of an AR(1) series: `var (1 + rho) / (1 - rho)`."""
    rho = lag_one_correlation(residuals)
    return float(residuals.var(ddof=1)) * (1 + rho) / (1 - rho)


def clip_around_median(values: FloatArray, spread: float, widths: float) -> FloatArray:
    """Return the values, clipped to `widths` x `spread` around their median."""
    centre = median(values)
    return np.clip(values, centre - widths * spread, centre + widths * spread)


def theil_sen_slope(values: FloatArray) -> float:
    """Return the median of all pairwise slopes, per step."""
    points, block = _trend_points(values)
    earlier, later, distance = _pairs(len(points))
    return float(np.median((points[later] - points[earlier]) / distance)) / block


def slope_is_within(values: FloatArray, limit: float) -> bool:
    """Return whether the Theil-Sen slope surely lies within +- `limit` per step.

    It does if fewer than half of the pairwise slopes lie above, and fewer than half below. Counting them takes a tenth
    of the time of their median.
    """
    points, block = _trend_points(values)
    earlier_first = np.tri(len(points), k=-1, dtype=bool)
    steepest = limit * block * np.arange(len(points))
    most = len(points) * (len(points) - 1) / 4
    return all(
        np.count_nonzero((line[:, None] > line) & earlier_first) < most
        for line in (points - steepest, -points - steepest)
    )


def _trend_points(values: FloatArray) -> tuple[FloatArray, int]:
    """Return the means of blocks of values, at most `MAX_TREND_POINTS`, and the length of a block."""
    block = -(-len(values) // MAX_TREND_POINTS)
    length = len(values) - len(values) % block
    return values[:length].reshape(-1, block).mean(axis=1), block


@lru_cache(maxsize=4)
def _pairs(length: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Return all pairs of positions and their distances. Building them takes longer than their use; 4 MB at most."""
    earlier, later = np.triu_indices(length, k=1)
    return earlier, later, (later - earlier).astype(float)


# --- Whether a window is steady: a spread that one mode explains, no drift from its start to its end, and one level.

MIN_WINDOW = 5
"""Fewer than five values show neither spread nor drift."""
SHORT_WINDOW = 15
"""With fewer than fifteen values no drift test has power: a run still warming up looks steady but slow."""
MAX_SPREAD = 0.15
"""A larger MAD of the logarithms is two modes, not noise."""
MIN_DRIFT = 0.02
"""Drift under 2 % is never worth calling."""
Z = 3.0
"""Standard errors that a drift must exceed: 3 % false alarms over both tests together (measured at 50 iterations)."""
MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median over that of a mean, for normal data: sqrt(pi / 2)."""


MOST_DRIFT = 0.07
"""A run whose step time changes by a larger share has no single one. A smaller drift only widens the interval."""


LEVELS_FIT = 0.65
"""Two levels leave at most this share of the squares that a line leaves, or the window drifts."""


def reasons_not_steady(
    window: FloatArray, drift: float, iterations: FloatArray | IntArray
) -> tuple[tuple[Unsteadiness, str], ...]:
    """Return why a window of ln(step time) is not steady, each also as a sentence; empty when it is.

    `drift`: from `drift_of`. `iterations`: those of the window.
    """
    k = len(window)
    if k < MIN_WINDOW:
        text = f"it has {k} step times; at least {MIN_WINDOW} are needed to show whether it is steady"
        return ((Unsteadiness("short", k), text),)
    reasons: list[tuple[Unsteadiness, str]] = []
    if mad(window) > MAX_SPREAD:
        spread = 100 * math.expm1(mad(window))
        reasons.append(
            (Unsteadiness("scatter", spread), f"step times scatter by {spread:.0f} %, as if the run had two speeds")
        )
    if abs(math.expm1(drift)) > MOST_DRIFT:
        reasons.append(_change(window, drift, iterations))
    return tuple(reasons)


def unsteady_briefly(steady: SteadyState) -> str:
    """Return the first reason in short: `17.0 % slower from iteration 62`; empty without one."""
    match steady.unsteadiness:
        case ("short", n, _):
            return f"{plural(int(n), 'step')} {plural(int(n), 'is', 'are', number=False)} too few"
        case ("scatter", size, _):
            return f"scatters {size:.0f}{THIN}%"
        case ("drift", size, _):
            return f"drifts {abs(size):.1f}{THIN}%"
        case ("level", size, iteration):
            return f"{abs(size):.1f}{THIN}% {'slower' if size > 0 else 'faster'} from iteration {iteration}"
        case _:
            return ""


def _change(window: FloatArray, drift: float, iterations: FloatArray | IntArray) -> tuple[Unsteadiness, str]:
    row, size = level_change(window)
    if abs(size) > abs(drift) / 2:
        text = f"step times change level: {_percent(size)} from iteration {int(iterations[row])}"
        return Unsteadiness("level", 100 * math.expm1(size), int(iterations[row])), text
    text = f"step times drift: the end is {_percent(drift)} than the start"
    return Unsteadiness("drift", 100 * math.expm1(drift)), text


def level_change(window: FloatArray) -> tuple[int, float]:
    """Return where a second level begins in a window that changes, and its distance (ln); 0 if a line fits as well."""
    values = clip_around_median(window, mad(window), 3.0)
    n, rows = len(values), np.arange(len(values))
    values = values - values.mean()
    lengths = np.arange(MIN_WINDOW, n - MIN_WINDOW + 1)
    by_levels = np.cumsum(values)[lengths - 1] ** 2 * n / (lengths * (n - lengths))
    left_by_line = np.square(values - np.polyval(np.polyfit(rows, values, 1), rows)).sum()
    row = int(lengths[by_levels.argmax()])
    if np.square(values).sum() - by_levels.max() > LEVELS_FIT * left_by_line:
        return 0, 0.0
    return row, median(window[row:]) - median(window[:row])


def drift_of(window: FloatArray, from_warm_up: FloatArray) -> float:
    """Return the change (ln) from the start to the end of a window, the larger of two tests; 0 within noise.

    `from_warm_up`: the logarithms from the first end of warm-up on, on which the slope is measured. Under 15 values no
    test has power.
    """
    if len(window) < SHORT_WINDOW:
        return 0.0
    return max(drift_between_thirds(window) or 0.0, drift_along_line(from_warm_up) or 0.0, key=abs)


def _percent(log_change: float) -> str:
    word = "slower" if log_change > 0 else "faster"
    return f"{100 * abs(math.expm1(log_change)):.1f} % {word}"


def drift_between_thirds(window: FloatArray) -> float | None:
    """Change of the median from the first to the last third, when it exceeds noise; else None."""
    clipped = clip_around_median(window, mad(window), 3.0)
    thirds = np.array_split(clipped, 3)
    shift = median(thirds[2]) - median(thirds[0])
    noise = long_run_variance(np.concatenate([third - np.median(third) for third in thirds]))
    limit = max(MIN_DRIFT, Z * MEDIAN_EFFICIENCY * math.sqrt(6 * noise / len(clipped)))
    return shift if abs(shift) > limit else None


def drift_along_line(values: FloatArray) -> float | None:
    """Change along the Theil-Sen line over the whole length, when it exceeds noise; else None."""
    clipped = clip_around_median(values, mad(values), 3.0)
    q = len(clipped)
    if slope_is_within(clipped, MIN_DRIFT / q):
        return None
    slope = theil_sen_slope(clipped)
    noise = long_run_variance(clipped - slope * np.arange(q))
    limit = max(MIN_DRIFT, Z * q * math.sqrt(12 * noise / q**3))
    return slope * q if abs(slope) * q > limit else None


Role = Literal["warm-up", "window", "spike", "outside"]

MIN_VALUES = 4
"""Fewer step times give no estimate."""
TAIL_SPREAD_FLOOR = 0.002
"""Minimum spread assumed for the second half, so that rounding of a constant series does not count as warm-up."""
WARM_UP_MARGIN = 0.03
"""Within 3 % of the second half's median an iteration is warm, however small the spread."""
MIN_REFINED = 20
"""MSER-5 needs at least four batches of five."""
BATCH = 5
MIN_REFINEMENT = 0.005
"""A refinement that changes the median by less than 0.5 % is ignored."""
T_BATCHES, DRIFT_SE, Z95 = 2.447, 0.0075, 1.96
"""t(0.975, 6) for few batches; slow drift between windows, which no window of 50 iterations can see (sd 0.75 %)."""
SPIKE_MARGIN = math.log(1.05)
"""A spike is at least 5 % above the median, however quiet the window."""
MOST_SPIKES = 10


@dataclass(frozen=True, slots=True)
class _Part:
    """Row numbers of finite step times of one segment, and their logarithms."""

    rows: npt.NDArray[np.intp]
    y: FloatArray


@dataclass(frozen=True, slots=True)
class _Span:
    """A window `start`..`stop` (exclusive) in a part, and where warm-up first ended in it."""

    start: int
    stop: int
    warm_from: int
    method: Literal["declared", "detected"]


def steady_state(
    iterations: FloatArray | IntArray,
    step_times_ms: FloatArray,
    segment_starts: Sequence[int] = (0,),
    declared: Window | None = None,
) -> SteadyState | None:
    """Return the steady window and its step time; None with fewer than four usable step times.

    `step_times_ms`: true step times in the order of the log; those that are not `usable` are left out.
    `segment_starts`: rows at which a process (re)started; the longest segment is used, of equals the last. `declared`:
    the uploader's window, first and last iteration inclusive; it replaces detection if it is long enough.
    """
    notes: list[str] = []
    part, span = _declared_span(iterations, step_times_ms, declared, notes)
    if span is None:
        part = _longest_segment(step_times_ms, segment_starts, notes)
        if len(part.y) < MIN_VALUES:
            return None
        span = _detected_span(part.y)
    return _describe(iterations, part, span, tuple(notes))


def _usable(step_times_ms: FloatArray, rows: npt.NDArray[np.intp]) -> _Part:
    usable_rows = rows[usable(step_times_ms[rows])]
    return _Part(usable_rows, np.log(step_times_ms[usable_rows]))


def _declared_span(
    iterations: FloatArray | IntArray, step_times_ms: FloatArray, declared: Window | None, notes: list[str]
) -> tuple[_Part, _Span | None]:
    """Return the declared window as its own part, or None and a note when it is too short."""
    if declared is None:
        return _Part(np.empty(0, np.intp), np.empty(0)), None
    inside = np.flatnonzero((iterations >= declared.first) & (iterations <= declared.last))
    part = _usable(step_times_ms, inside)
    if len(part.y) < MIN_VALUES:
        notes.append(
            f"The declared window {declared.first} to {declared.last} has {len(part.y)} step times and needs "
            f"{MIN_VALUES}; a window was detected instead."
        )
        return part, None
    return part, _Span(0, len(part.y), 0, "declared")


def _longest_segment(step_times_ms: FloatArray, segment_starts: Sequence[int], notes: list[str]) -> _Part:
    """Return the longest segment: a restarted process warms up again, so windows never cross a restart."""
    bounds = sorted({0, *segment_starts, len(step_times_ms)})
    parts = [_usable(step_times_ms, np.arange(a, b)) for a, b in pairwise(bounds)]
    if not parts:
        return _Part(np.empty(0, np.intp), np.empty(0))
    chosen = max(range(len(parts)), key=lambda i: (len(parts[i].y), i))
    if len(parts) > 1:
        notes.append(
            f"The run was restarted {_times(len(parts) - 1)}; the figures are from part {chosen + 1} of "
            f"{len(parts)}, the longest."
        )
    return parts[chosen]


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def _detected_span(y: FloatArray) -> _Span:
    """Find the end of warm-up by a scan, then refine it (steps 2 and 3)."""
    centre, spread = _second_half(y)
    warm_from = _scan(y, centre, spread)
    start = _refine(y, warm_from, centre, spread)
    return _Span(start, len(y), warm_from, "detected")


def _second_half(y: FloatArray) -> tuple[float, float]:
    """Return median and spread of the second half, which is assumed to be warm."""
    tail = y[len(y) // 2 :]
    return median(tail), max(mad(tail), TAIL_SPREAD_FLOOR)


def _scan(y: FloatArray, centre: float, spread: float) -> int:
    """Return the first value near the second half that is followed by similar ones.

    In longer runs this is never the very first value.
    """
    limit = centre + max(4 * spread, WARM_UP_MARGIN)
    half = len(y) // 2
    threes = np.median(np.lib.stride_tricks.sliding_window_view(y, 3)[:half], axis=1)
    warm = (y[:half] <= limit) & (threes <= limit)
    warm[0] &= len(y) <= 5
    return int(np.argmax(warm)) if warm.any() else half


def _refine(y: FloatArray, warm_from: int, centre: float, spread: float) -> int:
    """Drop leading batches of five while that makes the mean of the rest more precise (MSER-5, White et al. 2000)."""
    n = len(y)
    if n - warm_from < MIN_REFINED:
        return warm_from
    dropped = _mser_drop(np.clip(y[warm_from:], centre - 3 * spread, centre + 3 * spread))
    batches = (n - warm_from) // BATCH
    start = n - BATCH * (batches - dropped)
    if dropped == 0 or start > n / 2 + 1:
        return warm_from
    change = abs(median(y[warm_from:start]) - median(y[start:]))
    return start if change >= MIN_REFINEMENT else warm_from


def _mser_drop(z: FloatArray) -> int:
    """Return how many leading batches (at most half) to drop to minimise `sum of squares / kept^2`."""
    batches = len(z) // BATCH
    means = z[len(z) - BATCH * batches :].reshape(batches, BATCH).mean(axis=1)
    centred = means - means.mean()
    remaining = np.arange(batches, 0, -1)
    sums, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    scores = (squares - sums**2 / remaining) / remaining**2
    return int(np.argmin(scores[: batches // 2 + 1]))


def _describe(iterations: FloatArray | IntArray, part: _Part, span: _Span, notes: tuple[str, ...]) -> SteadyState:
    """Apply steps 4 to 7 to a chosen window."""
    window = part.y[span.start : span.stop]
    rows = part.rows[span.start : span.stop]
    y_hat, k = median(window), len(window)
    drift = drift_of(window, part.y[span.warm_from : span.stop])
    two_speeds = mad(window) if mad(window) > MAX_SPREAD else 0.0
    se = math.hypot(standard_error(window), drift / 2, two_speeds)
    half_width = math.hypot(T_BATCHES * se, Z95 * DRIFT_SE)
    threshold = y_hat + max(5 * mad(window), SPIKE_MARGIN)
    reasons = reasons_not_steady(window, drift, iterations[rows])
    if drift and abs(math.expm1(drift)) <= MOST_DRIFT:
        _, changes = _change(window, drift, iterations[rows])
        notes = (*notes, f"{changes.capitalize()}. The interval is widened by this.")
    last_iteration = int(iterations[rows[-1]])
    declared_late = span.method == "declared" and k >= VALIDATED_WINDOW and last_iteration >= VALIDATED_STEPS
    return SteadyState(
        first_iteration=int(iterations[rows[0]]),
        last_iteration=last_iteration,
        n=k,
        method=span.method,
        is_steady=not reasons,
        reasons=tuple(text for _, text in reasons),
        unsteadiness=reasons[0][0] if reasons else None,
        short=k < SHORT_WINDOW and not declared_late,
        log_step_time=y_hat,
        se=se,
        step_time_ms=math.exp(y_hat),
        ci_low_ms=math.exp(y_hat - half_width),
        ci_high_ms=math.exp(y_hat + half_width),
        mean_step_time_ms=float(np.exp(window).mean()),
        spike_threshold_ms=math.exp(threshold),
        spike_share=float(np.mean(window > threshold)),
        notes=notes,
        spikes=_slowest(iterations[rows], window, threshold),
    )


def _slowest(iterations: FloatArray | IntArray, window: FloatArray, threshold: float) -> tuple[tuple[int, float], ...]:
    slow = np.flatnonzero(window > threshold)
    slowest = np.sort(slow[np.argsort(-window[slow], kind="stable")[:MOST_SPIKES]])
    return tuple((int(iterations[row]), round(math.exp(window[row]), 1)) for row in slowest)


def standard_error(window: FloatArray) -> float:
    """Return the standard error of the median of a window of logarithms: the larger of two estimates."""
    if len(window) < 5:
        return max(mad(window), 0.01)
    return max(_error_by_batches(window), _error_by_autocorrelation(window))


def _error_by_batches(window: FloatArray) -> float:
    """Estimate from medians of four (three in short windows) contiguous batches, which shows slow drift."""
    batches = 3 if len(window) < 16 else 4
    medians = [median(batch) for batch in np.array_split(window, batches)]
    return float(np.std(medians, ddof=1)) / math.sqrt(batches)


def _error_by_autocorrelation(window: FloatArray) -> float:
    """Estimate from clipped deviations and their autocorrelation, which shows short-range dependence."""
    k = len(window)
    deviations = window - median(window)
    width = 1.5 * mad(window)
    psi = np.clip(deviations, -width, width)
    rho = lag_one_correlation(psi)
    inside = max(float(np.mean(np.abs(deviations) <= width)), 0.5)
    return 1.12 * math.sqrt(float(psi.var(ddof=1)) / k * (1 + rho) / (1 - rho)) / inside


def iteration_roles(
    iterations: FloatArray | IntArray,
    step_times_ms: FloatArray,
    steady: SteadyState | None,
    segment_starts: Sequence[int] = (0,),
) -> list[Role]:
    """Return the role of each row in the run's chart. Rows of a segment before its window are warm-up."""
    if steady is None:
        return ["outside"] * len(iterations)
    inside = np.flatnonzero(steady.contains(iterations) & usable(step_times_ms))
    first = int(inside[0])
    begin = max((start for start in segment_starts if start <= first), default=0)
    roles: list[Role] = ["outside"] * len(iterations)
    roles[begin:first] = ["warm-up"] * (first - begin)
    for row in inside:
        roles[row] = "spike" if step_times_ms[row] > steady.spike_threshold_ms else "window"
    return roles

"""Formatting of figures for pages, reports and the command line: units, significant digits, intervals, times.

Step time in ms below 10 s, else s; four significant digits; percent with one decimal, two below 1 %.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from app.domain.run import Metric, Value

THIN = "\u202f"
"""A narrow no-break space between figure and unit."""
DASH = "–"
"""Not applicable. Unknown values are shown as `unknown`, never as 0 or blank."""
TimeUnit = Literal["ms", "s"]
_SECONDS_FROM_MS = 10_000
_SIGNIFICANT = 4
_ABSURD = 1e15
"""Larger numbers are written with a power of ten."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric as text, all parts in `unit` with the same decimals.

    `width`: `± 0.18`, or `(30.89 to 33.73)` if the ends are not equally far away; empty without an interval (a figure
    that was equal in every iteration).
    """

    value: str
    unit: str
    width: str
    low: str
    high: str
    n: int
    note: str

    @property
    def text(self) -> str:
        return f"{self.value}{THIN}{self.unit}" if self.unit else self.value

    @property
    def interval(self) -> str:
        """Format the 95 % interval: `30.89 to 31.73 s`; `unknown` if an end is not a number."""
        if DASH in (self.low, self.high):
            return "unknown"
        return f"{self.low} to {self.high}{THIN + self.unit if self.unit else ''}"


UNITS = {
    "step_time_ms": "ms",
    "tokens_per_s_per_gpu": "",
    "tflops_per_gpu": "",
    "mfu_pct": "%",
    "peak_memory_gib": "GiB",
}
"""Units printed after the figure; those of throughput are part of its label (`tokens/s/GPU`)."""


def figure(metric: Metric, name: str, time_unit: TimeUnit | None = None) -> Figure:
    """Format the headline figure `name` (a key of UNITS); a step time in `time_unit` if given."""
    unit, scale = UNITS[name], 1.0
    if name == "step_time_ms" and (time_unit or time_unit_of([metric.value])) == "s":
        unit, scale = "s", 1e-3
    value = metric.value * scale
    decimals = _decimals(name, value)
    low, high = metric.ci_low * scale, metric.ci_high * scale
    return Figure(
        value=grouped(value, decimals),
        unit=unit,
        width=_width(low, value, high, decimals),
        low=grouped(low, decimals),
        high=grouped(high, decimals),
        n=metric.n,
        note=metric.note,
    )


def step_time(milliseconds: float, time_unit: TimeUnit | None = None) -> str:
    """Format a step time: `412.3 ms`, `31.31 s`; in `time_unit` if given."""
    return figure(Metric(milliseconds, milliseconds, milliseconds, 0), "step_time_ms", time_unit).text


def levels_text(levels: tuple[float, float]) -> str:
    """Format the two step times (ms) of a job that alternates: `205.9 and 292.8 ms`, `21.00 and 22.37 s`."""
    usual, slow = (figure(Metric(ms, ms, ms, 0), "step_time_ms", time_unit_of(levels)) for ms in levels)
    return f"{usual.value} and {slow.text}"


def metric_text(metric: str, value: float | None) -> str:
    """Return a value in the unit of its metric; empty when unknown."""
    if value is None:
        return ""
    if metric == "step_time_ms":
        return step_time(value)
    text = grouped(value, _decimals(metric, value))
    return f"{text}{THIN}GiB" if metric == "peak_memory_gib" else text


def time_unit_of(milliseconds: Iterable[float], seconds_from: float = _SECONDS_FROM_MS) -> TimeUnit:
    """Return the unit for a column of step times: that of the longest. `seconds_from`: in ms."""
    return "s" if max(map(abs, milliseconds), default=0.0) >= seconds_from else "ms"


def percent(value: float) -> str:
    """Format a percentage: `19.5 %`, `0.42 %`. `value` is in percent."""
    return f"{grouped(value, _decimals('mfu_pct', value))}{THIN}%"


def share_text(share: float, decimals: int = 0) -> str:
    """Format a share of 1 as a percentage: `30 %`."""
    return f"{100 * share:.{decimals}f}{THIN}%"


def significant(value: float) -> str:
    """Format four significant digits; all digits from 1,000 on."""
    return grouped(value, _decimals("", value))


def grouped(value: float, decimals: int = 0) -> str:
    """Format a whole number: `1,204`, with a minus sign; an en dash for NaN."""
    if not math.isfinite(value):
        return DASH
    text = f"{value:,.{decimals}f}" if abs(value) < _ABSURD else f"{value:.3e}"
    return text.replace("-", "−")


def with_sign(value: float, decimals: int) -> str:
    """Format a difference: `+1.20`, `−0.40`; `0.00` if all shown digits are zeros."""
    text = grouped(abs(value), decimals)
    if not text.strip("0.,"):
        return text
    return f"{'+' if value > 0 else '−'}{text}"


def plural(n: float, singular: str, several: str = "", *, number: bool = True) -> str:
    """Return `1 run` or `1,204 runs`. `several`: irregular plural. `number=False` omits the number."""
    words = singular if n == 1 else several or f"{singular}s"
    return f"{n:,} {words}" if number else words


def file_size(size_bytes: int) -> str:
    """Format a size in decimal units: `41.2 MB`."""
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    if unit == "bytes":
        return plural(size_bytes, "byte")
    return f"{grouped(size, 1 if size < 99.95 else 0)}{THIN}{unit}"


def ago(time: datetime, now: datetime) -> str:
    """Format the age: `just now`, `5 min ago`, `2 h ago`, `3 d ago`; the date after a month. Both times are aware."""
    seconds = (now - time).total_seconds()
    if seconds < 45:
        return "just now"
    for limit, divisor, unit in ((3600, 60, "min"), (86_400, 3600, "h"), (30 * 86_400, 86_400, "d")):
        if seconds < limit:
            return f"{max(1, int(seconds // divisor))}{THIN}{unit} ago"
    return time.astimezone(UTC).strftime("%Y-%m-%d")


def absolute(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def days_text(first: datetime, last: datetime) -> str:
    """Format a period in days: `13 to 17 Sep`, `28 Aug to 4 Sep`; with years if they differ."""
    begin, end = first.astimezone(UTC), last.astimezone(UTC)
    if begin.date() == end.date():
        return f"{end.day} {end:%b}"
    if begin.year != end.year:
        return f"{begin.day} {begin:%b} {begin.year} to {end.day} {end:%b} {end.year}"
    start = f"{begin.day}" if begin.month == end.month else f"{begin.day} {begin:%b}"
    return f"{start} to {end.day} {end:%b}"


def round_step(span: float, most: int) -> float:
    """Return the smallest step of 1, 2 or 5 times a power of ten that `span` has at most `most` of."""
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def short_commit(commit: str) -> str:
    return commit[:8]


def contract_value(value: Value) -> str:
    """Format a contract value: knobs are on or off, None was stated as unset."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(contract_value(part) for part in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else "empty"


def on_off(text: str) -> str:
    """Return a fact's text as contract values are shown: `true` is on, `false` is off."""
    return {"true": "on", "false": "off"}.get(text, text)


def _decimals(name: str, value: float) -> int:
    if not abs(value) < _ABSURD:  # also for NaN
        return 0
    if name == "mfu_pct":
        return 1 if abs(value) >= 0.9995 else 2
    if name == "peak_memory_gib":
        return 1 if abs(value) >= 9.95 else 2
    if value == 0:
        return 0
    # Round first: 9.99996 is 10.00, not 10.000.
    rounded = float(f"{value:.{_SIGNIFICANT - 1}e}")
    return max(0, _SIGNIFICANT - 1 - math.floor(math.log10(abs(rounded))))


_LOPSIDED = 0.05
"""Share of half its width by which the ends of an interval may differ from ±; a unit of the last digit always may."""


def _width(low: float, value: float, high: float, decimals: int) -> str:
    half = (high - low) / 2
    if half <= 0 or not math.isfinite(half):
        return ""
    if abs((low + high) / 2 - value) > max(_LOPSIDED * half, 10**-decimals):
        return f"({grouped(low, decimals)} to {grouped(high, decimals)})"
    text = grouped(half, decimals)
    smallest = grouped(10**-decimals, decimals)
    return f"± <{THIN}{smallest}" if not text.strip("0.,") else f"± {text}"


# --- The notation of a change, everywhere: percent, word, interval. `3.4 % slower (2.1 to 4.7)`.
#
# The word gives the direction, so no number has a sign, and the interval is in the direction of the word. An interval
# with both directions names both: `0.58 % faster (1.0 slower to 2.2 faster)`. Table columns without words have
# `signed` numbers.

_WORDS = {
    "step_time_ms": ("slower", "faster"),
    "peak_memory_gib": ("more", "less"),
}
"""Words for a rise and a fall by metric; other metrics are higher or lower."""
_OTHERWISE = ("higher", "lower")
_NOUNS = {"step_time_ms": "", "peak_memory_gib": "memory", "lm_loss": "loss"}
THE_SAME = "the same"
_NO_CHANGE = 0.005
"""Percentages below this are shown as zeros."""


@dataclass(frozen=True, slots=True)
class ChangeText:
    """A change as text. `delta` has a sign, for use without `word`; `size` has none. `interval`: empty without one."""

    delta: str
    size: str
    word: str
    interval: str

    @property
    def figure(self) -> str:
        """Return `3.4 % slower`, `2.0 % faster` or `the same`."""
        return self.word if self.word == THE_SAME else f"{self.size} {self.word}"

    @property
    def than(self) -> str:
        """Return `3.4 % slower than` or `the same as`, for the name of the other side to follow."""
        return f"{self.figure} {'as' if self.word == THE_SAME else 'than'}"

    @property
    def text(self) -> str:
        """Return `3.4 % slower (2.1 to 4.7)` or `the same (0.20 faster to 0.20 slower)`."""
        return self.figure + (f" ({self.interval})" if self.interval else "")


def change_text(
    delta_pct: float, ci_low_pct: float | None = None, ci_high_pct: float | None = None, metric: str = "step_time_ms"
) -> ChangeText:
    """Return the text of a change of `metric` in percent, with the ends of its interval."""
    words = _WORDS.get(metric, _OTHERWISE)
    rises = delta_pct > 0 or abs(delta_pct) < _NO_CHANGE
    return ChangeText(
        delta=signed(delta_pct),
        size=percent(_shown(abs(delta_pct))),
        word=THE_SAME if abs(delta_pct) < _NO_CHANGE else words[0 if rises else 1],
        interval=_interval(ci_low_pct, ci_high_pct, words if rises else words[::-1], rises=rises),
    )


def change_words(delta_pct: float | None, metric: str, *, up_to: bool = False) -> str:
    """Return a change that names its metric: `up to 9.8 % slower`, `3.3 % more memory`; without a size `slower`."""
    change = change_text(1.0 if delta_pct is None else delta_pct, metric=metric)
    has_size = delta_pct is not None and change.word != THE_SAME
    size = f"{'up to ' if up_to else ''}{change.size} " if has_size else ""
    noun = _NOUNS.get(metric, metric.replace("_", " "))
    return f"{size}{change.word} {noun}".rstrip()


def level_text(level_pct: float) -> str:
    """Return the level of an interval, as all pages name it: `99.6 %`."""
    return f"{level_pct:.3g}{THIN}%"


def is_worse(metric: str) -> str:
    """Return `is slower` or `needs more memory`, for the name of what regressed to precede."""
    return f"{change_verb(metric)} {change_words(None, metric)}"


def change_verb(metric: str, *, is_past: bool = False, of_many: bool = False) -> str:
    """Return the verb between a name and the change of its metric: `is`, `were`, `needs`, `needed`, `has`."""
    verbs = {"step_time_ms": ("is", "was", "are", "were"), "peak_memory_gib": ("needs", "needed", "need", "needed")}
    return verbs.get(metric, ("has", "had", "have", "had"))[2 * of_many + is_past]


def slow_or_affected(metric: str) -> str:
    """Return the adjective for the runs, jobs and stacks of a regression."""
    return "slow" if metric == "step_time_ms" else "affected"


def gain_change(gain_pct: float, low_pct: float | None = None, high_pct: float | None = None) -> ChangeText:
    """Return a gain of throughput as the change of step time that it is: `17.0 % faster (14.0 to 19.9)`.

    Without an interval if its ends are equal.
    """
    if low_pct is None or high_pct is None or low_pct == high_pct:
        return change_text(-time_saved(gain_pct))
    return change_text(-time_saved(gain_pct), -time_saved(high_pct), -time_saved(low_pct))


def throughput_gain(before_ms: float, after_ms: float) -> float:
    """Return the percent of throughput that a change of step time gains; negative if it is slower."""
    return 100 * (before_ms / after_ms - 1)


def step_change(metric: str, delta_pct: float) -> ChangeText:
    """Return a change of step time as that of a metric that step time determines."""
    return change_text(delta_pct if metric == "step_time_ms" else throughput_gain(100, 100 + delta_pct), metric=metric)


def time_saved(gain_pct: float) -> float:
    """Return the percent of step time that a gain of throughput in percent saves; negative if it is slower."""
    return 100 * gain_pct / (100 + gain_pct)


def axis_limit_pct(gains: Iterable[tuple[float, float]]) -> float:
    """Return the end of a common axis of saved step time, a multiple of 5 %. `gains`: ranges of throughput."""
    return 5.0 * max(1, math.ceil(max((abs(time_saved(end)) for gain in gains for end in gain), default=0.0) / 5))


def signed(delta_pct: float) -> str:
    """Format a change without a word: `+3.4 %`, `−2.0 %`, `0.00 %`."""
    value = _shown(delta_pct)
    return f"{'+' if value > 0 else ''}{percent(value)}"


def gpu_hours(hours: float) -> str:
    """Format a cost with two digits: `41`, `2.6`, `0.43`, so that small parts add up; or `under 0.1`."""
    if hours == 0:
        return "0"
    if hours < 0.1:
        return "under 0.1"
    return grouped(hours, 0 if hours >= 9.95 else 1 if hours >= 0.995 else 2)


def daily_cost(hours: float) -> str:
    """Format a cost with its unit: `about 41 GPU-h/day`, `under 0.1 GPU-h/day`."""
    return f"{'about ' if hours >= 0.1 else ''}{gpu_hours(hours)} GPU-h/day"


def _shown(delta_pct: float) -> float:
    """Return zero if all shown digits are zeros, so that `+0.00 %` never appears."""
    return 0.0 if abs(delta_pct) < _NO_CHANGE else delta_pct


def _interval(low: float | None, high: float | None, words: tuple[str, str], *, rises: bool) -> str:
    """Format in the direction of the word `words[0]`; `words[1]` is its opposite."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    if not rises:
        low, high = -high, -low
    is_small = max(abs(low), abs(high)) < 0.995
    # An end near 0 keeps its digits: `0.0` would read as an interval that contains no change.
    ends = [grouped(abs(end), 2 if is_small or 0.005 <= abs(end) < 0.05 else 1) for end in (low, high)]
    return f"{ends[0]} {words[1]} to {ends[1]} {words[0]}" if low < 0 < high else f"{ends[0]} to {ends[1]}"


# --- File sizes.


def size(count: int) -> str:
    """`41.2 MB (41,203,775 bytes)`."""
    if count < 10_000:
        return f"{count:,} bytes"
    for factor, unit in ((10**9, "GB"), (10**6, "MB")):
        if count >= factor:
            return f"{count / factor:,.1f} {unit} ({count:,} bytes)"
    return f"{count / 1000:,.1f} kB ({count:,} bytes)"

"""How a change of a figure is written, everywhere: sign, percent, word, interval. `+3.4 % slower (2.1 to 4.7)`.

The word tells the direction, and the interval is given in the direction of the word: what rises may carry a plus, what
falls never has a minus beside its word (`2.0 % faster (0.1 to 3.7)`). An interval that holds both directions says both
in words: `0.58 % faster (1.0 slower to 2.2 faster)`. In tables whose columns have no words all numbers are `signed`.
"""

import math
from dataclasses import dataclass

from app.domain.numbers import grouped, percent

_WORDS = {
    "step_time_ms": ("slower", "faster"),
    "peak_memory_gib": ("more", "less"),
}
"""Of a metric that rises, and of one that falls; the others are higher or lower."""
_OTHERWISE = ("higher", "lower")
THE_SAME = "the same"
_NO_CHANGE = 0.005
"""In percent: below this all digits that are shown are zeros."""


@dataclass(frozen=True, slots=True)
class ChangeText:
    """`delta` is signed, to stand without a word; `size` has no sign. `interval` is empty where there is none."""

    delta: str
    size: str
    word: str
    interval: str

    @property
    def figure(self) -> str:
        """`+3.4 % slower`, `2.0 % faster`, `the same`."""
        return f"+{self.sentence}" if self.delta.startswith("+") else self.sentence

    @property
    def sentence(self) -> str:
        """The same without the plus, as it stands in a sentence."""
        return self.word if self.word == THE_SAME else f"{self.size} {self.word}"

    @property
    def text(self) -> str:
        """`+3.4 % slower (2.1 to 4.7)`; `the same (0.20 faster to 0.20 slower)`."""
        return self.figure + (f" ({self.interval})" if self.interval else "")


def change_text(
    delta_pct: float, ci_low_pct: float | None = None, ci_high_pct: float | None = None, metric: str = "step_time_ms"
) -> ChangeText:
    """The change of `metric` in percent of itself, with the ends of its interval."""
    words = _WORDS.get(metric, _OTHERWISE)
    rises = delta_pct > 0 or abs(delta_pct) < _NO_CHANGE
    return ChangeText(
        delta=signed(delta_pct),
        size=percent(_shown(abs(delta_pct))),
        word=THE_SAME if abs(delta_pct) < _NO_CHANGE else words[0 if rises else 1],
        interval=_interval(ci_low_pct, ci_high_pct, words if rises else words[::-1], rises=rises),
    )


def signed(delta_pct: float) -> str:
    """`+3.4 %`, `−2.0 %`, `0.00 %`: for where no word stands beside it."""
    value = _shown(delta_pct)
    return f"{'+' if value > 0 else ''}{percent(value)}"


def gpu_hours(hours: float) -> str:
    """`41`, `2.6`, `under 0.1`: as exact as an estimate of a day's cost can be."""
    if hours < 0.1:
        return "under 0.1"
    return grouped(hours, 0 if hours >= 9.95 else 1)


def daily_cost(hours: float) -> str:
    """`about 41 GPU-hours a day`, `under 0.1 GPU-hours a day`."""
    text = gpu_hours(hours)
    return f"{'' if text.startswith('under') else 'about '}{text} GPU-hours a day"


def _shown(delta_pct: float) -> float:
    """Zero when all digits that are shown are zeros, so that nothing is `+0.00 %`."""
    return 0.0 if abs(delta_pct) < _NO_CHANGE else delta_pct


def _interval(low: float | None, high: float | None, words: tuple[str, str], *, rises: bool) -> str:
    """In the direction of the word, `words[0]`; `words[1]` is its opposite."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    if not rises:
        low, high = -high, -low
    decimals = 2 if max(abs(low), abs(high)) < 0.995 else 1
    ends = grouped(abs(low), decimals), grouped(abs(high), decimals)
    return f"{ends[0]} {words[1]} to {ends[1]} {words[0]}" if low < 0 < high else f"{ends[0]} to {ends[1]}"

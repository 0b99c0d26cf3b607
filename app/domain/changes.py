"""How a change of a figure is written: sign, percent, word, interval. `+3.4 % slower (2.1 to 4.7)`."""

import math
from dataclasses import dataclass

from app.domain.numbers import THIN, grouped, percent

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
    """`delta` has its sign; `interval` is given in the direction of `word`, empty where there is none."""

    delta: str
    size: str
    word: str
    interval: str

    @property
    def text(self) -> str:
        """`+3.4 % slower (2.1 to 4.7)`; `the same (-0.20 to 0.20)`."""
        size = self.word if self.word == THE_SAME else f"{self.delta} {self.word}"
        return size + (f" ({self.interval})" if self.interval else "")


def change_text(
    delta_pct: float, ci_low_pct: float | None = None, ci_high_pct: float | None = None, metric: str = "step_time_ms"
) -> ChangeText:
    """The change of `metric` in percent of itself, with the ends of its interval."""
    if abs(delta_pct) < _NO_CHANGE:
        return ChangeText(f"0.00{THIN}%", f"0.00{THIN}%", THE_SAME, _interval(ci_low_pct, ci_high_pct, rises=True))
    rises = delta_pct > 0
    word = _WORDS.get(metric, _OTHERWISE)[0 if rises else 1]
    return ChangeText(
        delta=f"{'+' if rises else ''}{percent(delta_pct)}",
        size=percent(abs(delta_pct)),
        word=word,
        interval=_interval(ci_low_pct, ci_high_pct, rises=rises),
    )


def gpu_hours(hours: float) -> str:
    """`41`, `2.6`, `under 0.1`: as exact as an estimate of a day's cost can be."""
    if hours < 0.1:
        return "under 0.1"
    return grouped(hours, 0 if hours >= 9.95 else 1)


def daily_cost(hours: float) -> str:
    """`about 41 GPU-hours a day`, `under 0.1 GPU-hours a day`."""
    text = gpu_hours(hours)
    return f"{'' if text.startswith('under') else 'about '}{text} GPU-hours a day"


def _interval(low: float | None, high: float | None, *, rises: bool) -> str:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    if not rises:
        low, high = -high, -low
    decimals = 2 if max(abs(low), abs(high)) < 0.995 else 1
    # Adding zero turns -0.0 into 0.0.
    return f"{grouped(round(low, decimals) + 0.0, decimals)} to {grouped(round(high, decimals) + 0.0, decimals)}"

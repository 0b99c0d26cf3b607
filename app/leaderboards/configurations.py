"""Configurations of one dispatcher in words: which is the fastest, and how far the others are from it.

Where a stack has one dispatcher this is what its runs say: it is an A/B of its knobs, and no ranking of dispatchers.
"""

from collections.abc import Mapping

from app.domain.numbers import THIN, TimeUnit, percent, step_time
from app.domain.ranking import Entry
from app.domain.ranking.duels import Duel
from app.domain.ranking.standings import Configuration
from app.leaderboards.words import range_text

_MOST_TOLD = 3
"""Beside the fastest one; the table has all."""


def against_best(duel: Duel) -> str:
    """`24.3 % less throughput (16.4 to 31.4 %)`, `cannot be told apart from it (−8.6 to 8.5 %)`."""
    interval = range_text(duel.low_pct, duel.high_pct)
    if duel.tie:
        told = "is as fast" if duel.outcome == "equal" else "cannot be told apart from it"
        return f"{told} ({interval}{THIN}%)" if interval else told
    less = range_text(*_less(duel))
    told = f"{percent(abs(duel.gain_pct))} {'less' if duel.gain_pct < 0 else 'more'} throughput"
    return f"{told} ({less}{THIN}%)" if less else told


def configurations_sentence(entry: Entry, knobs: Mapping[str, str], unit: TimeUnit | None = None) -> str:
    """`Of 3 configurations the fastest has ep_overlap on: 31.17 s. ep_overlap off: 24.3 % less throughput (...).`

    `knobs`: by config key, what sets it apart. Empty where there is one configuration.
    """
    if len(entry.configurations) < 2:
        return ""
    best, *others = entry.configurations
    named = knobs.get(best.config_key)
    time = step_time(best.step_time_ms.value, unit)
    first = f"Of {len(others) + 1} configurations the fastest is {named or best.config_key[:8]}: {time}."
    told = [f"{knobs.get(one.config_key) or one.config_key[:8]}: {_told(one)}." for one in others[:_MOST_TOLD]]
    more = len(others) - _MOST_TOLD
    rest = [f"The table has {more:,} more."] if more > 0 else []
    return " ".join((first, *told, *rest))


def _told(one: Configuration) -> str:
    found = against_best(one.duel) if one.duel else "the fastest"
    return f"{found}, directional" if one.directional else found


def _less(duel: Duel) -> tuple[float | None, float | None]:
    """The interval of how much, without the sign that a word says already."""
    low, high = duel.low_pct, duel.high_pct
    if low is None or high is None or duel.gain_pct >= 0:
        return low, high
    return -high, -low

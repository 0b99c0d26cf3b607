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


def configurations_sentence(
    entry: Entry, knobs: Mapping[str, str], unit: TimeUnit | None = None, most: int = _MOST_TOLD
) -> str:
    """`Fastest of 3 configurations: ep_overlap on, 31.17 s. With ep_overlap off it has 24.3 % less throughput (...).`

    `knobs`: by config key, what sets it apart. Empty where there is one configuration.
    """
    if len(entry.configurations) < 2:
        return ""
    best, *others = entry.configurations
    time = step_time(best.step_time_ms.value, unit)
    named = knobs.get(best.config_key, "")
    first = f"Fastest of {len(others) + 1} configurations: {named or best.config_key[:8]}, {time}."
    told = [f"With {_apart(one, named, knobs)} it {_told(one)}." for one in others[:most]]
    more = len(others) - most
    rest = [f"{more:,} more {'is' if more == 1 else 'are'} slower or no better."] if more > 0 else []
    return " ".join((first, *told, *rest))


def _apart(one: Configuration, best: str, knobs: Mapping[str, str]) -> str:
    """Its knobs that are not those of the best one."""
    shared = best.split(", ")
    parts = [part for part in knobs.get(one.config_key, "").split(", ") if part and part not in shared]
    return ", ".join(parts) or one.config_key[:8]


def _told(one: Configuration) -> str:
    if one.duel is None:
        return "is the fastest"
    found = against_best(one.duel)
    found = found if one.duel.tie else f"has {found}"
    return f"{found}, directional" if one.directional else found


def _less(duel: Duel) -> tuple[float | None, float | None]:
    """The interval of how much, without the sign that a word says already."""
    low, high = duel.low_pct, duel.high_pct
    if low is None or high is None or duel.gain_pct >= 0:
        return low, high
    return -high, -low

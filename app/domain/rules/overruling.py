"""Where sources contradict each other: which statement counts, and by what.

What code enforces stands above every text. Of what is faster a settled A/B of this service tells more than texts; then
comes published evidence, then the founding documents as a prior. Between equals neither outranks the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.rules.contradictions import Contradiction
from app.domain.rules.precedence import LEVEL_NAMES, OwnResult
from app.domain.rules.rule import Source

Side = Literal["older", "newer", "here", "both"]
CODE, HERE, PUBLISHED, FOUNDING = 1, 2, 4, 5
_FOUNDING = ("S0", "S1", "S2", "S3", "S4")
_ENFORCES_NOTHING = ("M-readme", "C-rec", "C-penv")
"""A readme, recipes and a launcher's defaults stand in the code, and a launch may differ from them."""


@dataclass(frozen=True, slots=True)
class Overruling:
    """Which side counts, by what level of evidence, and the sentence that says so. `both`: they are of one level."""

    side: Side
    level: int
    because: str


def source_level(key: str) -> int:
    """How strong a source is by itself, 1 the strongest (`precedence.LEVEL_NAMES`)."""
    if key.startswith(("M-", "C-")) and key not in _ENFORCES_NOTHING:
        return CODE
    return FOUNDING if key in _FOUNDING else PUBLISHED


def overruling(one: Contradiction, sources: Mapping[str, Source], own: Sequence[OwnResult] = ()) -> Overruling:
    """`own`: what this service measured of the rule in question."""
    older, newer = _strongest(one.older_sources), _strongest(one.newer_sources)
    settled = [result for result in own if result.settled]
    if settled and one.measurable and min(older, newer) > CODE:
        best = max(settled, key=lambda result: result.n)
        word = "gained" if best.median_gain_pct > 0 else "lost"
        said = f"Measured here it {word} {abs(best.median_gain_pct):.1f} % (n = {best.n}), which outranks both."
        return Overruling("here", HERE, said)
    if older < newer:
        return Overruling("older", older, f"The older counts: {_named(older)} stands above {_named(newer)}.")
    if newer < older:
        return Overruling("newer", newer, f"The newer counts: {_named(newer)} stands above {_named(older)}.")
    date = max((sources[key].date for key in one.newer_sources if key in sources), default="")
    when = f" of {date}" if date else ""
    return Overruling("both", newer, f"Neither outranks the other: both are {_named(newer)}, the newer one{when}.")


def _strongest(keys: Sequence[str]) -> int:
    return min((source_level(key) for key in keys), default=FOUNDING)


def _named(level: int) -> str:
    return {CODE: "what is enforced in code", PUBLISHED: "published evidence", FOUNDING: "a founding document"}.get(
        level, LEVEL_NAMES[level]
    )

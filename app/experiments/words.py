"""How experiments are put into words."""

from collections.abc import Sequence

from app.domain.changes import signed
from app.domain.experiments.values import Gain, KnobChange, Side, State
from app.domain.numbers import grouped

STATES: dict[State, str] = {
    "planned": "No run of it is in yet.",
    "waiting": "Some of its runs are in.",
    "done": "Its runs are in; somebody has to decide.",
    "accepted": "The result was accepted.",
    "rejected": "The result was rejected.",
    "withdrawn": "It was given up before its result.",
}
"""State -> what it means."""
LETTERS: dict[Side, str] = {"baseline": "A", "candidate": "B"}
ARROW = "\N{RIGHTWARDS ARROW}"


def knob_text(knob: KnobChange) -> str:
    """`ep_overlap off → on`."""
    return f"{knob.field} {knob.before_text} {ARROW} {knob.after_text}"


def values_text(knobs: Sequence[KnobChange]) -> str:
    """`off → on`, or how many there are."""
    return " ".join((knobs[0].before_text, ARROW, knobs[0].after_text)) if len(knobs) == 1 else f"{len(knobs)} knobs"


def knobs_text(knobs: Sequence[KnobChange]) -> str:
    return "; ".join(map(knob_text, knobs)) or "nothing"


def gain_text(gain: Gain | None) -> str:
    """`+31.8 % throughput (30.1 to 33.2)`; empty where nothing was measured."""
    if gain is None:
        return ""
    return f"{signed(gain.pct)} throughput ({_end(gain.low_pct)} to {_end(gain.high_pct)})"


def short_gain(gain: Gain | None) -> str:
    return "" if gain is None else f"{signed(gain.pct)} throughput"


def tone(gain: Gain | None) -> str:
    """The colour of a gain: none where its interval holds both directions."""
    if gain is None or gain.low_pct <= 0 <= gain.high_pct:
        return ""
    return "improvement" if gain.pct > 0 else "regression"


def _end(pct: float) -> str:
    return grouped(pct, 1 if abs(pct) >= 1 else 2)

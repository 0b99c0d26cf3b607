"""The last steady step times of a stack as a line of a few pixels: where it stands, and whether it moved."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.numbers import counted, step_time

WIDTH, HEIGHT, EDGE = 120, 28, 3
_LEAST_RANGE = 0.02
"""Of the value: noise must not look like a change."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`points` as SVG writes them; `last_x`, `last_y` are of the newest; `label` says the same in words."""

    points: str
    last_x: float
    last_y: float
    label: str


def sparkline(milliseconds: Sequence[float]) -> Sparkline | None:
    """Oldest first. None for fewer than two: that is no line."""
    if len(milliseconds) < 2:
        return None
    low, high = min(milliseconds), max(milliseconds)
    middle = (low + high) / 2
    span = max(high - low, _LEAST_RANGE * middle) or 1.0
    places = [
        (
            round(EDGE + k * (WIDTH - 2 * EDGE) / (len(milliseconds) - 1), 1),
            round(HEIGHT / 2 - (value - middle) / span * (HEIGHT - 2 * EDGE), 1),
        )
        for k, value in enumerate(milliseconds)
    ]
    label = (
        f"Step time of the last {counted(len(milliseconds), 'run')}: {step_time(milliseconds[0])} first, "
        f"{step_time(milliseconds[-1])} last, between {step_time(low)} and {step_time(high)}"
    )
    return Sparkline(" ".join(f"{x},{y}" for x, y in places), *places[-1], label)

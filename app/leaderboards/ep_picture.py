"""The picture of a matrix: step time over EP degrees, a line for each dispatcher, with intervals."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.numbers import THIN, TimeUnit, round_step, step_time, time_unit_of
from app.domain.ranking.matrix import EpMatrix
from app.domain.ranking.standings import Interval

HEIGHT = 300
"""Pixels of the drawing; horizontal positions are in percent of its width."""
_TOP, _BOTTOM = 8, HEIGHT - 28
_LEFT, _RIGHT = 3.0, 97.0
"""The first and the last EP degree. The stylesheet keeps space for tick labels left and names of dispatchers right."""
_ROOM = 0.08
"""Free share above and below the results."""
_TICKS = 4
_LABEL_HEIGHT, _SHIFT = 16, 10


@dataclass(frozen=True, slots=True)
class EpMark:
    """A result. `y`, `low`, `high`: pixels from the top; `x`: percent from the left."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True, slots=True)
class EpLine:
    """The results of a dispatcher, by EP degree. `label_y`: of its name, apart from the other names.

    `shift`: pixels to the right, so that equal results of two dispatchers are both visible.
    """

    dispatcher: str
    marks: tuple[EpMark, ...]
    label_y: float
    shift: float


@dataclass(frozen=True, slots=True)
class EpPicture:
    """`columns`: the EP degrees with their places; `ticks`: step times with theirs."""

    columns: Mapping[int, float]
    ticks: tuple[tuple[str, float], ...]
    lines: tuple[EpLine, ...]
    height: int = HEIGHT
    bottom: int = _BOTTOM


def ep_picture(matrix: EpMatrix, beyond: Sequence[int] = ()) -> EpPicture | None:
    """Return the picture of a matrix with the degrees `beyond` as empty columns; None for a single column."""
    eps = sorted({*matrix.columns, *beyond})
    if len(eps) < 2:
        return None
    results = [cell.step_time_ms for column in matrix.columns.values() for cell in column]
    ends = [end for result in results for end in _ends(result)]
    room = (max(ends) - min(ends) or max(ends) * 0.1) * _ROOM
    low, high = min(ends) - room, max(ends) + room
    unit = time_unit_of(result.value for result in results)

    def y_of(milliseconds: float) -> float:
        return round(_BOTTOM - (milliseconds - low) / (high - low) * (_BOTTOM - _TOP), 1)

    columns = {ep: round(_LEFT + (_RIGHT - _LEFT) * place / (len(eps) - 1), 2) for place, ep in enumerate(eps)}
    drawn = []
    for dispatcher in matrix.dispatchers:
        marks = []
        for ep in matrix.columns:
            cell = matrix.cell(dispatcher, ep)
            if cell is not None:
                title = f"{dispatcher}, EP{ep}: {step_time(cell.step_time_ms.value, unit)}"
                y, (least, most) = y_of(cell.step_time_ms.value), _ends(cell.step_time_ms)
                marks.append(EpMark(columns[ep], y, y_of(least), y_of(most), title))
        if marks:
            drawn.append((dispatcher, tuple(marks)))
    labels = _apart([marks[-1].y for _, marks in drawn])
    lines = tuple(
        EpLine(name, marks, label_y, _SHIFT * (place - (len(drawn) - 1) / 2))
        for place, ((name, marks), label_y) in enumerate(zip(drawn, labels, strict=True))
    )
    return EpPicture(columns, tuple((tick_text(tick, unit), y_of(tick)) for tick in round_ticks(low, high)), lines)


def _ends(result: Interval) -> tuple[float, float]:
    return (
        result.value if result.low is None else result.low,
        result.value if result.high is None else result.high,
    )


def round_ticks(low: float, high: float) -> list[float]:
    """Return the round step times in the range."""
    step = round_step(high - low, _TICKS)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick_text(milliseconds: float, unit: TimeUnit) -> str:
    return f"{milliseconds / 1000:,.10g}{THIN}s" if unit == "s" else f"{milliseconds:,.10g}{THIN}ms"


def _apart(places: Sequence[float]) -> list[float]:
    """Move labels down until none covers the one above it."""
    moved = list(places)
    order = sorted(range(len(places)), key=lambda index: places[index])
    for above, below in itertools.pairwise(order):
        moved[below] = max(moved[below], moved[above] + _LABEL_HEIGHT)
    return moved

"""What the chart of a history draws: rows of values for its points, levels and marks."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np

from app.domain.changes import change_text
from app.domain.history_view import STANDINGS, Configuration, Level, VersionChange
from app.domain.numbers import absolute, figure, short_commit
from app.domain.run import Metric
from app.history.reading import History
from app.history.view import DATE
from app.history.words import VERDICTS, version_text
from app.storage.stack_runs import StackRun
from app.web.chart_theme import HEIGHT
from app.web.numbers import UNITS
from app.web.series_groups import series_label

MOST_INTERVALS = 250
"""Bars of more runs than these run into each other; the interval of one stands in its tooltip."""
NOT_OF_STEP_TIME = "peak_memory_gib"
"""The one headline figure that is no constant over the step time, so that levels of step time say nothing of it."""
_SECONDS_FROM_MS = 10_000
_BESIDE = 0.5
"""The axis reaches so many times the range of the middle 96 % beyond it; what lies farther off is drawn at its edge."""
_TICKS = 6
_DAY_MS = 86_400_000
_WITH_YEAR = timedelta(days=300)
_IN_ONE_ROW, _LABEL_ROW = 5, 15
"""So many labels of change points stand beside each other; the second row is so many pixels lower."""
_LATE = 0.88
"""In shares of the width: a label that begins behind it would leave the chart."""
_CALLED = ("regression", "improvement", "inconclusive", "no_baseline", "failed")
"""Verdicts with a mark of their own; a run without a change is a plain point."""
_ARROWS = ("regression", "improvement")
_QUIET = ("inconclusive", "no_baseline")
MOST_QUIET_MARKS = 150
"""Among more runs than these, rings of verdicts that call nothing would bury the marks of those that do."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Drawing:
    """`places` of the runs that are drawn, in order, at least one; `shown`: their configurations.

    `figures`: the metric of each of these runs, by number. `versions`: where versions change among them.
    """

    history: History
    places: Sequence[int]
    shown: Sequence[Configuration]
    metric: str
    axis: str
    figures: Mapping[int, Metric | None]
    versions: Sequence[VersionChange] = ()

    @cached_property
    def scale(self) -> float:
        """What a value is multiplied by: step times are drawn in seconds from 10 s on."""
        values = [metric.value for place in self.places if (metric := self.metric_at(place))]
        slow = self.metric == "step_time_ms" and values and float(np.median(values)) >= _SECONDS_FROM_MS
        return 1e-3 if slow else 1.0

    @property
    def title(self) -> str:
        unit = "s" if self.scale != 1 else UNITS[self.metric]
        label = series_label(self.metric)
        return f"{label} ({unit})" if unit else label

    @cached_property
    def range(self) -> tuple[float, float]:
        """The value axis. It does not start at zero."""
        values = [self.scale * metric.value for place in self._deciding if (metric := self.metric_at(place))]
        if not values:
            return 0.0, 1.0
        low, high = (float(end) for end in np.quantile(values, (0.02, 0.98)))
        levels = [value for _, _, value in self.level_values()]
        low, high = min([low, *levels]), max([high, *levels])
        beside = _BESIDE * (high - low)
        low, high = max(low - beside, min([*values, low])), min(high + beside, max([*values, high]))
        margin = (high - low) * 0.1 or abs(high) * 0.02 or 1.0
        return low - margin, high + 2 * margin  # labels of change points stand above

    @property
    def _deciding(self) -> Sequence[int]:
        """Places of the runs that the value axis fits: those that count, or all where none does."""
        return [place for place in self.places if self.counts(place)] or self.places

    def at(self, place: float) -> float:
        """Where a place stands on the axis: its number from 1, or milliseconds since 1970."""
        if self.axis != DATE:
            return place + 1
        return self.history.runs[math.ceil(place)].ordered_at.timestamp() * 1000

    def metric_at(self, place: int) -> Metric | None:
        return self.figures.get(self.history.runs[place].id)

    def counts(self, place: int) -> bool:
        return self.history.standings[place] == "counts"

    def level_values(self) -> Iterator[tuple[Configuration, Level, float]]:
        """The levels that reach into what is drawn, in the unit of the metric."""
        for one in self.shown:
            per_step = self._per_step(one)
            for level in one.levels:
                if per_step and level.last >= self.places[0] and level.first <= self.places[-1]:
                    yield one, level, per_step(level.step_time_ms) * self.scale

    def _per_step(self, one: Configuration) -> Any:
        """From a step time to the metric; None where that is not a matter of step time alone."""
        if self.metric == "step_time_ms":
            return float
        runs = [(self.metric_at(place), self.history.runs[place].log_step_time) for place in one.counted]
        constants = [metric.value * math.exp(log) for metric, log in runs if metric]
        if self.metric == NOT_OF_STEP_TIME or not constants:
            return None
        constant = float(np.median(constants))
        return lambda step_time_ms: constant / step_time_ms


def datasets(drawing: Drawing) -> dict[str, list[Row]]:
    """The rows of each layer, by its name."""
    points = [_point(drawing, place) for place in drawing.places]
    called = [{"at": row["at"], "shown": row["shown"], "verdict": row["called"]} for row in points if row["called"]]
    return {
        "frame": _frame(drawing),
        "points": points,
        "intervals": list(_intervals(drawing)) if len(points) <= MOST_INTERVALS else [],
        "rings": [row for row in called if row["verdict"] not in _ARROWS],
        "arrows": [row for row in called if row["verdict"] in _ARROWS],
        "levels": list(_levels(drawing)),
        "changes": _changes(drawing),
        "events": _events(drawing),
        "ticks": _ticks(drawing) if drawing.axis != DATE else [],
    }


def _frame(drawing: Drawing) -> list[Row]:
    """Two corners: half a run beside the outermost ones, so that no mark stands on the edge."""
    first, last = drawing.at(drawing.places[0]), drawing.at(drawing.places[-1])
    beside = max((last - first) * 0.02, _DAY_MS / 2) if drawing.axis == DATE else 0.5 + (last - first) * 0.01
    low, high = drawing.range
    return [{"at": first - beside, "shown": low}, {"at": last + beside, "shown": high}]


def _point(drawing: Drawing, place: int) -> Row:
    run, standing = drawing.history.runs[place], drawing.history.standings[place]
    metric = drawing.metric_at(place)
    low, high = drawing.range
    value = metric.value * drawing.scale if metric else None
    text = figure(metric, drawing.metric) if metric else None
    mark = "counts" if standing == "counts" else "aside"
    if value is None:
        mark = "none"
    elif not low <= value <= high:
        mark = "above" if value > high else "below"
    return {
        "at": drawing.at(place),
        "shown": low if value is None else min(max(value, low), high),
        "mark": mark,
        "colour": run.dispatcher or "unknown",
        "called": _called(drawing, run),
        "id": run.id,
        "href": f"/runs/{run.id}",
        "run": f"#{run.id} {run.name}",
        "when": absolute(run.ordered_at),
        "commit": short_commit(run.commit) or "unknown",
        "text": text.text if text else "none",
        "interval": text.interval if text and text.half else "none",
        "n": text.n if text else 0,
        "verdict": VERDICTS.get(run.verdict, "not judged"),
        "counts": STANDINGS[standing] if standing == "counts" else f"not counted: {STANDINGS[standing]}",
        "config": drawing.history.by_key[run.config_key].letter,
    }


def _called(drawing: Drawing, run: StackRun) -> str:
    """The verdict that the mark of a run shows. An experiment has none: it raises no regression."""
    quiet = run.verdict in _QUIET and len(drawing.places) > MOST_QUIET_MARKS
    return run.verdict if run.verdict in _CALLED and not quiet and run.purpose != "experiment" else ""


def _intervals(drawing: Drawing) -> Iterator[Row]:
    for place in drawing.places:
        metric = drawing.metric_at(place)
        if metric and drawing.counts(place) and math.isfinite(metric.ci_low) and metric.ci_low < metric.ci_high:
            dispatcher = drawing.history.runs[place].dispatcher
            ends = {"low": metric.ci_low * drawing.scale, "high": metric.ci_high * drawing.scale}
            yield {"at": drawing.at(place), "colour": dispatcher or "unknown", **ends}


def _levels(drawing: Drawing) -> Iterator[Row]:
    """One line a level; the last of each configuration has its figure and, where there are several, its letter."""
    newest = {one.config_key: level for one, level, _ in drawing.level_values()}
    for one, level, value in drawing.level_values():
        first, last = max(level.first, drawing.places[0]), min(level.last, drawing.places[-1])
        metric = Metric(value / drawing.scale, value, value, level.n)
        label = f"{one.letter}  " if len(drawing.history.configurations) > 1 else ""
        label += figure(metric, drawing.metric).text
        yield {
            "from": drawing.at(first) - (0.4 if drawing.axis != DATE else 0),
            "to": drawing.at(last) + (0.4 if drawing.axis != DATE else 0),
            "value": value,
            "colour": drawing.history.runs[one.runs[-1]].dispatcher or "unknown",
            "config": one.letter,
            "label": label if level is newest[one.config_key] else "",
        }


def _changes(drawing: Drawing) -> list[Row]:
    """Labels of many stand in two rows, so that neighbours do not run into each other."""
    if drawing.metric == NOT_OF_STEP_TIME:
        return []
    first, last = drawing.places[0], drawing.places[-1]
    found = [(change, one) for one in drawing.shown for change in one.changes if first < change.run <= last]
    found.sort(key=lambda pair: pair[0].run)
    several = len({one.letter for _, one in found}) > 1
    rows = []
    for number, (change, one) in enumerate(found):
        rate = 100 * (change.from_ms / change.to_ms - 1)
        told = change_text(change.delta_pct if drawing.metric == "step_time_ms" else rate, metric=drawing.metric)
        at = drawing.at(change.run - 0.5 if change.run == change.before + 1 else change.run)
        rows.append(
            {
                "at": at,
                "direction": "slower" if change.delta_pct > 0 else "faster",
                "label": f"{one.letter}  {told.figure}" if several else told.figure,
                "late": at > drawing.at(first) + _LATE * (drawing.at(last) - drawing.at(first)),
                "top": _LABEL_ROW * (number % 2) if len(found) > _IN_ONE_ROW else 0,
            }
        )
    return rows


def _events(drawing: Drawing) -> list[Row]:
    """What happened beside the speed. Several at one run stand above each other."""
    shown, heights = set(drawing.places), Counter[int]()
    rows = []
    for place, kind, text in sorted(_all_events(drawing)):
        if place in shown:
            rows.append(
                {"at": drawing.at(place), "kind": kind, "text": text, "slot": HEIGHT - 10 - 16 * heights[place]}
            )
            heights[place] += 1
    return rows


def _all_events(drawing: Drawing) -> Iterator[tuple[int, str, str]]:
    history = drawing.history
    places = {run.id: place for place, run in enumerate(history.runs)}
    for pin in history.pins:
        if pin.run_id in places:
            state = "golden run" if pin.in_force else "was the golden run"
            yield places[pin.run_id], "golden" if pin.in_force else "once golden", f"{state}, pinned by {pin.pinned_by}"
    for place, run in enumerate(history.runs):
        if run.purpose == "release":
            yield place, "release", f"release {run.name}"
    for change in drawing.versions:
        yield change.run, "versions", version_text(change, history.runs)
    for one in history.configurations:
        if one.counted and one.letter != "A":
            dispatcher = history.runs[one.counted[0]].dispatcher or "unknown dispatcher"
            yield one.counted[0], "configuration", f"configuration {one.letter} begins: {dispatcher}"


def _ticks(drawing: Drawing) -> list[Row]:
    """Days below the places, so that the order can be read as time."""
    n = len(drawing.places)
    chosen = sorted({round(k * (n - 1) / max(1, _TICKS - 1)) for k in range(_TICKS)}) if n > 1 else [0]
    times = [(drawing.places[k], drawing.history.runs[drawing.places[k]].ordered_at) for k in chosen]
    long = times[-1][1] - times[0][1] > _WITH_YEAR
    return [{"at": drawing.at(at), "label": f"{t:%b} {t.year}" if long else f"{t.day} {t:%b}"} for at, t in times]

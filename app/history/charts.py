"""A history as a Vega-Lite specification: points by configuration, segments, change points, verdicts, events.

As with the chart of a run, Altair is imported on first use and its specifications are cached. They differ only in their
titles and in the layers that have data. The data are separate, under `datasets`.
"""

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from sqlmodel import Session

from app.domain.naming import container_tag, short_names
from app.domain.numbers import UNITS, absolute, change_text, figure, plural, short_commit, step_change, step_time
from app.domain.run import Metric
from app.domain.verdict.history_view import ELIGIBILITY_LABELS, ConfigurationHistory, StackSegment, VersionChange
from app.history.queries import DATE, VERDICTS, HistoryOfStack, HistoryStack, version_text
from app.history.workloads import ContainerStep
from app.storage.runs import step_decisions
from app.storage.stacks import StackRun
from app.web import charts
from app.web.charts import HEIGHT, series_label
from app.web.pictures import Colour, Picture, points_body
from app.web.sparklines import RECENT, leading_runs

# --- Data of the chart: rows of values for points, segments and marks.

MOST_INTERVALS = 250
"""Maximum runs with interval bars, because more bars would overlap. Tooltips always show the intervals."""
NOT_OF_STEP_TIME = "peak_memory_gib"
"""The only headline figure that step time does not determine, so segments of step time do not apply to it."""
_SECONDS_FROM_MS = 10_000
_BESIDE = 1.0
"""The axis extends by this multiple of the range of the middle 90 %. Values beyond it go into a lane."""
_ALWAYS_SHOWN = 20
"""Number of newest counted runs that are always on the axis."""
_LANE = 34
"""Height (px) of the lanes above and below the axis, for off-scale runs with their value; above also without one."""
_LABELS, _LABEL, _COLUMNS = 76, 15, 10
"""Width (px) of the lane right of the runs for labels of segments, height of a label, and parts of the axis in which
labels must not overlap."""
_CONTAINERS, _LETTER = 20, 6.5
"""Height (px) at the top for the names of containers, and mean width of a letter there."""
_TICKS = 6
_DAY_MS = 86_400_000
_WITH_YEAR = timedelta(days=300)
_IN_ONE_ROW, _LABEL_ROW, _LABEL_GAP = 5, 15, 4
"""Maximum number of change labels in one row, the offset of the second row, and the distance from a lane (px)."""
_NARROW = 560
_LATE = 0.88
"""Share of the width beyond which a label would not fit into the chart."""
_CALLED = ("regression", "improvement", "failed")
"""Verdicts with a special mark. A run without a decided change is a plain point; its tooltip has its verdict."""
_ARROWS = ("regression", "improvement")

Row = dict[str, Any]


@dataclass(frozen=True)
class Drawing:
    """The data of a drawing. `positions`: indices of the drawn runs in order (at least one). `shown`: configurations.

    `figures`: the metric by run number. `in_use`: configurations whose last level still holds. `versions`: version
    changes among these runs. `steps`: where each container begins, if there are several. `names`: what distinguishes
    each configuration, by letter. `lead`: the letter of the leading configuration. `regressed`: the first runs of
    regressions of the metric. `decisions`: what `step_decisions` returns.
    """

    history: HistoryOfStack
    positions: Sequence[int]
    shown: Sequence[ConfigurationHistory]
    metric: str
    axis: str
    figures: Mapping[int, Metric | None]
    in_use: Collection[ConfigurationHistory] = ()
    versions: Sequence[VersionChange] = ()
    steps: Sequence[ContainerStep] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    lead: str = ""
    regressed: Collection[int] = ()
    decisions: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def containers(self) -> list[Row]:
        """Return one row per drawn container: the range in which it is the newest container, and its change.

        A label states only a decided change: of the leading configuration, else the largest.
        """
        begins = [step for step in self.steps if step.position <= self.positions[-1]]
        earlier = [step for step in begins if step.position <= self.positions[0]][:-1]
        drawn = begins[len(earlier) :]
        first, last = (row["at"] for row in _frame(self))
        several = len({configuration.letter for configuration in self.shown if configuration.counted}) > 1
        is_of_one_image = len({step.container.partition(":")[0] for step in self.steps}) == 1
        names = [step.container.partition(":")[2] if is_of_one_image else step.container for step in self.steps]
        short = dict(zip(self.steps, short_names(names), strict=True))
        starts = [max(first, self.at(step.position) - (0.5 if self.axis != DATE else 0)) for step in drawn]
        rows = []
        for number, (own, at, until) in enumerate(zip(drawn, starts, [*starts, last][1:], strict=True)):
            change = direction = ""
            named = {step.letter: f"{step.letter} " if several else "" for step in own.by_configuration}
            decided = [step for step in own.by_configuration if step.is_decided]
            if decided and self.metric != NOT_OF_STEP_TIME:
                step = max(decided, key=lambda step: (step.letter == self.lead, abs(step.delta_pct or 0.0)))
                change = f"  {named[step.letter]}{step_change(self.metric, step.delta_pct or 0.0).delta}"
                direction = {"regression": "slower", "improvement": "faster"}.get(step.decision, "")
            changes = [
                f"{named[step.letter]}{change_text(step.delta_pct or 0.0).than} {step.before}"
                if step.is_decided
                else f"{named[step.letter]}{step.decision or 'not compared'}"
                for step in own.by_configuration
            ]
            rows.append(
                {
                    "at": at,
                    "until": until,
                    "name": short[own],
                    "label": f"{short[own]}{change}",
                    "direction": direction,
                    "odd": number % 2,
                    "change": "; ".join(changes) or "not compared",
                    "container": own.full_name or own.container,
                    "is_last": number == len(drawn) - 1,
                }
            )
        return rows if len(self.steps) > 1 else []

    @cached_property
    def tags(self) -> dict[str, str]:
        """Return the container of each joined stack, by its key."""
        return {step.stack_key: step.container for step in self.steps}

    @property
    def in_newer_band(self) -> int:
        """Return how many drawn runs are of an older container than the one that has begun: the two ran in turn."""
        begins = [step.position for step in self.steps]
        return sum(
            self.steps[bisect_right(begins, position) - 1].stack_key != self.history.runs[position].facts.stack_key
            for position in (self.positions if self.steps else ())
        )

    @cached_property
    def letters(self) -> dict[int, str]:
        """Return the letter of each run's configuration, by position."""
        return self.history.letters

    @cached_property
    def colours(self) -> dict[str, str]:
        """Return the colour of each drawn dispatcher, or of each configuration unless several dispatchers are known.

        Configurations beyond the number of colours, those with the fewest runs, have none, like a dispatcher that only
        failed. Empty if nothing varies.
        """
        runs_drawn = (self.history.runs[position] for position in self.positions)
        dispatchers = {run.dispatcher for run in runs_drawn if run.dispatcher and math.isfinite(run.log_step_time)}
        if len(dispatchers) > 1:
            return {name: name for name in sorted(dispatchers)}
        runs = Counter(self.letters[position] for position in self.positions)
        chosen = sorted((letter for letter, _ in runs.most_common(len(_LINES))), key=lambda name: (len(name), name))
        return dict(zip(chosen, _LINES, strict=False)) if len(runs) > 1 else {}

    def colour(self, position: int) -> str:
        """Return the key of a run's colour in `COLOURS`."""
        dispatcher = self.history.runs[position].dispatcher or ""
        own = (self.colours[name] for name in (dispatcher, self.letters[position]) if name in self.colours)
        return next(own, _OTHER if self.colours else dispatcher)

    @property
    def top(self) -> int:
        """Return the height above the lane."""
        return _CONTAINERS if self.containers else 0

    @cached_property
    def scale(self) -> float:
        """Return the factor for values: step times from 10 s on are drawn in seconds."""
        values = [metric.value for position in self.positions if (metric := self.metric_at(position))]
        slow = self.metric == "step_time_ms" and values and float(np.median(values)) >= _SECONDS_FROM_MS
        return 1e-3 if slow else 1.0

    @property
    def title(self) -> str:
        unit = "s" if self.scale != 1 else UNITS[self.metric]
        label = series_label(self.metric)
        return f"{label} ({unit})" if unit else label

    @cached_property
    def range(self) -> tuple[float, float]:
        """Return the ends of the value axis, which fits the levels, most values and the newest runs."""
        values = [self.scale * metric.value for position in self._deciding if (metric := self.metric_at(position))]
        if not values:
            return 0.0, 1.0
        drawn = [self.scale * metric.value for position in self.positions if (metric := self.metric_at(position))]
        low, high = (float(end) for end in np.quantile(values, (0.05, 0.95)))
        fixed = [*(value for _, _, value in self.level_values()), *values[-_ALWAYS_SHOWN:]]
        if len(self.positions) <= MOST_INTERVALS:
            ends = [end for position in self._deciding for end in self.interval(position)]
            fixed += [float(end) for end in np.quantile(ends, (0.05, 0.95))] if ends else []
        low, high = min([low, *fixed]), max([high, *fixed])
        beside = _BESIDE * (high - low)
        near = [value for value in drawn if low - beside <= value <= high + beside]
        low, high = min([low, *near]), max([high, *near])
        margin = (high - low) * 0.1 or abs(high) * 0.02 or 1.0
        return low - margin, high + 2 * margin  # room for labels of change points

    @property
    def _deciding(self) -> Sequence[int]:
        """Return the positions of the runs that the value axis must fit: the counted runs, else all."""
        return [position for position in self.positions if self.counts(position)] or self.positions

    def at(self, position: float) -> float:
        """Return the position of a run on the axis: its 1-based index, or milliseconds since 1970."""
        if self.axis != DATE:
            return position + 1
        return self.history.runs[math.ceil(position)].ordered_at.timestamp() * 1000

    def interval(self, position: int) -> tuple[float, ...]:
        metric = self.metric_at(position)
        ends = (self.scale * metric.ci_low, self.scale * metric.ci_high) if metric else ()
        return ends if all(map(math.isfinite, ends)) else ()

    def metric_at(self, position: int) -> Metric | None:
        return self.figures.get(self.history.runs[position].id)

    def counts(self, position: int) -> bool:
        return self.history.eligibilities[position] == "counts"

    def level_values(self) -> Iterator[tuple[ConfigurationHistory, StackSegment, float]]:
        """Yield the segments that hold and overlap the drawn runs, in the unit of the metric."""
        for configuration in self.shown:
            per_step = conversion(self.history, configuration, self.metric, self.figures)
            for level in configuration.levels:
                if per_step and level.holds and level.last >= self.positions[0] and level.first <= self.positions[-1]:
                    yield configuration, level, per_step(level.step_time_ms) * self.scale


def conversion(
    history: HistoryOfStack, configuration: ConfigurationHistory, metric: str, figures: Mapping[int, Metric | None]
) -> Callable[[float], float] | None:
    """Return the conversion of step times (ms) to the metric; None if step time alone does not determine it.

    `figures`: the metric by run number.
    """
    if metric == "step_time_ms":
        return float
    runs = [history.runs[position] for position in configuration.counted]
    constants = [own.value * math.exp(run.log_step_time) for run in runs if (own := figures.get(run.id))]
    if metric == NOT_OF_STEP_TIME or not constants:
        return None
    constant = float(np.median(constants))
    return lambda step_time_ms: constant / step_time_ms


def drawn_positions(
    history: HistoryOfStack, positions: Sequence[int], metric: str, versions: Sequence[VersionChange], most: int
) -> Sequence[int]:
    """Return about `most` of the positions, or all if there are fewer.

    These are the ends, all runs with a special mark (verdict with a change, failure, outlier, golden run, release, new
    versions, ends of a segment), and from each part of each configuration the fastest, the slowest and the last run.
    Others would be hidden anyway.
    """
    if len(positions) <= most:
        return positions
    runs = history.runs
    shown = set(positions)
    chosen = {positions[0], positions[-1], *(change.run for change in versions), *(history.marked & shown)}
    for configuration in history.configurations:
        for level in configuration.levels:
            chosen |= {level.first, level.last}
    parts = max(1, (most - len(chosen)) // 3)
    size = -(-len(positions) // parts)
    letters = history.letters  # equal settings in several containers share a letter
    lines: dict[tuple[str, bool], list[int]] = {}
    values: dict[int, float] = {}
    for position in positions:
        lines.setdefault((letters[position], history.eligibilities[position] == "counts"), []).append(position)
        figure = runs[position].peak_memory_gib if metric == NOT_OF_STEP_TIME else runs[position].log_step_time
        values[position] = 0.0 if figure is None or math.isnan(figure) else figure
    for line in lines.values():
        for start in range(0, len(line), size):
            part = line[start : start + size]
            chosen |= {min(part, key=values.__getitem__), max(part, key=values.__getitem__), part[-1]}
    return sorted(chosen & shown)


def datasets(drawing: Drawing) -> dict[str, list[Row]]:
    """Return the rows of each layer by its name."""
    rows = [_point(drawing, position) for position in drawing.positions]
    points = [row for row in rows if row["mark"] in _ON_AXIS]
    called = [{"at": row["at"], "shown": row["shown"], "verdict": row["called"]} for row in points if row["called"]]
    above = [row for row in rows if row["mark"] == "above"]
    below = [row for row in rows if row["mark"] in ("below", "none")]  # above, a failed run looks slow
    return {
        "frame": _frame(drawing),
        "points": points,
        "lane": _in_lane(above, _frame(drawing)),
        "low_lane": _in_lane(below, _frame(drawing)),
        "edge": _edge({row["mark"] for row in above}),
        "low_edge": _edge({row["mark"] for row in below}),
        "intervals": list(_intervals(drawing)) if len(points) <= MOST_INTERVALS else [],
        "crosses": [row for row in called if row["verdict"] not in _ARROWS],
        "arrows": [row for row in called if row["verdict"] in _ARROWS],
        "levels": _levels(drawing),
        "containers": drawing.containers,
        "changes": _changes(drawing, top=drawing.top + (_LANE + _LABEL_GAP if above else 0)),
        "events": _events(drawing, HEIGHT - (_LANE if below else 0)),
        "ticks": _ticks(drawing) if drawing.axis != DATE else [],
    }


def _frame(drawing: Drawing) -> list[Row]:
    """Return two corners half a run beyond the first and last run, so that no mark touches the edge."""
    first, last = drawing.at(drawing.positions[0]), drawing.at(drawing.positions[-1])
    beside = max((last - first) * 0.02, _DAY_MS / 2) if drawing.axis == DATE else 0.5 + (last - first) * 0.01
    low, high = drawing.range
    return [{"at": first - beside, "shown": low}, {"at": last + beside, "shown": high}]


_ON_AXIS = ("counts", "aside")
_SLOTS = (-5, -16, 15)
"""Offsets (px) of text rows from the middle of the lane."""
_TEXT_SHARE, _NARROW_TEXT_SHARE = 0.04, 0.18
"""Width of a text in the lane, as a share of a wide and a narrow axis."""


_LANE_LABELS = {"above": "off the scale", "below": "off the scale", "none": "× no figure"}


def _edge(marks: Collection[str]) -> list[Row]:
    """Return the labels of a lane with these marks, one below the other."""
    texts = [text for mark, text in _LANE_LABELS.items() if mark in marks]
    return [{"text": text, "dy": 12 * number - 6 * (len(texts) - 1)} for number, text in enumerate(texts)]


def _in_lane(rows: Sequence[Row], frame: Sequence[Row]) -> list[Row]:
    """Return the rows of the lane, with text offsets so that neighbouring texts do not overlap."""
    span = frame[-1]["at"] - frame[0]["at"]
    offsets = []
    for share in (_TEXT_SHARE, _NARROW_TEXT_SHARE):
        ends = [-math.inf] * len(_SLOTS)
        chosen = []
        for row in rows:
            # If none is free, the least recently used one.
            slot = next((slot for slot, end in enumerate(ends) if end <= row["at"]), ends.index(min(ends)))
            if row["lane"]:
                ends[slot] = row["at"] + share * span
            chosen.append(_SLOTS[slot])
        offsets.append(chosen)
    return [row | {"dy": wide, "narrow_dy": narrow} for row, wide, narrow in zip(rows, *offsets, strict=True)]


def _point(drawing: Drawing, position: int) -> Row:
    run, eligibility = drawing.history.runs[position], drawing.history.eligibilities[position]
    metric = drawing.metric_at(position)
    low, high = drawing.range
    value = metric.value * drawing.scale if metric else None
    text = figure(metric, drawing.metric) if metric else None
    mark = "counts" if eligibility == "counts" else "aside"
    if value is None:
        mark = "none"
    elif not low <= value <= high:
        mark = "above" if value > high else "below"
    return {
        "at": drawing.at(position),
        "shown": value,
        "mark": mark,
        "colour": drawing.colour(position),
        "called": _called(drawing, run),
        "id": run.id,
        "href": f"/runs/{run.id}",
        "run": f"#{run.id} {run.name}",
        "when": absolute(run.ordered_at),
        "commit": short_commit(run.commit) or "unknown",
        "text": text.text if text else "none",
        "lane": text.text if text and mark in ("above", "below") else "",
        "interval": text.interval if text and text.width else "none",
        "n": text.n if text else 0,
        "verdict": VERDICTS.get(
            drawing.decisions.get(run.id, run.verdict) if run.verdict == "no_baseline" else run.verdict, "not judged"
        ),
        "counts": ELIGIBILITY_LABELS[eligibility]
        if eligibility == "counts"
        else f"not counted: {ELIGIBILITY_LABELS[eligibility]}",
        "config": drawing.letters[position],
        "container": drawing.tags.get(run.facts.stack_key)
        or container_tag(drawing.history.stack.contract)
        or "unknown",
    }


def _called(drawing: Drawing, run: StackRun) -> str:
    """Return the decision that the mark of a run shows; empty for experiments, which cannot open a regression.

    It is the one about step time. The marks of memory are its regressions.
    """
    if drawing.metric == NOT_OF_STEP_TIME:
        return "regression" if run.id in drawing.regressed else ""
    decision = drawing.decisions.get(run.id, run.verdict)
    return decision if decision in _CALLED and run.purpose != "experiment" else ""


def _intervals(drawing: Drawing) -> Iterator[Row]:
    for position in drawing.positions:
        metric = drawing.metric_at(position)
        if metric and drawing.counts(position) and math.isfinite(metric.ci_low) and metric.ci_low < metric.ci_high:
            low, high = drawing.range
            # Clipped to the axis, because a longer bar would stretch it.
            ends = {"low": max(metric.ci_low * drawing.scale, low), "high": min(metric.ci_high * drawing.scale, high)}
            if ends["low"] < ends["high"]:
                yield {"at": drawing.at(position), "colour": drawing.colour(position), **ends}


def _levels(drawing: Drawing) -> list[Row]:
    """Return one line per segment. The last line of a configuration has a label: the figure, with a letter if needed.

    `is_now`: it holds now, so that its label is in the lane. The label of another one is where its line ends, or in the
    lane if that is near; it has none where it would cover a run. `label_at`: height of the label, at which it does not
    overlap others.
    """
    newest = {configuration.letter: level for configuration, level, _ in drawing.level_values()}
    several = len({configuration.letter for configuration in drawing.history.configurations}) > 1
    begin, end = drawing.at(drawing.positions[0]), drawing.at(drawing.positions[-1])
    columns: dict[int, list[Row]] = {}
    rows: list[Row] = []
    for configuration, level, value in drawing.level_values():
        first, last = max(level.first, drawing.positions[0]), min(level.last, drawing.positions[-1])
        metric = Metric(value / drawing.scale, value, value, level.n)
        label = f"{configuration.letter}  " if several else ""
        label += figure(metric, drawing.metric).text
        is_now = level is configuration.now and configuration in drawing.in_use
        share = (drawing.at(last) - begin) / ((end - begin) or 1)
        rows.append(
            {
                "from": drawing.at(first) - (0.4 if drawing.axis != DATE else 0),
                "to": drawing.at(last) + (0.4 if drawing.axis != DATE else 0),
                "value": value,
                "label_at": value,
                "config": configuration.letter,
                "label": label if level is newest[configuration.letter] else "",
                "is_now": is_now,
                "in_lane": is_now or share > _LATE,
            }
        )
        if rows[-1]["label"]:
            columns.setdefault(_COLUMNS if rows[-1]["in_lane"] else int(_COLUMNS * share), []).append(rows[-1])
    low, high = drawing.range
    for column in columns.values():
        charts.spread_labels(column, "label_at", (high - low) / HEIGHT * _LABEL)
    marks = [
        (drawing.at(position), drawing.interval(position) or (drawn.value * drawing.scale,))
        for position in drawing.positions
        if (drawn := drawing.metric_at(position))
    ]
    places = [at for at, _ in marks]
    width, half = (end - begin) / _COLUMNS, (high - low) / HEIGHT * _LABEL / 2
    for row in rows:
        bottom, top = row["label_at"] - half, row["label_at"] + half
        beside = marks[bisect_right(places, row["to"]) : bisect_left(places, row["to"] + width)]
        if not row["in_lane"] and any(ends[0] < top and ends[-1] > bottom for _, ends in beside):
            row["label"] = ""
    return rows


def _changes(drawing: Drawing, top: int) -> list[Row]:
    """Return change labels at `top` pixels, in two rows if there are many, so that neighbours do not overlap."""
    if drawing.metric == NOT_OF_STEP_TIME:
        return []
    first, last = drawing.positions[0], drawing.positions[-1]
    changes = [
        (change, configuration)
        for configuration in drawing.shown
        for change in configuration.changes
        if first < change.run <= last
    ]
    changes.sort(key=lambda pair: pair[0].run)
    several = len({configuration.letter for _, configuration in changes}) > 1
    rows = []
    for number, (change, configuration) in enumerate(changes):
        text = step_change(drawing.metric, change.delta_pct)
        at = drawing.at(change.run - 0.5 if change.run == change.before + 1 else change.run)
        rows.append(
            {
                "at": at,
                "direction": "slower" if change.delta_pct > 0 else "faster",
                "label": f"{configuration.letter}  {text.figure}" if several else text.figure,
                "short": text.delta,
                "row": number % 2,
                "late": at > drawing.at(first) + _LATE * (drawing.at(last) - drawing.at(first)),
                "top": top + (_LABEL_ROW * (number % 2) if len(changes) > _IN_ONE_ROW else 0),
            }
        )
    return rows


def _events(drawing: Drawing, bottom: float) -> list[Row]:
    """Return events other than speed changes, above `bottom` (px). Several events of one run are stacked."""
    shown, heights = set(drawing.positions), Counter[int]()
    rows = []
    for position, kind, text in sorted(_all_events(drawing)):
        if position in shown:
            rows.append(
                {"at": drawing.at(position), "kind": kind, "text": text, "slot": bottom - 10 - 16 * heights[position]}
            )
            heights[position] += 1
    return rows


def _all_events(drawing: Drawing) -> Iterator[tuple[int, str, str]]:
    history = drawing.history
    positions = {history.runs[position].id: position for position in drawing.positions}
    for pin in history.pins:
        if pin.run_id in positions:
            state = "golden run" if pin.in_force else "was the golden run"
            yield (
                positions[pin.run_id],
                "golden" if pin.in_force else "once golden",
                f"{state}, pinned by {pin.pinned_by}",
            )
    for position in drawing.positions:
        run = history.runs[position]
        if run.purpose == "release":
            yield position, "release", f"release {run.name}"
    for change in drawing.versions:
        yield change.run, "versions", version_text(change, history.runs)
    begun = {"A"}
    for configuration in history.configurations:
        if configuration.counted and configuration.letter not in begun:
            begun.add(configuration.letter)
            name = drawing.names.get(configuration.letter, "")
            text = f"configuration {configuration.letter} begins: {name}".removesuffix(": ")
            yield configuration.counted[0], "configuration", text


def _ticks(drawing: Drawing) -> list[Row]:
    """Return dates below the run positions, so that users can read the order as time."""
    n = len(drawing.positions)
    chosen = sorted({round(k * (n - 1) / max(1, _TICKS - 1)) for k in range(_TICKS)}) if n > 1 else [0]
    times = [(drawing.positions[k], drawing.history.runs[drawing.positions[k]].ordered_at) for k in chosen]
    long = times[-1][1] - times[0][1] > _WITH_YEAR
    form = "%b %Y" if long else "%-d %b" if times[0][1].year == times[-1][1].year else "%-d %b %Y"
    labels = [format(time, form) for _, time in times]
    return [
        {"at": drawing.at(at), "label": label, "narrow": number % 2 == 0}
        for number, ((at, _), label, before) in enumerate(zip(times, labels, ["", *labels], strict=False))
        if label != before
    ]


_DENSE = 400
"""Maximum runs for marks of full size."""
_DISPATCHERS = ("alltoall", "deepep", "hybridep", "ncclep", "allgather")
_LINES = tuple(f"line-{number}" for number in range(1, 7))
_OTHER = "other"
COLOURS = {name: f"--{name}" for name in (*_DISPATCHERS, *_LINES)} | {_OTHER: charts.BORDER_STRONG, "": charts.ACCENT}
VERDICT_MARKS = {
    "regression": ("--regression", "triangle-up"),
    "improvement": ("--improvement", "triangle-down"),
    "failed": ("--failed", "M-1,-1L1,1M1,-1L-1,1"),
}
"""Colour and shape on an axis on which up is worse (step time and memory)."""
_BETTER_IS_UP = {"regression": "triangle-down", "improvement": "triangle-up"}
EVENT_MARKS = {
    "golden": "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z",
    "once golden": "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z",
    "release": "M-0.6,-1L-0.6,1M-0.6,-0.9L0.8,-0.4L-0.6,0.1Z",
    "versions": "diamond",
    "configuration": "square",
}
_TIP = {
    "run": "run", "commit": "commit", "when": "when", "text": "", "interval": "95 % interval", "n": "iterations",
    "verdict": "verdict", "counts": "in levels", "config": "configuration",
    "container": "container",
}  # fmt: skip


def history_chart(drawing: Drawing, rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Return the Vega-Lite specification that charts.js embeds. `rows`: of each layer (`chart_rows.datasets`)."""
    drawn = frozenset(name for name, of_name in rows.items() if of_name)
    worse_is_up = drawing.metric in ("step_time_ms", NOT_OF_STEP_TIME)
    dense = len(drawing.positions) > _DENSE
    spec = dict(_specification(drawing.title, drawing.axis, dense, drawn, worse_is_up, top=drawing.top))
    # Only layers with data, because Vega warns of a layer without extent.
    spec["datasets"] = {name: of_name for name, of_name in rows.items() if of_name}
    spec["description"] = (
        f"{drawing.title} of {plural(len(drawing.positions), 'run')}. The table below has the same values."
    )
    return spec


@lru_cache(maxsize=64)
def _specification(
    title: str, axis: str, dense: bool, drawn: frozenset[str], worse_is_up: bool, *, top: int
) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    frame = alt.Chart(alt.NamedData("frame")).mark_point(opacity=0, tooltip=None)
    y = alt.Y("shown:Q", title=title, scale=alt.Scale(zero=False, nice=False))
    above, bottom = top + (_LANE if "lane" in drawn else 0), HEIGHT - (_LANE if "low_lane" in drawn else 0)
    y = y.scale(zero=False, nice=False, range=[bottom, above])
    layers = [frame.encode(_x(alt, axis), y)]
    layers += [
        layer
        for name, parts in _parts(alt, axis, y, title, dense=dense, worse_is_up=worse_is_up, top=top)
        if name in drawn
        for layer in parts
    ]
    # Each layer has its own colours and shapes; shared scales would mix their meanings.
    apart: Any = dict.fromkeys(("stroke", "fill", "color", "shape"), "independent")
    chart = alt.layer(*layers).resolve_scale(**apart)
    return charts.finished(chart, charts.HEIGHT)


def _x(alt: Any, axis: str, field: str = "at") -> Any:
    if axis == DATE:
        scale, days = (
            alt.Scale(type="utc", nice=False, range=[0, alt.expr(f"width - {_LABELS}")]),
            alt.Axis(labelOverlap=True, labelSeparation=12, labelExpr=charts.TIME_LABEL),
        )
        return alt.X(f"{field}:T", title="commit date (UTC)", scale=scale, axis=days)
    # A separate layer draws dates as labels, because positions mean nothing to users.
    hidden = alt.Axis(labels=False, titlePadding=26)
    scale = alt.Scale(zero=False, nice=False, range=[0, alt.expr(f"width - {_LABELS}")])
    return alt.X(f"{field}:Q", title="runs in commit order", scale=scale, axis=hidden)


def _parts(
    alt: Any, axis: str, y: Any, title: str, *, dense: bool, worse_is_up: bool, top: int
) -> list[tuple[str, list[Any]]]:
    """Return the layers from back to front, each with its dataset. Marks that react to the pointer come last."""
    x = _x(alt, axis)
    return [
        ("containers", _charts_containers(alt, axis)),
        ("intervals", [_charts_intervals(alt, x)]),
        ("changes", _charts_changes(alt, x)),
        ("ticks", [_charts_ticks(alt, x)]),
        ("points", [_marks(alt, x, y, dense)]),
        ("crosses", [_verdicts(alt, x, y, "crosses", size=36 if dense else 80)]),
        ("arrows", [_verdicts(alt, x, y, "arrows", size=100 if dense else 180, worse_is_up=worse_is_up)]),
        ("levels", [_charts_levels(alt, axis)]),
        ("levels", [_level_labels(alt)]),
        ("points", [charts.hit_area(alt, x, y, field="id", tip=_tip(title), size=160)]),
        ("events", [_charts_events(alt, x)]),
        ("edge", _charts_edge(alt, "edge", top + _LANE, top + _LANE / 2)),
        ("low_edge", _charts_edge(alt, "low_edge", HEIGHT - _LANE, HEIGHT - _LANE / 2)),
        ("lane", _charts_lane(alt, "lane", x, title, top + _LANE - 12)),
        ("low_lane", _charts_lane(alt, "low_lane", x, title, HEIGHT - 12)),
    ]


def _colour(alt: Any, channel: Any) -> Any:
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    return channel("colour:N", scale=scale, legend=None)


def _charts_intervals(alt: Any, x: Any) -> Any:
    rule = alt.Chart(alt.NamedData("intervals")).mark_rule(opacity=0.35, strokeWidth=1.5, clip=True)
    return rule.encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), stroke=_colour(alt, alt.Stroke))


def _charts_containers(alt: Any, axis: str) -> list[Any]:
    """Draw containers as bands with names. Without enough room, they have no change, are truncated, or left out."""
    data = alt.Chart(alt.NamedData("containers"))
    tip = [alt.Tooltip("container:N", title="container"), alt.Tooltip("change:N", title="step time")]
    # The last name may extend into the lane of the labels, which are lower.
    room = "max(1, (datum.is_last ? width : scale('x', datum.until)) - scale('x', datum.at) - 8)"
    at, until = _x(alt, axis), alt.X2("until")
    shade = alt.when("datum.odd").then(alt.value(0.05)).otherwise(alt.value(0))
    is_narrow = f"{_LETTER} * length(datum.label) > {room}"
    colours = alt.Scale(domain=["slower", "faster", ""], range=["--regression", "--improvement", charts.TEXT])
    colour = alt.Color("direction:N", scale=colours, legend=None)
    return [
        data.mark_rect(color=charts.TEXT, tooltip=None).encode(at, until, opacity=shade),
        data.mark_rule(color=charts.MUTED).encode(at),
        data.mark_text(align="left", baseline="top", dx=4, dy=3, limit=alt.expr(room), fontWeight=600).encode(
            at,
            y=alt.value(0),
            text=alt.TextValue(alt.expr(f"{room} < {4 * _LETTER} ? '' : {is_narrow} ? datum.name : datum.label")),
            color=alt.when(is_narrow).then(alt.value(charts.TEXT)).otherwise(colour),
            tooltip=tip,
        ),
    ]


def _charts_changes(alt: Any, x: Any) -> list[Any]:
    data = alt.NamedData("changes")
    scale = alt.Scale(domain=["slower", "faster"], range=["--regression", "--improvement"])
    colour = alt.Color("direction:N", scale=scale, legend=None)
    rule = alt.Chart(data).mark_rule(strokeDash=[4, 3])
    # Near the right edge, a label is left of its line.
    side = {"align": alt.expr("datum.late ? 'right' : 'left'"), "dx": alt.expr("datum.late ? -5 : 5")}
    # A narrow chart has short labels in two rows, so that neighbours do not overlap.
    lower = alt.expr(f"width < {_NARROW} ? {_LABEL_ROW} * datum.row : 0")
    label = alt.Chart(data).mark_text(baseline="top", fontWeight=600, dy=lower, **side)
    text = alt.value(alt.expr(f"width < {_NARROW} ? datum.short : datum.label"))
    above = alt.Y("top:Q", scale=None, axis=None)
    return [
        rule.encode(x, stroke=alt.Stroke("direction:N", scale=scale, legend=None)),
        label.encode(x, above, text=text, color=colour),
    ]


def _charts_levels(alt: Any, axis: str) -> Any:
    """Draw segments over the points in the text colour, because dense runs would hide any other colour."""
    rule = alt.Chart(alt.NamedData("levels")).mark_rule(strokeWidth=1.5, clip=True, color=charts.TEXT)
    return rule.encode(_x(alt, axis, "from"), alt.X2("to"), alt.Y("value:Q"))


def _level_labels(alt: Any) -> Any:
    """Draw labels of what holds now right of the runs, where they cover no run, and others in grey."""
    weight = alt.expr("datum.is_now ? 600 : 400")
    label = alt.Chart(alt.NamedData("levels")).mark_text(align="left", fontWeight=weight)
    at = alt.value(alt.expr(f"datum.in_lane ? width - {_LABELS} + 6 : scale('x', datum.to) + 5"))
    colour = alt.when("datum.is_now").then(alt.value(charts.TEXT)).otherwise(alt.value(charts.MUTED))
    # A phone has no room for them among the runs.
    text = alt.expr(f"width < {_NARROW} && !datum.in_lane ? '' : datum.label")
    return label.encode(x=at, y=alt.Y("label_at:Q"), text=alt.TextValue(text), color=colour)


def _charts_ticks(alt: Any, x: Any) -> Any:
    label = alt.Chart(alt.NamedData("ticks")).mark_text(baseline="top", color=charts.MUTED, dy=8)
    # A phone has room for every second date.
    text = alt.expr(f"width < {_NARROW} && !datum.narrow ? '' : datum.label")
    return label.encode(x, y=alt.value(charts.HEIGHT), text=alt.TextValue(text))


def _marks(alt: Any, x: Any, y: Any, dense: bool) -> Any:
    counts = "datum.mark == 'counts'"
    return (
        alt.Chart(alt.NamedData("points"))
        .mark_point(strokeWidth=1.5, opacity=1)
        .encode(
            x,
            y,
            stroke=_colour(alt, alt.Stroke),
            fill=_colour(alt, alt.Fill),
            fillOpacity=alt.when(counts).then(alt.value(1)).otherwise(alt.value(0)),
            size=alt.when(counts).then(alt.value(10 if dense else 22)).otherwise(alt.value(20 if dense else 38)),
        )
    )


def _charts_edge(alt: Any, name: str, height: float, middle: float) -> list[Any]:
    """Draw a line between a lane and the axis, and label the contents of the lane at its middle."""
    data = alt.Chart(alt.NamedData(name))
    text = data.mark_text(align="left", baseline="middle", fontSize=10, color=charts.MUTED, dy=alt.expr("datum.dy"))
    return [
        data.mark_rule(color=charts.MUTED, strokeDash=[1, 3], tooltip=None).encode(
            x=alt.value(0), x2=alt.value(alt.expr(f"width - {_LABELS}")), y=alt.value(height)
        ),
        text.encode(x=alt.value(alt.expr(f"width - {_LABELS} + 6")), y=alt.value(middle), text="text:N"),
    ]


def _charts_lane(alt: Any, name: str, x: Any, title: str, height: float) -> list[Any]:
    """Draw the runs of a lane: those without a figure, and those off the scale with their value."""
    data = alt.Chart(alt.NamedData(name))
    shapes = alt.Scale(domain=["above", "below", "none"], range=["circle", "circle", "M-1,-1L1,1M1,-1L-1,1"])
    mark = data.mark_point(strokeWidth=1.5, opacity=1, size=30, cursor="pointer")
    offset = alt.expr(f"width < {_NARROW} ? datum.narrow_dy : datum.dy")
    text = data.mark_text(baseline="bottom", dy=offset, color=charts.TEXT, fontSize=10)
    return [
        mark.encode(
            x,
            y=alt.value(height),
            shape=alt.Shape("mark:N", scale=shapes, legend=None),
            stroke=_colour(alt, alt.Stroke),
            href=alt.Href("href:N"),
            tooltip=alt.value(alt.expr(_tip(title))),
        ),
        text.encode(x, y=alt.value(height), text="lane:N"),
    ]


def _verdicts(alt: Any, x: Any, y: Any, name: str, *, size: int, worse_is_up: bool = True) -> Any:
    """Draw triangles and crosses around points, so that these keep the colour of their dispatcher."""
    marks = {name: shape for name, (_, shape) in VERDICT_MARKS.items()} | ({} if worse_is_up else _BETTER_IS_UP)
    colours = alt.Scale(domain=list(VERDICT_MARKS), range=[colour for colour, _ in VERDICT_MARKS.values()])
    shapes = alt.Scale(domain=list(marks), range=list(marks.values()))
    mark = alt.Chart(alt.NamedData(name)).mark_point(filled=False, strokeWidth=1.5, tooltip=None, size=size)
    return mark.encode(
        x,
        y,
        shape=alt.Shape("verdict:N", scale=shapes, legend=None),
        stroke=alt.Stroke("verdict:N", scale=colours, legend=None),
    )


def _charts_events(alt: Any, x: Any) -> Any:
    shapes = alt.Scale(domain=list(EVENT_MARKS), range=list(EVENT_MARKS.values()))
    solid = alt.when("datum.kind == 'golden' || datum.kind == 'release'").then(alt.value(1)).otherwise(alt.value(0))
    mark = alt.Chart(alt.NamedData("events")).mark_point(size=90, strokeWidth=1.5, opacity=1, stroke=charts.TEXT)
    return mark.encode(
        x,
        y=alt.Y("slot:Q", scale=None, axis=None),
        fill=alt.value(charts.TEXT),
        fillOpacity=solid,
        shape=alt.Shape("kind:N", scale=shapes, legend=None),
        tooltip=[alt.Tooltip("kind:N", title="what"), alt.Tooltip("text:N", title="which")],
    )


def _tip(title: str) -> str:
    """Return the tooltip expression for the nearest run.

    An expression is needed because Vega-Lite reads tooltip fields of such marks one level too high.
    """
    row = "(datum.datum || datum)"
    parts = (f"{json.dumps(label or title)}: {row}.{name}" for name, label in _TIP.items())
    return "{" + ", ".join(parts) + "}"


# --- Below the chart: a key of the drawn marks, and notes about what is not drawn.

_EVENTS = {
    "golden": "golden run",
    "once golden": "was golden",
    "release": "release",
    "versions": "versions changed",
    "configuration": "new configuration",
}
_BUILT_IN = {"diamond": "M0,-1L1,0L0,1L-1,0Z", "square": "M-0.8,-0.8h1.6v1.6h-1.6Z"}


@dataclass(frozen=True, slots=True)
class ChartKey:
    """The key of a chart. `colours`: what each colour means, if there are several, and its name in the style sheet.

    `events`: kind, label and path of the mark.
    """

    colours: tuple[tuple[str, str], ...]
    verdicts: tuple[str, ...]
    events: tuple[tuple[str, str, str], ...]
    aside: bool
    without_figure: bool


def chart_key(drawing: Drawing, rows: dict[str, list[Row]]) -> ChartKey:
    runs = [*rows["points"], *rows["lane"], *rows["low_lane"]]
    marks = {row["mark"] for row in runs}
    called = {row["verdict"] for row in (*rows["crosses"], *rows["arrows"])}
    kinds = {row["kind"] for row in rows["events"]}
    return ChartKey(
        colours=tuple(drawing.colours.items()),
        verdicts=tuple(name for name in VERDICT_MARKS if name in called),
        events=tuple(
            (kind, _EVENTS[kind], _BUILT_IN.get(path, path)) for kind, path in EVENT_MARKS.items() if kind in kinds
        ),
        aside="aside" in marks,
        without_figure="none" in marks,
    )


def chart_notes(drawing: Drawing, rows: dict[str, list[Row]], not_drawn: int) -> list[str]:
    notes = []
    if not_drawn:
        notes.append(
            f"{len(drawing.positions):,} of {len(drawing.positions) + not_drawn:,} runs are drawn: marked ones, and "
            "the fastest, the slowest and the last of every part of the history. Zoom in to see all of a part."
        )
    for side in ("above", "below"):
        if outside := sum(row["mark"] == side for row in (*rows["lane"], *rows["low_lane"])):
            notes.append(f"{plural(outside, 'run is', 'runs are')} off the scale: see the values {side} the axis.")
    if older := drawing.in_newer_band:
        runs = plural(older, "run is", "runs are")
        notes.append(f"{runs} in the band of a newer container; the tooltip of a run names its own.")
    if drawing.metric == NOT_OF_STEP_TIME:
        notes.append(
            f"Marks are regressions of {series_label(drawing.metric).lower()}; segments exist for step time only."
        )
    if drawing.range[0] > 0:
        notes.append("The axis starts above zero.")
    return notes


# --- The history as a picture, for the overview of a project and, with a key, for other sites.

_PICTURE_COLOURS: dict[str, Colour] = {"regression": "worse", "improvement": "better"}


def history_picture(session: Session, stack: HistoryStack) -> Picture:
    """Return the newest step times of the stack's leading configuration, coloured by the decisions about them."""
    rows = session.execute(RECENT, {"project_id": stack.project_id, "stack_key": stack.stack_key}).all()
    runs = leading_runs(rows) if rows else []
    decisions = step_decisions(session, [run.id for run in runs])
    points = [(run.step_time_ms, _PICTURE_COLOURS.get(decisions.get(run.id, run.verdict), "accent")) for run in runs]
    lead = "No run of this stack counts yet."
    if runs:
        newest = runs[-1]
        lead = (
            f"{step_time(newest.step_time_ms)} per step in run #{newest.id}, the newest of {plural(len(runs), 'run')}."
        )
    return Picture(stack.title, lead, f"/history/{stack.stack_key}", stack.generated, points_body(points, step_time))

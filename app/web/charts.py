"""The theme of all charts (no frame, light horizontal grid), groups of series, and bars and tables of figures.

Colours are names of variables of the stylesheet (`--accent`). charts.js replaces them with the colours of the current
theme, so that colours are defined in one place and charts follow the theme switch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from app.domain.contract.fields import METRICS
from app.domain.numbers import plural, significant
from app.storage.standings import RequestedDispatcher
from app.storage.suspect_evidence import ContainerDispatcher

TEXT, MUTED, BORDER, ACCENT = "--text", "--muted", "--border", "--accent"
BACKGROUND, BORDER_STRONG = "--bg", "--border-strong"
WARM_UP, SPIKE, BASELINE = "--muted", "--regression", "--text"
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
BAND_OPACITY = 0.15
HEIGHT = 300
TIME_LABEL = (
    "domain('x')[1] - domain('x')[0] < 3 * 864e5 ? utcFormat(datum.value, '%-d %b %H:%M')"
    " : utchours(datum.value) ? '' : utcFormat(datum.value, '%-d %b')"
)
"""Labels of a time axis: date and time of day if the axis spans less than three days, else each date once."""

LANE = 34
"""Height (px) of the lane above a chart that shows off-scale values as text."""
_LABEL_APART = 0.07
"""Minimum distance of two labels of the lane, as a share of the width."""

_MOST_NAMED = 12
"""Maximum values of a lane that the note below a chart lists one by one."""

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "gridColor": BORDER,
    },
    "axisX": {"grid": False, "domain": True, "domainColor": BORDER},
    "text": {"fontSize": 12, "color": MUTED},
}


def lane_labels(rows: list[dict[str, Any]], field: str, width: int) -> list[dict[str, Any]]:
    """Add the text `lane` to the rows of a lane. It is empty if a larger value is too close along `field`."""
    labelled: list[int] = []
    for row in sorted(rows, key=lambda row: -row["value"]):
        free = all(abs(row[field] - other) > _LABEL_APART * width for other in labelled)
        row["lane"] = row["text"] if free else ""
        labelled += [row[field]] if free else []
    return rows


def off_scale_note(values: Sequence[float]) -> str:
    """Return a note with the values of a lane, because not every mark has room for text; of many, the range."""
    ordered = sorted(values, reverse=True)
    texts = [significant(value) for value in ordered]
    shown = "; ".join(texts) if len(texts) <= _MOST_NAMED else f"{texts[-1]} to {texts[0]}"
    return f"{len(texts):,} off scale: {shown}."


def spread_labels(labels: Iterable[dict[str, Any]], field: str, apart: float) -> None:
    """Move overlapping labels upwards. Their text keeps the true value."""
    above = None
    for label in sorted(labels, key=lambda label: label[field]):
        if above is not None and label[field] < above + apart:
            label[field] = above + apart
        above = label[field]


def hit_area(alt: Any, x: Any, y: Any, *, field: str, tip: str, size: int) -> Any:
    """Return invisible marks that select the nearest point, so that users need not hit a point of three pixels.

    `field` identifies a point. `tip`: a Vega expression. `size`: the area of the mark that then appears (px²).
    """
    nearest = alt.selection_point(
        name="nearest", fields=[field], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    zoom = alt.selection_interval(name="zoom", encodings=["x"])
    area = alt.Chart(alt.NamedData("points")).mark_point(size=size, strokeWidth=2, filled=False, color=TEXT)
    shown = alt.when(nearest).then(alt.value(1)).otherwise(alt.value(0))
    return area.encode(x, y, opacity=shown, tooltip=alt.value(alt.expr(tip))).add_params(nearest, zoom)


def finished(chart: Any, height: float) -> dict[str, Any]:
    """Return the specification of an Altair chart in our theme, as wide as its container."""
    chart = chart.properties(width="container", height=height, config=CONFIG)
    spec: dict[str, Any] = chart.properties(autosize={"type": "fit-x", "contains": "padding"}).to_dict()
    return spec


# --- Compiling Vega-Lite, which Altair writes, to Vega, which the browser draws.

_SEPARATE = ("datasets", "description")
"""Parts that the compiler does not read and that differ between charts of the same kind."""


def vega(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification compiled to Vega. `datasets` is kept as it is: by the names of the sources in `data`."""
    separate = {name: spec[name] for name in _SEPARATE if name in spec}
    # Cached as text, which takes a fifth of the memory of the objects; parsing it takes 0.1 ms.
    text = _compiled(msgspec.json.encode({name: value for name, value in spec.items() if name not in separate}))
    return {**msgspec.json.decode(text), **separate}


@lru_cache(maxsize=512)
def _compiled(spec: bytes) -> bytes:
    """Compile a specification. This takes 10 ms; the first call takes half a second and 60 MB of memory."""
    import vl_convert  # noqa: PLC0415  only a process that draws should pay

    compiled = vl_convert.vegalite_to_vega(spec.decode())
    return msgspec.json.encode({name: value for name, value in compiled.items() if name != "$schema"})


# --- Groups of a run's series.

_TIMER, _MS, _FASTEST = "timer_", "_ms", "_min_ms"

GROUPS = ("Speed", "Loss", "Optimizer", "Router", "Batch", "Energy and memory", "Timers", "Other")
_MEMBERS = {
    "Speed": ("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu"),
    "Optimizer": (
        "learning_rate", "grad_norm", "loss_scale", "num_zeros", "params_norm", "skipped_iterations", "nan_iterations",
    ),
    "Batch": ("global_batch_size", "consumed_samples"),
}  # fmt: skip
_PARTS = (
    ("Router", ("router", "expert", "max_vio", "token_drop", "tokens_per_expert")),
    ("Loss", ("loss", "perplexity", "ppl")),
    ("Speed", ("tokens_per", "throughput", "tflops", "samples_per", "step_time")),
    ("Energy and memory", ("energy", "power", "memory", "mem_", "_mem")),
    ("Batch", ("batch", "samples", "seqlen", "sequence")),
    ("Optimizer", ("grad", "lr", "learning_rate", "norm")),
)
"""Names vary by trainer and fork, so a series belongs to the first group with a matching part of its name."""


def grouped_series(names: Iterable[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the non-empty groups, each with its (name, label) pairs in the given order."""
    groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
    for name in names:
        groups[_group(name)].append((name, series_label(name)))
    return [(group, members) for group, members in groups.items() if members]


def series_label(name: str) -> str:
    """Return the label of a series: the unit of throughput, the section of a timer, else the name of the column."""
    if name in METRICS:
        metric = METRICS[name]
        return metric.unit if "/" in metric.unit else metric.label
    if _is_timer(name):
        fastest = name.endswith(_FASTEST)
        stem = name.removeprefix(_TIMER).removesuffix(_FASTEST if fastest else _MS).replace("_", " ")
        return f"{stem}, fastest rank" if fastest else stem
    return name.replace("_", " ")


def _is_timer(name: str) -> bool:
    return name.startswith(_TIMER) and name.endswith(_MS)


def _group(name: str) -> str:
    if _is_timer(name):
        return "Timers"
    for group, members in _MEMBERS.items():
        if name in members:
            return group
    return next((group for group, parts in _PARTS if any(part in name for part in parts)), "Other")


# --- A change with its interval as a small bar. All rows of a table share an axis with zero in the middle.

_MIDDLE = 60.0
"""Middle of a drawing with a width of 120 (`.interval` in the stylesheet)."""
_LEAST_SPAN_PCT = 2.0
"""Minimum extent of the axis to each side, so that noise of 0.1 % does not look like a change."""


class Changed(Protocol):
    """A change in percent with its interval; None if unknown."""

    @property
    def delta_pct(self) -> float | None: ...
    @property
    def ci_low_pct(self) -> float | None: ...
    @property
    def ci_high_pct(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in units of the drawing. Without an interval, `low` and `high` are equal."""

    low: float
    middle: float
    high: float


def bar_span(changes: Iterable[Changed]) -> float:
    """Return the extent of the axis to each side in percent: up to the end of the widest interval."""
    ends = [
        abs(value)
        for change in changes
        for value in (change.delta_pct, change.ci_low_pct, change.ci_high_pct)
        if value is not None and math.isfinite(value)
    ]
    return max([_LEAST_SPAN_PCT, *ends])


def bar_of(change: Changed, span: float, *, less_is_better: bool) -> Bar | None:
    """Return the bar of a change; right is worse, as on an axis of step time."""
    if change.delta_pct is None:
        return None
    ends = (change.delta_pct if end is None else end for end in (change.ci_low_pct, change.ci_high_pct))
    scale = (_MIDDLE - 4 if less_is_better else 4 - _MIDDLE) / span
    room = _MIDDLE - 4
    at = sorted(round(_MIDDLE + min(max(scale * value, -room), room), 1) for value in (change.delta_pct, *ends))
    return Bar(*at)


# --- The table of availability: one row per container, one column per dispatcher.

DISPATCHERS = ("alltoall", "deepep", "hybridep", "ncclep", "allgather")


@dataclass(frozen=True, slots=True)
class AvailabilityTable:
    """`rows`: containers with one cell per dispatcher; None if no run shows whether it works, or requested it."""

    dispatchers: tuple[str, ...]
    rows: tuple[tuple[str | None, tuple[ContainerDispatcher | RequestedDispatcher | None, ...]], ...]

    @property
    def cells(self) -> list[ContainerDispatcher | RequestedDispatcher]:
        return [cell for _, cells in self.rows for cell in cells if cell]


def availability_table(items: Sequence[ContainerDispatcher | RequestedDispatcher]) -> AvailabilityTable:
    seen = {item.dispatcher for item in items}
    columns = (*(name for name in DISPATCHERS if name in seen), *sorted(seen - set(DISPATCHERS)))
    cells = {(item.container, item.dispatcher): item for item in items}
    containers = dict.fromkeys(item.container for item in items)
    rows = tuple((container, tuple(cells.get((container, name)) for name in columns)) for container in containers)
    return AvailabilityTable(columns, rows)


_MOST_NAMED = 2


def availability_summary(items: Sequence[ContainerDispatcher]) -> str:
    """Return which dispatchers are missing in which containers, in the order of the table."""
    if not items:
        return "No log shows yet which dispatchers a container has."
    missing = [item for item in items if not item.available]
    if not missing:
        containers = plural(len({item.container for item in items}), "container")
        return f"In {containers}, every dispatcher that was tried works."
    lacking: dict[str, list[str]] = {}
    for item in missing:
        lacking.setdefault(item.dispatcher, []).append((item.container or "an unknown container").rpartition("/")[2])
    (first, without), *others = lacking.items()
    parts = [f"{first} is missing in {_named(without)}", *(f"{name} in {_named(lack)}" for name, lack in others)]
    return f"{'; '.join(parts[: _MOST_NAMED + 1])}."


def _named(containers: Sequence[str]) -> str:
    return " and ".join(containers) if len(containers) <= _MOST_NAMED else plural(len(containers), "container")


# --- The bar of a training step with its parts (`templates/components/step_bar.html`).

STEP_BAR_WIDTH = 1_000


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A part of the bar. `share`: of the bar, 0 to 1. `x` and `width`: in thousandths of the bar."""

    kind: str
    label: str
    ms: float
    share: float
    x: float

    @property
    def width(self) -> float:
        return self.share * STEP_BAR_WIDTH


def bar_segments(parts: Iterable[tuple[str, str, float]], total_ms: float | None = None) -> tuple[BarSegment, ...]:
    """Return the parts (kind, label, ms) as segments, without empty ones. Without a total they fill the whole bar."""
    shown = [part for part in parts if part[2] > 0]
    total = total_ms or sum(ms for *_, ms in shown) or 1.0
    segments, x = [], 0.0
    for kind, label, ms in shown:
        segments.append(BarSegment(kind, label, ms, ms / total, x))
        x += STEP_BAR_WIDTH * ms / total
    return tuple(segments)

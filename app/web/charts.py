"""The theme of all charts (no frame, light horizontal grid), groups of series, and bars and tables of figures.

Colours are names of the stylesheet's variables (`--accent`). charts.js replaces them by the colours of the current
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
"""Labels of an axis of dates: with the time of day if the axis spans less than three days, else each day once."""

LANE = 34
"""Height in pixels of the lane above the axis, with the values that are off the scale as text."""
_LABEL_APART = 0.07
"""Share of the width between two labels of the lane; closer ones would cover each other."""

_MOST_NAMED = 12
"""Values of a lane that the note below a chart names."""

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
    """Add the text `lane` to the rows of a lane, empty where a larger value is too close along `field`."""
    labelled: list[int] = []
    for row in sorted(rows, key=lambda row: -row["value"]):
        free = all(abs(row[field] - other) > _LABEL_APART * width for other in labelled)
        row["lane"] = row["text"] if free else ""
        labelled += [row[field]] if free else []
    return rows


def off_scale_note(values: Sequence[float]) -> str:
    """Name the values of a lane, because not every mark has room for its text; of many, the ends."""
    ordered = sorted(values, reverse=True)
    texts = [significant(value) for value in ordered]
    shown = "; ".join(texts) if len(texts) <= _MOST_NAMED else f"{texts[-1]} to {texts[0]}"
    return f"{len(texts):,} off scale: {shown}."


def spread_labels(labels: Iterable[dict[str, Any]], field: str, apart: float) -> None:
    """Move labels that would overlap upwards; their text has the true value."""
    above = None
    for label in sorted(labels, key=lambda label: label[field]):
        if above is not None and label[field] < above + apart:
            label[field] = above + apart
        above = label[field]


def hit_area(alt: Any, x: Any, y: Any, *, field: str, tip: str, size: int) -> Any:
    """Draw invisible marks that make the nearest point respond, so that readers need not hit three pixels.

    `field` identifies a point; `tip` is a Vega expression; `size` is the area of the mark that appears.
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


# --- From Vega-Lite, which Altair writes, to Vega, which the script of a page draws.

_SEPARATE = ("datasets", "description")
"""What differs from chart to chart of a kind, and what the compiler does not read."""


def vega(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification compiled to Vega. `datasets` stays apart, by the names of the sources in `data`."""
    separate = {name: spec[name] for name in _SEPARATE if name in spec}
    # A copy of the text in memory is a fifth of the objects, and reading it takes a tenth of a millisecond.
    text = _compiled(msgspec.json.encode({name: value for name, value in spec.items() if name not in separate}))
    return {**msgspec.json.decode(text), **separate}


@lru_cache(maxsize=512)
def _compiled(spec: bytes) -> bytes:
    """Compile in 10 ms, the first time in half a second, and 60 MB of memory."""
    import vl_convert  # noqa: PLC0415  only a process that draws should pay

    compiled = vl_convert.vegalite_to_vega(spec.decode())
    return msgspec.json.encode({name: value for name, value in compiled.items() if name != "$schema"})


# --- The series of a run, in groups.

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
"""Printed names vary by trainer and fork: the first group with a part of the name takes it."""


def grouped_series(names: Iterable[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the non-empty groups, each with its (name, label) pairs in the given order."""
    groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
    for name in names:
        groups[_group(name)].append((name, series_label(name)))
    return [(group, members) for group, members in groups.items() if members]


def series_label(name: str) -> str:
    """Return the label of a series: for throughput its unit, for timers what they time, otherwise the column's name."""
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


# --- A change with its interval as a small bar. The rows of a table share the axis, with zero in the middle.

_MIDDLE = 60.0
"""Middle of a drawing that is 120 wide (`.interval` in the stylesheet)."""
_LEAST_SPAN_PCT = 2.0
"""Keeps noise of 0.1 % from looking like a change."""


class Changed(Protocol):
    """A change in percent; None where unknown."""

    @property
    def delta_pct(self) -> float | None: ...
    @property
    def ci_low_pct(self) -> float | None: ...
    @property
    def ci_high_pct(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in units of the drawing. `low` and `high` are equal without an interval."""

    low: float
    middle: float
    high: float


def bar_span(changes: Iterable[Changed]) -> float:
    """Return how many percent the axis extends to each side: up to the end of the widest interval."""
    ends = [
        abs(value)
        for change in changes
        for value in (change.delta_pct, change.ci_low_pct, change.ci_high_pct)
        if value is not None and math.isfinite(value)
    ]
    return max([_LEAST_SPAN_PCT, *ends])


def bar_of(change: Changed, span: float, *, less_is_better: bool) -> Bar | None:
    """Return the bar of a change, better to the right."""
    if change.delta_pct is None:
        return None
    ends = (change.delta_pct if end is None else end for end in (change.ci_low_pct, change.ci_high_pct))
    scale = (4 - _MIDDLE if less_is_better else _MIDDLE - 4) / span
    room = _MIDDLE - 4
    at = sorted(round(_MIDDLE + min(max(scale * value, -room), room), 1) for value in (change.delta_pct, *ends))
    return Bar(*at)


# --- The table of availability: one row per container, one column per dispatcher.

DISPATCHERS = ("alltoall", "deepep", "hybridep", "ncclep", "allgather")


@dataclass(frozen=True, slots=True)
class AvailabilityTable:
    """`rows`: containers with one cell per dispatcher; None where no run shows anything."""

    dispatchers: tuple[str, ...]
    rows: tuple[tuple[str | None, tuple[ContainerDispatcher | None, ...]], ...]


def availability_table(items: Sequence[ContainerDispatcher]) -> AvailabilityTable:
    seen = {item.dispatcher for item in items}
    columns = (*(name for name in DISPATCHERS if name in seen), *sorted(seen - set(DISPATCHERS)))
    cells = {(item.container, item.dispatcher): item for item in items}
    containers = dict.fromkeys(item.container for item in items)
    rows = tuple((container, tuple(cells.get((container, name)) for name in columns)) for container in containers)
    return AvailabilityTable(columns, rows)


def availability_summary(items: Sequence[ContainerDispatcher]) -> str:
    """Return the conclusion of the table as a sentence."""
    if not items:
        return "No log shows yet which dispatchers a container has."
    missing = [item for item in items if not item.available]
    if not missing:
        containers = plural(len({item.container for item in items}), "container")
        return f"In {containers}, every dispatcher that was tried works."
    tried = plural(len(items), "tried combination")
    return f"{len(missing)} of {tried} of container and dispatcher {'does' if len(missing) == 1 else 'do'} not work."


# --- The bar of a training step: its parts side by side (`templates/components/step_bar.html`).

STEP_BAR_WIDTH = 1_000


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A part of the bar. `share` of the bar; `x` and `width` are thousandths of it."""

    kind: str
    label: str
    ms: float
    share: float
    x: float

    @property
    def width(self) -> float:
        return self.share * STEP_BAR_WIDTH


def laid_out(parts: Iterable[tuple[str, str, float]], total_ms: float | None = None) -> tuple[BarSegment, ...]:
    """Place parts (kind, label, ms) side by side; without a total they fill the bar. Empty parts are left out."""
    shown = [part for part in parts if part[2] > 0]
    total = total_ms or sum(ms for *_, ms in shown) or 1.0
    segments, x = [], 0.0
    for kind, label, ms in shown:
        segments.append(BarSegment(kind, label, ms, ms / total, x))
        x += STEP_BAR_WIDTH * ms / total
    return tuple(segments)

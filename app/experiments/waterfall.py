"""The accepted changes of a journey as a waterfall: the start, a bar for each change, the result.

The bar of a change has the size that its A/B measured. Start and result are means over the runs of their
configurations. The bar before the result is what those differ by from the product of the A/Bs: no change, so it has no
colour of one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from app.domain.experiments.journey import AcceptedChange
from app.domain.numbers import gain_change, level_text, step_time, throughput_gain, time_saved
from app.domain.text import shortened

# --- Layout in drawing units. The axis of step times starts at zero if the changes are large. Otherwise it starts below
# the changes and says so, and start and result are marks, because only bars from zero are in proportion.

_PLOT, _TOP, _BELOW, _LEFT = 240, 34, 46, 64
_LEAST_PLOT, _PLOT_OF_LINK = 150, 30
"""A picture of few changes is lower."""
_FRAME, _LEAST_COLUMN, _BAR_SHARE, _WIDEST_BAR = 1320, 160, 0.62, 200
_LETTERS = 20
_LEAST_REST_PCT = 0.05
_LARGE, _SPACE = 0.5, 0.25
"""Change from which the axis starts at zero, as a share of the longest step; space below a smaller one."""
_MARK, _MARGIN = 4, 12
_FEWEST_TICKS = 2


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """`start_pct`, `width_pct`: the bar on an axis of step times from left to right, in percent of its width.

    `kind`: start, result, improvement, regression or rest; `join`: where the line to the next bar runs, None at the
    end.

    `above`: the figure over the bar; `label`, `note`: under it. `href`: its page, "" without one. `whisker`: the
    interval of the change, from top to bottom.
    """

    x: int
    y: int
    height: int
    kind: str
    above: str
    label: str
    note: str
    title: str
    href: str
    join: int | None
    whisker: tuple[int, int] | None = None
    start_pct: float = 0.0
    width_pct: float = 0.0

    def whisker_pct(self, base: int) -> tuple[float, float] | None:
        """Return the ends of the whisker on the same axis, above `base`."""
        if self.whisker is None:
            return None
        top, bottom = self.whisker
        return 100 * (base - bottom) / (base - _TOP), 100 * (base - top) / (base - _TOP)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """`ticks`: height and step time of each line of the axis, which starts at zero only if the lowest one is."""

    width: int
    height: int
    base: int
    bars: tuple[WaterfallBar, ...]
    label: str

    column: int
    bar_width: int
    ticks: tuple[tuple[int, str], ...]

    left = _LEFT


def waterfall(changes: Sequence[AcceptedChange]) -> Waterfall | None:
    """Lay out the bars; None without an accepted change."""
    if not changes:
        return None
    first, last = changes[0].before_ms, changes[-1].after_ms
    links = _links(changes, first, last)
    drawn = [first, last, *(ms for link in links for ms in (link.before_ms, link.after_ms))]
    drawn += [link.before_ms / (1 + link.gain.high_pct / 100) for link in links if link.gain is not None]
    least, most = min(drawn), max(drawn)
    floor = 0.0 if most - least >= _LARGE * most else max(0.0, least - _SPACE * (most - least))
    between = _tick_ms(most - floor)
    floor = between * math.floor(floor / between)
    plot = min(_LEAST_PLOT + _PLOT_OF_LINK * len(links), _PLOT)
    base = _TOP + plot

    def level(ms: float) -> int:
        return base - round(plot * (ms - floor) / (most - floor))

    def ending(y: int) -> int:
        return _MARK if floor else base - y

    bar_width = min(round(_BAR_SHARE * _FRAME / (len(links) + 2)), _WIDEST_BAR)
    column = max((_FRAME - _LEFT - _MARGIN - bar_width) // (len(links) + 1), _LEAST_COLUMN)
    bar_width = min(bar_width, round(_BAR_SHARE * column))
    at = level(first)
    bars = [_end(_LEFT, at, ending(at), (step_time(first), "start", ""), changes[0].of[0])]
    for place, link in enumerate(links, 1):
        top, bottom = sorted((level(link.before_ms), level(link.after_ms)))
        figure = gain_change(throughput_gain(link.before_ms, link.after_ms)).figure
        interval, whisker = "", None
        if link.gain is not None:
            at_level = f" at {level_text(link.level_pct)}" if link.level_pct else ""
            interval = f"({gain_change(link.gain.pct, link.gain.low_pct, link.gain.high_pct).interval}{at_level})"
            ends = [level(link.before_ms / (1 + pct / 100)) for pct in (link.gain.low_pct, link.gain.high_pct)]
            whisker = (min(ends), max(ends))
        bars.append(
            WaterfallBar(
                x=_LEFT + place * column,
                y=top,
                height=max(bottom - top, 2),
                kind=_kind(link),
                above=figure,
                label=shortened(link.title, _LETTERS),
                note=interval if link.experiment_id else "between the A/Bs",
                title=f"{link.title}: {figure}",
                href=f"/experiments/{link.experiment_id}" if link.experiment_id else "",
                join=level(link.after_ms),
                whisker=whisker,
            )
        )
    texts = (step_time(last), "now", gain_change(throughput_gain(first, last)).figure)
    at = level(last)
    bars.append(_end(_LEFT + len(bars) * column, at, ending(at), texts, changes[-1].of[1], last=True))
    label = f"Step time from {step_time(first)} to {step_time(last)} in {len(changes)} accepted changes"
    placed = tuple(
        replace(bar, start_pct=100 * (base - bar.y - bar.height) / plot, width_pct=100 * bar.height / plot)
        for bar in bars
    )
    width = _LEFT + (len(bars) - 1) * column + bar_width + _MARGIN
    lines = [floor + number * between for number in range(math.floor((most - floor) / between) + 1)]
    ticks = tuple((level(ms), f"{ms / 1000:g}\u202fs") for ms in lines)
    return Waterfall(width, base + _BELOW, base, placed, label, column, bar_width, ticks)


def _tick_ms(span_ms: float) -> float:
    """Return the distance of the lines of an axis: 1, 2 or 5 times a power of ten, for two to five of them."""
    power = 10.0 ** math.floor(math.log10(span_ms / _FEWEST_TICKS))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= span_ms / _FEWEST_TICKS)


def _end(
    x: int, y: int, height: int, texts: tuple[str, str, str], of: tuple[int | None, int], *, last: bool = False
) -> WaterfallBar:
    """Draw the start or the result. `texts`: the figure above it, its label and its note. `of`: a run, and how many."""
    run_id, count = of
    above, label, note = texts
    kind, join = ("result", None) if last else ("start", y)
    label = f"{label}, mean of {count}" if count > 1 else label if run_id is None else f"{label} #{run_id}"
    href = "" if run_id is None else f"/runs/{run_id}"
    return WaterfallBar(x, y, height, kind, above, label, note, f"{label}: {above}", href, join)


def _links(changes: Sequence[AcceptedChange], first_ms: float, last_ms: float) -> list[AcceptedChange]:
    """Return the changes one after another from the start, and the rest up to the result if it is visible."""
    links, at = [], first_ms
    for change in changes:
        gain = throughput_gain(change.before_ms, change.after_ms) if change.gain is None else change.gain.pct
        links.append(replace(change, before_ms=at, after_ms=at / (1 + gain / 100)))
        at = links[-1].after_ms
    rest = throughput_gain(at, last_ms)
    if abs(time_saved(rest)) >= _LEAST_REST_PCT:
        links.append(AcceptedChange(0, "not explained", at, last_ms, None))
    return links


def _kind(link: AcceptedChange) -> str:
    if not link.experiment_id:
        return "rest"
    return "improvement" if link.after_ms <= link.before_ms else "regression"


# --- The picture as a file, with its styles, always on white; as PNG for slides.

_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5b6472}.name{fill:#1b2130;font-weight:600}line{stroke:#8a93a1}"
    ".whisker{stroke:#1b2130;stroke-width:2}"
    ".start rect,.result rect{fill:#2457d6}.improvement rect{fill:#00734f}.regression rect{fill:#b3400a}"
    ".rest rect{fill:#8a93a1}.grid{stroke:#dfe3e8}"
)
_PNG_SCALE = 2.0


def waterfall_svg(picture: Waterfall) -> str:
    """Return the SVG file. Titles come from users, so every text is escaped."""
    size = f'width="{picture.width}" height="{picture.height}" viewBox="0 0 {picture.width} {picture.height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(picture.label)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{picture.width}" height="{picture.height}" style="fill:#fff"/>',
            '<text x="4" y="14">step time</text>',
            *(part for y, text in picture.ticks for part in _svg_tick(y, text, picture.width)),
            *(part for bar in picture.bars for part in _svg_bar(bar, picture)),
            "</svg>",
            "",
        ]
    )


def waterfall_png(picture: Waterfall) -> bytes:
    import vl_convert  # noqa: PLC0415  takes a tenth of a second to import

    image: bytes = vl_convert.svg_to_png(waterfall_svg(picture), scale=_PNG_SCALE)
    return image


def _svg_tick(y: int, text: str, width: int) -> Iterator[str]:
    yield f'<line class="grid" x1="{_LEFT - 8}" x2="{width}" y1="{y}" y2="{y}"/>'
    yield f'<text x="{_LEFT - 14}" y="{y + 4}" text-anchor="end">{text}</text>'


def _svg_bar(bar: WaterfallBar, picture: Waterfall) -> Iterator[str]:
    middle = bar.x + picture.bar_width // 2
    yield f'<g class="{bar.kind}"><title>{escape(bar.title)}</title>'
    yield f'<rect x="{bar.x}" y="{bar.y}" width="{picture.bar_width}" height="{bar.height}"/>'
    if bar.join is not None:
        yield f'<line x1="{bar.x + picture.bar_width}" y1="{bar.join}" x2="{bar.x + picture.column}" y2="{bar.join}"/>'
    if bar.whisker:
        yield f'<line class="whisker" x1="{middle}" y1="{bar.whisker[0]}" x2="{middle}" y2="{bar.whisker[1]}"/>'
    for y, text, kind in (
        (bar.y - 8, bar.above, "name"),
        (picture.base + 20, bar.label, "name"),
        (picture.base + 38, bar.note, "note"),
    ):
        yield f'<text x="{middle}" y="{y}" text-anchor="middle" class="{kind}">{escape(text)}</text>'
    yield "</g>"
